"""Measures how long after a promise breaks its alert is delivered, under a real Airflow with default settings.

`TABLES=4 make bench PARTS=breaches` has so many tables, instead of 8, each in a topology of its own. The newest row of
each grows old until it breaks its limit, in every round. Beside them two real streams read a broker; they break their
promise in the rounds in which it is their driver or the broker that is killed. The rounds: undisturbed, and while the
drivers, the broker, the checker, the triggerer and the scheduler are killed with -9. The processes of Airflow are
started again at once; a delay counts from when they are back. Airflow replaces drivers by itself, and each successor
is killed once more while it starts. The broker is away for longer than the limit.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure
from confluent_kafka import Producer
from deltalake import write_deltalake

from support.airflow_checkout import own_checkout
from support.topologies import source, table, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import Control, StreamState
from tidemark.kernels.columns.schemas import rows_of
from tidemark.local import airflow, broker
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import ALERTS, BATCHES, CHANGES, DELIVERIES
from tidemark.semantics.liveness import RightToKill
from tidemark.storage.delta.tables import scan
from tidemark_airflow.operators.driver import NAME, Driver

TABLES = [f"table{number}" for number in range(int(os.environ.get("TABLES", "8")))]
STREAMS = ["stream0", "stream1"]
EVENTS = "events"
"""The sub-topology of each topology."""
FIRST_S, APART_S, ROUND_S, KILL_S = 60, 60 // len(TABLES), 170, 75
"""The first table breaks its promise so long after a round begins, the others one after the other, and the kill."""
LIMIT_S, AWAY_S = 15, 60
"""How old the newest row of a stream may be, and for how long the broker is away."""
EVERY_S = 0.2
"""Records come so often."""
STARTED_WITHIN_S = 180.0
TOLD_WITHIN_S = 60.0
SLA = """
[{name}.fresh]
subject = "changes"
error_after = "{after_s} s"
resolve_after = "0 s"
owner = "o"
"""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was killed, and when; instants are epoch ms.

    Attributes:
        killed: what; empty: nothing.
        began_ms: when all tables had a row of now.
        killed_ms: when it was killed.
        back_ms: when Airflow was back; 0: it was not away.
    """

    killed: str
    began_ms: int
    killed_ms: int
    back_ms: int


@dataclass(frozen=True, kw_only=True)
class Breach:
    """A promise of *topology* that is broken from *crossed_ms* to *until_ms*, epoch ms; *of* says when it was."""

    of: str
    topology: str
    crossed_ms: int
    until_ms: int


