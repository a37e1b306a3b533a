"""A record that no expression accepts is named by its error."""

from __future__ import annotations

import polars as pl
import pytest

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.stream.driver.reason import as_reason
from tidemark.stream.startup.fatal import blame


def test_the_record_that_a_batch_fails_with_is_named() -> None:
    rows = pl.DataFrame(
        {
            "source": ["events"] * 5,
            "partition": [0, 1, 0, 1, 1],
            "offset": [7, 3, 8, 4, 5],
            "key": [b"a", b"b", b"c", b"poison", b"d"],
            "v": ["1", "2", "3", "many", "4"],
        }
    )

    def decide(some: pl.DataFrame) -> None:
        if "many" in some["v"]:
            msg = "many is no number"
            raise InvalidArgument(msg)

    with pytest.raises(InvalidArgument) as raised:
        decide(rows)
    blame(raised.value, lambda: rows, decide)
    assert as_reason(raised.value).splitlines()[-1] == "the record: source events, partition 1, offset 4, key 'poison'"


def test_errors_that_are_about_no_record_name_none() -> None:
    asked: list[object] = []
    error = TidemarkError("the broker is gone")
    blame(error, lambda: asked.append("rows") or pl.DataFrame({"source": ["events"] * 3}), asked.append)
    assert (as_reason(error), asked) == ("TidemarkError: the broker is gone", [])


def test_an_error_whose_rows_cannot_be_read_again_stays_the_error() -> None:
    def read() -> pl.DataFrame:
        msg = "the broker is gone, too"
        raise OSError(msg)

    error = InvalidArgument("many is no number")
    blame(error, read, lambda rows: None)
    assert as_reason(error) == "InvalidArgument: many is no number"


def test_an_error_that_does_not_come_again_names_no_record() -> None:
    error = InvalidArgument("once")
    blame(error, lambda: pl.DataFrame({"source": ["events"] * 3}), lambda rows: None)
    assert as_reason(error) == "InvalidArgument: once"
