"""Injected faults end in the verdict and culprit of docs/alerts.md.

A topology plays for a while as it should and goes on with a fault; then it is checked whether it keeps a promise. The
engine, its tables, the paths and the check are the real ones.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable, write_deltalake
from tidemark.sla.incidents.culprits import NO_EXPLANATION

import critical_path
from support.causes import known_causes
from support.play import NOON, Play, Row, bad, ms, record, tell
from support.quiet_broker import Ends
from support.topologies import aggregate, join, map_of, operators, repartition, sink, source, table, topology_of
from support.typed_commands import can_be_typed, commands
from tidemark.cli.explain.bound import bound_rows
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.facts.path_facts import windows_with_paths
from tidemark.model.project.files import CHECKOUT as PROJECT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, iso
from tidemark.model.sla_event_rows import event_of
from tidemark.model.sla_events import IncidentChange
from tidemark.model.sla_spec import Measure, load, parse
from tidemark.model.tables.catalog import ALERTS, CHANGES, INCIDENTS, OPERATOR_BATCHES, SLA_RESULTS, SUPPRESSED, Table
from tidemark.query.sql import Warehouse
from tidemark.semantics.skew import Skew
from tidemark.sla.incidents.alert_message import message_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.changes import alert_of
from tidemark.sla.incidents.due import DueAlert
from tidemark.storage.delta.report_tables import open_report
from tidemark.stream.decide import decision
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.write.measurement import Host
from tidemark.why.walk import Walk, scene

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

HOP = topology_of(
    {"max_drift": "5 min"},
    events=source(
        "id string, amount double",
        sub_topology="reads",
        bound="900 ms",
        allowed_lateness="1 min",
        written_by="shop/out",
        max_ahead=None,
    ),
    newest=table(columns=["amount"]),
    by_id=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
    sums=aggregate("by_id", sub_topology="sums", aggregates={"n": "count(*)"}),
    totals=sink("sums", table="totals"),
)
"""A driver of their own runs `sums` and `totals` after `by_id`.

`by_id` is a hop.
"""
TABLES = HOP + operators(
    board=sink("newest", table="board"),
    per_minute=aggregate(
        key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
    ),
    counts=sink("per_minute", table="counts"),
    large=map_of(select={"id": "id"}, where="amount > 10"),
    large_board=sink("large", table="large_board"),
    ticking=table(strategy="periodic", interval="1 min"),
    ticker=sink("ticking", table="ticker"),
    rates=source(topic="rates", fields="id string, rate double, at bigint", timestamp="at"),
    rate=table("rates"),
    rated=join("events", "rate", on={"id": "id"}, how="inner"),
    rated_board=sink("rated", table="rated_board"),
)
"""And whatever else can be silent."""

HELD = topology_of(
    events=source("id string, amount double", sub_topology="reads", bound="900 ms"),
    visits=aggregate(key=["id"], window={"session": "15 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"),
    visits_board=sink("visits", table="visits_board"),
    patient=aggregate(
        key=["id"],
        window={"tumbling": "10 s"},
        allowed_lateness="5 min",
        aggregates={"n": "count(*)"},
        strategy="on_window_close",
    ),
    patient_board=sink("patient", table="patient_board"),
)
"""Windows that hold their results although records come as they should."""


def fresh(table: str, error_after: str = "1 min") -> dict[str, Any]:
    return {"subject": table, "measure": "staleness", "error_after": error_after}


def quick(operator: str, error_after: str) -> dict[str, Any]:
    return {"subject": operator, "measure": "operator_latency_p50", "error_after": error_after, "over": "30 s"}


PROMISES = {
    HOP: {
        "newest_is_quick": quick("newest", "300 ms"),
        "the_hop_is_quick": quick("by_id_source", "1 s"),
        "totals_in_time": {"subject": "totals", "measure": "latency_p99", "error_after": "4 s", "over": "30 s"},
        "totals_in_budget": {
            "subject": "totals", "measure": "burn_rate", "threshold": "4 s", "target": 0.99, "over": "30 s",
        },
        "time_goes_on_in_reads": {"subject": "events", "measure": "watermark_lag", "error_after": "1 min"},
        "newest_is_read": {"subject": "newest", "measure": "records", "error_below": 1, "over": "1 min"},
        "the_hop_is_in_time": {"subject": "by_id", "measure": "latency_p99", "error_after": "4 s", "over": "30 s"},
        "sums_are_quick": quick("sums", "1 s"),
    },
    TABLES: {
        "board_is_fresh": fresh("board"),
        "changes_are_fresh": fresh("changes"),
        "large_is_fresh": fresh("large_board"),
        "rated_is_fresh": fresh("rated_board"),
        "totals_are_fresh": fresh("totals"),
        "ticker_is_fresh": fresh("ticker", "30 s"),
        "counts_are_fresh": fresh("counts", "70 s"),
        "time_goes_on": {"subject": "events", "measure": "watermark_lag", "error_after": "1 min"},
        "sums_go_on": {"subject": "sums", "measure": "watermark_lag", "error_after": "1 min"},
        "sums_are_read": {"subject": "sums", "measure": "records", "error_below": 1, "over": "1 min"},
        "enough_records": {"subject": "newest", "measure": "records", "error_below": 3, "over": "1 min"},
        "nothing_gets_lost": {"subject": "outcomes", "measure": "completeness", "error_after": "1 ms"},
        "contracts_are_kept": {"subject": "tables", "measure": "contract"},
    },
    HELD: {"visits_are_fresh": fresh("visits_board"), "patient_is_fresh": fresh("patient_board")},
}  # fmt: skip


EIGHT = {
    HOP: [*PROMISES[HOP]],
    TABLES: [
        "board_is_fresh", "changes_are_fresh", "large_is_fresh", "counts_are_fresh", "time_goes_on",
        "totals_are_fresh", "sums_go_on", "sums_are_read",
    ],
    HELD: [*PROMISES[HELD]],
}  # fmt: skip
"""SLAs on both sides of a hop that each fault may break.

