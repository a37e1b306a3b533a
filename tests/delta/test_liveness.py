"""Each surface has the same word for a stream at the same instant: that of `tidemark.semantics.liveness`.

A situation is the evidence that a driver leaves, written by hand beside a batch that was played. The batch found the
only source idle.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from openlineage.client.event_v2 import RunState

from support.play import Play, ms, tell
from support.topologies import sink, source, topology_of
from tidemark.cli.explain.status import as_text
from tidemark.cli.export.lineage_runs import unsent_events
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.control.liveness import liveness_of
from tidemark.facts.history import history
from tidemark.facts.latency_places import ChartSpan
from tidemark.facts.liveness import drivers_of
from tidemark.facts.measures import sla_facts
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.query.sql import Warehouse
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_page import operator_page, start_page, topology_page
from tidemark.reports.promises import Promises
from tidemark.semantics.catching_up import HANGS_AFTER_MS
from tidemark.semantics.liveness import (
    ENDED_WELL,
    HAS_DRIVER,
    LIMITS,
    REPLACED_WITHIN_MS,
    WORKS,
    DriverEvidence,
    EvidenceKind,
    Liveness,
    RightToKill,
    Sign,
    StoreKind,
    asks_for_lease,
    liveness,
)
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.why.walk import scene, why

TOML = topology_of(events=source(idle_after="10 s"), board=sink("events", table="board"))
SLA = {"subject": "board", "error_after": "1 h", "owner": "o", "ignore_when_idle": True}
SLAS = {"board": {**SLA, "measure": "staleness", "while_catching_up": "excuse"}}
NOW_S = 1_000.0
SILENT_BROKERS = "waits for Kafka: no broker of k answers since 2014-05-13T12:10:00Z"
CAUSES = {
    Liveness.FAILED: {"driver_dead"},
    Liveness.DEAD: {"driver_dead"},
    Liveness.STUCK: {"driver_stuck", "slow_batch"},
    Liveness.UNKNOWN: {"driver_unknown"},
    Liveness.NEVER_STARTED: {"never_started"},
    Liveness.STARTING: {"driver_starting", "broker_silent"},
    Liveness.ROTATED: {"driver_starting"},
    Liveness.DRAINED: {"drained"},
    Liveness.FINISHED: {"finished"},
}
"""What `tidemark why` finds about the driver; nothing of these about one that runs."""


class Place:
    """The stream `events` of a copy of the play, at NOW_S."""

    def __init__(self, play: Play) -> None:
        self.play, self.layout = play, Layout(play.home)
        self.home = self.layout.control("play", play.sub)
        self.control = Control(self.home)

    def beat(self, ago_s: float, state: StreamState = StreamState.RUNNING, **more: Any) -> None:
        """Writes the heartbeat of the control folder."""
        beat = Heartbeat(state=state, epoch=1, launch_id="l", at_ms=ms(NOW_S - ago_s), pid=1, doing="waiting")
        self.control.beat(replace(beat, **more))

    def in_batch(self, ago_s: float, *, for_s: float) -> None:
        """Writes the heartbeat of a driver that then had worked on a batch for so long."""
        self.beat(ago_s, doing="batch 7", since_ms=ms(NOW_S - ago_s - for_s))

    def row(self, ago_s: float, state: StreamState = StreamState.RUNNING, **more: Any) -> None:
        """Writes a row of `heartbeats`."""
        history = Heartbeats(self.layout.stream("play", self.play.sub), topology="play", sub_topology=self.play.sub)
        tell(history, NOW_S - ago_s, state, **more)


Leave = Callable[[Place], object]


@dataclass(frozen=True)
class Situation:
    """What a driver leaves, in this order, and the word for it.

    is_held: a process holds the lease. may_read: the user may read the control folder. has_batch: there are batches.
    """

    word: Liveness
    leave: tuple[Leave, ...] = ()
    is_held: bool = False
    may_read: bool = True
    has_batch: bool = True


ENDED = StreamState.DRAINED
CATCHES_UP: dict[str, Any] = {"records_behind": 70, "arrival_per_s": 1.0, "working_per_s": 2.0, "eta_at": 0}
SITUATIONS: dict[str, Situation] = {
    "nothing": Situation(Liveness.NEVER_STARTED, has_batch=False),
    "batches alone": Situation(Liveness.UNKNOWN),
    "nothing that may be read": Situation(Liveness.UNKNOWN, may_read=False, has_batch=False),
    "starts": Situation(
        Liveness.STARTING, (lambda at: at.beat(1, StreamState.STARTING, since_ms=ms(NOW_S - 20)),), is_held=True
    ),
    "starts for six minutes": Situation(
        Liveness.STUCK, (lambda at: at.beat(1, StreamState.STARTING, since_ms=ms(NOW_S - 360)),), is_held=True
    ),
    "starts for six minutes, since brokers are silent": Situation(
        Liveness.STARTING,
        (lambda at: at.beat(1, StreamState.STARTING, since_ms=ms(NOW_S - 360), reason=SILENT_BROKERS),),
        is_held=True,
    ),
    "beats": Situation(Liveness.RUNNING, (lambda at: at.beat(1),), is_held=True),
    "was killed two seconds ago": Situation(Liveness.RUNNING, (lambda at: at.beat(2),)),
    "was killed four seconds ago": Situation(Liveness.DEAD, (lambda at: at.beat(4),)),
    "silent for 59 s, with its lease": Situation(Liveness.RUNNING, (lambda at: at.beat(59),), is_held=True),
    "silent for 61 s, with its lease": Situation(Liveness.STUCK, (lambda at: at.beat(61),), is_held=True),
    "batch of four minutes": Situation(Liveness.RUNNING, (lambda at: at.in_batch(1, for_s=240),), is_held=True),
    "batch of six minutes": Situation(Liveness.STUCK, (lambda at: at.in_batch(1, for_s=360),), is_held=True),
    "asked to end": Situation(
        Liveness.DRAINING,
        (lambda at: at.beat(1), lambda at: at.control.request_drain(by="ann", now_ms=ms(NOW_S))),
        is_held=True,
    ),
    "asked to end, then killed": Situation(
        Liveness.DEAD, (lambda at: at.beat(9), lambda at: at.control.request_drain(by="ann", now_ms=ms(NOW_S)))
    ),
    "drained": Situation(Liveness.DRAINED, (lambda at: at.beat(35, ENDED, drained_by="ann"),)),
    "finished": Situation(Liveness.FINISHED, (lambda at: at.beat(35, StreamState.FINISHED),)),
    "failed": Situation(Liveness.FAILED, (lambda at: at.beat(400, StreamState.FAILED, reason="ValueError: no"),)),
    "rotated": Situation(Liveness.ROTATED, (lambda at: at.beat(299, StreamState.ROTATED),)),
    "rotated, without a successor": Situation(Liveness.DEAD, (lambda at: at.beat(301, StreamState.ROTATED),)),
    "catches up": Situation(
        Liveness.CATCHING_UP, (lambda at: at.row(10, **CATCHES_UP), lambda at: at.beat(1)), is_held=True
    ),
    "caught up before the brokers fell silent": Situation(
        Liveness.RUNNING,
        (lambda at: at.row(10, **CATCHES_UP), lambda at: at.beat(1, reason=SILENT_BROKERS)),
        is_held=True,
    ),
    "its predecessor caught up": Situation(
        Liveness.RUNNING, (lambda at: at.row(10, **CATCHES_UP), lambda at: at.beat(1, epoch=2)), is_held=True
    ),
    "rows that are newer than the folder": Situation(
        Liveness.RUNNING, (lambda at: at.beat(90, ENDED), lambda at: at.row(30, epoch=2))
    ),
    "rows alone, of 59 s ago": Situation(Liveness.RUNNING, (lambda at: at.row(59),), may_read=False),
    "rows alone, of 61 s ago": Situation(Liveness.UNKNOWN, (lambda at: at.row(61),), may_read=False),
    "rows alone, and no lease": Situation(Liveness.DEAD, (lambda at: at.row(61),)),
    "silent then, and the same driver beats later": Situation(
        Liveness.STUCK, (lambda at: at.row(90), lambda at: at.beat(-60)), is_held=True
    ),
    "silent then, and another driver beats later": Situation(
        Liveness.DEAD, (lambda at: at.row(90), lambda at: at.beat(-60, epoch=2)), is_held=True
    ),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """A stream whose source was idle after its second batch."""
    play = Play(TOML, tmp_path_factory.mktemp("played"))
    play.batch([play.row("events", ms(940), id="a", v=1)], at_ms=ms(941))
    play.batch(at_ms=ms(960))
    return play


@contextmanager
def left(situation: Situation, played: Play, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yields the stream as *situation* left it."""
    place = Place(played.copied_to(home) if situation.has_batch else Play(TOML, home))
    if situation.is_held:
        place.control.acquire()
    for leave in situation.leave:
        leave(place)

    def refused(control: Control) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(control.home))

    if not situation.may_read:  # the tests may run as root, who may read all
        for name in ("heartbeat", "is_held", "drain_requested"):
            monkeypatch.setattr(Control, name, refused)
    yield place
    monkeypatch.undo()
    place.control.release()


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_every_surface_has_the_same_word(
    situation: Situation, played: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with left(situation, played, tmp_path / "home", monkeypatch) as place:
        words = dict(surfaces(place))
    assert words == dict.fromkeys(words, situation.word.value)


def surfaces(place: Place) -> Iterator[tuple[str, str]]:
    """Yields the word of each surface for the stream of *place*.

    A surface that only says whether it takes the stream for alive gives the word of the rule if that agrees.
    """
    play, layout, at_ms = place.play, place.layout, ms(NOW_S)
    topology, sub = play.topology, play.sub
    tables = Warehouse(play.home, topology="play")
    drivers = drivers_of(layout, topology, at_ms=at_ms)
    word = drivers[sub].liveness

    def if_so(agrees: bool) -> str:  # noqa: FBT001 - the only argument
        return word.value if agrees else "another word"

    yield "facts", word.value
    model = page_model(tables, layout, topology, Promises(), at_ms=at_ms)
    facts = topology_facts(tables, scene(topology, layout, at_ms, stored=tables.stored))
    (stream,), (of_topology,) = model["streams"], facts["sub_topologies"]
    yield "status of the stream", stream["state"]
    yield "status of the topology", model["state"]
    yield "status of an operator", model["operators"]["board"]["state"]
    yield "whether it runs", if_so((model["verdict"] == "not_running") is (word not in WORKS))
    yield "tidemark topology", of_topology["state"]
    yield "tidemark topology, of an operator", facts["operators"][0]["state"]
    line = as_text([{**model, "page": None, "streams": [{**stream, "first_latency_ms": None, "ambiguous_keys": None}]}])
    yield "tidemark status", line.splitlines()[1].split()[1]
    past = history(tables, "play", ["board"], ChartSpan.HOUR, at_ms=at_ms)
    for name, page in {
        "start page": start_page([model], folder=play.home),
        "page of the topology": topology_page(model, facts, topology),
        "page of the operator": operator_page({**model, "why": []}, facts, topology, "board", past, ()),
    }.items():
        shown = set(re.findall(r"(?:badge[^>]*>|which is )([a-z ]+)", page))
        yield name, if_so({each.replace("_", " ") for each in Liveness} & shown == {word.replace("_", " ")})
    (states,) = [
        sample.value
        for sample in Exporter(layout, lambda: [topology], clock=lambda: at_ms).samples()
        if sample.metric == "tidemark_stream_state"
    ]
    yield "metrics", " ".join(name for name, is_so in states.items() if is_so)
    causes = {str(finding.cause) for finding in why(topology, layout, at_ms=at_ms)}
    of_driver = causes & set().union(*CAUSES.values())
    # Nothing is said of a job that writes no heartbeats.
    is_found = word in CAUSES and not (drivers[sub].beat is None and stream["last_batch_at"])
    yield (
        "why",
        if_so(of_driver <= CAUSES.get(word, {"slow_batch", "broker_silent"}) and (bool(of_driver) or not is_found)),
    )
    specs = parse({"play": SLAS}, topology, file="slas.toml")
    found = sla_facts.facts(tables, topology, specs, drivers, at_ms=at_ms)
    idle = [fact.idle for fact in found if fact.what == "source"]
    # Of those that ended well, all did less than five minutes ago.
    looked_at = word in WORKS | ENDED_WELL or drivers[sub].beat is None
    yield "idle sources, in a check", if_so(idle == [looked_at] * (stream["last_batch_at"] is not None))
    catches_up = any(fact.what == "catching_up" for fact in found)
    yield "catching up, in a check", if_so(catches_up is (word is Liveness.CATCHING_UP))
    newest, may_read = drivers[sub].evidence.newest, drivers[sub].evidence.may_read_control
    if may_read:
        ends = {event.eventType for event, _ in unsent_events(layout, [topology], at_ms)}
        yield "an aborted run, for OpenLineage", if_so(RunState.ABORT not in ends or word is Liveness.DEAD)
    if newest is not None and newest.kind is EvidenceKind.CONTROL:
        of_folder = liveness_of(place.home, at_ms)
        yield "readers of a hop", if_so((of_folder in HAS_DRIVER) is (word in HAS_DRIVER))
        # Only the table has the estimate.
        is_running = word is Liveness.CATCHING_UP and of_folder is Liveness.RUNNING
        yield "tidemark up and down", word.value if is_running else of_folder.value


OLD_BEAT = Sign(kind=EvidenceKind.CONTROL, reported=Liveness.RUNNING, epoch=1, at_ms=0)
OLD_ROW = replace(OLD_BEAT, kind=EvidenceKind.ROWS)


@pytest.mark.parametrize(
    ("evidence", "at_s", "word", "asks"),
    [
        (DriverEvidence(store=StoreKind.OBJECT_STORE, control=OLD_BEAT), 60, Liveness.RUNNING, False),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, control=OLD_BEAT), 60.001, Liveness.UNKNOWN, True),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, control=OLD_BEAT, is_held=False), 60, Liveness.RUNNING, False),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, control=OLD_BEAT, is_held=False), 60.001, Liveness.DEAD, True),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, control=OLD_BEAT, is_held=True), 60.001, Liveness.STUCK, True),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, row=OLD_ROW), 300, Liveness.RUNNING, False),
        (DriverEvidence(store=StoreKind.OBJECT_STORE, row=OLD_ROW), 300.001, Liveness.UNKNOWN, True),
        (DriverEvidence(store=StoreKind.DISK, control=OLD_BEAT, is_held=False), 3, Liveness.RUNNING, False),
        (DriverEvidence(store=StoreKind.DISK, control=OLD_BEAT, is_held=False), 3.001, Liveness.DEAD, True),
    ],
)
def test_a_heartbeat_in_an_object_store_may_be_older(
    evidence: DriverEvidence, at_s: float, word: Liveness, *, asks: bool
) -> None:
    at_ms = round(at_s * 1_000)
    assert (liveness(evidence, at_ms), asks_for_lease(evidence, at_ms)) == (word, asks)


