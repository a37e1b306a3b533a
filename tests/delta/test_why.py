"""Injected causes of missing results are named first, not before.

No cause is named before it is injected.
"""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from support.play import Play, Row, bad, ms, record, tell
from support.quiet_broker import Ends
from support.topologies import aggregate, join, map_of, operators, repartition, sink, source, table, topology_of
from support.typed_commands import can_be_typed, commands
from tidemark.cli.explain.status import as_text
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import InvalidArgument
from tidemark.kernels.records.iso_times import instants_of
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso, utc
from tidemark.model.topology import Topology, parse
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.documents.why import why_document
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.promises import Promises
from tidemark.stream.decide import decision
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.why.causes.inputs import Inputs
from tidemark.why.causes.rights import MISSING_RIGHT
from tidemark.why.causes.wrong_type import wrong_fields
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import Walk, scene, why

SOURCE = """
name = "play"
{top}
[operators.events]
kind = "source"
topic = "events"
fields = "id string, amount double, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
{source}
"""
WINDOWS = operators(
    per_minute=aggregate(
        key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
    ),
    counts=sink("per_minute", table="counts"),
)
NEWEST = """
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
columns = ["amount"]
{table}
[operators.board]
kind = "sink"
input = "newest"
table = "board"
"""


class ExplainedPlay:
    """A play for `why`; all clocks of a batch are its tick's."""

    def __init__(self, home: Path, toml: str, *, partitions: int = 1, facts_every_ms: int = 0) -> None:
        self._play = Play(toml, home, partitions=partitions, facts_every_ms=facts_every_ms)
        self._play.broker = self.broker = Ends(partitions)

    def batch(
        self, at_s: float, *records: Callable[[Play], Row], sub: str | None = None, now_s: float | None = None
    ) -> None:
        """A batch with *records*, or with what the hops into *sub* have.

        It is planned at *at_s*, and the clock is at *now_s* while it runs (None: the same).
        """
        now_ms = None if now_s is None else ms(now_s)
        if sub in BEHIND_A_HOP:
            self._play.hop(sub, at_ms=ms(at_s), now_ms=now_ms)
        else:
            self._play.batch([record(self._play) for record in records], at_ms=ms(at_s), sub=sub, now_ms=now_ms)

    @property
    def topology(self) -> Topology:
        """Returns the topology that runs."""
        return self._play.topology

    @property
    def sub(self) -> str:
        """The name of the first sub-topology."""
        return self._play.sub

    @property
    def control(self) -> Path:
        """The control folder of the first driver."""
        return Layout(self._play.home).control("play", self._play.topology.sub_topologies[0].name)

    def restart(self, epoch: int) -> None:
        """Have a new driver run the first sub-topology."""
        self._play.start(self._play.topology.sub_topologies[0].name, epoch=epoch)

    def sleep(self, seconds: float) -> None:
        """The clock goes on by that much."""
        self._play.now_ms += round(seconds * 1_000)

    def reads_clock_for(self, seconds: float) -> None:
        """Each reading of the clock takes that long."""
        self._play.reading_ms = round(seconds * 1_000)

    def slow(self, operator: str, ms_: int) -> None:
        """Have *operator* work so much longer in each batch; drivers start anew."""
        self._play.slow_ms[operator] = ms_
        for sub in self._play.topology.sub_topologies:
            self._play.start(sub.name)

    def why(self, at_s: float, operator: str | None = None) -> list[WhyFinding]:
        """The findings, of which each command can be typed."""
        topology = self._play.topology
        found = why(topology, Layout(self._play.home), at_ms=ms(at_s), operator=operator)
        for finding in found:
            can_be_typed(finding, topology)
        return found


BEHIND_A_HOP = {"sums", "minutes"}
HOUR_MS = 3_600_000


def windows(home: Path, *, source: str = "", partitions: int = 2) -> ExplainedPlay:
    """Plays counts per minute, sent when the minute is over.

    Each minute needs a watermark of its last millisecond.
    """
    return ExplainedPlay(home, SOURCE.format(top="", source=source) + WINDOWS, partitions=partitions)


def newest(home: Path, *, top: str = "", source: str = "", table: str = "", partitions: int = 1) -> ExplainedPlay:
    """The newest amount per id, given out when it changes."""
    toml = SOURCE.format(top=top, source=source) + NEWEST.format(table=table)
    return ExplainedPlay(home, toml, partitions=partitions)


def first(play: ExplainedPlay, at_s: float) -> WhyFinding:
    return play.why(at_s)[0]


def place(finding: WhyFinding) -> tuple[Any, ...]:
    return finding.cause, finding.operator, finding.input, finding.partition, finding.since_ms


def test_operators_of_a_scene_share_the_search_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = (
        SOURCE.format(top="", source="") + NEWEST.format(table="") + operators(second_board=sink("newest", table="b"))
    )
    play = Play(toml, tmp_path)
    play.batch([record(1)(play)], at_ms=ms(2))
    searched: list[str] = []
    search = Inputs.source
    monkeypatch.setattr(Inputs, "source", lambda of, source: (searched.append(source.name), search(of, source))[1])
    walk = Walk(scene(play.topology, Layout(tmp_path), ms(3)))
    together = walk.explain()
    assert {finding.operator for finding in together} == {"board", "second_board"}
    assert [finding for name in ("board", "second_board") for finding in walk.explain(name)] == together
    assert searched == ["events"]


def test_an_idle_partition_that_holds_the_watermark_back(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.batch(70, record(65, part=0))
    assert first(play, 11).cause == "nothing_wrong"
    holding, waiting = play.why(71)
    assert place(holding) == ("partition_idle_holds_back", "events", "events", 1, ms(10))
    # 12:00:05 − 1 s − 1 ms
    assert "holds the watermark at 2014-05-13T12:00:03.999Z; the source has no idle_after" in holding.seen
    assert holding.remedy.startswith('give events an idle_after, such as "30 s", or')
    assert place(waiting) == ("window_not_closed", "per_minute", "events", 1, ms(10))
    assert "the first for a watermark of 2014-05-13T12:00:59.999Z" in waiting.seen


def test_a_partition_that_is_not_idle_yet_names_when_it_will_be(tmp_path: Path) -> None:
    play = windows(tmp_path, source='idle_after = "90 s"')
    play.batch(10, record(5, part=0), record(5, part=1))
    play.batch(70, record(65, part=0))
    holding = first(play, 71)
    assert "it counts as idle only after 1 min 30 s (idle_after)" in holding.seen
    assert holding.remedy.startswith('give events a shorter idle_after, such as "45 s", or')
    play.batch(101, record(66, part=0))  # 91 s after its last record it is idle, and the window closes
    assert first(play, 101).cause == "nothing_wrong"


def test_a_partition_without_records_while_others_have_some(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5))
    play.batch(70, record(65))
    finding = first(play, 71)
    assert place(finding) == ("partition_idle_holds_back", "events", "events", 1, ms(10))
    assert finding.seen.startswith("no batch has read a record of it yet")


def test_a_partition_with_older_records_than_the_others(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.batch(70, record(65, part=0), record(6, part=1))
    assert place(first(play, 71)) == ("partition_behind_holds_back", "events", "events", 1, ms(70))
    # It goes on holding the same window back.
    play.batch(80, record(75, part=0), record(7, part=1))
    assert place(first(play, 81)) == ("partition_behind_holds_back", "events", "events", 1, ms(70))


def test_a_backlog(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.broker.ends[1] = 8
    play.batch(70, record(65, part=0))
    assert first(play, 11).cause == "nothing_wrong"
    # The batch had been planned when they were seen, so the next one may read them: until a trigger, 1 s, has passed.
    coming = first(play, 71)
    assert place(coming) == ("being_read", "events", "events", 1, ms(70))
    assert coming.seen == "7 records of it were there when the newest batch had been planned"
    assert place(first(play, 72)) == ("backlog", "events", "events", 1, ms(70))
    play.batch(72, record(67, part=0))
    finding = first(play, 72)
    assert place(finding) == ("backlog", "events", "events", 1, ms(70))
    assert finding.seen.startswith("7 records of it wait unread")


def test_a_record_that_just_missed_its_batch_is_no_backlog(tmp_path: Path) -> None:
    """Each batch sees one record of partition 1 that came after its plan, and the next batch reads it."""
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    for n in range(1, 8):
        play.broker.ends[1] = n + 1
        play.batch(10 + n, record(5 + n, part=0), *[record(4 + n, part=1)] * (n > 1))
        assert "backlog" not in {finding.cause for finding in play.why(10 + n)}


def test_a_backlog_of_a_partition_that_is_read(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.broker.ends[0] = 100
    for second in (10, 11, 12):
        play.batch(second, record(second - 5, amount=second))
    finding = first(play, 13)
    assert place(finding) == ("backlog", "events", "events", 0, ms(10))
    # It has read 3 of 100; the newest batch read one.
    assert finding.seen == "97 records of it wait unread; its last 3 batches read 3 and left 97 or more each"


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5])
def test_nothing_is_said_about_cores_before_five_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """Each batch works for longer than the trigger, which is 1 s, and leaves most of the records unread."""
    play = newest(tmp_path)
    monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=play.sleep))  # the clock of the play advances
    play.broker.ends[0] = 1_000
    play.slow("newest", 1_400)
    for n in range(batches):
        play.batch(70 * (n + 1), record(70 * (n + 1) - 5, amount=n))
    # Within a trigger after it, the records that the first batch left may be read by the next one.
    found = play.why(70 * batches + 1.5)
    of_batches = f"its last {min(batches, 5)} batches read {min(batches, 5)}" if batches > 1 else "1 result came"
    assert of_batches in found[0].seen
    assert [finding.cause for finding in found] == ["backlog" if batches > 1 else "nothing_wrong"]
    assert ["cores" in finding.remedy for finding in found] == [batches >= 5] * len(found)


