"""A kill during reading is named by topic, partition and offsets; a record at which drivers fail is skipped."""

from __future__ import annotations

import errno
import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from support.command_line import CommandOutput, tidemark
from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, ms, tell
from support.topologies import NEWEST
from tidemark.cli.repair.doctor import undecided_batches
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.model.topology import parse
from tidemark.stream.decide.pipeline import Pipeline
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.journal.batch import Moment
from tidemark.stream.read.parts import Ranges, RecordsByTopic, SkippedRecord
from tidemark.stream.startup.fatal import (
    DEATH,
    FailedBatch,
    Tried,
    Try,
    TryInconclusive,
    cause_of,
    count_error,
    count_kill,
    records_to_skip,
)
from tidemark.stream.startup.unread import UnstableOffsets, refuse_unstable, unread
from tidemark.stream.state.memory import Moves
from tidemark.stream.trying import decide_alone
from tidemark.stream.updates.step import Run
from tidemark.why.walk import why

BOMB = ["topic 'events', partition 0, offsets 2 until 7", "topic 'events', partition 1, offsets 0 until 3"]


def plan(play: Play, batch_id: int, **ends: int) -> None:
    """Plans a batch up to *ends* in Spark's checkpoint.

    The offsets are those of partitions p0, p1, …
    """
    offsets = control(play) / "checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    until = {"events": {name[1:]: end for name, end in ends.items()}}
    metadata = json.dumps({"batchTimestampMs": ms(3)})
    (offsets / str(batch_id)).write_text("\n".join(["v1", metadata, "5", json.dumps(until)]))


def control(play: Play) -> Path:
    return play.control.home


def killed(home: Path) -> Play:
    """A stream of two partitions whose driver was killed in batch two."""
    play = Play(NEWEST, home, partitions=2)
    rows = [play.row("events", ms(n), key="a", id="a", v=n) for n in range(2)]
    plan(play, 0, p0=2, p1=0)
    play.batch(rows, at_ms=NOON)
    plan(play, 1, p0=7, p1=3)
    return play


def test_an_undecided_batch_is_named_by_its_offsets(tmp_path: Path) -> None:
    play = killed(tmp_path)
    assert unread(control(play), play.topology.sub_topologies[0]) == BOMB
    assert undecided_batches(play.topology, Layout(tmp_path), None) == {play.sub: f"it was reading {'; '.join(BOMB)}"}


def test_a_decided_batch_is_not_named(tmp_path: Path) -> None:
    play = killed(tmp_path)
    play.batch([play.row("events", ms(3), key="a", id="a", v=3)], at_ms=ms(3))
    assert unread(control(play), play.topology.sub_topologies[0]) == []
    assert undecided_batches(play.topology, Layout(tmp_path), None) == {}


def test_only_the_undecided_rest_of_a_batch_in_parts_is_named(tmp_path: Path) -> None:
    play = killed(tmp_path)
    limited = NEWEST.replace("bound", "max_records = 3\nbound")
    play.topology = replace(parse(tomllib.loads(limited), file="play.toml"), facts_every_ms=0)
    play.start(reached=crash_at("decided"))
    rows = [play.row("events", ms(n), key="a", id="a", v=n) for n in range(5)]
    rows += [play.row("events", ms(n), key="a", id="a", v=n, partition=1) for n in range(3)]
    with pytest.raises(Crash):
        play.batch(rows, at_ms=ms(3))
    assert unread(control(play), play.topology.sub_topologies[0]) == [
        "topic 'events', partition 0, offsets 3 until 7",
        "topic 'events', partition 1, offsets 1 until 3",
    ]


def test_a_completed_batch_without_changes_is_not_named(tmp_path: Path) -> None:
    play = killed(tmp_path)
    commits = control(play) / "checkpoint" / "commits"
    commits.mkdir()
    (commits / "1").write_text("v1\n{}")
    assert unread(control(play), play.topology.sub_topologies[0]) == []


@pytest.mark.parametrize(("number", "stable", "until"), [(0, 1, 7), (0, 6, 7), (0, 7, None), (1, 2, 3), (1, 3, None)])
def test_a_stream_does_not_go_on_within_an_open_transaction(
    tmp_path: Path, number: int, stable: int, until: int | None
) -> None:
    play = killed(tmp_path)
    play.broker.open = {number: stable}
    if until is None:
        refuse_unstable(control(play), play.topology.sub_topologies[0], play.broker)
        return
    with pytest.raises(UnstableOffsets) as refused:
        refuse_unstable(control(play), play.topology.sub_topologies[0], play.broker)
    place = (
        f"topic 'events', partition {number}: a transaction is open from offset {stable} on, and the stream was reading"
    )
    assert str(refused.value).startswith(f"{place} until {until} when isolation.level of [kafka.default.settings] was")


