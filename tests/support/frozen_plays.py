"""Plays topologies whose answers are frozen, on clocks that stand still.

Each play has what the tables of facts are about: all kinds of operators, a hop, late and unusable records, records that
wait, refused rows, a driver that is killed in the middle of a batch, shards, and queries of a job.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

import critical_path
import rollup
from support.crashes import Crash, crash_at
from support.flights_day import STARTED_AT_MS, STRICT, play_day
from support.play import NOON, Play, Row, bad, ms, tell
from support.quiet_broker import Silence
from support.recorded_jobs import Job, files, topic
from support.separate_executors import OneWorker
from support.topologies import (
    aggregate,
    current,
    join,
    map_of,
    operators,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from support.traced import KeptRecords
from tidemark.control.folder import StreamState
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.model.kinds.source import Source
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import load_usable
from tidemark.model.topology import Topology, load
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.reports.outline import outline
from tidemark.semantics.skew import Skew
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.read.parsing import parsed
from tidemark.stream.write.measurement import Host

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla import check

HOST = "host-of-the-play"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A warehouse in the project *home* whose answers are frozen, as it is at *at_ms* (epoch ms).

    *words* are those of the cookbook's questions that the topology has under other names. *records* and *rows* are
    traced. *left_out* has beginnings of the questions that are not asked.
    """

    home: Path
    topology: Topology
    at_ms: int
    reported: Interval
    words: Mapping[str, str] = field(default_factory=dict)
    kept: KeptRecords | None = None
    records: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()

    def asks(self, question: str) -> bool:
        """Returns True if the scene is for *question*; each costs time, and the answers of many scenes look alike."""
        return not question.startswith(self.left_out)

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    @property
    def layout(self) -> Layout:
        return Layout(self.warehouse)


class StandingClock:
    """The clock of this machine, which shows what `read` returns (epoch ms).

    delta-rs reads a clock that cannot be replaced, so commits that it dates have the instant at which they are read.
    """

    def __init__(self) -> None:
        self.read: Callable[[], int] = lambda: NOON

    @contextmanager
    def set_up(self) -> Iterator[None]:
        """Puts it in the place of the machine's clock, and HOST in that of the machine's name."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: self.read() * 1_000_000)
            patch.setattr(platform, "node", lambda: HOST)
            history = DeltaTable.history
            patch.setattr(DeltaTable, "history", lambda *asked: [*map(self._dated, history(*asked))])
            yield

    def _dated(self, commit: dict[str, Any]) -> dict[str, Any]:
        return commit | {"timestamp": min(commit["timestamp"], self.read())}


CLOCK = StandingClock()


# all kinds of operators

SHARED = topology_of(
    {"name": "shop", "level": "trace", "window": "10 s"},
    events=source(
        "id string, grp string, v int", sub_topology="main", key="id", bound="2 s", idle_after="30 s", max_ahead="1 h"
    ),
    prices=source("grp string, price int", sub_topology="main", topic="prices", idle_after="30 s", max_ahead="1 h"),
    kept=map_of(select={"id": "id", "grp": "grp", "v": "v"}, where="v > 0"),
    newest=table("events", columns=["grp", "v"]),
    price=table("prices", key=["grp"], columns=["price"]),
    priced=join("newest", "price", on={"grp": "grp"}),
    windows=aggregate("kept", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)", "top": "max(v)"}),
    closed=aggregate(
        "kept",
        key=["id"],
        window={"tumbling": "20 s"},
        allowed_lateness="5 s",
        reopen_for="1 min",
        strategy="on_window_close",
        aggregates={"n": "count(*)", "total": "sum(v)"},
    ),
    closed_board=current("closed", "closed_board", key=["id", "window_start"]),
    board=current("newest", "board", last_seen_at=True),
    priced_log=sink("priced", table="priced_log"),
    sent=sink("newest", topic="sent"),
    by_group=repartition("priced", id=["id"], key=["grp"], columns=["v", "price"], partitions=2),
    groups=aggregate("by_group", sub_topology="groups", aggregates={"n": "count(*)", "total": "sum(v)"}),
    totals=sink("groups", table="totals"),
    all_of_it=sink("kept", table="all_of_it"),
)
"""The part of KINDS that can have shards."""
KINDS = SHARED + operators(
    sizes=map_of("events", select={"grp": "grp", "n": "v"}),
    costs=map_of("prices", select={"grp": "grp", "n": "price"}),
    both={"kind": "union", "inputs": ["sizes", "costs"]},
    both_log=sink("both", table="both_log"),
    window_log=sink("windows", table="window_log", complete={"every": "20 s"}),
    visits=aggregate("kept", key=["id"], window={"session": "5 s"}, aggregates={"n": "count(*)"}),
    now_and_then=aggregate(
        "kept", key=["id"], strategy="periodic", interval="15 s", aggregates={"n": "count(*)", "mean": "avg(v)"}
    ),
)
SLAS = """
[shop.board_is_fresh]
subject = "board"
measure = "staleness"
warn_after = "1 s"
error_after = "10 s"
owner = "shop desk"