class Bench:
    """An Airflow, a broker and the streams between them, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(folder / "warehouse")
        self._folder, self._root = folder, folder / "root"
        self._home, self._broker = folder / "airflow", folder / "broker"
        own_checkout(self._root, "")
        topologies, slas = self._root / "jobs" / "topologies", []
        for file in topologies.glob("*.toml"):
            file.unlink()
        for number, name in enumerate(TABLES):
            (topologies / f"{name}.toml").write_text(topology_of({"name": name}, events=source()))
            slas.append(SLA.format(name=name, after_s=FIRST_S + APART_S * number))
        for name in STREAMS:
            newest = table("events", columns=["v"], newest_by="arrival")
            events = source(topic=name, sub_topology=EVENTS)
            (topologies / f"{name}.toml").write_text(
                topology_of({"name": name, "trigger": "1 s"}, events=events, newest=newest)
            )
            slas.append(SLA.format(name=name, after_s=LIMIT_S))
        (self._root / "expectations").mkdir()
        (self._root / "expectations" / "slas.toml").write_text("".join(slas))

    def start(self) -> AirflowApi:
        """Starts what of Airflow does not run."""
        address = broker.address(self._broker)
        variables = {"tidemark_warehouse": str(self.layout.warehouse), "tidemark_bootstrap": address}
        parts = airflow.start(self._home, root=self._root, project=Project(self._root), variables=variables)
        return airflow.wait_until_healthy(self._home, parts)

    def launch(self) -> None:
        """Starts everything; each topology has had its first look then."""
        address = broker.start(self._broker).address
        broker.create_topics(address, dict.fromkeys(STREAMS, 1))
        api = self.start()
        names = [*TABLES, *STREAMS]
        process.wait_until(
            lambda: all(api.has_dag(f"tidemark_{name}_sla_check") for name in names), "the DAGs", STARTED_WITHIN_S
        )
        for name in STREAMS:
            api.unpause(f"tidemark_{name}_streams")
            api.trigger(f"tidemark_{name}_streams", {"first_report": False})
        threading.Thread(target=_feed, args=(address,), daemon=True).start()
        for name in STREAMS:
            process.wait_until(lambda name=name: self.gives_results(name), "results", STARTED_WITHIN_S)  # type: ignore[misc]
        _fresh(self.layout, wall_clock_ms())
        for name in names:
            api.unpause(f"tidemark_{name}_sla_check")
        time.sleep(45)

    def gives_results(self, name: str) -> bool:
        """Returns True if the driver of a stream runs and has finished a batch."""
        beat = self._control(name).heartbeat()
        return beat is not None and beat.state is StreamState.RUNNING and beat.batches > 0

    def kill_checker(self) -> None:
        """Kills the process that looks at SLAs, which its triggerer starts again."""
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_ours = str(self._folder).encode() in (place / "environ").read_bytes()
                if is_ours and b"tidemark.sla.checker" in (place / "cmdline").read_bytes():
                    os.kill(int(place.name), signal.SIGKILL)

    def kill(self, component: str) -> int:
        """Kills a process of Airflow and all its children, and starts it again; returns when it was back.

        A triggerer is back when it runs the triggers of the one that was killed: Airflow leaves those to that one until
        it has not heard of it for 30 s.
        """
        others = self._triggerers()
        os.killpg(json.loads((self._home / f"{component}.pid.json").read_text())["pid"], signal.SIGKILL)
        process.wait_until(lambda: process.find(self._home, component) is None, "the end", 30)
        self.start()
        if component == "triggerer":
            process.wait_until(lambda: not self._triggerers() & others, "another triggerer for the triggers", 120)
        return wall_clock_ms()

    def _triggerers(self) -> set[int]:
        """Returns the ids of the triggerers that Airflow's database gives for its triggers."""
        with closing(sqlite3.connect(f"file:{self._home / 'airflow.db'}?mode=ro", uri=True)) as database:
            return {number for (number,) in database.execute("select triggerer_id from trigger") if number is not None}

    def kill_drivers(self) -> None:
        """Kills the drivers of both streams, and the next ones while they start."""
        running = {name: self._driver(name) for name in STREAMS}
        for _ in range(2):
            for pid in running.values():
                if pid is not None:
                    os.killpg(pid, signal.SIGKILL)
            killed = running
            process.wait_until(
                lambda killed=killed: all(self._driver(name) not in {None, killed[name]} for name in STREAMS),  # type: ignore[misc]
                "the next drivers",
                STARTED_WITHIN_S,
            )
            running = {name: self._driver(name) for name in STREAMS}

    def kill_broker(self) -> None:
        """Kills the broker, and starts it again AWAY_S later."""
        running = process.find(self._broker, broker.NAME)
        assert running is not None
        os.killpg(running.pid, signal.SIGKILL)
        time.sleep(AWAY_S)
        broker.start(self._broker)

    def stop(self) -> None:
        """Leaves no process: Airflow ends first, which would launch drivers again."""
        airflow.stop(self._home)
        for name in STREAMS:
            if (pid := self._driver(name)) is not None:
                os.killpg(pid, signal.SIGKILL)
        broker.stop(self._broker)

    def _control(self, name: str) -> Control:
        return Control(self.layout.control(name, EVENTS))

    def _driver(self, name: str) -> int | None:
        """Returns the process of a stream's driver, also of one that starts."""
        driver = Driver(self._control(name).home, RightToKill(), shared=self.layout.driver(name, None))
        running = process.find(driver.process_home, NAME)
        return None if running is None else running.pid