HELD has no hop: it has a fault for each of its two SLAs.
"""


class Flow:
    """A topology with two partitions and batches every ten seconds.

    It is in the warehouse *home*; each driver has its batch.
    """

    def __init__(self, toml: str, home: Path) -> None:
        self.play = Play(toml, home, partitions=2)
        self.play.broker = self.broker = Ends(2)
        self.layout = Layout(home)

    def copy(self, home: Path) -> Flow:
        """The same, as far as it has come, in the warehouse *home*."""
        shutil.copytree(self.layout.warehouse, home)
        flow = Flow(self.play.toml, home)
        flow.play._offsets, flow.play._batches = self.play._offsets.copy(), self.play._batches.copy()
        flow.broker._ends = self.broker._ends.copy()
        return flow

    def sleep(self, seconds: float) -> None:
        """The clock goes on by that much."""
        self.play.now_ms += round(seconds * 1_000)

    def reads(self, at_s: float, *records: Callable[[Play], Row]) -> None:
        """A batch of the first driver."""
        self.play.batch([record(self.play) for record in records], at_ms=ms(at_s), sub="reads")

    def sums(self, at_s: float) -> None:
        """A batch of the second driver."""
        self.play.hop("sums", at_ms=ms(at_s))

    def batch(self, at_s: float, *records: Callable[[Play], Row]) -> None:
        """A batch of both, the second half a second later."""
        self.reads(at_s, *records)
        self.sums(at_s + 0.5)

    def goes_on(self, *at_s: float) -> None:
        """Plays sound batches: each partition had a record a second ago."""
        for second in at_s:
            self.batch(second, *now(second, 0), *now(second, 1))

    def beat(self, sub: str, at_s: float, state: StreamState = StreamState.RUNNING, **said: Any) -> None:
        """A heartbeat of the driver of *sub*."""
        tell(Heartbeats(self.layout.stream("play", sub), topology="play", sub_topology=sub), at_s, state, **said)


def now(at_s: float, part: int, amount: float | None = None) -> list[Callable[[Play], Row]]:
    """Returns *part*'s record of a batch at *at_s*, with a new amount.

    It is one second old.
    """
    return [record(at_s - 1, "ab"[part], 100 + at_s + part / 2 if amount is None else amount, part=part)]


def rate(play: Play) -> Row:
    return play.row("rates", ms(1), id="a", rate=1.0)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Flow]:
    """Returns a sound flow of each topology until 12:01:12, to copy."""
    home = tmp_path_factory.mktemp("healthy")
    flows = {toml: Flow(toml, home / name) for name, toml in (("hop", HOP), ("tables", TABLES))}
    for toml, flow in flows.items():
        flow.batch(2, *now(2, 0), *now(2, 1), *([rate] if toml == TABLES else []))
        flow.goes_on(12, 22, 32, 42, 52, 62, 72)
    return flows


def slow_operator(flow: Flow) -> float:
    """The newest records change nothing, which explains nothing."""
    flow.play.slow_ms = {"newest": 600}
    flow.goes_on(82, 92)
    flow.batch(102, *now(102, 0, 192), *now(102, 1, 192.5))
    return 104


def producer_ahead(flow: Flow) -> float:
    """The clock of the producer of partition 1 is 50 minutes ahead."""
    flow.batch(82, *now(82, 0), record(3_082, "b", 182.5, part=1))
    return 84


def restarted_driver(flow: Flow) -> float:
    """Kills the first driver after 12:01:12.

    The next one reads half a minute later what came meanwhile.
    """
    beats = Heartbeats(flow.layout.stream("play", "reads"), topology="play", sub_topology="reads")
    tell(beats, 73)
    tell(beats, 100, epoch=2)
    flow.play.start("reads", epoch=2)
    waited = [found for second in (82, 92, 102) for part in (0, 1) for found in now(second, part)]
    flow.batch(112, *waited, *now(112, 0), *now(112, 1))
    return 114


def driver_that_stood_still(flow: Flow) -> float:
    """Stops the first driver after 12:01:12.

    It reads half a minute later what came meanwhile.
    """
    flow.beat("reads", 73)
    flow.beat("reads", 112)
    waited = [found for second in (82, 92, 102) for part in (0, 1) for found in now(second, part)]
    flow.batch(112, *waited, *now(112, 0), *now(112, 1))
    return 114


def restarted_reader(flow: Flow) -> float:
    """Kills the second driver after 12:01:12.

    The next one reads half a minute later what came meanwhile.
    """
    beats = Heartbeats(flow.layout.stream("play", "sums"), topology="play", sub_topology="sums")
    tell(beats, 74)
    tell(beats, 100, epoch=2)
    flow.play.start("sums", epoch=2)
    return waiting(flow)


def very_slow_operator(flow: Flow) -> float:
    """A batch takes longer than the trigger interval of 1 s."""
    flow.play.slow_ms = {"newest": 1_500}
    flow.goes_on(82, 92, 102)
    return 104


def slow_operator_behind_a_hop(flow: Flow) -> float:
    flow.play.slow_ms = {"sums": 3_000}
    flow.goes_on(82, 92, 102)
    return 107


def waiting(flow: Flow) -> float:
    """The second driver has one batch in half a minute."""
    for second in (82, 92, 102):
        flow.reads(second, *now(second, 0), *now(second, 1))
    flow.sums(112)
    return 113


def late_device(flow: Flow) -> float:
    """Delays records of partition 1 more and more, never behind its watermark."""
    for second, behind_s in ((82, 9), (92, 13), (102, 10)):
        flow.batch(second, *now(second, 0), record(second - behind_s, "b", second, part=1))
    return 104


def skewed_host(flow: Flow) -> float:
    """Runs the second driver on a host that is 5 s ahead."""
    flow.play.hosts["reads"] = Host("a", lambda: Skew(offset_ms=0, error_ms=3))
    flow.play.hosts["sums"] = Host("b", lambda: Skew(offset_ms=-5_000, error_ms=3))
    for second in (82, 92):
        flow.reads(second, *now(second, 0), *now(second, 1))
        flow.sums(second + 5.5)
    return 99


def skewed_host_of_unknown_skew(flow: Flow) -> float:
    flow.play.hosts["sums"] = Host("b")
    for second in (82, 92):
        flow.reads(second, *now(second, 0), *now(second, 1))
        flow.sums(second + 5.5)
    return 99


def idle_partition(flow: Flow) -> float:
    for second in (82, 132):
        flow.batch(second, *now(second, 0))
    return 134


def slow_partition(flow: Flow) -> float:
    """Partition 1 gives records in order, of a minute ago."""
    for second, behind_s in ((82, 10), (132, 40)):
        flow.batch(second, *now(second, 0), record(second - behind_s, "b", second, part=1))
    return 134


def alignment(flow: Flow) -> float:
    """Partition 1 is silent, partition 0 more than `max_drift` ahead of it."""
    for second in (82, 392, 402, 462):
        flow.batch(second, *now(second, 0))
    return 464


def backlog(flow: Flow) -> float:
    flow.broker.ends[1] = 500
    for second in (82, 132):
        flow.batch(second, *now(second, 0))
    return 134


def dead_source(flow: Flow) -> float:
    for second in (82, 142):
        flow.batch(second)
    return 144


def repeated(flow: Flow) -> float:
    """Sends the records of 12:01:22 again and again, with their ids."""
    for n, second in enumerate(range(82, 142, 10)):
        flow.batch(second, *(sent_as(found, f"shop/out/1/0/{part}") for part in (0, 1) for found in now(81 + n, part)))
    return 134 + 10


def sent_as(sends: Callable[[Play], Row], id_: str) -> Callable[[Play], Row]:
    """The record of *sends* with that `tidemark-id`."""
    return lambda play: {**sends(play), "headers": [{"key": "tidemark-id", "value": id_.encode()}]}


def starting_driver(flow: Flow) -> float:
    """A new driver has been starting for 50 s."""
    driver = Control(flow.layout.control("play", "reads"))
    driver.beat(Heartbeat(state=StreamState.STARTING, epoch=2, launch_id="", at_ms=ms(134), pid=1, since_ms=ms(84)))
    return 134


def just_killed(flow: Flow) -> float:
    """Writes a heartbeat of four seconds ago, without a lease."""
    driver = Control(flow.layout.control("play", "reads"))
    driver.beat(Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(130), pid=1))
    return 134


def unread(flow: Flow) -> float:
    """Both partitions are read, and far too slowly."""
    flow.broker.ends.update({0: 500, 1: 500})
    for n in range(8):
        second = 82 + 10 * n
        flow.batch(second, record(72 + n / 10, "a", second, part=0), record(72 + n / 10, "b", second, part=1))
    return 154


def as_usual(flow: Flow) -> float:
    """Records of each device come every ten seconds."""
    for second in range(2, 82, 10):
        flow.reads(second, *now(second, 0), *now(second, 1))
    return 84


def empty_source(flow: Flow) -> float:
    for second in (2, 32, 62):
        flow.batch(second)
    return 64


def empty_table(flow: Flow) -> float:
    for second in (2, 32, 62):
        flow.batch(second, *now(second, 0), *now(second, 1))
    return 64


def poison(flow: Flow) -> float:
    for second in (82, 132):
        flow.batch(second, bad("malformed_json"), bad("invalid_utf8", part=1))
    return 134


def wrong_unit(flow: Flow) -> float:
    in_seconds = b'{"id": "a", "event_time": %d}' % (NOON // 1_000)
    for second in (82, 132):
        flow.batch(second, *(bad("timestamp_out_of_range", in_seconds, part=part) for part in (0, 1)))
    return 134


def late_burst(flow: Flow) -> float:
    for second in (82, 132):
        flow.batch(second, *(record(-60 - n, "a", n) for n in range(4)))
    return 134


def all_suppressed(flow: Flow) -> float:
    flow.goes_on(82)
    for second in (92, 152):
        flow.batch(second, *now(second, 0, 182), *now(second, 1, 182.5))
    return 154


def all_filtered(flow: Flow) -> float:
    for second in (82, 132):
        flow.batch(second, *now(second, 0, 1), *now(second, 1, 2))
    return 134


def held_until_interval(flow: Flow) -> float:
    flow.goes_on(82, 112)
    return 114


def never_started(flow: Flow) -> float:
    for second in (2, 32, 62):
        flow.reads(second, *now(second, 0), *now(second, 1))
    return 64


def dead_driver(flow: Flow) -> float:
    flow.beat("reads", 80, StreamState.FAILED, reason="OSError: no route to host")
    return 134


def killed_driver(flow: Flow) -> float:
    flow.beat("reads", 72)
    return 134


def dead_upstream(flow: Flow) -> float:
    flow.beat("reads", 80, StreamState.FAILED, reason="OSError: no route to host")
    flow.beat("sums", 130)
    return 134


def hanging_batch(flow: Flow) -> float:
    flow.beat("reads", 133, batch_s=72)
    return 134


def short_of_memory(flow: Flow) -> float:
    """The driver takes 950 MiB, and 50 more are left."""
    mib = 2**20
    memory = {"memory_bytes": 950 * mib, "memory_free_bytes": 50 * mib, "state_bytes": 700 * mib}
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(133), pid=1)
    history = Heartbeats(flow.layout.stream("play", "reads"), topology="play", sub_topology="reads")
    history.write_if_due(beat, thread_id="t", batch_started_at_ms=ms(72), usage=lambda: memory)
    return 134


def full_disk(flow: Flow) -> float:
    reason = f"cannot write: No space left on device, since {iso(ms(72))}"
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(133), pid=1, reason=reason)
    Control(flow.layout.control("play", "reads")).beat(beat)
    return 134


def damaged_file(flow: Flow) -> float:
    """A driver that was killed, and a request that is half written."""
    flow.beat("reads", 72)
    (flow.layout.control("play", "reads") / "loss.json").write_text('{"file": "play/re')
    return 134


def lost_update(flow: Flow) -> float:
    """Removes an update of one batch from the table `operator_batches`."""
    flow.goes_on(82)
    table = DeltaTable(flow.layout.stream_table("play", "reads", OPERATOR_BATCHES.name))
    table.update({"emitted": "emitted - 1"}, predicate="operator = 'newest' AND batch_id = 8")
    return 84


def broken_contract(flow: Flow) -> float:
    """Writes a change of batch 8 once more, as another writer."""
    flow.goes_on(82)
    path = flow.layout.stream_table("play", "reads", CHANGES.name)
    changes = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, changes.filter(pc.field("batch_id") == 8).slice(0, 1), mode="append")
    return 84


def broken_proof(flow: Flow) -> float:
    """Removes the evidence of a skip of batch 9."""
    flow.goes_on(82)
    flow.batch(92, *now(92, 0, 182))
    DeltaTable(flow.layout.stream_table("play", "reads", SUPPRESSED.name)).delete("batch_id = 9")
    return 94


@dataclass(frozen=True)
class Fault:
    """A fault that *plant* injects; it returns the check's second.

    The check judges *promise*, and causes so many *pages*; *afresh*: there was no sound time before.
    """

    plant: Callable[[Flow], float]
    promise: str
    verdict: str
    culprit: str | None = None
    blocked_by: str = ""
    afresh: bool = False
    pages: int = 1

    @property
    def toml(self) -> str:
        """The topology that has the promise."""
        return next(toml for toml, promises in PROMISES.items() if self.promise in promises)

    @property
    def measure(self) -> str:
        """Returns the measure of the SLA that the fault breaks."""
        return str(PROMISES[self.toml][self.promise]["measure"])


FAULTS = {
    "slow operator": Fault(slow_operator, "newest_is_quick", "error", "newest"),
    "operator that fills the trigger interval": Fault(
        very_slow_operator, "newest_is_quick", "error", "newest", "slow_operator: newest"
    ),
    "slow operator downstream of a hop": Fault(
        slow_operator_behind_a_hop, "totals_in_time", "error", "sums", "slow_operator: sums"
    ),
    "error budget burning": Fault(
        late_device, "totals_in_budget", "error", "late_producer", "late_producer: events partition 1"
    ),
    "driver that restarted": Fault(
        restarted_driver, "totals_in_time", "error", "driver_restarted", "driver_restarted: by_id"
    ),
    "driver that stood still": Fault(driver_that_stood_still, "totals_in_time", "error", "backlog", "backlog: by_id"),
    "reader of a hop that restarted": Fault(
        restarted_reader, "totals_in_time", "error", "driver_restarted", "driver_restarted: totals"
    ),
    "trigger too long": Fault(waiting, "totals_in_time", "error", "waiting"),
    "late device": Fault(late_device, "totals_in_time", "error", "late_producer", "late_producer: events partition 1"),
    "clock skew of a host": Fault(skewed_host, "the_hop_is_quick", "pass"),
    "unknown clock skew": Fault(skewed_host_of_unknown_skew, "the_hop_is_quick", "pass"),
    "idle partition": Fault(
        idle_partition, "counts_are_fresh", "error", "events", "partition_idle_holds_back: events partition 1"
    ),
    "idle partition, watermark": Fault(
        idle_partition, "time_goes_on", "error", "events", "partition_idle_holds_back: events partition 1"
    ),
    "slow partition": Fault(
        slow_partition, "counts_are_fresh", "error", "events", "partition_behind_holds_back: events partition 1"
    ),
    "partition too far ahead": Fault(
        alignment, "board_is_fresh", "error", "events", "alignment_wait: events partition 0"
    ),
    "backlog": Fault(backlog, "counts_are_fresh", "error", "events", "backlog: events partition 1"),
    "dead source": Fault(dead_source, "board_is_fresh", "error", "events", "source_quiet: board ← events"),
    "too few records": Fault(dead_source, "enough_records", "error", "events", "source_quiet: newest ← events"),
    "producer ahead of the clock": Fault(
        producer_ahead, "board_is_fresh", "ahead_of_clock", "events", "producer_ahead: events partition 1"
    ),
    "stuck window": Fault(dead_source, "counts_are_fresh", "error", "events", "time_stands_still: per_minute ← events"),
    "session that stays open": Fault(
        as_usual, "visits_are_fresh", "never_loaded", "visits", "session_kept_open: visits", afresh=True, pages=2
    ),
    "allowed lateness too long": Fault(
        as_usual, "patient_is_fresh", "never_loaded", "patient", "allowed_lateness_holds: patient", afresh=True, pages=2
    ),
    "backlog of partitions that are read": Fault(
        unread, "board_is_fresh", "error", "events", "backlog: events partition 0"
    ),
    "source without a record": Fault(
        empty_source, "changes_are_fresh", "never_loaded", "events", "source_empty: events", afresh=True
    ),
    "join with an empty table": Fault(
        empty_table, "rated_is_fresh", "never_loaded", "rates", "source_empty: rates", afresh=True
    ),
    "poison burst": Fault(poison, "board_is_fresh", "error", "events", "poison_at_head: events partition 0"),
    "wrong unit of time": Fault(
        wrong_unit, "changes_are_fresh", "error", "events", "wrong_time_unit: events partition 0"
    ),
    "burst of late records": Fault(late_burst, "enough_records", "error", "events", "bound_too_small: events"),
    "nothing changes": Fault(all_suppressed, "board_is_fresh", "error", "newest", "all_suppressed: newest"),
    "condition that drops all": Fault(all_filtered, "large_is_fresh", "error", "large", "all_filtered: large"),
    "interval too long": Fault(
        held_until_interval, "ticker_is_fresh", "error", "ticking", "held_until_interval: ticking"
    ),
    "stream never started": Fault(
        never_started, "totals_are_fresh", "never_loaded", "totals", "never_started: totals", afresh=True
    ),
    "dead stream": Fault(dead_driver, "board_is_fresh", "error", "board", "driver_dead: board"),
    "silent stream": Fault(killed_driver, "board_is_fresh", "error", "board", "driver_dead: board"),
    "stream killed seconds ago": Fault(just_killed, "board_is_fresh", "error", "board", "driver_dead: board"),
    "stream that stays in starting": Fault(
        starting_driver, "board_is_fresh", "error", "board", "driver_starting: board"
    ),
    "duplicate records": Fault(repeated, "board_is_fresh", "error", "events", "all_duplicates: events"),
    "dead stream upstream of a hop": Fault(dead_upstream, "totals_are_fresh", "error", "by_id", "upstream_dead: by_id"),
    "batch that hangs": Fault(hanging_batch, "board_is_fresh", "error", "board", "slow_batch: board"),
    "driver short of memory": Fault(short_of_memory, "board_is_fresh", "error", "board", "short_of_memory: board"),
    "full disk": Fault(full_disk, "board_is_fresh", "error", "board", "cannot_write: board"),
    "damaged file": Fault(damaged_file, "board_is_fresh", "error", "board", "file_unreadable: board"),
    "update that is lost": Fault(lost_update, "nothing_gets_lost", "error", "newest"),
    "broken contract": Fault(broken_contract, "contracts_are_kept", "error", "newest"),
    "skip without its proof": Fault(broken_proof, "contracts_are_kept", "error", "newest"),
}

LOGS = "tidemark logs play/reads"
RESTART = ["tidemark restart play/reads", "airflow tasks clear tidemark_play_streams --task-regex ^reads$"]
START = [
    "tidemark up play", "airflow dags unpause tidemark_play_streams", "airflow dags trigger tidemark_play_streams",
]  # fmt: skip
PROCESSING = "tidemark run play --time processing"
COMMANDS = {
    "driver that stood still": [LOGS],
    "driver that restarted": [f"{LOGS} --lines 1000"],
    "stream never started": START,
    "dead stream": START,
    "stream killed seconds ago": [LOGS, *START],
    "stream that stays in starting": [LOGS, *RESTART],
    "driver short of memory": RESTART,
    "dead stream upstream of a hop": RESTART,
    "batch that hangs": ["tidemark topology play", LOGS],
    "full disk": ["tidemark tables", LOGS],
    "damaged file": START,
    "poison burst": [
        "tidemark sql from quarantine where topology = 'play' and source = 'events'",
        "tidemark requeue play --source events",
    ],
    "burst of late records": [
        "tidemark bound play --source events", "tidemark requeue play --late --source events", PROCESSING,
    ],
    "idle partition": [PROCESSING],
    "source without a record": ["tidemark check --live"],
}  # fmt: skip
"""Maps faults to the commands that their incidents name.