def test_a_partition_that_falls_silent_alone_is_named(tmp_path: Path) -> None:
    play = windows(tmp_path)
    for second in (10, 20, 40, 50, 60):
        play.batch(second, record(second - 5, part=0), record(second - 5, part=1))
    for second in (70, 80, 90, 100, 110, 120, 130):
        play.batch(second, record(second - 5, part=0))
    silent = [finding for finding in play.why(121) if finding.cause == "partition_silent"]
    assert [place(finding) for finding in silent] == [("partition_silent", "events", "events", 1, ms(60))]
    assert silent[0].seen == (
        "it has been silent for 1 min 1 s, and before for 20 s at most; "
        "the newest record of another partition was read 1 s ago"
    )
    # Three times the 20 s that it was silent before, and a minute, are usual.
    assert not [finding for finding in play.why(120) if finding.cause == "partition_silent"]
    # Later the whole source is silent.
    assert not [finding for finding in play.why(191) if finding.cause == "partition_silent"]


def test_a_stream_that_catches_up_is_not_a_backlog(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.broker.ends[0] = 100
    for second in (10, 11, 12):
        play.batch(second, record(second - 5, amount=second))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    load = {"records_behind": 97, "arrival_per_s": 2.0, "working_per_s": 7.0}
    tell(history, 12, **load, eta_at=ms(31))
    finding = first(play, 13)
    assert place(finding) == ("catching_up", "board", "events", None, None)
    assert finding.seen == (
        "97 records of it wait unread; 2 a second come in and 7 are read, so that all will be read about "
        "2014-05-13T12:00:31.000Z"
    )
    # A batch since the heartbeat leaves 96 unread, of which the estimate was not made.
    play.batch(14, record(9, amount=14))
    (still,) = (each for each in play.why(15) if each.cause == "catching_up")
    assert still.seen == finding.seen
    model = page_model(Warehouse(tmp_path, topology="play"), Layout(tmp_path), play.topology, Promises(), at_ms=ms(15))
    told = topology_document(tmp_path, play.topology, at_ms=ms(15))["sub_topologies"][0]
    assert [row["records_behind"] for row in (model["streams"][0], told)] == [97, 97]
    # Without an end in sight the driver is too slow, and the newest batch tells how many wait.
    tell(history, 28, **load)
    told = topology_document(tmp_path, play.topology, at_ms=ms(29))["sub_topologies"][0]
    assert told["records_behind"] == 96
    assert first(play, 29).cause == "backlog"


TWO_SOURCES = topology_of(
    limits=source("id string, most double", topic="limits"),
    payments=source("id string, amount double", topic="payments"),
    newest_limit=table("limits", columns=["most"]),
    checked=join("payments", "newest_limit", on={"id": "id"}),
    board=sink("checked", table="board"),
)
"""The source with the backlog is the second one of the file."""


def of(source_: str, at_s: float, **fields: object) -> Callable[[Play], Row]:
    return lambda play: play.row(source_, ms(at_s), key="a", id="a", **fields)


def behind(home: Path, **ends: int) -> ExplainedPlay:
    """Two batches with a record of each source, while its topic ends at *ends*."""
    play = ExplainedPlay(home, TWO_SOURCES)
    play.broker.ends_of = {(topic, 0): end for topic, end in ends.items()}
    for second in (10, 11):
        play.batch(second, of("limits", second - 5, most=9.0), of("payments", second - 5, amount=1.0))
    return play


@pytest.mark.parametrize(
    ("ends", "sources"),
    [
        ({"payments": 3_000_000}, {"payments": 2_999_998}),
        ({"limits": 3_000_000}, {"limits": 2_999_998}),
        ({"limits": 90, "payments": 100}, {"payments": 98, "limits": 88}),
    ],
)
def test_a_backlog_belongs_to_the_source_that_has_it(
    tmp_path: Path, ends: dict[str, int], sources: dict[str, int]
) -> None:
    play = behind(tmp_path, **ends)
    history = Heartbeats(tmp_path / "streams" / "play" / play.sub, topology="play", sub_topology=play.sub)
    load = {"records_behind": sum(sources.values()), "arrival_per_s": 2.0, "working_per_s": 7.0}
    tell(history, 12, **load, eta_at=ms(31))
    found = [finding for finding in play.why(13) if finding.cause == "catching_up"]
    assert {finding.input: int(finding.seen.split()[0].replace(",", "")) for finding in found} == sources
    largest = next(iter(sources))
    assert found[0].input == largest
    # `tidemark status` names the same source.
    model = page_model(Warehouse(tmp_path, topology="play"), Layout(tmp_path), play.topology, Promises(), at_ms=ms(13))
    stream = {**model["streams"][0], "first_latency_ms": None, "ambiguous_keys": None}
    line = as_text([{**model, "page": None, "streams": [stream]}]).splitlines()[-1]
    assert line.startswith(
        f"play: not_checked: {largest}: {sources[largest]:,} records of it wait unread; of all sources"
    )


@pytest.mark.parametrize(
    ("record_", "field"),
    [
        (b'{"id": "a", "amount": "12", "event_time": 7}', "amount"),
        (b'{"amount": 1, "event_time": "x"}', "event_time"),
        (b'{"amount": {"value": [12]}}', "amount"),
        (b'{"amount": "+Infinity", "event_time": "x"}', "event_time"),
    ],
)
def test_the_field_with_a_wrong_type_is_named(tmp_path: Path, record_: bytes, field: str) -> None:
    play = newest(tmp_path)
    play.batch(10, bad("wrong_type", record_), bad("malformed_json"))
    assert f"are quarantined (1 wrong_type in {field}, 1 malformed_json)" in first(play, 11).seen


@pytest.mark.parametrize(
    ("at", "seen", "fields"),
    [
        ("yesterday", "2014-05-13T12:00:00Z", ["at"]),
        ("2014-05-13T12:00:00Z", "2014-13-45T12:00:00Z", ["seen"]),
        ("2014-05-13 12:00:00", "2014-05-13T12:00:00.123456+02:00", []),
        ("2014-05-13T25:00:00Z", 7, ["at", "seen"]),
    ],
)
def test_a_text_that_is_no_instant_has_the_wrong_type(at: str, seen: object, fields: list[str]) -> None:
    toml = topology_of(events=source("id string, at timestamp, seen timestamp", timestamp="at"))
    events = parse(tomllib.loads(toml + operators(out=sink("events", table="out"))), file="play.toml").operators[
        "events"
    ]
    assert isinstance(events, Source)
    value = json.dumps({"id": "a", "at": at, "seen": seen, "event_time": 1}).encode()
    assert sorted(wrong_fields(events, [value])) == fields
    # The stream's own parser refuses the same ones.
    texts = [text if isinstance(text, str) else None for text in (at, seen)]
    refused = instants_of(pl.Series(texts, dtype=pl.String)).is_null()
    assert [name for name, bad_ in zip(("at", "seen"), refused, strict=True) if bad_] == fields


@pytest.mark.parametrize(
    ("n", "seen"),
    [
        (1, "the only record since its newest result was read before, by its header tidemark-id"),
        (2, "all 2 records since its newest result were read before, by their header tidemark-id"),
    ],
)
def test_all_records_dropped_as_duplicates(tmp_path: Path, n: int, seen: str) -> None:
    play = newest(tmp_path, source='written_by = "shop/out"')
    play.batch(10, *(sent_as(5 + number, f"shop/out/1/0/{number}") for number in range(n)))
    assert first(play, 11).cause == "nothing_wrong"
    play.batch(20, *(sent_as(15 + number, f"shop/out/1/0/{number}") for number in range(n)))
    finding = first(play, 21)
    assert place(finding) == ("all_duplicates", "events", "events", None, ms(20))
    assert finding.seen == seen
    play.batch(200, bad("malformed_json"))  # which does not hide it
    assert "all_duplicates" in {finding.cause for finding in play.why(201)}


def sent_as(at_s: float, id_: str) -> Callable[[Play], Row]:
    """A record with that `tidemark-id`."""
    header = {"key": "tidemark-id", "value": id_.encode()}
    return lambda play: {**record(at_s, amount=at_s)(play), "headers": [header]}


def test_a_driver_that_was_killed_seconds_ago(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    control = Control(play.control)
    control.beat(Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(12), pid=1))
    assert first(play, 13).cause == "nothing_wrong"
    finding = first(play, 16)  # the lease is free, and four beats are missing
    assert place(finding) == ("driver_dead", "board", None, None, ms(12))
    assert finding.seen == "the driver of events was killed"
    control.kill_for("", "play/hung")
    finding = first(play, 16)
    assert finding.seen == "the driver of events was killed because play/hung hung in the same process"


def test_a_driver_that_holds_its_lease_is_not_dead(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    driver = Control(play.control)
    driver.acquire()
    driver.beat(Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(12), pid=1))
    assert first(play, 16).cause == "nothing_wrong"


def test_a_driver_whose_lease_may_not_be_read_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    Control(play.control).beat(Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(12), pid=1))

    def refuse(control: Control) -> bool:  # root may read everything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(control.home / "driver.lock"))

    monkeypatch.setattr(Control, "is_held", refuse)
    assert first(play, 16).cause == "nothing_wrong"
    assert first(play, 73).cause == "driver_unknown"  # it sends no heartbeat for a minute


