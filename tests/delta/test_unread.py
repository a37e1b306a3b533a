"""A kill during reading is named by topic, partition and offsets."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import NOON, Play, ms, tell
from support.topologies import NEWEST
from tidemark.cli.repair.doctor import undecided_batches
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.topology import parse
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.read.parts import Ranges
from tidemark.stream.startup.fatal import Deaths, TryInconclusive, count_deaths, records_to_skip
from tidemark.stream.startup.unread import unread
from tidemark.why.walk import why

BOMB = ["topic 'events', partition 0, offsets 2 until 7", "topic 'events', partition 1, offsets 0 until 3"]


def plan(play: Play, batch_id: int, **ends: int) -> None:
    """Plans a batch up to *ends* in Spark's checkpoint.

    The offsets are those of partitions p0, p1, …
    """
    offsets = control(play) / "checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    until = {"events": {name[1:]: end for name, end in ends.items()}}
    (offsets / str(batch_id)).write_text("\n".join(["v1", "{}", "5", json.dumps(until)]))


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


def test_consecutive_kills_of_drivers_by_one_batch_are_counted(tmp_path: Path) -> None:
    play = killed(tmp_path)
    sub = play.topology.sub_topologies[0]

    def ended(state: StreamState, **said: str) -> None:
        play.control.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=ms(5), pid=1, **said))

    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths()
    ended(StreamState.DRAINED, doing="batch 1")
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths()
    ended(StreamState.RUNNING, doing="waiting for a batch after 0")
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths()
    ended(StreamState.RUNNING, doing="batch 1")
    ranges = {"events": {0: (2, 7), 1: (0, 3)}}
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths(1, 1, ranges)
    ended(StreamState.FAILED, reason="ValueError: no", doing="batch 1")
    assert count_deaths(play.control, sub, play.control.heartbeat()).times == 1
    ended(StreamState.FAILED, reason="ConnectionRefusedError: [Errno 111]\nit had begun", doing="batch 1")
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths(1, 2, ranges)
    assert records_to_skip(
        play.control, Deaths(1, 2, ranges), lambda tried: 4 in range(*tried["events"].get(0, (9, 9)))
    ) == {"events": [(0, 4)]}
    ended(StreamState.RUNNING, doing="batch 1")
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths(1, 1, ranges, {"events": [(0, 4)]})
    plan(play, 2, p0=9, p1=3)
    assert count_deaths(play.control, sub, play.control.heartbeat()) == Deaths(2, 1, {"events": {0: (2, 9), 1: (0, 3)}})


def test_a_batch_without_such_a_record_is_read_one_by_one(tmp_path: Path) -> None:
    deaths = Deaths(1, 2, {"events": {0: (2, 7)}})

    def is_not_known(_: Ranges) -> bool:
        raise TryInconclusive

    assert records_to_skip(Control(tmp_path), Deaths(1, 1, deaths.ranges), lambda _: True) is None
    assert records_to_skip(Control(tmp_path), deaths, lambda _: False) == {}
    assert records_to_skip(Control(tmp_path), deaths, is_not_known) == {}


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