They are split as the shell splits them.
"""


IN_PROOF = (
    "slow operator downstream of a hop", "reader of a hop that restarted", "unknown clock skew", "silent stream",
    "stream killed seconds ago", "backlog of partitions that are read", "join with an empty table",
    "skip without its proof", "condition that drops all", "session that stays open", "allowed lateness too long",
    "trigger too long", "too few records", "error budget burning", "driver that stood still", "late device",
    "slow partition", "idle partition, watermark", "producer ahead of the clock", "stream that stays in starting",
    "driver short of memory", "full disk", "damaged file",
)  # fmt: skip
"""Variants of other faults; `make proof` injects them.

Each takes ten seconds of a processor.
"""


def injected() -> Iterator[ParameterSet]:
    """Yields the names of faults that one injection causes."""
    groups: dict[tuple[Callable[[Flow], float], str], list[str]] = {}
    for name, fault in FAULTS.items():
        groups.setdefault((fault.plant, fault.toml), []).append(name)
    for names in groups.values():
        yield pytest.param(names, id=names[0], marks=pytest.mark.long if set(names) <= set(IN_PROOF) else ())


@pytest.mark.parametrize("names", [*injected()])
def test_each_fault_gives_the_expected_verdict_and_culprit(
    healthy: dict[str, Flow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    faults, home = [FAULTS[name] for name in names], tmp_path / "play"
    first = faults[0]
    flow = Flow(first.toml, home) if first.afresh else healthy[first.toml].copy(home)
    monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=flow.sleep))  # it is the clock of the play that goes on

    promises = [fault.promise for fault in faults]
    results, changes = checked(flow, first.plant(flow), *dict.fromkeys((*promises, *EIGHT[first.toml])))

    pages = [row for row in stored(flow, ALERTS) if row["audience"] is None]
    assert [row["change"] for row in pages] == ["opened"] * first.pages
    assert sorted(name for row in pages for name in row["slas"]) == sorted(row["sla"] for row in changes)
    for name, fault in zip(names, faults, strict=True):
        result = next(row for row in results if row["sla"] == fault.promise)
        told = [row for row in changes if row["sla"] == fault.promise]
        verdict, culprit, blocked_by = (result[column] for column in ("verdict", "culprit", "blocked_by"))
        assert (verdict, culprit, begins(blocked_by, like=fault.blocked_by)) == (
            fault.verdict,
            fault.culprit,
            fault.blocked_by,
        )
        is_told = [(fault.promise, "opened", verdict, culprit, blocked_by)]
        assert [tuple(row[column] for column in CHANGE) for row in told] == ([] if verdict == "pass" else is_told)
        agree(flow, fault, result, told)
        if name in COMMANDS:
            assert [" ".join(words) for words in commands(blocked_by)] == COMMANDS[name]


def test_two_faults_are_two_pages_and_each_ends_by_itself(healthy: dict[str, Flow], tmp_path: Path) -> None:
    flow = healthy[TABLES].copy(tmp_path / "play")

    def pages(at_s: float, run_id: str) -> list[tuple[str, str, str]]:
        flow.beat("sums", at_s - 1, StreamState.FAILED, reason="OSError: no route to host")
        checked(flow, at_s, *EIGHT[TABLES], run_id=run_id, resolve_after="0 s")
        rows = [row for row in stored(flow, ALERTS) if row["audience"] is None]
        return sorted((row["cause"], row["cause_operator"] or row["cause_sub_topology"], row["change"]) for row in rows)

    for second in (82, 142):
        flow.reads(second)
    opened = [("driver_dead", "sums", "opened"), ("source_quiet", "events", "opened")]
    assert pages(144, "a") == opened
    for second in (152, 162, 172, 182, 192):
        flow.reads(second, *now(second, 0), *now(second, 1))
    # What the silence had broken, and is broken for the dead driver now, moves with the second check.
    assert pages(194, "b") == opened
    assert pages(196, "c") == [*opened, ("source_quiet", "events", "resolved")]


@pytest.mark.long  # the parts are shown by tests/unit/test_grouping.py; this shows them together
def test_a_second_outage_of_a_driver_is_a_second_page(healthy: dict[str, Flow], tmp_path: Path) -> None:
    flow = healthy[TABLES].copy(tmp_path / "play")

    def pages(at_s: float, run_id: str) -> list[tuple[str, str]]:
        checked(flow, at_s, *EIGHT[TABLES], run_id=run_id)
        rows = [row for row in stored(flow, ALERTS) if row["audience"] is None]
        assert {(row["cause"], row["cause_sub_topology"]) for row in rows} == {("driver_dead", "reads")}
        return sorted((f"{row['opened_at']:%H:%M:%S}", row["change"]) for row in rows)

    flow.beat("reads", 80, StreamState.FAILED, reason="OSError: no route to host")
    assert pages(134, "a") == [("12:02:14", "opened")]
    flow.beat("reads", 140, epoch=2)
    flow.play.start("reads", epoch=2)
    flow.goes_on(142)
    assert pages(144, "b") == [("12:02:14", "opened")]
    flow.beat("reads", 150, StreamState.FAILED, epoch=2, reason="OSError: no space left")
    assert pages(210, "c") == [("12:02:14", "opened"), ("12:02:14", "resolved"), ("12:03:30", "opened")]
    assert pages(220, "d") == [("12:02:14", "opened"), ("12:02:14", "resolved"), ("12:03:30", "opened")]
    second = next(row for row in stored(flow, ALERTS) if f"{row['opened_at']:%H:%M:%S}" == "12:03:30")
    assert "no space left" in second["blocked_by"]


def test_the_slow_operator_of_the_demo_is_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topology, SLAs and the delay of 400 ms are the demo's."""
    text = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8")
    play, layout = Play(text, tmp_path), Layout(tmp_path)
    monkeypatch.setattr(
        decision, "time", SimpleNamespace(sleep=lambda s: setattr(play, "now_ms", play.now_ms + round(1_000 * s)))
    )
    # A busy operator of the stream before it explains nothing: an operator's work waits for no other.
    play.slow_ms = {"flight_status": 2_500, "carrier_state": 400}
    flight = {"flight": "UA1", "carrier": "UA", "origin": "JFK", "dest": "LAX", "status": "departed"}
    for second in range(10, 40, 5):
        rows = [
            play.row("flight_events", ms(second - 1), **flight, dep_delay_min=float(second)),
            play.row("weather", ms(second - 1), origin="JFK", temp_f=float(second)),
        ]
        play.batch(rows, at_ms=ms(second), sub="status")
        play.hop("carriers", at_ms=ms(second + 3))

    specs = load(PROJECT / "expectations" / "slas.toml", play.topology)
    critical_path.run(layout, play.topology, specs, Interval(NOON, ms(37)))
    run_check(layout, play.topology, specs, at_ms=ms(37), run_id="r")

    (page,) = open_report(ALERTS, layout.report_table("flights", ALERTS.name)).to_pyarrow_table().to_pylist()
    assert (page["change"], page["cause"], page["cause_operator"]) == ("opened", "slow_operator", "carrier_state")
    assert (page["slas"], page["owners"], page["culprit"]) == (
        ["carrier_state_is_quick"],
        ["data platform"],
        "carrier_state",
    )