def figures(runs: int) -> Iterator[Figure]:
    """Measures the delays of all rounds, *runs* times over 5, at least once."""
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            bench.launch()
            kills: dict[str, Callable[[], int | None]] = {
                "": lambda: None,
                "drivers": bench.kill_drivers,
                "broker": bench.kill_broker,
                "checker": bench.kill_checker,
                "triggerer": lambda: bench.kill("triggerer"),
                "scheduler": lambda: bench.kill("scheduler"),
            }
            rounds = [_round(bench, *each) for _ in range(max(1, runs // 5)) for each in kills.items()]
            time.sleep(TOLD_WITHIN_S)
        finally:
            bench.stop()
        delays: dict[str, list[float]] = defaultdict(list)
        extra, lost = 0, list[str]()
        for each in rounds:
            for breach in _breaches(bench.layout, each):
                told_ms = _told(bench.layout, breach)
                extra += max(0, len(told_ms) - 1)
                lost += [] if told_ms else [f"{breach.topology} {breach.of}"]
                # What was to be told while Airflow was down waits for it, unless it was told before.
                was_down = each.back_ms and each.killed_ms - 30_000 < breach.crossed_ms < each.back_ms
                has_waited = was_down and told_ms and told_ms[0] > each.back_ms
                since_ms = each.back_ms if has_waited else breach.crossed_ms
                delays[breach.of] += [(told_ms[0] - since_ms) / 1_000] if told_ms else []
    every = sorted(each for found in delays.values() for each in found)
    for of, found in delays.items():
        yield Figure(f"from a breach to its delivery, {of}", found, 30, at_most=True, unit="s")
    yield Figure("  all: 95 %", [every[int(len(every) * 0.95)]], 30, at_most=True, unit="s")
    yield Figure("  all: the longest", [every[-1]], 60, at_most=True, unit="s")
    yield Figure("  breaches", [len(every) + len(lost)], 40, unit="")
    yield Figure("  alerts that were delivered twice", [extra], 0, at_most=True, unit="")
    named = f" ({'; '.join(lost)})" if lost else ""
    yield Figure(f"  breaches without an alert{named}", [len(lost)], 0, at_most=True, unit="")


def _round(bench: Bench, killed: str, kill: Callable[[], int | None]) -> Round:
    """Lets all tables break their promise, and kills something meanwhile."""
    process.wait_until(lambda: all(map(bench.gives_results, STREAMS)), "streams that go on", STARTED_WITHIN_S)
    began_ms = wall_clock_ms()
    _fresh(bench.layout, began_ms)
    time.sleep(KILL_S)
    killed_ms = wall_clock_ms()
    back_ms = kill() or 0
    time.sleep(max(0.0, ROUND_S - (wall_clock_ms() - began_ms) / 1_000))
    return Round(killed=killed, began_ms=began_ms, killed_ms=killed_ms, back_ms=back_ms)


def _breaches(layout: Layout, of: Round) -> Iterator[Breach]:
    """Yields the promises that broke in a round: those of all tables, and of streams that were stopped."""
    when = f"while the {of.killed} is killed" if of.killed in {"checker", "triggerer", "scheduler"} else "undisturbed"
    for number, name in enumerate(TABLES):
        crossed_ms = of.began_ms + (FIRST_S + APART_S * number) * 1_000
        until_ms = crossed_ms + ROUND_S * 1_000 - 2_000  # the next round has not broken it again yet
        yield Breach(of=when, topology=name, crossed_ms=crossed_ms, until_ms=until_ms)
    if of.killed in {"drivers", "broker"}:
        for name in STREAMS:
            crossed_ms, until_ms = _silence(layout, name, of.killed_ms)
            yield Breach(of=f"of a stream, {of.killed} killed", topology=name, crossed_ms=crossed_ms, until_ms=until_ms)


def _silence(layout: Layout, name: str, since_ms: int) -> tuple[int, int]:
    """Returns from when until when the newest row of a stream was too old, the first time after *since_ms*.

    By the times of its rows, and by the clocks of the batches that wrote them.
    """
    at = {fact: scan(layout.stream_table(name, EVENTS, fact.name)) for fact in (CHANGES, BATCHES)}
    newest = at[CHANGES].group_by("batch_id").agg(newest_ms=pl.col("timestamp").max().dt.epoch("ms"))
    written = at[BATCHES].select("batch_id", written_ms=pl.col("finished_at").dt.epoch("ms"))
    rows = newest.join(written, on="batch_id", how="inner").sort("batch_id").collect()
    for before, after in pairwise(rows.with_columns(pl.col("newest_ms").cum_max()).to_dicts()):
        crossed_ms = before["newest_ms"] + LIMIT_S * 1_000
        if since_ms < crossed_ms < after["written_ms"]:
            return crossed_ms, after["written_ms"]
    msg = f"{name} has kept its promise"
    raise AssertionError(msg)


def _told(layout: Layout, breach: Breach) -> list[int]:
    """Returns when the opening of the alert about this breach was delivered, epoch ms."""
    name = breach.topology
    with suppress(FileNotFoundError):
        alerts = scan(layout.report_table(name, ALERTS.name)).collect().filter(change="opened")
        opened_ms = pl.col("opened_at").dt.epoch("ms")
        mine = alerts.filter(opened_ms.is_between(breach.crossed_ms - 1_000, breach.until_ms))["alert"]
        told = scan(layout.report_table(name, DELIVERIES.name)).collect().filter(change="opened")
        return sorted(told.filter(pl.col("alert").is_in(mine.implode()))["delivered_at"].dt.epoch("ms"))
    return []


def _fresh(layout: Layout, at_ms: int) -> None:
    """Writes a row of now into each table."""
    for name in TABLES:
        of = {"topology": name, "sub_topology": EVENTS, "batch_id": at_ms}
        rows = {CHANGES: {"operator": EVENTS, "seq": 0, "timestamp": at_ms}, BATCHES: {"finished_at": at_ms}}
        for fact, row in rows.items():
            path = layout.stream_table(name, EVENTS, fact.name)
            write_deltalake(path, rows_of(fact, [{**of, **row}]), mode="append")


def _feed(address: str) -> None:
    """Sends a record to each stream every EVERY_S, and those of an absence of the broker when it is back."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 500})
    number = 0
    while True:
        number += 1
        for name in STREAMS:
            producer.produce(name, json.dumps({"id": "a", "v": number, "event_time": wall_clock_ms()}))
        producer.poll(0)
        time.sleep(EVERY_S)
