"""A record that no expression can take is named by the error that it causes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from playing import Play

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.stream.blame import as_reason, blame

T = 1_400_000_000_000
NUMBERS = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v string, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
[operators.numbers]
kind = "map"
input = "events"
select = { id = "id", n = "CAST(v AS INTEGER)" }
[operators.out]
kind = "sink"
input = "numbers"
table = "out"
"""


def test_the_record_that_an_expression_cannot_take_is_named(tmp_path: Path) -> None:
    play = Play(NUMBERS, tmp_path, partitions=2)
    play.batch([play.row("events", T, id="a", v="1")], at_ms=T)
    good = [play.row("events", T + n, partition=n % 2, key=f"k{n}", id="a", v=str(n)) for n in range(7)]
    bad = play.row("events", T + 7, partition=1, key="poison", id="b", v="many")
    after = [play.row("events", T + 8 + n, partition=n % 2, id="c", v="9") for n in range(3)]
    with pytest.raises(InvalidArgument, match="many") as raised:
        play.batch([*good, bad, *after], at_ms=T + 1_000)
    # partition 1 got the 1st, 3rd and 5th of the good ones before
    assert as_reason(raised.value).splitlines()[-1] == "the record: source events, partition 1, offset 3, key 'poison'"


def test_errors_that_are_about_no_record_name_none() -> None:
    rows = pl.DataFrame({"source": ["events"] * 3})
    asked = []
    error = TidemarkError("the broker is gone")
    blame(error, rows, asked.append)
    assert (as_reason(error), asked) == ("TidemarkError: the broker is gone", [])


def test_an_error_that_does_not_come_again_names_no_record() -> None:
    error = InvalidArgument("once")
    blame(error, pl.DataFrame({"source": ["events"] * 3}), lambda rows: None)
    assert as_reason(error) == "InvalidArgument: once"
