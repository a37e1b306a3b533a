"""Files that others wrote become part of a table, and every reader finds their rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from tidemark.delta import Committer, create, scan
from tidemark.files import Files, stats_of, write_file

AT = datetime(2020, 1, 1, 1, 1, 1, 123_000, tzinfo=UTC)
ROWS = pl.DataFrame(
    {
        "text": ["a", "x" * 100, None],
        "told": [True, False, None],
        "number": [1.5, float("nan"), None],
        "count": [1, 7, None],
        "at": [AT, AT, None],
        "nothing": pl.Series([None] * 3, dtype=pl.String()),
        "bytes": [b"1", b"2", None],
    }
).with_columns(pl.col("at").dt.cast_time_unit("us"))


def test_the_log_says_something_of_every_column_that_can_be_compared() -> None:
    assert stats_of(ROWS) == {
        "numRecords": 3,
        "minValues": {"text": "a", "told": False, "number": -1.7976931348623157e308, "count": 1,
                      "at": "2020-01-01T01:01:01.123Z"},
        "maxValues": {"text": "x" * 64 + "\U0010ffff", "told": True, "number": 1.7976931348623157e308, "count": 7,
                      "at": "2020-01-01T01:01:01.123Z"},
        "nullCount": {"text": 1, "told": 1, "number": 1, "count": 1, "at": 1, "nothing": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    "wanted",
    [
        pl.col("text") == "x" * 100,
        pl.col("told") == False,  # noqa: E712 - what a reader pushes down to files
        pl.col("count") == 7,
        pl.col("number") == 1.5,
        pl.col("at") >= AT,
        pl.col("bytes") == b"2",
        pl.col("nothing").is_null() & (pl.col("count") == 1),
    ],
    ids=str,
)
def test_a_row_of_an_adopted_file_is_found_by_each_of_its_columns(tmp_path: Path, wanted: pl.Expr) -> None:
    table = tmp_path / "table"
    create(table, ROWS.to_arrow().schema)
    committer = Committer("app", lambda: 0)
    committer.commit(table, ROWS.head(0).to_arrow(), 0)
    committer.adopt(table, Files((write_file(table, "spread", ROWS.to_arrow()),)), 1)
    committer.adopt(table, Files((write_file(table, "spread", ROWS.to_arrow()),)), 1)  # once, however often it is tried
    assert scan(table).filter(wanted).collect().height == ROWS.filter(wanted).height > 0
    committer.adopt(table, Files((write_file(table, "spread", ROWS.to_arrow()),)), 2)
    assert scan(table).select(pl.len()).collect().item() == 6
