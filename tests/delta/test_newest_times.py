"""What the log of a table says of its newest row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.sla.newest_times import newest_ms, told_ms

NOON = 1_767_268_800_000


def write(path: Path, *rows: tuple[int, int | None]) -> None:
    """One file of rows: batch, and seconds after noon."""
    batches, at_ms = zip(*((batch, None if s is None else NOON + s * 1_000) for batch, s in rows), strict=True)
    times = pa.array(at_ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    write_deltalake(path, pa.table({"batch_id": pa.array(batches, pa.int64()), "timestamp": times}), mode="append")


def test_the_newest_row_of_all_files_counts_and_no_file_is_opened(tmp_path: Path) -> None:
    write(tmp_path, (0, 5), (0, 60))
    write(tmp_path, (1, 30))
    for file in tmp_path.glob("*.parquet"):
        file.write_bytes(b"nobody reads this")
    assert told_ms(tmp_path) == (NOON + 60_000, True)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (0, (None, True)),
        (1, (NOON + 5_000, True)),
        (2, (None, False)),
        (3, (NOON + 9_000, True)),
        (9, (NOON + 9_000, True)),
    ],
)
def test_files_of_later_batches_are_left_out_and_of_one_with_both_nothing_is_sure(
    tmp_path: Path, before: int, found: tuple[int | None, bool]
) -> None:
    write(tmp_path, (0, 5))
    write(tmp_path, (1, 7), (2, 9))
    assert told_ms(tmp_path, before_batch=before) == found


def test_where_the_log_is_not_sure_rows_are_read(tmp_path: Path) -> None:
    write(tmp_path, (0, 5))
    write(tmp_path, (1, 7), (2, 9))
    assert newest_ms(tmp_path, before_batch=2) == NOON + 7_000
    assert newest_ms(tmp_path) == NOON + 9_000


def test_a_table_without_rows_has_no_newest_one(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.schema([("timestamp", pa.timestamp("us", "UTC"))]).empty_table())
    assert told_ms(tmp_path) == told_ms(tmp_path, before_batch=1) == (None, True)


def test_a_file_of_nulls_alone_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, (0, None))
    assert told_ms(tmp_path) == (None, False)