def test_a_driver_that_stays_in_starting(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    driver = Control(play.control)
    driver.acquire()
    beat = Heartbeat(state=StreamState.STARTING, epoch=2, launch_id="", at_ms=ms(50), pid=1, since_ms=ms(20))
    driver.beat(beat)
    finding = first(play, 51)
    assert place(finding) == ("driver_starting", "board", None, None, ms(20))
    assert f"or {RESTART.format(sub=driver.home.name)}" in finding.remedy


RESTART = (
    "restart the driver of {sub}: `tidemark restart play/{sub}` "
    "(in another Airflow `airflow tasks clear tidemark_play_streams --task-regex '^{sub}$'`)"
)
"""While a driver of the topology lives, its DAG run goes on."""
START = (
    "start the driver of {sub}: `tidemark up play` "
    "(in another Airflow `airflow dags unpause tidemark_play_streams && airflow dags trigger tidemark_play_streams`)"
)
"""When none does, the run has ended, or will."""


def test_a_driver_that_restarted(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 12)
    tell(history, 45, epoch=2)
    play.batch(50, record(20, amount=2), record(30, amount=3))
    assert first(play, 51).cause == "nothing_wrong"  # the first driver's epoch still
    play.restart(epoch=2)
    play.batch(60, record(21, amount=4), record(31, amount=5), record(41, amount=6))
    finding = first(play, 61)
    assert place(finding) == ("driver_restarted", "board", None, None, ms(50))
    assert "from 2014-05-13T12:00:50.000Z to 2014-05-13T12:01:00.000Z, and 3 records waited" in finding.seen
    assert play.why(125)[0].cause != "driver_restarted"


def test_all_records_that_waited_for_a_new_driver_count_and_not_only_those_of_its_first_batch(tmp_path: Path) -> None:
    play = newest(tmp_path, partitions=2)
    play.batch(10, record(5, part=0), record(5, "b", part=1))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 12)
    tell(history, 45, epoch=2)
    play.restart(epoch=2)
    # The driver before read one record of each partition.
    play.broker.ends = {0: 100, 1: 8}
    play.batch(60, record(21, amount=4, part=0), record(31, amount=5, part=0))
    # What comes after the new driver's first look did not wait for it.
    play.broker.ends = {0: 500, 1: 500}
    play.batch(61, record(41, amount=6, part=0))
    for at_s in (55, 60, 61):
        assert "and 106 records waited" in first(play, at_s).seen


def test_a_restart_names_the_time_without_a_driver(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 12)
    for epoch in (2, 3, 4):
        tell(history, 50 + epoch, StreamState.STARTING, epoch=epoch)  # those of 2 and 3 finish nothing
    play.restart(epoch=4)
    play.batch(60, record(21, amount=4), record(31, amount=5), record(41, amount=6))
    assert play.why(11)[0].cause == "nothing_wrong"
    for at_s in (13, 40, 55, 61):
        finding = first(play, at_s)
        assert place(finding) == ("driver_restarted", "board", None, None, ms(12))
        assert "from 2014-05-13T12:00:12.000Z to 2014-05-13T12:01:00.000Z, and 3 records waited" in finding.seen


def test_a_restart_in_a_quiet_night_is_not_a_cause(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 12)
    for second in range(40, 400, 15):
        tell(history, second, epoch=2)
    play.restart(epoch=2)
    play.batch(400, record(399, amount=2))
    assert first(play, 401).cause == "nothing_wrong"


@pytest.mark.parametrize("came", [0, 2])
def test_a_standstill_in_which_no_record_came_is_not_a_cause(tmp_path: Path, came: int) -> None:
    """No heartbeat for 50 s; then the driver goes on, and its next batch has what came meanwhile."""
    play = newest(tmp_path, source='idle_after = "5 s"')
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 11)
    play.batch(60, *(record(20 + n, amount=2 + n) for n in range(came)))
    tell(history, 61)
    stood_still = [finding for finding in play.why(62) if "stood still" in finding.seen]
    assert [finding.seen.rpartition(", and ")[2] for finding in stood_still] == (["2 records waited"] if came else [])


def on_wall_time(home: Path, *, partitions: int = 1) -> ExplainedPlay:
    """Plays `newest` with records up to an hour ahead.

    As without `max_ahead`.
    """
    source = SOURCE.replace('max_ahead = "unlimited"', 'max_ahead = "1 h"').format(top="", source="")
    return ExplainedPlay(home, source + NEWEST.format(table=""), partitions=partitions)


def test_a_producer_whose_clock_is_an_hour_ahead(tmp_path: Path) -> None:
    play = on_wall_time(tmp_path, partitions=2)
    play.batch(10, record(5, part=0), record(5, "b", part=1))
    assert first(play, 11).cause == "nothing_wrong"
    play.batch(20, record(15, amount=2, part=0), record(3_610, "b", 2, part=1))
    finding = first(play, 21)
    assert place(finding) == ("producer_ahead", "events", "events", 1, ms(20))
    assert finding.seen == (  # 3,610 s − 20 s
        "1 record of events, of key b, lies up to 59 min 50 s ahead of the clock: it moves time no further than "
        "the clock"
    )


def in_future(days: int, key: str, *, is_text: bool = False) -> Callable[[Play], Row]:
    """A record with a timestamp that many *days* after second 20, which no JSON number holds if it *is_text*."""
    at_s = 20 + days * 86_400
    value = json.dumps({"id": key, "event_time": str(ms(at_s)) if is_text else ms(at_s)}).encode()
    return lambda play: {**record(at_s, key)(play), "value": value}


@pytest.mark.parametrize(
    ("ahead", "seen"),
    [
        ([in_future(30, "a")], "1 record of events, of key a, lies up to 30 d ahead of the clock: it is quarantined"),
        (
            [in_future(30, "a"), in_future(2, "b")],
            "2 records of events, of key a, lie up to 30 d ahead of the clock: they are quarantined",
        ),
        (
            [in_future(30, "a", is_text=True)],
            "1 record of events, of key a, lies further ahead of the clock than `max_ahead`: it is quarantined",
        ),
    ],
    ids=["one", "the first is the furthest", "no number"],
)
def test_a_producer_whose_clock_is_days_ahead(tmp_path: Path, ahead: list[Callable[[Play], Row]], seen: str) -> None:
    play = on_wall_time(tmp_path)
    play.batch(10, record(5))
    play.batch(20, *ahead, record(15, amount=2))
    finding = first(play, 21)
    assert place(finding) == ("producer_ahead", "events", "events", 0, ms(20))
    assert finding.seen == seen


@pytest.mark.parametrize("ahead_s", [2, 7_200])
def test_a_producer_has_been_ahead_since_its_first_such_record(tmp_path: Path, ahead_s: int) -> None:
    """By two hours its records are quarantined. Between them another producer sends right ones."""
    play = on_wall_time(tmp_path)
    play.batch(10, record(5))
    for second in range(20, 34):
        if second % 3:
            play.batch(second, record(second - 5, "b", second))
        else:
            at_s = second + ahead_s
            value = b'{"id": "a", "event_time": %d}' % ms(at_s)
            play.batch(second, lambda play, at_s=at_s, value=value: {**record(at_s, "a", at_s)(play), "value": value})
    assert place(first(play, 34)) == ("producer_ahead", "events", "events", 0, ms(21))


