"""Bounds are compared over what the batches of a stream wrote down."""

from __future__ import annotations

from pathlib import Path

import pytest
from playing import Play

from tidemark.cli.bound import bound_rows
from tidemark.errors import InvalidArgument

NOON = 1_399_982_400_000
TOML = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, amount double, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
[operators.board]
kind = "sink"
input = "events"
table = "board"
"""


def ms(seconds: int) -> int:
    return NOON + seconds * 1_000


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """The first batch brings time to 12:00:05; of the second, records come 0, 2 and 5 s behind that, and one ahead."""
    played = Play(TOML, tmp_path)
    for at_s, times in ((10, [5]), (20, [5, 3, 0, 6])):
        played.batch([played.row("events", ms(time), amount=1.0) for time in times], at_ms=ms(at_s))
    return played


def test_bounds_are_compared_over_a_stream_s_batches(play: Play) -> None:
    rows = bound_rows(play.home, play.topology)
    costs = {choice: (bound_ms, records, late) for _, choice, bound_ms, records, late, *_ in rows}
    assert costs["none"] == (0, 5, 2)
    assert costs["current"] == (1_000, 5, 2)
    bound_ms, _, late = costs["100 % in time"]
    assert late == 0
    assert bound_ms == pytest.approx(5_000, rel=0.02)


def test_an_interval_of_decision_times_leaves_out_the_other_batches(play: Play) -> None:
    home = play.home
    for interval, records in (({"end_ms": ms(20)}, 1), ({"start_ms": ms(20)}, 4), ({"start_ms": ms(21)}, None)):
        rows = bound_rows(home, play.topology, source="events", **interval)
        assert {row[3] for row in rows} == ({records} if records else set())


def test_a_source_that_is_not_there_is_refused_with_the_known_ones(play: Play) -> None:
    with pytest.raises(InvalidArgument, match="play has no source 'event'; known: events"):
        bound_rows(play.home, play.topology, source="event")
