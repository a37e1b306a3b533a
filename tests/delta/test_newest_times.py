"""Newest rows according to the log of a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.facts.measures.newest_times import newest_in_log, newest_ms

NOON = 1_767_268_800_000


def write(path: Path, *rows: tuple[int, int | None]) -> None:
    """Writes one file of rows: batch, and seconds after noon."""
    batches, at_ms = zip(*((batch, None if s is None else NOON + s * 1_000) for batch, s in rows), strict=True)
    times = pa.array(at_ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    write_deltalake(path, pa.table({"batch_id": pa.array(batches, pa.int64()), "timestamp": times}), mode="append")


def test_the_newest_row_is_found_without_opening_a_file(tmp_path: Path) -> None:
    write(tmp_path, (0, 5), (0, 60))
    write(tmp_path, (1, 30))
    for file in tmp_path.glob("*.parquet"):
        file.write_bytes(b"nobody reads this")
    assert newest_in_log(tmp_path) == (NOON + 60_000, True)


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
def test_later_files_are_excluded_and_mixed_files_are_unsure(
    tmp_path: Path, before: int, found: tuple[int | None, bool]
) -> None:
    write(tmp_path, (0, 5))
    write(tmp_path, (1, 7), (2, 9))
    assert newest_in_log(tmp_path, before_batch=before) == found


def test_rows_are_read_when_the_log_is_not_conclusive(tmp_path: Path) -> None:
    write(tmp_path, (0, 5))
    write(tmp_path, (1, 7), (2, 9))
    assert newest_ms(tmp_path, before_batch=2) == NOON + 7_000
    assert newest_ms(tmp_path) == NOON + 9_000


def test_a_table_without_rows_has_no_newest_one(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.schema([("timestamp", pa.timestamp("us", "UTC"))]).empty_table())
    assert newest_in_log(tmp_path) == newest_in_log(tmp_path, before_batch=1) == (None, True)


def test_a_file_of_nulls_has_no_newest_time(tmp_path: Path) -> None:
    write(tmp_path, (0, None))
    assert newest_in_log(tmp_path) == (None, False)