def test_time_that_a_producer_has_moved_is_set_back_by_a_command(tmp_path: Path) -> None:
    newest(tmp_path).batch(10, record(9_000))  # when max_ahead was unlimited
    play = on_wall_time(tmp_path)
    play._play.resume({"events": 1}, {("events", 0): 1})
    play.batch(20, record(3_610, amount=2))
    finding = first(play, 21)
    assert place(finding) == ("producer_ahead", "events", "events", 0, ms(10))
    sub = play.topology.sub_topologies[0].name
    command = f"tidemark reset-time play {sub} --source events --partition 0 --to 2014-05-13T12:00:20.000Z"
    assert finding.remedy.endswith(f"; the time of the partition is ahead already: `{command} --by NAME --reason TEXT`")


def test_what_was_never_wrong_has_no_beginning(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(9))
    play.batch(12, record(11, "b"))
    assert place(first(play, 13)) == ("nothing_wrong", "board", None, None, None)


def test_with_max_ahead_unlimited_no_producer_is_ahead(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(3_610))
    assert first(play, 11).cause == "nothing_wrong"


def test_poison_at_the_head(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.batch(70, record(65, part=0), bad("malformed_json", part=1))
    play.batch(80, bad("invalid_utf8", part=1), bad("malformed_json", part=1))
    assert first(play, 11).cause == "nothing_wrong"
    finding = first(play, 81)
    assert place(finding) == ("poison_at_head", "events", "events", 1, ms(70))
    assert finding.seen == "its newest 3 records are quarantined (2 malformed_json, 1 invalid_utf8)"
    look, again = commands(finding.remedy)
    assert again == ["tidemark", "requeue", "play", "--source", "events"]
    assert look[:2] == ["tidemark", "sql"]
    assert len(Warehouse(tmp_path).ask(look[2]).rows) == 3


def test_a_healthy_open_window_is_not_a_finding(tmp_path: Path) -> None:
    play = windows(tmp_path, partitions=1)
    play.batch(10, record(5))
    assert [finding.cause for finding in play.why(11)] == ["nothing_wrong"]
    play.batch(70, record(65))
    play.batch(80, record(75))
    (finding,) = play.why(81)
    # It needs 12:01:59.999 and is at 12:01:15 − 1 s − 1 ms.
    assert (finding.cause, finding.seen) == (
        "nothing_wrong",
        "1 result waits, the first for a watermark of 2014-05-13T12:01:59.999Z (window end 2014-05-13T12:02:00.000Z); "
        "it is at 2014-05-13T12:01:13.999Z; its records are coming",
    )


def test_the_last_window_of_the_evening(tmp_path: Path) -> None:
    play = windows(tmp_path, partitions=1)
    play.batch(10, record(5))
    assert first(play, 70).cause == "nothing_wrong"
    finding = first(play, 71)  # more than a minute after the last record
    assert place(finding) == ("time_stands_still", "per_minute", "events", None, ms(10))
    assert finding.seen.endswith("and no source has had a record for 1 min 1 s: only records move time")
    assert finding.remedy.startswith(
        "check that the producer of events runs; so that windows close in silence, set idle_"
    )
    assert finding.remedy.endswith("`tidemark run play --time processing`")


def test_what_came_after_a_driver_had_ended_is_not_known_to_be_silence(tmp_path: Path) -> None:
    """It was drained at 20 s; the next one runs from 90 s on, and has not looked yet."""
    play = windows(tmp_path, partitions=1)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 20, StreamState.DRAINED)
    assert [finding.cause for finding in play.why(81)] == ["drained"]
    tell(history, 90, StreamState.RUNNING, epoch=2)
    assert "time_stands_still" not in {finding.cause for finding in play.why(91)}


def test_the_remedy_for_the_last_window_works(tmp_path: Path) -> None:
    play = windows(tmp_path, source='idle_after = "30 s"\nidle_advances = true', partitions=1)
    play.batch(10, record(5))
    play.batch(80)
    assert first(play, 81).cause == "source_quiet"


def test_allowed_lateness_that_holds_results_back(tmp_path: Path) -> None:
    toml = SOURCE.format(top="", source="") + WINDOWS.replace(
        "[operators.counts]", 'allowed_lateness = "5 min"\n[operators.counts]'
    )
    play = ExplainedPlay(tmp_path, toml)
    play.batch(10, record(5))
    play.batch(70, record(65))
    finding = first(play, 71)
    assert place(finding) == ("allowed_lateness_holds", "per_minute", None, None, None)
    # Its end, 12:01:00, is behind the watermark 12:01:03.999; it waits for 12:00:59.999 + 5 min.
    assert "is at 2014-05-13T12:05:59.999Z (allowed_lateness = 5 min)" in finding.seen


def test_a_session_that_its_own_records_keep_open(tmp_path: Path) -> None:
    toml = SOURCE.format(top="", source="") + WINDOWS.replace('{ tumbling = "1 min" }', '{ session = "30 s" }')
    play = ExplainedPlay(tmp_path, toml)
    play.batch(10, record(5))
    assert first(play, 11).cause == "nothing_wrong"
    for second in (30, 50, 70):
        play.batch(second, record(second - 5))
    finding = first(play, 71)
    assert place(finding) == ("session_kept_open", "per_minute", None, None, None)
    assert "has been open since 2014-05-13T12:00:05.000Z: records keep coming, the newest of 2014-05-13T12:01:05" in (
        finding.seen
    )


def test_a_bound_that_is_too_small(tmp_path: Path) -> None:
    play = newest(tmp_path, source='allowed_lateness = "0 ms"')
    play.batch(10, record(5))
    play.batch(20, record(-10), record(-8), record(-6), record(6))
    assert first(play, 11).cause == "nothing_wrong"
    finding = first(play, 21)
    assert place(finding) == ("bound_too_small", "events", "events", 0, ms(20))
    # The oldest is 13,999 ms behind the watermark 12:00:03.999.
    assert finding.seen == ("3 of the 5 records of its last 2 batches were late, by up to 14 s, with a bound of 1 s")
    assert "; `tidemark requeue play --late --source events` sends them again; for results" in finding.remedy
    assert finding.remedy.endswith("`tidemark run play --time processing`")
    # Two batches say nothing about a bound, and five do.
    known_later = "wait: after 5 batches it is known whether the bound is too small; the table late_records"
    assert finding.remedy.startswith(known_later)
    for second in range(21, 27):
        play.batch(second, record(-10), record(-8), record(7))
    finding = first(play, 27)
    # The oldest is 15,999 ms behind the watermark 12:00:05.999.
    assert place(finding) == ("bound_too_small", "events", "events", 0, ms(20))
    assert finding.seen == ("10 of the 15 records of its last 5 batches were late, by up to 16 s, with a bound of 1 s")
    assert finding.remedy.startswith('a bound of "17 s" would accept them; `tidemark bound play --source events` shows')


@pytest.mark.parametrize(
    ("number", "unit"), [(1_399_982_410, "s"), (1_399_982_410_000_000, "us"), (1_399_982_410_000_000_000, "ns")]
)
def test_a_wrong_unit_of_time(tmp_path: Path, number: int, unit: str) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    play.batch(20, bad("timestamp_out_of_range", b'{"id": "a", "event_time": %d}' % number))
    assert first(play, 11).cause == "nothing_wrong"
    finding = first(play, 21)
    assert place(finding) == ("wrong_time_unit", "events", "events", 0, ms(20))
    assert finding.seen == f"the timestamp of its newest record is out of range as ms and plausible as {unit}"
    sub = play.control.name
    again = "`tidemark requeue play --source events --reason timestamp_out_of_range` sends them again"
    assert finding.remedy == (
        f'set timestamp_unit = "{unit}" for events, {START.format(sub=sub)}, and {again}; or have the producer send ms'
    )


@pytest.mark.parametrize("value", [b'{"event_time": 7}', b'{"event_time": true}', b"[]", b"\xff", b"[" * 100_000])
def test_a_timestamp_that_is_plausible_in_no_unit_is_poison(tmp_path: Path, value: bytes) -> None:
    play = newest(tmp_path)
    play.batch(10, bad("timestamp_out_of_range", value))
    assert first(play, 11).cause == "poison_at_head"


def test_records_that_wait_for_a_slower_partition(tmp_path: Path) -> None:
    play = newest(tmp_path, top='max_drift = "1 min"', partitions=2)
    play.batch(10, record(5, part=0), record(4, part=1))
    play.batch(20, record(3_600, amount=2, part=0), record(5, part=1))
    play.batch(30, record(3_601, part=0))
    assert first(play, 11).cause == "nothing_wrong"
    finding = first(play, 31)
    assert place(finding) == ("alignment_wait", "events", "events", 0, ms(30))
    # 13:00:00 and 12:00:05, each less 1 s and 1 ms
    assert finding.seen == (
        "1 record waits: partition 0 at 2014-05-13T12:59:58.999Z is more than 1 min (max_drift) ahead of "
        "events partition 1 at 2014-05-13T12:00:03.999Z"
    )
    play.batch(40, record(3_602, amount=3, part=1))
    play.batch(50, record(3_603, amount=4, part=1))
    assert first(play, 51).cause == "nothing_wrong"