[shop.totals_in_time]
subject = "totals"
measure = "latency_p99"
warn_after = "1 s"
error_after = "20 s"
owner = "shop desk"

[shop.windows_are_quick]
subject = "windows"
measure = "operator_latency_p50"
warn_after = "1 s"
error_after = "5 s"
owner = "shop desk"

[shop.nothing_gets_lost]
subject = "outcomes"
measure = "completeness"
error_after = "1 ms"
owner = "data platform"

[shop.few_are_unusable]
subject = "events"
measure = "quarantined_share"
error_above = 0.01
over = "1 h"
owner = "data platform"

[shop.few_are_late]
subject = "closed"
measure = "late_share"
error_above = 0.01
over = "1 h"
owner = "data platform"

[shop.contracts_are_kept]
subject = "tables"
measure = "contract"
owner = "data platform"
"""
WORDS = {"'status'": "'main'", "'flight_status'": "'newest'", "'UA753-2013-06-27-EWR'": "'a'"}
WORDS |= {"'carrier_state'": "'priced'", "'flights'": "'shop'", "timestamp '2026-03-01 11": "timestamp '2014-05-13 12"}


def _batch_of_shop(play: Play, kept: KeptRecords, draw: Random, number: int) -> list[Row]:
    """Returns the records of one batch of twelve seconds: equal values, older, late and unusable records."""
    start_s, rows = 12 * number, list[Row]()
    for n in range(14 if number % 3 else 24):
        second = start_s + draw.randrange(120) / 10 - (25 if draw.random() < 0.08 else 0)
        fields = {
            "id": draw.choice("abcde"),
            "grp": draw.choice("xyz"),
            "v": 5 if number > 2 and n == 7 else draw.randrange(4),
        }
        rows.append(play.row("events", ms(max(0, second)), partition=n % 3, key=str(fields["id"]), **fields))
    if number == 1:
        rows.append(bad("malformed_json", b"{", part=1)(play))
        rows.append(bad("timestamp_in_future", b"{}", part=2)(play))
    if number == 2:
        without_key = play.row("events", ms(start_s), partition=0, key=None, id=None, grp="x", v=2)
        rows += [without_key, play.row("events", ms(start_s + 1), partition=0, key="e") | {"deleted": True}]
    rows += [
        play.row("prices", ms(start_s + n), grp=grp, price=draw.randrange(3), key=grp) for n, grp in enumerate("xy")
    ]
    return kept.keep(*rows)


def _shop(home: Path, toml: str, *, shards: int = 1, facts_every_ms: int = 0) -> Play:
    _project(home, toml)
    play = Play(toml, home / "warehouse", partitions=3, facts_every_ms=facts_every_ms)
    play.broker = Silence({"events": 3, "prices": 1, "sent": 1})
    play.in_shards(shards, OneWorker)
    skew = Skew(offset_ms=-20, error_ms=5)
    play.hosts = {"main": Host("driver-1", lambda: skew), "groups": Host("driver-2")}
    CLOCK.read = lambda: play.now_ms
    return play


def _played_shop(play: Play, *, kills: Mapping[int, str], batches: int = 5) -> KeptRecords:
    kept, draw, epoch = KeptRecords(play), Random(50), 1
    for number in range(batches):
        rows, at_ms = _batch_of_shop(play, kept, draw, number), ms(12 * number + 13)
        if number == 3:
            _refuse_some(play)
        if number in kills:
            play.start("main", reached=crash_at(kills[number]), epoch=epoch)
            with suppress(Crash):
                play.batch(rows, at_ms=at_ms)
            epoch += 1
            _date_files(play.home, at_ms)
            play.start("main", epoch=epoch)
            play.process(number, rows, at_ms=at_ms, now_ms=at_ms + 4_000)
            play._batches["main"] = number + 1
        else:
            play.batch(rows, at_ms=at_ms)
        play.hop("groups", at_ms=at_ms + 2_000)
        _beats(play, at_ms + 3_000, number, epoch)
    play.batch(at_ms=ms(150))
    play.hop("groups", at_ms=ms(152))
    return kept


def _date_files(home: Path, at_ms: int) -> None:
    """Gives all files below *home* this time of writing, which a driver reads after a kill."""
    for file in home.rglob("*"):
        os.utime(file, ns=(at_ms * 1_000_000,) * 2)


def _refuse_some(play: Play) -> None:
    """Has a topic and a table refuse some rows from now on."""
    play.broker.refuses = lambda row: row["_key"] == b"b"
    DeltaTable(str(play.table("all_of_it"))).alter.add_constraint({"small": "v < 5 OR deleted"})


def _beats(play: Play, at_ms: int, waiting: int, epoch: int) -> None:
    """Writes a heartbeat of each driver of *play*."""
    for sub in play.topology.sub_topologies:
        history = Heartbeats(play.stream(sub.name).home, topology=play.topology.name, sub_topology=sub.name)
        load = {"cpu_share": 0.25, "memory_bytes": 500, "memory_free_bytes": 1_500, "records_waiting": waiting}
        tell(history, (at_ms - NOON) / 1_000, epoch=epoch, **load)


def _project(home: Path, toml: str) -> None:
    for folder, name, text in (("topologies", "shop.toml", toml), ("expectations", "slas.toml", SLAS)):
        (home / folder).mkdir(parents=True)
        (home / folder / name).write_text(text)


def kinds(home: Path) -> Scene:
    """All kinds of operators by one driver, which is killed before and after its first commit of a batch."""
    play = _shop(home, KINDS)
    kept = _played_shop(play, kills={3: "decided", 5: "committed changes"}, batches=6)
    play.settle()
    return _scene(play, kept, checked=True, left_out=("page of the operator", "reconcile"))


def unflushed(home: Path) -> Scene:
    """The same, killed once more while all facts are in the journal alone."""
    play = _shop(home, KINDS, facts_every_ms=HOUR_MS)
    kept = _played_shop(play, kills={2: "committed changes"})
    return _scene(play, kept, left_out=(*PAGES, *STATES, "command path", "facts", "reconcile", "trace row"))


def sharded(home: Path) -> Scene:
    """Three shards, killed after their tasks and between two commits."""
    play = _shop(home, SHARED, shards=3)
    kept = _played_shop(play, kills={2: "worked on", 4: "committed changes"})
    play.settle()
    return _scene(play, kept, left_out=(*PAGES, *STATES, "command why"))


def ticking(home: Path) -> Scene:
    """One driver whose clock advances 3 ms with each commit of an output, so that commits take time."""
    play = _shop(home, SHARED)
    play.output_ms = 3
    kept = _played_shop(play, kills={})
    play.settle()
    left_out = (*STATES, "cookbook", "trace", "reconcile", "metrics", "command why", "page of the o", "page of the t")
    return _scene(play, kept, left_out=(*left_out, "page of the S"))


def _scene(play: Play, kept: KeptRecords, *, checked: bool = False, left_out: tuple[str, ...] = ()) -> Scene:
    """Returns the scene of *play* at its end, with its reports and if wanted with checks."""
    at_ms = ms(170)
    records = [f"events/{n % play.partitions}/{n}" for n in ((0, 8, 14, 28, 900) if checked else (8, 14))]
    rows = [("board", "a")]
    if "prices" in play.topology.operators:
        records.append("prices/0/1")
        rows += [("closed_board", '{"id":"a","window_start":1399982400000}'), ("totals", "x")]
    home, topology = play.home.parent, play.topology
    reported = Interval(NOON, NOON + HOUR_MS)
    _report(home, topology, reported, (ms(60), at_ms) if checked else ())
    return Scene(
        home=home,
        topology=topology,
        at_ms=at_ms,
        reported=reported,
        words=WORDS,
        kept=kept,
        records=tuple(records),
        rows=tuple(rows),
        left_out=left_out,
    )


def _report(home: Path, topology: Topology, reported: Interval, checks: Sequence[int]) -> None:
    """Writes the reports of *reported*, and checks SLAs and contracts at the instants *checks* (epoch ms)."""
    layout, specs = Layout(home / "warehouse"), load_usable(home / "expectations" / "slas.toml", topology).specs
    rollup.run(layout, topology.name, topology_outline=outline(topology, specs))
    critical_path.run(layout, topology, specs, reported)
    for at_ms in checks:
        check.run(layout, topology, specs, at_ms=at_ms, run_id=f"check at {at_ms}", project=home / "topologies")


# records that wait, and fields that change

DRIFT = topology_of(
    {"name": "shop", "level": "debug", "max_drift": "10 s", "max_held": 12},
    events=source(
        "id string, v int", sub_topology="main", bound="1 s", idle_after="60 s", other_fields="other", max_ahead=None
    ),
    newest=table("events", columns=["v"], strategy="on_update"),
    board=current("newest", "board"),
    counts=aggregate("events", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}),
    minutes=sink("counts", table="minutes"),
)
RAW = {"source": pl.String(), "partition": pl.Int32(), "offset": pl.Int64(), "key": pl.Binary(), "value": pl.Binary()}


def drift(home: Path) -> Scene:
    """A partition is ahead of the other, so that its records wait; fields of the records come and go."""
    _project(home, DRIFT)
    play = Play(DRIFT, home / "warehouse", partitions=2)
    CLOCK.read = lambda: play.now_ms
    kept, offsets = KeptRecords(play), [0, 0]

    def batch(at_s: int, *records: tuple[int, float, dict[str, object]]) -> None:
        raw = []
        for partition, second, fields in records:
            value = json.dumps({"event_time": ms(second), **fields}).encode()
            raw.append(("events", partition, offsets[partition], b"k", value))
            offsets[partition] += 1
        events = play.topology.operators["events"]
        assert isinstance(events, Source)
        frame = pl.DataFrame(raw, RAW, orient="row")
        rows = parsed(events, frame.with_columns(headers=pl.lit(None, HEADERS), clock_ms=pl.lit(0, pl.Int64)))
        play.batch(kept.keep(*rows.to_dicts()), at_ms=ms(at_s))

    both = [(part, 1 + n, {"id": "ab"[part], "v": n, "gate": "B7"}) for n in range(6) for part in (0, 1)]
    batch(10, *both)
    batch(40, *((0, 20 + n, {"id": "a", "v": n % 2, "colour": "red"}) for n in range(12)))
    play.start(epoch=2)
    batch(45, *((0, 34 + n, {"id": "c", "v": "x", "colour": 7}) for n in range(6)))
    batch(50, (1, 30, {"id": "b", "v": 1}), (1, 31, {"id": "b", "v": 1}))
    batch(55, (1, 44, {"id": "b", "v": None}), (0, 3, {"id": "a", "v": 9}))
    for at_s in (70, 140):
        play.batch(at_ms=ms(at_s))
    play.settle()
    _beats(play, ms(142), 0, 2)
    return _scene(play, kept, left_out=("page of the", "facts", "text of", "command incidents"))


# queries of a job


def job(home: Path) -> Scene:
    """Three queries of a job: one has records that come late, one a new checkpoint, one has failed."""
    _project(home, SHARED)
    (home / "topologies" / "shop.toml").unlink()
    (home / "expectations" / "slas.toml").unlink()
    warehouse = home / "warehouse"
    CLOCK.read = lambda: NOON
    land, clean = Job(warehouse, "land", sink="DeltaSink[/lake/orders]"), Job(warehouse, "clean")
    silent = Job(warehouse, "pairs")
    for n in range(6):
        at_ms = NOON + (1 + 2 * n) * MINUTE_MS
        times = {"watermark_ms": NOON + n * MINUTE_MS, "newest_ms": NOON + n * MINUTE_MS + 5_000}
        lake = {"description": "DeltaSource[file:/lake/orders]", "numInputRows": n + 1, "endOffset": {"index": n}}
        land.batch(at_ms, topic("raw", 5 * n, 5 * n + 5, latest=40), **times, is_last=n == 5)
        clean.batch(at_ms + 1_000, lake, files("raw", n), **times, late=n % 2, took_ms=900, is_last=n % 2 == 1)
        silent.batch(
            at_ms, topic("orders", n, n + 1), topic("payments", 0, 0), watermark_ms=NOON + n * 30_000, is_last=n >= 3
        )
    again = Job(warehouse, "land", sink="DeltaSink[/lake/orders]", query_id="two")
    again.batch(NOON + 13 * MINUTE_MS, topic("raw", 0, 9), watermark_ms=NOON, newest_ms=NOON + MINUTE_MS)
    at_ms = NOON + 14 * MINUTE_MS
    again.beat(at_ms)
    clean.beat(at_ms, StreamState.FAILED, "ValueError: amount is no number")
    layout = Layout(warehouse)
    for name in ("land", "clean"):
        history = Heartbeats(layout.stream("shop", name), topology="shop", sub_topology=name)
        tell(history, 840, StreamState.RUNNING if name == "land" else StreamState.FAILED, "no number")
    topology = recorded_topology(layout, "shop")
    assert topology is not None
    reported = Interval(NOON, NOON + HOUR_MS)
    rollup.run(layout, "shop", topology_outline=outline(topology, []))
    critical_path.run(layout, topology, [], reported)
    words = {"'status'": "'clean'", "'flights'": "'shop'"}
    return Scene(
        home=home, topology=topology, at_ms=at_ms + 1_000, reported=reported, words=words, left_out=("text of suggest",)
    )


# a day of flights, for which the cookbook is written


def flights(home: Path) -> Scene:
    """The day that the cookbook's own test plays, on a clock that stands still in each batch."""
    topologies, expectations = home / "topologies", home / "expectations"
    for folder in (topologies, expectations):
        folder.mkdir(parents=True)
    (topologies / "flights.toml").write_text(STRICT)
    shutil.copy(CHECKOUT / "expectations" / "slas.toml", expectations)
    CLOCK.read = lambda: STARTED_AT_MS
    day = play_day(home / "warehouse", Play)
    topology = load(topologies / "flights.toml")
    reported = Interval(STARTED_AT_MS, STARTED_AT_MS + 2 * HOUR_MS)
    at_ms = day.ended_at_ms + 10_000
    _report(home, topology, reported, (at_ms,))
    left_out = (*STATES, "page of the o", "page of the t", "page of the S", "metrics")
    return Scene(home=home, topology=topology, at_ms=at_ms, reported=reported, left_out=left_out)


PAGES = ("page", "start page", "text of", "metrics")
STATES = ("start page", "command status", "command incidents")
"""Beginnings of questions that other scenes are asked."""
SCENES: Mapping[str, Callable[[Path], Scene]] = {
    each.__name__: each for each in (flights, kinds, unflushed, sharded, ticking, drift, job)
}