def test_an_incident_of_time_ahead_names_topic_partition_and_key(healthy: dict[str, Flow], tmp_path: Path) -> None:
    flow = healthy[TABLES].copy(tmp_path / "play")
    _, (change,) = checked(flow, producer_ahead(flow), "board_is_fresh")
    assert (change["change"], change["verdict"], change["culprit"]) == ("opened", "ahead_of_clock", "events")
    found = re.findall(
        r"^(\w+: events partition 1) .* of (events, of key b), lies up to (50 min)", change["blocked_by"]
    )
    assert found == [("producer_ahead: events partition 1", "events, of key b", "50 min")]


def test_a_restart_downstream_of_a_hop_is_the_culprit(healthy: dict[str, Flow], tmp_path: Path) -> None:
    flow = healthy[HOP].copy(tmp_path / "play")
    flow.beat("sums", 73)
    for second in (82, 92, 102):
        flow.reads(second, *now(second, 0), *now(second, 1))
    flow.beat("sums", 110, epoch=2)
    flow.play.start("sums", epoch=2)
    flow.sums(112)
    (result,), (change,) = checked(flow, 114, "totals_in_time")
    assert (result["verdict"], result["culprit"]) == ("error", "driver_restarted")
    assert result["cause_since"] == datetime(2014, 5, 13, 12, 1, 13, tzinfo=UTC)
    assert change["blocked_by"].startswith(
        "driver_restarted: totals since 2014-05-13T12:01:13.000Z: the driver of sums"
    )