def test_records_released_by_max_held_are_named(tmp_path: Path) -> None:
    play = newest(tmp_path, top='max_drift = "1 min"\nmax_held = 2', partitions=2)
    play.batch(10, record(5, part=0), record(4, part=1))
    play.batch(20, *(record(3_600 + n, part=0) for n in range(6)))
    finding = first(play, 21)
    assert place(finding) == ("alignment_wait", "events", "events", 0, ms(20))
    assert finding.seen.startswith("2 records wait: ")
    assert finding.seen.endswith("; 3 were released early in its last 2 batches (max_held = 2)")


def test_records_that_wait_in_several_partitions_are_counted_once(tmp_path: Path) -> None:
    play = newest(tmp_path, top='max_drift = "1 min"', partitions=3)
    play.batch(10, record(5, part=0), record(5, part=1), record(4, part=2))
    play.batch(20, record(3_600, part=0), record(3_602, part=1), record(5, part=2))
    play.batch(30, record(3_601, part=0), record(3_603, part=1))
    finding, *others = [each for each in play.why(31) if each.cause == "alignment_wait"]
    assert others == []
    assert (finding.operator, finding.partition) == ("events", None)
    # 13:00:00 and 13:00:02, each less 1 s and 1 ms; the records of batch 2 came on top of what is allowed.
    assert finding.seen == (
        "2 records wait: partition 0 at 2014-05-13T12:59:58.999Z, partition 1 at 2014-05-13T13:00:00.999Z are more "
        "than 1 min (max_drift) ahead of events partition 2 at 2014-05-13T12:00:03.999Z"
    )


def test_a_source_that_is_empty(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10)
    assert first(play, 9).cause == "never_started"
    assert place(first(play, 11)) == ("source_empty", "events", "events", None, ms(10))


def test_an_upstream_that_is_dead(tmp_path: Path) -> None:
    play = ExplainedPlay(
        tmp_path, SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    )
    beats = {
        name: Heartbeats(tmp_path / "streams" / "play" / name, topology="play", sub_topology=name)
        for name in ("reads", "sums")
    }
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    for name in beats:
        tell(beats[name], 12)
    assert first(play, 13).cause == "nothing_wrong"
    tell(beats["reads"], 14, StreamState.FAILED, "OSError: no space left on device")
    tell(beats["sums"], 27)
    finding = play.why(28, "totals")[0]
    assert place(finding) == ("upstream_dead", "by_amount", None, None, ms(14))
    assert finding.seen == "the driver of reads failed: OSError: no space left on device"
    assert finding.remedy == f"correct that and {RESTART.format(sub='reads')}"  # that of sums lives
    assert play.why(28, "board")[0].cause == "driver_dead"
    assert place(play.why(90, "totals")[0]) == ("driver_dead", "totals", None, None, ms(27))


def test_a_table_whose_first_records_are_on_their_way_waits_for_these(tmp_path: Path) -> None:
    play = ExplainedPlay(
        tmp_path, SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    )
    play.batch(8, sub="reads")
    play.batch(9, sub="sums")
    play.batch(10, record(5), sub="reads")
    for name in ("reads", "sums"):
        tell(Heartbeats(tmp_path / "streams" / "play" / name, topology="play", sub_topology=name), 10.5)
    seen = "no record has reached it yet, and the first ones wait unread or are being read on the way"
    assert [(each.cause, each.seen) for each in play.why(11, "totals")] == [("being_read", seen)]
    play.batch(11, sub="sums")
    assert first(play, 12).cause == "nothing_wrong"


def test_that_a_stream_was_drained_is_told_once_though_two_tables_wait_for_it(tmp_path: Path) -> None:
    play = ExplainedPlay(
        tmp_path, SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    )
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    for name in ("reads", "sums"):
        beats = Heartbeats(tmp_path / "streams" / "play" / name, topology="play", sub_topology=name)
        tell(beats, 12, StreamState.DRAINED)
    findings = why_document(tmp_path, play.topology, at_ms=ms(80)).findings
    assert [(each.cause, each.sub_topology, each.seen) for each in findings] == [
        ("drained", "reads", f"the driver of reads was drained at {iso(ms(12))}"),
        ("drained", "sums", f"the driver of sums was drained at {iso(ms(12))}"),
    ]


def test_a_dead_driver_is_told_once_though_streams_behind_it_wait_for_it(tmp_path: Path) -> None:
    play = ExplainedPlay(
        tmp_path, SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    )
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    for name, at_s in (("reads", 12), ("sums", 79)):
        tell(Heartbeats(tmp_path / "streams" / "play" / name, topology="play", sub_topology=name), at_s)
    findings = why_document(tmp_path, play.topology, at_ms=ms(80)).findings
    dead = [(each.cause, each.sub_topology) for each in findings if "sends no heartbeat" in each.seen]
    assert dead == [("driver_dead", "reads")]


GROUPS = operators(
    by_amount=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
    sums=aggregate("by_amount", sub_topology="sums", aggregates={"n": "count(*)"}),
    totals=sink("sums", table="totals"),
)


@pytest.mark.parametrize(
    ("state", "asked_s", "cause", "seen"),
    [
        (StreamState.DRAINED, 21, "drained", f"the driver of events was drained at {iso(ms(20))}"),
        (StreamState.RUNNING, 81, "driver_dead", "the driver of events sends no heartbeat any more"),
    ],
)
def test_a_driver_that_no_longer_runs(
    tmp_path: Path, state: StreamState, asked_s: float, cause: str, seen: str
) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    tell(Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events"), 20, state)
    assert first(play, 19).cause == "nothing_wrong"
    finding = first(play, asked_s)
    assert place(finding) == (cause, "board", None, None, ms(20))
    assert finding.seen == seen
    assert finding.remedy.endswith(START.format(sub=play.control.name))


def test_a_right_that_the_cluster_does_not_grant(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    beat = Heartbeat(state=StreamState.FAILED, epoch=1, launch_id="", at_ms=ms(20), pid=1)
    reason = "MissingRight: no right Read on topic readings of kafka.eu; ask the administrator of that cluster"
    Control(play.control).beat(replace(beat, reason=reason))
    finding = first(play, 21)
    assert place(finding) == (MISSING_RIGHT, "board", None, None, ms(20))
    assert finding.seen == "the driver of events failed: kafka.eu does not grant Read on topic readings"
    command = (
        "`kafka-acls --bootstrap-server HOST:PORT --add --allow-principal User:NAME --operation Read --topic readings`"
    )
    assert finding.remedy == (
        f"ask the administrator of that cluster to grant it: {command}; then {START.format(sub=play.control.name)}"
    )
    Control(play.control).beat(replace(beat, reason="PublishError: topic readings"))
    assert first(play, 21).cause == "driver_dead"


@pytest.mark.parametrize(
    ("beat_s", "at_s", "cause", "seen"),
    [
        (50, 50, "nothing_wrong", None),
        (50.001, 51, "slow_batch", "one batch of events has been running for 31 s"),
        (80.001, 81, "slow_batch", "one batch of events has been running for 1 min 1 s"),
        # Heartbeats of a driver that works come each second, also within a batch.
        (22, 52, "nothing_wrong", None),
        (22, 53, "backlog", "the driver of events stands still, and reads nothing: no batch and no heartbeat with"),
    ],
)
@pytest.mark.parametrize("is_live", [False, True])
def test_a_driver_within_a_long_batch_does_not_stand_still(
    tmp_path: Path, beat_s: float, at_s: float, cause: str, seen: str | None, *, is_live: bool
) -> None:
    """A batch began at second 20. More than 30 s, without another trigger, are long."""
    play = newest(tmp_path)
    play.batch(10, record(5))
    beat = Heartbeat(
        state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(beat_s), pid=1, doing="batch 1", since_ms=ms(20)
    )
    if is_live:
        driver = Control(play.control)
        driver.acquire()
        driver.beat(beat)
    else:
        history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
        history.write_if_due(beat, thread_id="t", batch_started_at_ms=ms(20))
    finding = first(play, at_s)
    assert finding.cause == cause
    if seen is not None:
        assert finding.seen.startswith(seen)
    if cause == "slow_batch":
        assert place(finding) == ("slow_batch", "board", None, None, ms(20))


def test_a_finished_batch_is_not_slow_because_the_table_has_its_begin(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 35, batch_s=20)
    driver = Control(play.control)
    driver.acquire()
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(51), pid=1, since_ms=ms(36))
    driver.beat(replace(beat, doing="batch 1", since_ms=ms(20)))
    assert first(play, 52).cause == "slow_batch"
    driver.beat(replace(beat, doing="waiting for a batch after 1"))
    assert first(play, 52).cause == "nothing_wrong"


def planned(play: ExplainedPlay, batch_id: int, at_s: float, **ends: int) -> None:
    """Has Spark plan a batch up to *ends* of partition 0 of topics."""
    offsets = play.control / "checkpoint" / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({topic: {"0": end}}) for topic, end in ends.items()]
    (offsets / str(batch_id)).write_text("\n".join(["v1", json.dumps({"batchTimestampMs": ms(at_s)}), *lines]))


