"""Files of other writers join a table and every reader finds them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.fence import Fence
from tidemark.storage.files import Files, stats_of, write_file

AT = datetime(2020, 1, 1, 1, 1, 1, 123_000, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "text": ["a", "x" * 100, None],
        "told": [True, False, None],
        "number": [1.5, -2.5, None],
        "count": [1, 7, None],
        "at": [AT, AT + timedelta(microseconds=1), None],
        "there": [datetime(2020, 1, 1, 1), datetime(2020, 1, 1, 2), None],  # noqa: DTZ001 - a clock without a zone
        "day": [date(2020, 1, 1), date(2020, 1, 3), None],
        "nothing": pl.Series([None] * 3, dtype=pl.String()),
        "bytes": [b"1", b"2", None],
    }
).with_columns(pl.col("at", "there").dt.cast_time_unit("us"))


def test_the_log_has_statistics_of_every_comparable_column() -> None:
    assert stats_of(ROWS) == {
        "numRecords": 3,
        "minValues": {"text": "a", "told": False, "number": -2.5, "count": 1, "at": "2020-01-01T01:01:01.123Z",
                      "there": "2020-01-01T01:00:00.000", "day": "2020-01-01"},
        "maxValues": {"text": "x" * 64 + "\U0010ffff", "told": True, "number": 1.5, "count": 7,
                      "at": "2020-01-01T01:01:01.124Z", "there": "2020-01-01T02:00:00.000", "day": "2020-01-03"},
        "nullCount": {"text": 1, "told": 1, "number": 1, "count": 1, "at": 1, "there": 1, "day": 1, "nothing": 3},
    }  # fmt: skip


def test_a_dictionary_has_values_that_repeat(tmp_path: Path) -> None:
    rows = pl.select(n=pl.int_range(2_000)).select(often=pl.col("n") % 7, text=pl.format("{}", "n"))
    for number, some in enumerate((rows, rows.head(1_000))):
        file = write_file(tmp_path, some.to_arrow(), batch_id=number)
        group = pq.read_metadata(file.path).row_group(0)
        encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(2)}
        has_dictionary = {name for name, kinds in encodings.items() if "RLE_DICTIONARY" in kinds}
        # A small file has dictionaries for all of its columns: too few of its rows would be looked at.
        assert has_dictionary == ({"often", "text"} if number else {"often"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("0.1"), LAST, LAST.replace(tzinfo=None)])
def test_a_file_with_values_not_in_json_has_its_row_count(tmp_path: Path, value: float | Decimal | datetime) -> None:
    rows = pl.DataFrame({"count": [1, 2], "value": [value, None]})
    assert stats_of(rows) == {"numRecords": 2}
    create(tmp_path, rows.to_arrow().schema)
    Committer("app", Fence(clock=lambda: 0)).commit(
        tmp_path, Files((write_file(tmp_path, rows.to_arrow(), batch_id=1),)), 1
    )
    assert scan(tmp_path).filter(pl.col("count") == 2).collect().height == 1


@pytest.mark.parametrize(
    "wanted",
    [
        pl.col("text") == "x" * 100,
        pl.col("told") == False,  # noqa: E712 - what a reader pushes down to files
        pl.col("count") == 7,
        pl.col("number") == 1.5,
        pl.col("at") >= AT,
        pl.col("at") > AT,
        pl.col("there") == datetime(2020, 1, 1, 2),  # noqa: DTZ001 - a clock without a zone
        pl.col("day") == date(2020, 1, 3),
        pl.col("bytes") == b"2",
        pl.col("nothing").is_null() & (pl.col("count") == 1),
    ],
    ids=str,
)
def test_a_row_of_an_added_file_is_found_by_each_column(tmp_path: Path, wanted: pl.Expr) -> None:
    table = tmp_path / "table"
    create(table, ROWS.to_arrow().schema)
    committer = Committer("app", Fence(clock=lambda: 0))
    committer.commit(table, ROWS.head(0).to_arrow(), 0)
    for _ in range(2):  # once, however often it is tried
        committer.commit(table, Files((write_file(table, ROWS.to_arrow(), batch_id=1),)), 1)
    assert scan(table).filter(wanted).collect().height == ROWS.filter(wanted).height > 0
    committer.commit(table, Files((write_file(table, ROWS.to_arrow(), batch_id=2),)), 2)
    assert scan(table).select(pl.len()).collect().item() == 6