@pytest.mark.parametrize("toml", [HOP, TABLES], ids=["hop", "tables"])
def test_without_a_fault_every_sla_passes(healthy: dict[str, Flow], tmp_path: Path, toml: str) -> None:
    flow = healthy[toml].copy(tmp_path / "play")
    flow.goes_on(82, 92, 102, 112, 122, 132)

    results, told = checked(flow, 134, *PROMISES[toml])

    assert {result["sla"]: result["verdict"] for result in results} == dict.fromkeys(PROMISES[toml], "pass")
    assert told == []


def test_the_documentation_lists_these_faults_and_verdicts() -> None:
    rows = [line.strip("| ").split(" | ") for line in section("Faults").splitlines() if line.startswith("|")][2:]
    found = {cells[0]: tuple(cell.strip("`") for cell in cells[1:]) for cells in rows}
    assert found == {
        name: (f.measure, f.verdict, f.culprit or "none", f.blocked_by or "nothing") for name, f in FAULTS.items()
    }


def test_every_measure_and_every_cause_is_tested() -> None:
    questions = re.findall(r"^\| (.*?) \| ", section("What to do"), flags=re.MULTILINE)
    named = {word for question in questions for word in re.findall(r"`(\w+)`", question)}
    assert {*Measure, *known_causes()} - NO_EXPLANATION - named == set()