def test_a_source_whose_first_records_are_being_read_had_records(tmp_path: Path) -> None:
    play = ExplainedPlay(tmp_path, TWO_SOURCES)
    play.batch(10, of("limits", 5, most=9.0))
    empty = next(finding for finding in play.why(21) if finding.input == "payments")
    assert (empty.cause, empty.seen) == (
        "source_empty",
        "payments had no record yet when the newest finished batch looked at it",
    )
    planned(play, 1, 20, limits=4, payments=3_000_000)
    found = {finding.input: finding for finding in play.why(21)}
    assert found["payments"].cause == "being_read"
    assert found["payments"].seen == (
        "no record of payments was processed yet, and the batch that is planned has up to 3,000,000"
    )
    # Before it was planned nothing was known of it.
    assert "being_read" not in {finding.cause for finding in play.why(19)}
    # One record of limits was read before.
    driver = Control(play.control)
    driver.acquire()
    running = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(60), pid=1, doing="batch 1")
    driver.beat(replace(running, since_ms=ms(20)))
    assert first(play, 60).seen == (
        f"one batch of {play.sub} has been running for 40 s; it reads up to 3,000,000 records of payments and "
        "3 records of limits"
    )


def test_records_that_a_planned_batch_reads_are_no_backlog(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.broker.ends[0] = 100
    for second in (10, 11, 12):
        play.batch(second, record(second - 5, amount=second))
    planned(play, 3, 12.5, events=100)
    assert first(play, 13).cause == "nothing_wrong"
    # Before it was planned, they waited.
    assert first(play, 12.2).seen.startswith("97 records of it wait unread; ")
    planned(play, 3, 12.5, events=60)
    assert first(play, 13).seen.startswith("40 records of it wait unread; ")


def test_a_batch_that_was_planned_by_an_instant_and_finished_later_reads_what_waited(tmp_path: Path) -> None:
    """Batch 1 is planned at 70 s, sees 7 records of partition 1, and finishes at 73 s; batch 2 reads them."""
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.broker.ends[1] = 8
    play.batch(70, record(65, part=0), now_s=73)
    assert place(first(play, 75)) == ("backlog", "events", "events", 1, ms(73))
    play.batch(74.5, *(record(65 + n, part=1) for n in range(7)), now_s=78)
    finding = first(play, 75)
    assert place(finding) == ("being_read", "events", "events", 1, ms(73))
    assert finding.seen == "7 records of it waited unread, and the newest batch that was planned reads them"
    assert first(play, 74.4).cause == "backlog"


def test_what_the_newest_entry_of_the_journal_reads_is_no_backlog(tmp_path: Path) -> None:
    """No facts are flushed, so those of the batch that reads them come with the next one."""
    toml = SOURCE.format(top="", source="") + WINDOWS
    play = ExplainedPlay(tmp_path, toml, partitions=2, facts_every_ms=HOUR_MS)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.broker.ends[1] = 8
    play.batch(70, record(65, part=0))
    play.batch(71, *(record(4, part=1) for n in range(7)))
    assert "backlog" not in {finding.cause for finding in play.why(75)}


def test_the_first_batch_is_told_once_though_two_tables_wait_for_it(tmp_path: Path) -> None:
    """One table is of the stream, and the other of a stream behind it, which has not begun."""
    top = SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="")
    play = ExplainedPlay(tmp_path, top + GROUPS + operators(second_board=sink("newest", table="b")))
    driver = Control(play.control)
    driver.acquire()
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(15), pid=1, doing="batch 0")
    driver.beat(replace(beat, since_ms=ms(10)))
    findings = why_document(tmp_path, play.topology, at_ms=ms(16)).findings
    told = [each.cause for each in findings if "first batch of reads" in each.seen]
    assert told == ["first_batch"]


def test_the_first_batch_of_a_driver_is_being_read(tmp_path: Path) -> None:
    play = ExplainedPlay(tmp_path, TWO_SOURCES)
    driver = Control(play.control)
    (play.control / "journal").mkdir(parents=True)
    planned(play, 0, 10, limits=0, payments=3_000_000)
    driver.acquire()
    running = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(15), pid=1, doing="batch 0")
    driver.beat(replace(running, since_ms=ms(10)))
    (finding,) = play.why(16)
    assert place(finding) == ("first_batch", "board", "payments", None, ms(10))
    assert finding.seen == (
        f"the first batch of {play.sub} has been running for 6 s; it reads up to 3,000,000 records of payments"
    )
    # A heartbeat from before the batch does not know of it.
    driver.beat(replace(running, at_ms=ms(9), doing="", since_ms=None))
    assert [finding.seen for finding in play.why(11)] == [
        f"the first batch of {play.sub} was planned, and has not finished"
    ]
    (finding,) = play.why(45)
    assert (finding.cause, finding.seen) == (
        "slow_batch",
        f"the first batch of {play.sub} was planned, and has not finished; the newest sign of work is 36 s old",
    )  # fmt: skip
    driver.beat(replace(running, at_ms=ms(41), since_ms=ms(10)))
    assert [finding.cause for finding in play.why(41)] == ["slow_batch"]


def test_a_driver_on_a_full_disk_reports_it_outside_of_tables(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    control = Control(Layout(tmp_path).control("play", "events"))
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(80), pid=1)
    cannot = f"cannot write: No space left on device, since {iso(ms(60))}"
    control.beat(replace(beat, reason=cannot))
    finding = first(play, 81)
    assert place(finding) == ("cannot_write", "board", None, None, ms(60))
    assert finding.seen == f"the driver of events {cannot}"
    control.beat(beat)
    assert first(play, 81).cause == "source_quiet"


COULD_NOT = f"could not write from {iso(ms(60))} until {iso(ms(80))}: No space left on device"


@pytest.mark.parametrize(
    ("state", "reason", "at_s", "seen"),
    [
        (StreamState.RUNNING, COULD_NOT, 81, f"lives, and has not yet done what waited for the disk: it {COULD_NOT}"),
        (
            StreamState.STARTING, f"a driver before this one {COULD_NOT}", 81,
            f"is starting, and has not yet done what waited for the disk: a driver before this one {COULD_NOT}",
        ),
        (
            StreamState.RUNNING, f"cannot write: No space left on device, since {iso(ms(60))}", 89,
            f"was killed; before that it {COULD_NOT}",
        ),
        (
            StreamState.DRAINED, COULD_NOT, 89,
            f"was drained by tidemark down at {iso(ms(80))}; before that it {COULD_NOT}",
        ),
        (
            StreamState.FAILED, "OSError: [Errno 28] No space left on device", 89,
            "failed: OSError: [Errno 28] No space left on device",
        ),
    ],
)  # fmt: skip
def test_a_full_disk_stays_the_cause_until_what_waited_is_done(
    tmp_path: Path, state: StreamState, reason: str, at_s: float, seen: str
) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    control = Control(Layout(tmp_path).control("play", "events"))
    by = "tidemark down" if state is StreamState.DRAINED else None
    control.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=ms(80), pid=1, reason=reason, drained_by=by))
    finding = first(play, at_s)
    since_ms = ms(80) if state is StreamState.FAILED else ms(60)
    assert place(finding) == ("cannot_write", "board", None, None, since_ms)
    assert finding.seen == f"the driver of events {seen}"


def test_a_driver_that_waits_for_a_schema_names_its_registry(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    control = Control(Layout(tmp_path).control("play", "events"))
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(80), pid=1)
    waits = "waits for the schema 7: registry.main: https://registry does not answer: timed out"
    control.beat(replace(beat, reason=waits))
    finding = first(play, 81)
    assert place(finding) == ("registry_silent", "board", None, None, None)
    assert finding.seen == f"the driver of events {waits}"
    control.beat(beat)
    assert first(play, 81).cause == "source_quiet"


def test_a_driver_that_waits_for_brokers_names_them(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    control = Control(Layout(tmp_path).control("play", "events"))
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(80), pid=1)
    waits = "waits for Kafka: no answer of eu.example.org:9092 (cluster eu) since 2014-05-13T12:00:30.000Z"
    control.beat(replace(beat, reason=waits))
    finding = first(play, 81)
    assert place(finding) == ("broker_silent", "board", None, None, ms(30))
    assert finding.seen == f"the driver of events {waits}"
    control.beat(beat)
    assert first(play, 81).cause == "source_quiet"