def test_what_a_heartbeat_says_is_a_word() -> None:
    assert {Liveness(state) for state in StreamState} == {
        Liveness.STARTING, Liveness.RUNNING, Liveness.DRAINED, Liveness.ROTATED, Liveness.FINISHED, Liveness.FAILED,
    }  # fmt: skip


def test_no_healthy_driver_is_ever_asked_for_its_lease_or_silent() -> None:
    for limits in LIMITS.values():
        assert limits.every_ms < limits.lease_after_ms <= limits.silent_after_ms


def test_the_page_has_every_word_and_every_limit() -> None:
    page = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## The state of a stream in one word\n")[2].partition("\n## ")[0]
    words, limits, rights = (
        re.findall(r"^\| (.*) \|$", table.partition("|---")[2].partition("\n")[2], flags=re.MULTILINE)
        for table in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    )
    assert words == [f"`{word}` | {word.meaning}" for word in Liveness]
    expected = []
    for (kind, store), each in LIMITS.items():
        lengths_ms = (each.every_ms, each.lease_after_ms, each.silent_after_ms)
        expected.append(" | ".join([f"`{kind}`", store, *(f"{length_ms // 1_000} s" for length_ms in lengths_ms)]))
    assert limits == expected
    of = RightToKill()
    found = [re.findall(r"([\d,]+) s\b", row.partition(" | ")[2])[0] for row in rights]
    assert found == [f"{each:,.0f}" for each in (of.silent_s, of.starting_s, of.working_s, of.draining_s)]
    assert (REPLACED_WITHIN_MS, HANGS_AFTER_MS) == (300_000, 300_000), "the page says 300 s"
