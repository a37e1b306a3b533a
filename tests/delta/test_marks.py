"""Topics carry marks of time, so suppression does not stall readers.

A reader accepts marks of the named writer alone.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, ms
from support.topologies import NEWEST, operators, sink
from tidemark.control.folder import TimeReset
from tidemark.errors import InvalidSpec
from tidemark.kernels.records.marks import mark_text
from tidemark.model.kinds.source import Source
from tidemark.model.topology import parse
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress
from tidemark.stream.read.table_marks import TableMarks

SENDING = NEWEST.replace('bound = "1 s"', 'bound = "1 s"\nidle_after = "30 s"') + operators(
    out=sink("newest", topic="out", marks=True),
)
READING = NEWEST.replace('bound = "1 s"', 'bound = "2 s"\nwritten_by = "up/events"')


def at(play: Play, second: float) -> None:
    """Runs a batch whose record repeats the value.

    After the first batch it is suppressed.
    """
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


def test_progress_since_a_mark_is_sent_without_new_records(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    for second in (1, 4):
        at(play, second)
    for second in (5, 11, 22, 35, 60):
        play.batch(at_ms=ms(second))
    assert marks(play) == [(-1, False), (2_999, False), (2_999, True)]


def test_a_mark_is_sent_again_when_a_batch_is(tmp_path: Path) -> None:
    play = Play(SENDING, tmp_path)
    play.start(reached=crash_at("committed out"))
    row = play.row("events", ms(1), key="a", id="a", v=1)
    with pytest.raises(Crash):
        play.batch([row], at_ms=ms(1))
    assert marks(play) == []
    play.start(epoch=2)
    play.batch([row], at_ms=ms(1))
    assert marks(play) == [(-1, False)]


def mark(play: Play, writer: str, watermark_ms: int, *, idle: bool = False, partition: int = 0) -> Row:
    """A mark as Spark reads it: nothing in it can be used."""
    header = {"key": "tidemark-mark", "value": mark_text(writer, watermark_ms, idle=idle).encode()}
    row = play.row("events", ms(99), partition=partition, key=None)
    nothing: dict[str, Any] = dict.fromkeys(row["events"])
    return {**row, "events": nothing, "timestamp_ms": None, "reason": "null_value", "headers": [header]}


def read(play: Play) -> InputProgress:
    progress = play._engines[play.sub].progress
    assert progress is not None
    return progress.inputs["events"]


@pytest.mark.parametrize(("writer", "reached_ms"), [("up/events", 40_000), ("up/1", -1_001), ("forged/0", -1_001)])
def test_a_mark_moves_time_if_its_writer_is_the_one_named(tmp_path: Path, writer: str, reached_ms: int) -> None:
    play = Play(READING, tmp_path)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    play.batch([mark(play, writer, NOON + 40_000)], at_ms=ms(41))
    assert read(play).watermark_ms == NOON + reached_ms
    assert play.rows("quarantine") == []
    outcome = [r for r in play.rows("operator_batches") if r["operator"] == "events"][-1]
    assert (outcome["records_in"], outcome["filtered"], outcome["quarantined"]) == (1, 1, 0)


def test_a_mark_of_one_writer_does_not_count_for_another(tmp_path: Path) -> None:
    play = Play(READING.replace('"up/events"', '["up/events", "up/1"]'), tmp_path)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    play.batch([mark(play, "up/events", NOON + 40_000)], at_ms=ms(41))
    assert read(play).watermark_ms == NOON - 1_001


def test_a_partition_is_idle_while_its_writer_says_so(tmp_path: Path) -> None:
    play = Play(READING, tmp_path, partitions=2)
    play.batch([play.row("events", ms(1), key="a", id="a", v=1)], at_ms=ms(1))
    marks = [mark(play, "up/events", NOON + 5_000, idle=True, partition=number) for number in (0, 1)]
    play.batch(marks, at_ms=ms(6))
    assert (read(play).watermark_ms, read(play).idle) == (NOON + 5_000, True)
    play.start(epoch=2)
    play.batch(at_ms=ms(7))
    assert read(play).idle
    play.batch([play.row("events", ms(20), key="a", id="a", v=2)], at_ms=ms(20))
    assert [p.activity for p in read(play).partitions.values()] == [Activity.ACTIVE, Activity.IDLE]
    assert read(play).watermark_ms == ms(18) - 1


WRITING = (
    NEWEST.replace('name = "play"', 'name = "up"')
    .replace('bound = "1 s"', 'bound = "1 s"\nidle_after = "30 s"')
    .replace('mode = "current"\nrefresh = "0 s"\nkey = ["id"]', 'mark_every = "5 s"')
)
FOLLOWING = (
    NEWEST.replace('topic = "events"', 'delta = "streams/up/events/board"')
    .replace('bound = "1 s"', 'bound = "2 s"\nwritten_by = "up/events"')
    .replace('max_ahead = "unlimited"', 'max_ahead = "1 h"')
)


def told(play: Play) -> list[str]:
    """Returns the mark of each batch commit of the board, oldest first."""
    history = DeltaTable(str(play.home / "streams" / "up" / "events" / "board")).history()
    return [commit["tidemark-mark"] for commit in reversed(history) if "batch_id" in commit]


def in_table(watermark_ms: int, status: str = "active") -> str:
    return f"up/events:{NOON + watermark_ms}:{status}"


def test_commits_without_rows_advance_the_time_of_a_reader(tmp_path: Path) -> None:
    play = Play(WRITING, tmp_path)
    for second in (1, 4, 5, 6, 7):
        at(play, second)
    play.batch(at_ms=ms(38))
    assert told(play) == [in_table(-1), in_table(4_999), in_table(5_999, "idle")]
    assert len(play.rows("board")) == 1


def test_rows_and_mark_are_one_commit_and_a_mark_alone_is_once(tmp_path: Path) -> None:
    play = Play(WRITING, tmp_path)
    at(play, 1)
    play.batch([play.row("events", ms(20), key="a", id="a", v=2)], at_ms=ms(20))
    assert told(play) == [in_table(-1), in_table(18_999)]
    play.start(reached=crash_at("marked board"))
    row = play.row("events", ms(40), key="a", id="a", v=2)
    with pytest.raises(Crash):
        play.batch([row], at_ms=ms(40))
    play.start(epoch=2)
    play.batch([row], at_ms=ms(40))
    assert told(play) == [in_table(-1), in_table(18_999), in_table(38_999)]


def behind_table(play: Play, home: Path, toml: str = FOLLOWING) -> Play:
    """A topology that has read the first row of the board."""
    behind = Play(toml, home)
    row = behind.row("events", ms(1), key=None, id="a", v=1)
    written = {"at_ms": 1, "file": "a", "start": 0}
    behind.batch([{**row, "written": written}], at_ms=ms(1))
    return behind


def test_a_reader_of_a_table_advances_while_all_is_suppressed(tmp_path: Path) -> None:
    play = Play(WRITING, tmp_path)
    at(play, 1)
    behind = behind_table(play, tmp_path)
    assert read(behind).watermark_ms == NOON - 1_001  # time goes no further than the clock
    at(play, 20)
    behind.batch(at_ms=ms(20))
    assert (read(behind).watermark_ms, read(behind).idle) == (ms(18) - 1, False)
    behind.batch(at_ms=ms(21))
    assert (read(behind).watermark_ms, read(behind).idle) == (ms(19) - 1, False)
    play.batch(at_ms=ms(60))
    behind.batch(at_ms=ms(60))
    assert (read(behind).watermark_ms, read(behind).idle) == (ms(19) - 1, True)
    behind.start(epoch=2)
    behind.batch(at_ms=ms(61))
    assert read(behind).idle
    at(play, 70)
    behind.batch(at_ms=ms(80))
    assert (read(behind).watermark_ms, read(behind).idle) == (ms(69) - 1, False)


@pytest.mark.parametrize("named", ['written_by = "up/1"', 'written_by = ["up/events", "other/0"]', ""])
def test_marks_of_a_table_count_only_from_the_named_writer(tmp_path: Path, named: str) -> None:
    play = Play(WRITING, tmp_path)
    at(play, 1)
    behind = behind_table(play, tmp_path, FOLLOWING.replace('written_by = "up/events"', named))
    at(play, 20)
    behind.batch(at_ms=ms(30))
    assert read(behind).watermark_ms == NOON - 1_001


def test_marks_that_the_log_forgot_or_spark_wrote(tmp_path: Path) -> None:
    source = parse(tomllib.loads(FOLLOWING), file="x").operators["events"]
    assert isinstance(source, Source)
    write_deltalake(tmp_path / "streams" / "up" / "events" / "board", pa.table({"n": [1]}))
    board = DeltaTable(str(tmp_path / "streams" / "up" / "events" / "board"))
    own = CommitProperties(custom_metadata={"tidemark-mark": "up/events:5:idle"})
    spark = {"userMetadata": "up/events:7:idle"}
    write_deltalake(board, pa.table({"n": [1]}), mode="append", commit_properties=own)
    write_deltalake(board, pa.table({"n": [2]}), mode="append")
    write_deltalake(
        board, pa.table({"n": [3]}), mode="append", commit_properties=CommitProperties(custom_metadata=spark)
    )

    marks = TableMarks(tmp_path)
    table_id = str(board.metadata().id)

    def newest(before: int) -> tuple[int | None, bool] | None:
        return marks.newest(source, {table_id: before})

    assert [newest(before) for before in (0, 1, 2, 3, 4)] == [None, None, (5, True), (5, False), (7, True)]
    (tmp_path / "streams" / "up" / "events" / "board" / "_delta_log" / f"{2:020d}.json").unlink()
    assert [newest(before) for before in (3, 4)] == [None, (7, True)]


def test_marks_are_for_topics(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"operators\.board\.marks"):
        Play(NEWEST.replace('mode = "current"', 'mode = "current"\nmarks = true'), tmp_path)
    with pytest.raises(InvalidSpec, match="mark_every: is set, but marks is not true"):
        Play(SENDING.replace("marks = true", 'mark_every = "5 s"'), tmp_path)


def set_back(play: Play, to_s: float) -> None:
    """Resets the time of the source of *play* with its next batch."""
    control = play.control
    reset = TimeReset(
        id=f"{to_s}", source="events", partition=0, to_ms=ms(to_s), from_offset=0, by="Ann", reason="2090", at_ms=ms(1)
    )
    control.request_time_reset(reset)


DAYS = 1_000_000
"""A record from so many seconds ahead."""
JUMPED = WRITING.replace('name = "up"\n', 'name = "up"\ntrigger = "1 s"\n')
FOLLOWING_FAR = FOLLOWING.replace('max_ahead = "1 h"', 'max_ahead = "unlimited"')


def test_commits_from_before_a_reset_move_no_reader_again(tmp_path: Path) -> None:
    play = Play(JUMPED, tmp_path)
    at(play, 1)
    behind = behind_table(play, tmp_path, FOLLOWING_FAR)
    play.batch([play.row("events", ms(DAYS), key="a", id="a", v=1)], at_ms=ms(10))
    behind.batch(at_ms=ms(11))
    assert read(behind).watermark_ms == ms(DAYS - 1) - 1
    set_back(behind, 9)
    for second in (12, 13):  # the writer has not gone back yet
        behind.batch(at_ms=ms(second))
        assert read(behind).watermark_ms == ms(7) - 1
    set_back(play, 10)
    play.batch(at_ms=ms(20))
    play.batch([play.row("events", ms(30), key="a", id="a", v=1)], at_ms=ms(30))
    behind.start(epoch=2)
    behind.batch(at_ms=ms(31))
    assert read(behind).watermark_ms == ms(29) - 1
    play.batch([play.row("events", ms(DAYS), key="a", id="a", v=1)], at_ms=ms(40))
    behind.batch(at_ms=ms(41))
    assert read(behind).watermark_ms == ms(DAYS - 1) - 1  # what its writer says from then on counts


def test_marks_from_before_a_reset_move_no_reader_again(tmp_path: Path) -> None:
    play = Play(READING, tmp_path, partitions=2)
    far = [mark(play, "up/events", ms(DAYS), partition=number) for number in (0, 1)]
    play.batch([play.row("events", ms(1), key="a", id="a", v=1), *far], at_ms=ms(1))
    set_back(play, 12)
    play.batch([mark(play, "up/events", ms(DAYS), idle=True)], at_ms=ms(12))
    assert (read(play).watermark_ms, read(play).partitions[0].activity) == (ms(10) - 1, Activity.ACTIVE)
    play.start(epoch=2)
    play.batch([mark(play, "up/events", ms(DAYS), idle=True), mark(play, "up/events", ms(20))], at_ms=ms(22))
    assert read(play).watermark_ms == ms(20)
    play.batch([mark(play, "up/events", ms(DAYS))], at_ms=ms(30))
    assert read(play).watermark_ms == ms(DAYS)