def test_a_transaction_that_stays_open_is_named_with_its_place(tmp_path: Path) -> None:
    play = windows(tmp_path)
    play.batch(10, record(5, part=0), record(5, part=1))
    play.batch(20, record(80, part=0))
    assert first(play, 21).cause == "partition_idle_holds_back"
    beats = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    stays = {
        "source": "events",
        "partition": 1,
        "topic_partition": "events/1",
        "stable_offset": 7,
        "found_at": utc(ms(30)),
    }
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(45), pid=1)
    told = {"thread_id": None, "batch_started_at_ms": None}
    beats.write_if_due(beat, **told, usage=lambda: {"open_transactions": [stays]})
    finding = first(play, 50)
    assert place(finding) == ("open_transaction", "events", "events", 1, ms(30))
    assert finding.seen == (
        "topic events, partition 1: a transaction is open, so the last stable offset is 7 and has not moved since the "
        "look of 2014-05-13T12:00:30.000Z; nothing from there on is read before the transaction ends"
    )
    assert "abort --topic events --partition 1 --start-offset 7`" in finding.remedy
    # A new driver has not looked yet.
    driver = Control(play.control)
    driver.acquire()
    driver.beat(replace(beat, epoch=2, at_ms=ms(50)))
    assert first(play, 51).cause == "partition_idle_holds_back"
    driver.beat(replace(beat, at_ms=ms(50)))
    assert first(play, 51).cause == "open_transaction"
    beats.write_if_due(replace(beat, at_ms=ms(60)), **told)
    assert first(play, 61).cause == "partition_idle_holds_back"


def test_a_driver_without_a_batch(tmp_path: Path) -> None:
    beats = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(beats, 0, StreamState.STARTING)
    (finding,) = newest(tmp_path).why(1)
    assert place(finding) == ("driver_starting", "board", None, None, ms(0))
    tell(beats, 20, StreamState.RUNNING)
    (finding,) = newest(tmp_path).why(21)
    assert (finding.cause, finding.seen) == (
        "never_started",
        "the driver of events is alive and has not finished a batch yet",
    )


def test_a_driver_that_waits_for_its_first_batch_has_done_so_since_it_ran(tmp_path: Path) -> None:
    beats = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(beats, 0, StreamState.STARTING)
    tell(beats, 20)
    tell(beats, 40)
    play = newest(tmp_path)
    driver = Control(play.control)
    driver.acquire()
    running = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(44), pid=1)
    driver.beat(replace(running, doing="waiting for its first batch", since_ms=ms(19)))
    assert [place(finding) for finding in play.why(45)] == [("never_started", "board", None, None, ms(20))]
    # Its facts come with the next batch.
    driver.beat(replace(running, at_ms=ms(50), batch_id=0, doing="waiting for a batch after 0", since_ms=ms(49)))
    assert "never_started" not in {finding.cause for finding in play.why(51)}
    driver.beat(replace(running, at_ms=ms(53), batch_id=0, doing="batch 1", since_ms=ms(52)))
    assert not {"never_started", "first_batch"} & {finding.cause for finding in play.why(54)}


@pytest.mark.parametrize("facts_every_ms", [0, HOUR_MS])
def test_a_batch_that_was_planned_after_the_newest_heartbeat_had_begun(tmp_path: Path, facts_every_ms: int) -> None:
    """Without a flush, the facts of batch 0 become visible with the entry of batch 1."""
    toml = SOURCE.format(top="", source="") + NEWEST.format(table="")
    play = ExplainedPlay(tmp_path, toml, facts_every_ms=facts_every_ms)
    driver = Control(play.control)
    driver.acquire()
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(9), pid=1)
    driver.beat(replace(beat, doing="waiting for its first batch", since_ms=ms(1)))
    play.batch(10, record(5), now_s=12)
    assert first(play, 9.5).cause == "never_started"
    for at_s in (11, 13):
        assert "never_started" not in {finding.cause for finding in play.why(at_s)}


