"""What is suppressed stalls nobody: a topic carries marks of time, which its reader believes of its writer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playing import NEWEST, NOON, Crash, Play, Row, crash_at, ms

from tidemark.errors import InvalidSpec
from tidemark.kernels.marks import mark_text
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress

SENDING = (
    NEWEST.replace('bound = "1 s"', 'bound = "1 s"\nidle_after = "30 s"')
    + """
[operators.out]
kind = "sink"
input = "newest"
topic = "out"
marks = true
"""
)
READING = NEWEST.replace('bound = "1 s"', 'bound = "2 s"\nwritten_by = "up/0"')


def at(play: Play, second: float) -> None:
    """A record that repeats the value: after the first one it is suppressed."""
    play.batch([play.row("events", ms(second), key="a", id="a", v=1)], at_ms=ms(second))


def marks(play: Play) -> list[tuple[int | None, bool]]:
    """Watermarks as ms after noon, and status."""
    return [(None if mark is None else mark - NOON, idle) for _, mark, idle in play.broker.marked]


def test_a_mark_is_sent_when_time_moved_and_not_too_often(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    for second in (1, 4, 10, 11, 12, 21):
        at(play, second)
    assert marks(play) == [(-1, False), (9_999, False), (19_999, False)]
    assert len(play.broker.published) == 1


def test_what_moved_since_is_sent_later_though_nothing_comes(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    for second in (1, 4):
        at(play, second)
    for second in (5, 11, 22, 35, 60):
        play.batch(at_ms=ms(second))
    assert marks(play) == [(-1, False), (2_999, False), (2_999, True)]


def test_a_mark_is_sent_again_when_a_batch_is(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    play.start("0", crash_at("committed out"))
    row = play.row("events", ms(1), key="a", id="a", v=1)
    with pytest.raises(Crash):
        play.batch([row], at_ms=ms(1))
    assert marks(play) == []
    play.start("0", epoch=2)
    play.batch([row], at_ms=ms(1))
    assert marks(play) == [(-1, False)]


def mark(play: Play, writer: str, watermark_ms: int, *, idle: bool = False, partition: int = 0) -> Row:
    """A mark as Spark reads it: nothing in it can be used."""
    header = {"key": "tidemark-mark", "value": mark_text(writer, watermark_ms, idle=idle).encode()}
    row = play.row("events", ms(99), partition=partition, key=None)
    nothing: dict[str, Any] = dict.fromkeys(row["events"])
    return {**row, "events": nothing, "timestamp_ms": None, "reason": "null_value", "headers": [header]}


def read(play: Play) -> InputProgress:
    progress = play._engines["0"].progress
    assert progress is not None
    return progress.inputs["events"]


@pytest.mark.parametrize(("writer", "reached_ms"), [("up/0", 40_000), ("up/1", -1_001), ("forged/0", -1_001)])
def test_a_mark_moves_time_if_its_writer_is_the_one_named(tmp_path: Path, writer: str, reached_ms: int) -> None:
    play = Play(READING, tmp_path)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    play.batch([mark(play, writer, NOON + 40_000)], at_ms=ms(41))
    assert read(play).watermark_ms == NOON + reached_ms
    assert play.rows("quarantine") == []
    outcome = [r for r in play.rows("outcomes") if r["operator"] == "events"][-1]
    assert (outcome["records_in"], outcome["filtered"], outcome["quarantined"]) == (1, 1, 0)


def test_of_two_writers_none_speaks_for_the_other(tmp_path: Path) -> None:
    play = Play(READING.replace('"up/0"', '["up/0", "up/1"]'), tmp_path)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    play.batch([mark(play, "up/0", NOON + 40_000)], at_ms=ms(41))
    assert read(play).watermark_ms == NOON - 1_001


def test_a_partition_is_idle_while_its_writer_says_so(tmp_path: Path) -> None:
    play = Play(READING, tmp_path, partitions=2)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    marks = [mark(play, "up/0", NOON + 5_000, idle=True, partition=number) for number in (0, 1)]
    play.batch(marks, at_ms=ms(6))
    assert (read(play).watermark_ms, read(play).idle) == (NOON + 5_000, True)
    play.start("0", epoch=2)
    play.batch(at_ms=ms(7))
    assert read(play).idle
    play.batch([play.row("events", ms(20), key="a", id="a", v=2)], at_ms=ms(20))
    assert [p.activity for p in read(play).partitions.values()] == [Activity.ACTIVE, Activity.IDLE]
    assert read(play).watermark_ms == ms(18) - 1


def test_marks_are_for_topics(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"operators\.board\.marks"):
        Play(NEWEST.replace('mode = "current"', 'mode = "current"\nmarks = true'), tmp_path)
    with pytest.raises(InvalidSpec, match="mark_every: is there without marks"):
        Play(SENDING.replace("marks = true", 'mark_every = "5 s"'), tmp_path)