KILLER = SkippedRecord("kills_drivers")


def died(ranges: Ranges) -> Tried:
    """Tries records, of which offset 4 of partition 0 kills its reader."""
    return Tried(DEATH if 4 in range(*ranges.get("events", {}).get(0, (9, 9))) else None)


def test_consecutive_kills_of_drivers_by_one_batch_are_counted(tmp_path: Path) -> None:
    play = killed(tmp_path)
    sub, control = play.topology.sub_topologies[0], play.control

    def ended(state: StreamState, doing: str = "batch 1") -> None:
        control.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=ms(5), pid=1, doing=doing))

    assert count_kill(control, sub, control.heartbeat()) == FailedBatch()
    ended(StreamState.DRAINED)
    assert count_kill(control, sub, control.heartbeat()) == FailedBatch()
    ended(StreamState.RUNNING, doing="waiting for a batch after 0")
    assert count_kill(control, sub, control.heartbeat()) == FailedBatch()
    ended(StreamState.RUNNING)
    ranges = {"events": {0: (2, 7), 1: (0, 3)}}
    assert count_kill(control, sub, control.heartbeat()) == FailedBatch(1, 1, DEATH, ranges)
    assert count_error(control, sub, OSError(errno.EIO, "disk")) == FailedBatch(), "it is about no record"
    ended(StreamState.FAILED)
    assert count_kill(control, sub, control.heartbeat()).times == 1
    gone = ConnectionRefusedError(errno.ECONNREFUSED, "the JVM is gone")
    assert count_error(control, sub, gone) == FailedBatch(1, 2, DEATH, ranges)
    ended(StreamState.FAILED)
    failed = count_kill(control, sub, control.heartbeat())
    assert failed == FailedBatch(1, 2, DEATH, ranges)
    skipped = {"events": {(0, 4): KILLER}}
    assert records_to_skip(control, sub, failed, died) == skipped
    ended(StreamState.RUNNING)
    assert count_kill(control, sub, control.heartbeat()) == FailedBatch(1, 1, DEATH, ranges, skipped)
    assert count_error(control, sub, ValueError("no")) == FailedBatch(1, 1, "ValueError: no", ranges, skipped)
    plan(play, 2, p0=9, p1=3)
    ended(StreamState.RUNNING)
    assert count_kill(control, sub, control.heartbeat()) == FailedBatch(2, 1, DEATH, {"events": {0: (2, 9), 1: (0, 3)}})


def test_the_record_after_one_that_is_skipped_is_found_next(tmp_path: Path) -> None:
    play, ranges = killed(tmp_path), {"events": {0: (4, 7)}}
    failed = FailedBatch(1, 2, DEATH, ranges, {"events": {(0, 4): KILLER}})

    def kills(tried: Ranges) -> Tried:
        return Tried(DEATH if {4, 5} & {*range(*tried.get("events", {}).get(0, (9, 9)))} else None)

    skipped = records_to_skip(play.control, play.topology.sub_topologies[0], failed, kills)
    assert skipped == {"events": {(0, 4): KILLER, (0, 5): KILLER}}


def test_a_batch_without_such_a_record_is_read_one_by_one(tmp_path: Path) -> None:
    sub, failed = Play(NEWEST, tmp_path).topology.sub_topologies[0], FailedBatch(1, 2, DEATH, {"events": {0: (2, 7)}})

    def is_not_known(_: Ranges) -> Tried:
        raise TryInconclusive

    assert records_to_skip(Control(tmp_path), sub, replace(failed, times=1), lambda _: Tried(DEATH)) is None
    for tried in (lambda _: Tried(), lambda _: Tried("ValueError: another error"), is_not_known):
        assert records_to_skip(Control(tmp_path), sub, failed, tried) == {}


