"""In silence a batch comes only when something is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.play import NOON, Play, ms
from support.quiet_broker import Ends
from support.separate_executors import Apart
from support.topologies import NEWEST, NEWEST_SENT, aggregate, operators, sink
from tidemark.semantics.idleness import Activity

IDLE = NEWEST.replace('bound = "1 s"', 'bound = "1 s"\nidle_after = "30 s"')
SENDING = NEWEST_SENT.replace('bound = "1 s"', 'bound = "1 s"\nidle_after = "30 s"') + "marks = true\n"
NIGHT = IDLE.replace('idle_after = "30 s"', 'idle_after = "30 s"\nidle_advances = true')
DRIFT = IDLE.replace('name = "play"', 'name = "play"\nmax_drift = "10 s"')
PERIODIC = NEWEST.replace('columns = ["v"]\n', 'columns = ["v"]\nstrategy = "periodic"\ninterval = "10 s"\n')
CLOSING = NIGHT + operators(
    counts=aggregate(
        key=["id"], window={"tumbling": "1 min"}, strategy="on_window_close", aggregates={"n": "count(*)"}
    ),
    counts_board=sink("counts", table="counts_board"),
)


def due(play: Play) -> float | None:
    """When the next batch is due, in s after noon."""
    at_ms = play._engines[play.sub].due_at_ms
    return None if at_ms is None else (at_ms - NOON) / 1_000


def read(play: Play, *seconds: float, at: float, v: int = 1, partition: int = 0) -> None:
    """Records of these times in a batch decided *at*, s after noon."""
    rows = [play.row("events", ms(second), partition=partition, key="a", id="a", v=v) for second in seconds]
    play.batch(rows, at_ms=ms(at))


def in_silence(play: Play, batches: int) -> list[float]:
    """Returns the times at which *batches* were due in silence.

    Each was news, and would have been none 1 ms before.
    """
    instants = []
    for _ in range(batches):
        at_s = due(play)
        assert at_s is not None
        before = play._engines[play.sub].progress
        play.batch(at_ms=ms(at_s) - 1)
        assert play._engines[play.sub].progress is before, f"nothing was due before {at_s}"
        assert due(play) == at_s
        play.batch(at_ms=ms(at_s))
        assert play._engines[play.sub].progress is not before, f"something was due at {at_s}"
        instants.append(at_s)
    return instants


def test_the_first_batch_is_due_at_once(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    play.start()
    assert play._engines[play.sub].due_at_ms == 0


def test_without_a_timeout_nothing_is_due_in_silence(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    read(play, 1, at=2)
    assert due(play) is None


def test_a_partition_is_due_when_it_turns_idle(tmp_path: Path) -> None:
    play = Play(IDLE, tmp_path, partitions=2)
    read(play, 1, at=2)  # the other partition is silent since then, too
    read(play, 5, at=7, partition=1)
    assert in_silence(play, 2) == [32.001, 37.001]
    assert due(play) is None


def test_a_partition_not_read_to_its_end_is_not_due_again(tmp_path: Path) -> None:
    play = Play(IDLE, tmp_path)
    broker = play.broker = Ends(1)
    read(play, 1, at=2)
    broker.ends[0] = 7
    play.batch(at_ms=ms(32.001))
    progress = play._engines[play.sub].progress
    assert progress is not None
    assert progress.inputs["events"].partitions[0].activity is Activity.BACKLOGGED
    assert due(play) is None, "records will come"


def test_a_mark_is_due_when_the_last_one_is_old_enough(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    read(play, 1, at=1)
    assert due(play) == 31.001, "the mark of this batch has the newest watermark"
    read(play, 4, at=4)
    assert in_silence(play, 2) == [11, 34.001], "10 s after the mark of second 1; silent since second 4"
    assert due(play) is None


def test_no_suppressed_update_in_a_minute_is_due_once(tmp_path: Path) -> None:
    play = Play(f'level = "debug"{NEWEST}', tmp_path)
    read(play, 1, 2, at=2)
    read(play, 3, 4, at=5)
    assert in_silence(play, 1) == [65]
    assert due(play) is None


def test_a_periodic_result_is_due_at_each_end_of_its_interval(tmp_path: Path) -> None:
    play = Play(PERIODIC, tmp_path)
    play.batch(at_ms=ms(1))
    assert due(play) is None, "there is no result yet"
    read(play, 2, at=3)
    assert in_silence(play, 3) == [10, 20, 30]


def test_in_shards_a_periodic_result_is_due_too(tmp_path: Path) -> None:
    play = Play(PERIODIC, tmp_path).in_shards(2, Apart)
    play.batch(at_ms=ms(1))
    assert due(play) == 10, "only the tasks know that there is no result"
    play.batch(at_ms=ms(10))
    assert due(play) is None
    read(play, 12, at=13)
    assert in_silence(play, 2) == [20, 30]


def test_a_night_is_due_when_the_silence_has_doubled(tmp_path: Path) -> None:
    play = Play(NIGHT, tmp_path)
    read(play, 0, at=0)
    assert in_silence(play, 4) == [30.001, 60, 120, 240]


def test_a_window_closes_in_silence_as_soon_as_it_is_due(tmp_path: Path) -> None:
    play = Play(CLOSING, tmp_path)
    read(play, 0, 10, at=10)
    # Time is that of a record at 10 s + 30, 60 s less the bound of 1 s: the minute is over at 10 + 60 - 1.
    in_silence(play, 1)
    assert play.rows("counts_board") == []
    assert in_silence(play, 1) == [70]
    assert [row["n"] for row in play.rows("counts_board")] == [2]


def test_records_that_wait_are_due_once_they_may_be_read(tmp_path: Path) -> None:
    play = Play(DRIFT, tmp_path, partitions=2)
    play.batch([play.row("events", ms(1), id="a", v=1)], at_ms=ms(1))
    read(play, 100, 101, at=2, partition=1)  # after 100 s it is more than 10 s ahead of the other
    assert due(play) == 2.001, "it counts as backlogged then"
    play.batch(at_ms=ms(3))
    assert in_silence(play, 1) == [31.001], "the slower one turns idle"
    assert due(play) == 31.002, "and no longer holds the other back"
    play.batch(at_ms=ms(31.5))
    assert len(play.rows("board")) == 1
    assert due(play) == 32.001, "read at 2 s"


@pytest.mark.parametrize("every_s", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("toml", [IDLE, SENDING, NIGHT, DRIFT, PERIODIC, CLOSING])
def test_nothing_is_news_between_what_is_due(tmp_path: Path, toml: str, every_s: int) -> None:
    play = Play(toml, tmp_path, partitions=2)
    read(play, 1, 3, at=3)
    read(play, 40, 41, at=42, partition=1)
    at_s, engine = 42.0, play._engines[play.sub]
    while at_s < 100 and (due_s := due(play)) is not None:
        before = engine.progress
        for second in range(int(at_s) + 1, min(int(due_s) + 1, 100), every_s):
            if at_s < second < due_s:
                play.batch(at_ms=ms(second))
                assert engine.progress is before, f"second {second}, before {due_s}"
        play.batch(at_ms=ms(due_s))
        assert engine.progress is not before, f"second {due_s}"
        at_s = due_s