def test_all_updates_were_suppressed(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    play.batch(20, record(6), record(7))
    play.batch(30, record(8))
    assert first(play, 11).cause == "nothing_wrong"
    finding = first(play, 31)
    assert place(finding) == ("all_suppressed", "newest", None, None, ms(20))
    assert finding.seen == "3 of 3 updates since its newest result were suppressed"


def test_rows_that_a_hop_has_not_read_are_a_backlog(tmp_path: Path) -> None:
    play = ExplainedPlay(
        tmp_path, SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    )
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    play.batch(20, record(6, amount=2.0), sub="reads")
    play.batch(25, record(7, amount=3.0), sub="reads")
    assert play.why(30, "totals")[0].cause == "nothing_wrong"
    finding = play.why(31, "totals")[0]
    assert place(finding) == ("backlog", "by_amount_source", "by_amount", None, ms(20))
    assert finding.seen == "2 batches that by_amount sent on wait unread"


def test_a_watermark_that_a_hop_has_not_read_is_no_backlog(tmp_path: Path) -> None:
    """The newest batch suppressed its update, so that it sent nothing on but how far time has come."""
    toml = SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    play = ExplainedPlay(tmp_path, toml)
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    play.batch(20, record(20), sub="reads")
    assert "backlog" not in {finding.cause for finding in play.why(60, "totals")}


@pytest.mark.parametrize("facts_every_ms", [0, HOUR_MS])
def test_rows_of_a_hop_that_a_planned_batch_reads_are_no_backlog(tmp_path: Path, facts_every_ms: int) -> None:
    """The batch that reads them is planned at 32 s and finishes at 36 s."""
    toml = SOURCE.format(top="", source='sub_topology = "reads"') + NEWEST.format(table="") + GROUPS
    play = ExplainedPlay(tmp_path, toml, facts_every_ms=facts_every_ms)
    play.batch(10, record(5), sub="reads")
    play.batch(11, sub="sums")
    for second, amount in ((20, 2.0), (25, 3.0), (26, 4.0)):
        play.batch(second, record(second, amount=amount), sub="reads")
    play.batch(32, sub="sums", now_s=36)
    for at_s in (33, 37):
        assert "backlog" not in {finding.cause for finding in play.why(at_s, "totals")}
    assert play.why(31.9, "totals")[0].cause == "backlog"


def test_a_window_after_a_hop_leads_to_the_blocking_partition(tmp_path: Path) -> None:
    hop = operators(by_id=repartition(key=["id"], columns=["amount"]))
    behind = WINDOWS.replace('input = "events"\nkey = ["id"]', 'input = "by_id"\nsub_topology = "minutes"')
    toml = SOURCE.format(top="", source='sub_topology = "reads"') + hop + behind
    play = ExplainedPlay(tmp_path, toml, partitions=2)
    play.batch(10, record(5, part=0), record(5, part=1), sub="reads")
    play.batch(11, sub="minutes")
    play.batch(70, record(65, part=0), sub="reads")
    play.batch(71, sub="minutes")
    assert play.why(12, "counts")[0].cause == "nothing_wrong"
    holding, waiting = play.why(72, "counts")
    assert place(holding) == ("partition_idle_holds_back", "events", "events", 1, ms(10))
    assert place(waiting) == ("window_not_closed", "per_minute", "by_id_source", None, ms(11))


def test_results_that_wait_for_an_interval(tmp_path: Path) -> None:
    play = newest(tmp_path, table='strategy = "periodic"\ninterval = "1 min"')
    play.batch(10, record(5))
    play.batch(20, record(6))
    finding = first(play, 21)
    assert place(finding) == ("held_until_interval", "newest", None, None, ms(10))
    assert finding.seen == "1 update waits for 2014-05-13T12:01:00.000Z, the end of an interval of 1 min"
    # No batch has come since, though the interval has ended.
    due = first(play, 60)
    assert due.seen == "1 update was due at 2014-05-13T12:01:00.000Z, the end of an interval of 1 min"
    play.batch(61)
    assert first(play, 62).cause == "nothing_wrong"


def test_all_records_were_dropped_by_a_condition(tmp_path: Path) -> None:
    toml = SOURCE.format(top="", source="") + (
        operators(large=map_of(select={"id": "id"}, where="amount > 10"), board=sink("large", table="board"))
    )
    play = ExplainedPlay(tmp_path, toml)
    play.batch(10, record(5), record(6))
    assert place(first(play, 11)) == ("all_filtered", "large", None, None, ms(10))


def test_all_is_said_only_where_all_updates_have_one_outcome(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    # Two updates are the same as before, and the third has no key.
    play.batch(20, record(6), record(7), record(8, None))
    assert [(each.cause, each.seen) for each in play.why(21)] == [
        ("not_sent_on", "2 of 3 updates since its newest result were suppressed"),
        ("poison_at_head", "1 of 3 updates since its newest result was quarantined (1 null_key in id)"),
    ]


def deleted(at_s: float) -> Callable[[Play], Row]:
    """A record that deletes the key `a`."""
    return lambda play: {
        **record(at_s)(play),
        "deleted": True,
        "events": {"id": "a", "amount": None, "event_time": None},
    }


ALL_LEFT_OUT = {
    "a condition": (
        {"by": map_of(select={"id": "id"}, where="amount > 10")}, [record(5)],
        "all_filtered", "1 of 1 update since its newest result was filtered", "look at its `where`",
    ),
    "a failed calculation": (
        {"by": map_of(select={"id": "id::int"})}, [record(5)],
        "poison_at_head", "1 of 1 update since its newest result was quarantined (1 sql_error)", "look at them: `",
    ),
    "deletions at a repartition of a stream": (
        {"by": repartition(key=["id"], columns=["amount"])}, [deleted(5)],
        "all_filtered", "1 of 1 update since its newest result was filtered",
        "they are deletions, which a repartition passes on only if it has an `id`",
    ),
    "a null key of a repartition of a stream": (
        {"by": repartition(key=["amount"], columns=["id"])}, [record(5, amount=None)],
        "poison_at_head", "1 of 1 update since its newest result was quarantined (1 null_key in amount)",
        "look at them: `",
    ),
    "a null id of a repartition of updates": (
        {"by": repartition(id=["amount"], key=["id"], columns=["id"])}, [record(5, amount=None)],
        "poison_at_head", "1 of 1 update since its newest result was quarantined (1 null_key in amount)",
        "look at them: `",
    ),
    "deletions at an aggregate of a stream": (
        {"by": aggregate(key=["id"], aggregates={"n": "count(*)"})}, [deleted(5)],
        "all_filtered", "1 of 1 update since its newest result was filtered",
        "they are deletions, which have no values that it could use: no action is needed",
    ),
    "a null key of an aggregate": (
        {"by": aggregate(key=["amount"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"})},
        [record(5, amount=None)],
        "poison_at_head", "1 of 1 update since its newest result was quarantined (1 null_key in amount)",
        "look at them: `",
    ),
}  # fmt: skip
"""Operators that send on none of the records, and what is said of that."""


@pytest.mark.parametrize("situation", ALL_LEFT_OUT)
def test_what_an_operator_leaves_out_is_named_with_its_own_reason(tmp_path: Path, situation: str) -> None:
    operator, records, cause, seen, remedy = ALL_LEFT_OUT[situation]
    reads = operators(up=aggregate("by", aggregates={"n": "count(*)"}), board=sink("up", table="board"))
    after = reads if operator["by"]["kind"] == "repartition" else operators(board=sink("by", table="board"))
    keyed = SOURCE.format(top="", source='key = "id"')
    play = ExplainedPlay(tmp_path, keyed + operators(**operator) + after)
    play.batch(10, *records, sub=play.sub)
    finding = play.why(11, "by")[0]
    assert (finding.cause, finding.operator, finding.seen) == (cause, "by", seen)
    assert finding.remedy.startswith(remedy)


def test_an_inner_join_with_an_empty_table_leads_to_its_source(tmp_path: Path) -> None:
    toml = SOURCE.format(top="", source="") + (
        operators(
            rates=source(topic="rates", fields="id string, rate double, at bigint", timestamp="at", max_ahead=None),
            rate=table("rates"),
            rated=join("events", "rate", on={"id": "id"}, how="inner"),
            board=sink("rated", table="board"),
        )
    )
    play = ExplainedPlay(tmp_path, toml)
    play.batch(10, record(5))
    empty, filtered = play.why(11)
    assert (filtered.cause, filtered.operator) == ("all_filtered", "rated")
    assert (empty.cause, empty.operator) == ("source_empty", "rates")


def test_a_source_that_stopped_sending_is_named(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    assert first(play, 70).cause == "nothing_wrong"
    assert place(first(play, 71)) == ("source_quiet", "board", "events", None, ms(10))


def test_a_source_whose_records_wait_is_not_quiet(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.broker.ends[0] = 100
    play.batch(10, record(5))
    planned(play, 1, 20, events=100)
    finding = first(play, 81)
    assert place(finding) == ("being_read", "events", "events", 0, ms(10))
    assert finding.seen == "99 records of it waited unread, and the newest batch that was planned reads them"


def test_silence_is_known_until_the_batch_that_runs_began(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5))
    history = Heartbeats(tmp_path / "streams" / "play" / "events", topology="play", sub_topology="events")
    tell(history, 75, batch_s=70)
    assert first(play, 76).cause == "nothing_wrong"
    tell(history, 95, batch_s=80)
    finding = first(play, 96)
    assert place(finding) == ("source_quiet", "board", "events", None, ms(10))
    assert finding.seen.startswith("it has been silent for 1 min 10 s; ")


UNION = topology_of(
    limits=source("id string, v int", topic="limits"),
    payments=source("id string, v int", topic="payments", bound="5 s"),
    both={"kind": "union", "inputs": ["limits", "payments"]},
    per_minute=aggregate("both", key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}),
    board=sink("per_minute", table="board"),
)


def test_silence_belongs_to_the_source_that_is_silent(tmp_path: Path) -> None:
    play = ExplainedPlay(tmp_path, UNION)
    play.batch(10, of("limits", 5, v=1), of("payments", 6, v=1))
    play.batch(80, of("payments", 75, v=2))
    finding = first(play, 81)
    assert (finding.cause, finding.input) == ("nothing_wrong", None)
    assert finding.seen.endswith("; limits has been silent for 1 min 11 s")
    finding = first(play, 141)
    assert place(finding) == ("source_quiet", "board", "payments", None, ms(80))
    assert finding.seen == (
        "limits, payments have been silent for 1 min 1 s; before, 1 result came, of the newest records that were read"
    )


def test_late_records_of_several_sources_blame_no_single_bound(tmp_path: Path) -> None:
    play = ExplainedPlay(tmp_path, UNION)
    play.batch(10, of("limits", 200, v=1), of("payments", 200, v=1))
    for second in range(11, 16):
        # The watermark is 12:03:14.999, so the minute that ends at 12:02 is closed.
        play.batch(second, of("payments", 100, v=second), of("payments", 101, v=second), of("payments", 200, v=second))
    finding = next(each for each in play.why(16) if each.cause == "bound_too_small")
    assert (finding.operator, finding.input, finding.partition) == ("per_minute", None, None)
    assert finding.seen.endswith("were late, by up to 1 min 34 s, with bounds of 1 s (limits), 5 s (payments)")
    # The latest was 94.999 s late: one of 95 s would still be.
    assert finding.remedy.startswith('bounds that are "95 s" longer would accept them; `tidemark bound play` shows')


def test_one_bad_record_among_good_ones_is_not_poison(tmp_path: Path) -> None:
    play = newest(tmp_path)
    play.batch(10, record(5), bad("null_key"))
    assert [finding.cause for finding in play.why(11)] == ["nothing_wrong", "set_aside"]


def test_late_and_quarantined_records_are_named(tmp_path: Path) -> None:
    play = newest(tmp_path, source='allowed_lateness = "0 ms"')
    play.batch(10, record(5))
    play.batch(20, record(-10), record(6, amount=2.0), bad("malformed_json"))
    # 12:00:03.999 is the watermark.
    of = "of the 4 records that it got in its last 2 batches"
    told = [
        (
            f"1 {of} was late, by up to 14 s",
            "the table late_records lists them, and requeued those that were sent or processed again; "
            "`tidemark requeue play --late --source events` sends them again",
        ),
        (
            f"1 {of} is quarantined (1 malformed_json)",
            "look at what is quarantined: `tidemark sql \"from quarantine where topology = 'play' and source = 'events'"
            '"`; correct the producer or the topology; then `tidemark requeue play --source events` sends them again',
        ),
    ]
    came = "1 result came, of the newest records that were read"
    for at_s, cause, seen in (
        (21, "nothing_wrong", came),
        (81, "source_quiet", f"it has been silent for 1 min 1 s; before, {came}"),
    ):
        finding, *set_aside = play.why(at_s)
        assert (finding.cause, finding.seen) == (cause, seen)
        assert {(each.cause, each.operator) for each in set_aside} == {("set_aside", "events")}
        assert [(each.seen, each.remedy) for each in set_aside] == told


def test_what_an_operator_set_aside_is_told_once_for_all_tables_behind_it(tmp_path: Path) -> None:
    second = operators(second_board=sink("newest", table="b"))
    play = ExplainedPlay(tmp_path, SOURCE.format(top="", source="") + NEWEST.format(table="") + second)
    play.batch(10, record(5), bad("malformed_json"))
    assert [(each.cause, each.operator) for each in play.why(11)] == [
        ("nothing_wrong", "board"), ("nothing_wrong", "second_board"), ("set_aside", "events"),
    ]  # fmt: skip


def test_a_missing_operator_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="play has no operator 'bord'; known: events, newest, board"):
        newest(tmp_path).why(0, "bord")