POISON = "poison"


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the operators of a batch raise an error over records with the id POISON."""
    run = Pipeline.run

    def fails(self: Pipeline, arrived: Mapping[str, Run], moves: Moves, moment: Moment) -> dict[str, Run]:
        ids = pl.concat([each.output["id"] for each in arrived.values()])
        if POISON in ids:
            msg = f"{ids.len()} records have one among them"
            raise ArithmeticError(msg)
        return run(self, arrived, moves, moment)

    monkeypatch.setattr(Pipeline, "run", fails)


def with_poison(home: Path, *offsets: int) -> tuple[Play, list[Row]]:
    """A project whose stream has decided offsets 0 and 1, and has planned 2 until 7; some of these are poison."""
    for folder in ("topologies", "expectations"):
        (home / folder).mkdir(parents=True)
    (home / "topologies" / "play.toml").write_text(NEWEST)
    play = Play(NEWEST, home / "warehouse")
    plan(play, 0, p0=2)
    play.batch([play.row("events", ms(n), key="a", id="a", v=n) for n in range(2)], at_ms=NOON)
    plan(play, 1, p0=7)
    rows = []
    for n in range(2, 7):
        id_ = POISON if n in offsets else "a"
        rows.append(play.row("events", ms(n), key=id_, id=id_, v=n) | {"value": b"%d" % n})
    return play, rows


def trying(play: Play, rows: list[Row]) -> Try:
    """Tries *rows* in this process, as a separate one does when it has read and parsed them."""

    def tried(ranges: Ranges) -> Tried:
        start, end = ranges.get("events", {}).get(0, (0, 0))
        some = [row for row in rows if start <= row["offset"] < end]
        content = (some[0]["key"], some[0]["value"]) if len(some) == 1 else (None, None)
        try:
            decide_alone(play.stream(play.sub), play.broker, play.frame(some), 1)
        except ArithmeticError as error:
            return Tried(cause_of(error), *content)
        return Tried(None, *content)

    return tried


def fail(play: Play, rows: list[Row], epoch: int) -> FailedBatch:
    """Starts a driver that fails at *rows*."""
    play.start(epoch=epoch)
    with pytest.raises(ArithmeticError) as raised:
        play.process(1, rows, at_ms=ms(3))
    return count_error(play.control, play.topology.sub_topologies[0], raised.value)


def start(play: Play, rows: list[Row], epoch: int) -> RecordsByTopic | None:
    """Returns what the next driver skips of *rows*."""
    sub = play.topology.sub_topologies[0]
    play.start(epoch=epoch)
    return records_to_skip(play.control, sub, count_kill(play.control, sub, None), trying(play, rows))


@pytest.mark.usefixtures("fault")
def test_a_record_at_which_operators_raise_an_error_is_skipped_after_two_drivers(tmp_path: Path) -> None:
    play, rows = with_poison(tmp_path, 4)
    error = "ArithmeticError: 5 records have one among them"
    ranges = {"events": {0: (2, 7)}}
    assert fail(play, rows, 2) == FailedBatch(1, 1, error, ranges, record="events/0/4")
    assert start(play, rows, 3) is None
    assert fail(play, rows, 3) == FailedBatch(1, 2, error, ranges, record="events/0/4")
    for epoch in (4, 5):  # a driver that is killed before it decides is followed by one that skips the same
        skipped = start(play, rows, epoch)
        alone = "ArithmeticError: 1 records have one among them"
        assert skipped == {"events": {(0, 4): SkippedRecord("fails_drivers", alone, b"poison", b"4")}}
    play.process(1, rows, at_ms=ms(3), passed_over=skipped)
    (bad,) = play.rows("quarantine")
    columns = ("source", "topic", "partition", "offset", "reason", "detail", "key", "value")
    assert [bad[c] for c in columns] == ["events", "events", 0, 4, "fails_drivers", alone, b"poison", b"4"]
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
    assert count_kill(play.control, play.topology.sub_topologies[0], None) == FailedBatch(), "the batch is decided"


@pytest.mark.usefixtures("fault")
@pytest.mark.parametrize("poison", [(3, 4), (2, 3, 4, 5, 6)])
def test_a_record_beside_one_that_fails_in_the_same_way_is_left_to_people(
    tmp_path: Path, poison: tuple[int, ...]
) -> None:
    play, rows = with_poison(tmp_path, *poison)
    for epoch in (2, 3):
        fail(play, rows, epoch)
    first = f"events/0/{poison[0]}"
    assert start(play, rows, 4) == {}
    assert fail(play, rows, 4).record == first
    said = tidemark(tmp_path, "--warehouse", str(play.home), "doctor", "play")
    command = f"tidemark accept-loss play events --record {first} --by NAME --reason TEXT"
    assert (said.returncode, said.stdout.splitlines()[-1]) == (0, f"  remedy: {command}")
    assert f"it fails at the record {first}: ArithmeticError: 5 records have one among them" in said.stdout


@pytest.mark.usefixtures("fault")
def test_a_record_without_neighbours_is_skipped_if_reading_nothing_succeeds(tmp_path: Path) -> None:
    play, rows = with_poison(tmp_path, 2)
    plan(play, 1, p0=3)
    for epoch in (2, 3):
        fail(play, rows[:1], epoch)
    sub, tried = play.topology.sub_topologies[0], trying(play, rows)

    def is_down(ranges: Ranges) -> Tried:
        if not ranges:
            msg = "the registry does not answer"
            raise TryInconclusive(msg)
        return tried(ranges)

    assert records_to_skip(play.control, sub, count_kill(play.control, sub, None), is_down) == {}
    assert start(play, rows, 4) == {"events": {(0, 2): SkippedRecord(
        "fails_drivers", "ArithmeticError: 1 records have one among them", b"poison", b"2"
    )}}  # fmt: skip


@pytest.mark.usefixtures("fault")
def test_a_person_gives_up_one_present_record(tmp_path: Path) -> None:
    play, rows = with_poison(tmp_path, 3, 4)
    fail(play, rows, 2)

    def accept(offset: int, *more: str) -> CommandOutput:
        place = ("play", "events", "--record", f"events/0/{offset}")
        return tidemark(tmp_path, "--warehouse", str(play.home), "accept-loss", *place, *more)

    ann = ("--by", "Ann", "--reason", "not ours")
    shown = accept(3, "--dry-run")
    assert shown.stdout.startswith(
        "play/events does not read the record events/0/3 (topic events, partition 0), which is present, and sets it "
    )
    assert play.control.accepted_records() == []
    for offset, sentence in (
        (
            1,
            "play/events has read events/0/1 already: it continues at offset 2; "
            f"`tidemark --warehouse {play.home} trace --record events/0/1` shows what became of it",
        ),
        (
            7,
            "events/0/7 lies beyond the end of what play/events is about to read: it has planned to read until offset",
        ),
    ):
        refused = accept(offset, *ann)
        assert (refused.returncode, sentence in refused.stderr) == (1, True), refused.stderr
    assert accept(3, *ann).stdout == "events/0/3 is skipped; start the stream\n"
    assert accept(4, *ann).returncode == 0
    assert accept(4, "--dry-run").stdout.endswith("; this is accepted already: start the stream\n")
    given_up = {
        (0, offset): SkippedRecord("accepted_loss", "given up by Ann: not ours", b"poison", b"%d" % offset)
        for offset in (3, 4)
    }
    for epoch in (3, 4):
        assert start(play, rows, epoch) == {"events": given_up}
    # It is killed when it has decided the part before the first record.
    play.start(epoch=5, reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.process(1, rows, at_ms=ms(3), passed_over={"events": given_up})
    assert start(play, rows, 6) == {"events": given_up}
    play.process(1, rows, at_ms=ms(3), passed_over={"events": given_up})
    assert [(row["offset"], row["reason"], row["detail"], row["value"]) for row in play.rows("quarantine")] == [
        (3, "accepted_loss", "given up by Ann: not ours", b"3"),
        (4, "accepted_loss", "given up by Ann: not ours", b"4"),
    ]
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
    refused = accept(4, *ann)
    assert "play/events has read events/0/4 already: it continues at offset 7" in refused.stderr


def test_why_names_the_offsets_that_a_dead_driver_was_reading(tmp_path: Path) -> None:
    play = killed(tmp_path)
    home = Layout(tmp_path).stream("play", "events")
    tell(Heartbeats(home, topology="play", sub_topology="events"), 5)
    found = why(play.topology, Layout(tmp_path), at_ms=ms(300))
    dead = next(finding for finding in found if finding.cause == "driver_dead")
    assert all(place in dead.seen for place in BOMB)
    assert "too large when unpacked" in dead.remedy


@pytest.mark.parametrize("state", [StreamState.RUNNING, StreamState.FAILED])
def test_why_names_the_batch_seconds_after_the_jvm_was_killed(tmp_path: Path, state: StreamState) -> None:
    play = killed(tmp_path)
    reason = f"ConnectionRefusedError: [Errno 111]\nit was reading {'; '.join(BOMB)}"
    said = {"reason": reason} if state is StreamState.FAILED else {}
    Control(control(play)).beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=ms(5), pid=1, batch_id=0, **said))
    found = why(play.topology, Layout(tmp_path), at_ms=ms(20))
    dead = next(finding for finding in found if finding.cause == "driver_dead")
    assert all(dead.seen.count(place) == 1 for place in BOMB)
    assert "too large when unpacked" in dead.remedy
