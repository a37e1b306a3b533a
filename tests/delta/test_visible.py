"""A result counts as finished once others can see it.

The clock continues while a batch is worked on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import NEWEST
from tidemark.clock import wall_clock_ms

T = 1_770_033_600_000
NOBODY_READS = NEWEST.partition("[operators.board]")[0].replace('name = "play"', 'name = "play"\nwindow = "5 s"')
"""The table `newest`, which has no readers."""
PER_5_S = NOBODY_READS.replace("table", "aggregate").replace('columns = ["v"]', 'aggregates = { n = "count(*)" }')
CLOSED = 'window = { tumbling = "5 s" }\nstrategy = "on_window_close"\n'


def played(toml: str, home: Path) -> Play:
    """Each write takes a second.

    The journal's from T + 1 s to 2 s, that of `changes` from then to 3 s.
    """
    play = Play(toml, home)
    play.write_ms = 1_000
    play.batch([play.row("events", T, id="a", v=1)], at_ms=T + 1_000)
    return play


def latency(play: Play, operator: str) -> list[tuple[Any, ...]]:
    found = [row for row in play.rows("operator_batches") if row["operator"] == operator and row["n"]]
    return [tuple(row[c] for c in ("batch_id", "n", "min_ms", "max_ms", "queued_ms", "recovered")) for row in found]


@pytest.mark.parametrize("toml", [NOBODY_READS, PER_5_S])
def test_an_unread_table_finishes_when_its_rows_are_visible(tmp_path: Path, toml: str) -> None:
    play = played(toml, tmp_path)
    assert latency(play, "newest") == [(0, 1, 3_000, 3_000, 1_000, False)]
    assert latency(play, "events") == [(0, 1, 1_000, 1_000, 0, False)]


def test_a_window_of_an_unread_table_finishes_when_visible(tmp_path: Path) -> None:
    play = played(NOBODY_READS, tmp_path)
    play.batch([play.row("events", T + 6_000, id="a", v=2)], at_ms=T + 10_000)
    ewt = {row["operator"]: (row["ewt_at"], row["queued_ms"]) for row in play.rows("operator_windows")}
    assert ewt == {"events": (T + 10_000, 0), "newest": (T + 12_000, 1_000)}


def test_without_a_new_row_it_has_finished_with_its_work(tmp_path: Path) -> None:
    play = played(NOBODY_READS, tmp_path)
    play.batch([play.row("events", T + 500, id="a", v=1)], at_ms=T + 10_000)
    assert latency(play, "newest")[1] == (1, 1, 9_500, 9_500, 0, False)


def test_a_table_with_readers_finishes_with_its_work(tmp_path: Path) -> None:
    play = played(NEWEST.replace('name = "play"', 'name = "play"\nlevel = "trace"'), tmp_path)
    assert latency(play, "newest") == [(0, 1, 1_000, 1_000, 0, False)]
    assert latency(play, "board") == [(0, 1, 4_000, 4_000, 1_000, False)]


def test_after_a_crash_recovery_records_the_visible_time(tmp_path: Path) -> None:
    play = Play(NOBODY_READS, tmp_path)
    play.start(reached=crash_at("decided"))
    rows = [play.row("events", T, id="a", v=1)]
    with pytest.raises(Crash):
        play.process(0, rows, at_ms=T + 1_000)
    play.start(epoch=2)
    play.process(0, rows, at_ms=T + 100_000)
    assert latency(play, "newest") == [(0, 1, 100_000, 100_000, 99_000, True)]
    assert latency(play, "events") == [(0, 1, 1_000, 1_000, 0, False)]


def test_rows_committed_before_a_crash_keep_their_visible_time(tmp_path: Path) -> None:
    play, now_ms = Play(NOBODY_READS, tmp_path), wall_clock_ms()
    play.start(reached=crash_at("committed changes"))
    rows = [play.row("events", now_ms, id="a", v=1)]
    with pytest.raises(Crash):
        play.process(0, rows, at_ms=now_ms)
    play.start(epoch=2)
    play.process(0, rows, at_ms=now_ms, now_ms=now_ms + 1_000_000)
    ((_, _, shown_ms, _, queued_ms, is_recovered),) = latency(play, "newest")
    assert shown_ms < 1_000_000  # by the commit, whose clock is the one on the wall
    assert (queued_ms, is_recovered) == (shown_ms, True)


def test_held_results_are_measured_when_they_are_sent(tmp_path: Path) -> None:
    play = played(PER_5_S + CLOSED, tmp_path)
    assert latency(play, "newest") == []
    play.batch([play.row("events", T + 6_000, id="a", v=1)], at_ms=T + 8_000)
    assert [(row[0], row[1]) for row in latency(play, "newest")] == [(1, 1)]