def section(title: str) -> str:
    """A section of docs/alerts.md."""
    text = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def begins(text: str | None, *, like: str) -> str:
    """As much of *text* as *like* has; all, where that is nothing."""
    return (text or "")[: len(like) or None]


CHANGE = ("sla", "change", "verdict", "culprit", "blocked_by")
"""Returns the incident's text: its SLA, what happened, verdict and reason."""


def agree(flow: Flow, fault: Fault, result: Row, told: list[Row]) -> None:
    """Checks that alert, `why`, `path` and `bound` agree with the check.

    It also checks that each command that `why` names is valid.
    """
    topology, at_ms = flow.play.topology, round(result["checked_at"].timestamp() * 1_000)
    for change in told:
        instants = {k: round(v.timestamp() * 1_000) if isinstance(v, datetime) else v for k, v in change.items()}
        due = DueAlert(alert=alert_of(event_of(IncidentChange, instants)))
        text = alert_texts(message_of(due, link=""), notified_ms=at_ms)["text"]
        assert [name for name in ("culprit", "blocked_by") if (result[name] or "") not in text] == []
    walk = Walk(scene(topology, flow.layout, at_ms))
    for finding in walk.explain():
        can_be_typed(finding, topology)
    cause, _, _ = (result["blocked_by"] or "").partition(": ")
    if cause in {*known_causes()}:
        is_of_one = result["subject"] in topology.operators and result["measure"] != Measure.WATERMARK_LAG
        subject = result["subject"] if is_of_one else None  # a watermark is waited for by those behind it
        lines = [finding.line for finding in walk.explain(subject)]
        assert result["blocked_by"] in lines
    if cause == "bound_too_small":
        costs = bound_rows(flow.layout.warehouse, topology, source=result["culprit"])
        assert [share for _, choice, _, _, _, share, _ in costs if choice == "current"] > [0.0]
    if flow.play.toml == HOP and fault.verdict != "pass":
        windows = windows_with_paths(Warehouse(flow.layout.warehouse), topology.name, last=100)
        worst = max((w["blame"][0] for w in windows if w["blame"]), key=lambda part: part["excess_ms"])
        assert worst["operator"] == result["culprit"]
        if cause in {"driver_restarted", "backlog"}:
            assert worst["input"].partition(": ")[2] in result["blocked_by"]


def checked(flow: Flow, at_s: float, *promises: str, run_id: str = "r", **keys: Any) -> tuple[list[Row], list[Row]]:
    """Returns the rows of `sla_results` and incident changes after a check.

    Each SLA has the *keys*, too.
    """
    topology = flow.play.topology
    slas = {name: {**PROMISES[flow.play.toml][name], "owner": "o", **keys} for name in promises}
    specs = parse({"play": slas}, topology, file="slas.toml")
    if flow.play.toml == HOP:
        critical_path.run(flow.layout, topology, specs, Interval(NOON, ms(at_s)))
    run_check(flow.layout, topology, specs, at_ms=ms(at_s), run_id=run_id)
    return stored(flow, SLA_RESULTS), stored(flow, INCIDENTS)


def stored(flow: Flow, table: Table) -> list[Row]:
    """Returns all rows of a report."""
    return open_report(table, flow.layout.report_table("play", table.name)).to_pyarrow_table().to_pylist()
