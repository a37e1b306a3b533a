"""Faults that are planted into real streams: every surface names the planted owner, with the planted amount.

A project of its own has a real broker, and a real Airflow that launches its streams, replaces their drivers and checks
their SLAs. Several faults are planted at once where no promise meets two of them. tests/delta/test_planted_faults.py
has many more faults, on the facts of a simulated world.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from streaming.drivers import ends_of

from support.fault_table import in_time, lag, quick, share
from support.sla_rows import row_of_page
from support.supervised_streams import wait_for
from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.local import airflow, broker, stack
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.local.conductor import Conductor
from tidemark.local.stack import Home
from tidemark.model.project.layout import Layout
from tidemark.model.sla_event_rows import event_of
from tidemark.model.sla_events import Alert, SlaResult
from tidemark.model.tables.catalog import ALERTS, BATCHES, INCIDENTS, SLA_RESULTS, Table
from tidemark.model.topology import parse
from tidemark.sla.incidents.tables import in_ms
from tidemark.storage.delta.tables import scan
from tidemark.stream.journal.unflushed import scan_facts

NAME, CHECKS = "shop", "tidemark_shop_sla_check"
ORDERS, PAYMENTS, PARTITIONS = "orders", "payments", 2
EVERY_S = 0.2
WITHIN_S = 300.0
CLOCKS_ERROR_MS = 6
"""One host's clock is two clocks, that of the broker and that of the driver, to 3 ms each."""
SHOP = topology_of(
    {"name": NAME, "trigger": "1 s", "check_every": "1 h", "driver": "own"},
    orders=source("id string, amount double", topic=ORDERS, sub_topology="reads"),
    newest=table("orders", columns=["amount"], newest_by="arrival"),
    board=sink("newest", table="board"),
    by_id=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
    payments=source("id string, amount double", topic=PAYMENTS),
    paid=table("payments", columns=["amount"], newest_by="arrival"),
    paid_board=sink("paid", table="paid_board"),
    per_ten=aggregate(
        "payments", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
    ),
    counts=sink("per_ten", table="counts"),
    sums=aggregate("by_id", sub_topology="sums", aggregates={"n": "count(*)"}),
    totals=sink("sums", table="totals"),
)
OVER = "45 s"
PROMISES = {
    "newest_is_quick": {**quick("newest", "700 ms"), "over": "30 s"},
    "board_in_time": in_time("board", "6 s", OVER),
    "paid_in_time": in_time("paid_board", "6 s", OVER),
    "totals_in_time": in_time("totals", "8 s", OVER),
    "payments_go_on": lag("payments", "15 s"),
    "few_are_late": {**share("per_ten", "late_share", 0.01), "over": OVER},
    "few_are_unusable": {**share("payments", "quarantined_share", 0.01), "over": OVER},
}

pytestmark = pytest.mark.long
LOG = logging.getLogger(__name__)


class Feed:
    """Sends a record to each partition of both topics five times a second, until it ends.

    Records of a partition in *late_ms* are as old when they are sent, those in *unusable* are no JSON, and partitions
    in *silent* get none.
    """

    def __init__(self, address: str) -> None:
        self.late_ms: dict[tuple[str, int], int] = {}
        self.unusable: set[tuple[str, int]] = set()
        self.silent: set[tuple[str, int]] = set()
        self.newest_ms: dict[tuple[str, int], int] = {}
        self.sent_unusable = 0
        self._producer, self._chance = Producer({"bootstrap.servers": address}), random.Random(53)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def end_faults(self) -> None:
        """Sends as usual again."""
        self.late_ms.clear()
        self.unusable.clear()
        self.silent.clear()

    def send(self, place: tuple[str, int], key: str, event_ms: int) -> None:
        value = json.dumps({"id": key, "amount": self._chance.random(), "event_time": event_ms})
        self._producer.produce(place[0], value, key, place[1])

    def reconnect(self, place: tuple[str, int], key: str, n: int, *, youngest_ms: int, oldest_ms: int) -> None:
        """Sends *n* old records of a device at once, of evenly distributed ages."""
        now_ms = wall_clock_ms()
        for number in range(n):
            self.send(place, key, now_ms - oldest_ms + (oldest_ms - youngest_ms) * number // n)
        self._producer.flush()

    def send_all(self) -> None:
        """Sends a record to each partition that is not silent."""
        for place in product((ORDERS, PAYMENTS), range(PARTITIONS)):
            key = f"{place[0]}{place[1]}"
            if place in self.unusable:
                self._producer.produce(place[0], b"\xff", key, place[1])
                self.sent_unusable += 1
            elif place not in self.silent:
                self.newest_ms[place] = wall_clock_ms() - self.late_ms.get(place, 0)
                self.send(place, key, self.newest_ms[place])
        self._producer.flush()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.send_all()


class Shop:
    """The project in *folder*, whose streams Airflow runs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.home = folder, Home(folder / ".tidemark")
        self._layout = Layout(self.home.warehouse)
        self.tidemark("init", ".")
        (folder / "topologies" / f"{NAME}.toml").write_text(SHOP)
        slas = {name: {**keys, "owner": "ann", "resolve_after": "1 s"} for name, keys in PROMISES.items()}
        tables = {f"[{NAME}.{name}]": keys for name, keys in slas.items()}
        lines = (
            f"{head}\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in of.items()) for head, of in tables.items()
        )
        (folder / "expectations" / "slas.toml").write_text("\n".join(lines))
        for topic in (ORDERS, PAYMENTS):
            self.tidemark("topic", "create", topic, "--partitions", str(PARTITIONS))
        self.address = broker.address(self.home.broker)

    def tidemark(self, *words: str) -> str:
        """Returns the output of a command of a person."""
        command = [str(Path(sys.executable).with_name("tidemark")), *words]
        env = process.without_airflow(os.environ)
        done = subprocess.run(command, cwd=self._folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout[-4_000:]}\n{done.stderr[-4_000:]}"
        return done.stdout

    @property
    def api(self) -> AirflowApi:
        return airflow.api(self.home.airflow)

    def beat(self, sub: str) -> Heartbeat | None:
        return Control(self._layout.control(NAME, sub)).heartbeat()

    def send_signal(self, sub: str, number: signal.Signals) -> int:
        """Sends a signal to the driver of *sub* with its JVM; returns when, epoch ms."""
        beat = self.beat(sub)
        assert beat is not None
        os.killpg(os.getpgid(beat.pid), number)
        return wall_clock_ms()

    def check(self) -> str:
        """Has Airflow check the SLAs now; returns the run."""
        api = self.api
        run_id = api.trigger(CHECKS, {})
        wait_for(lambda: api.run_state(CHECKS, run_id) in ENDED, "the end of the check", WITHIN_S)
        assert api.run_state(CHECKS, run_id) == SUCCESS
        return run_id

    def of_run(self, reported: Table, run_id: str) -> list[dict[str, Any]]:
        """Returns the rows of a table of SLAs that a check has written."""
        path = self._layout.report_table(NAME, reported.name)
        rows = scan(path).collect() if path.exists() else pl.DataFrame(schema={"run_id": pl.String()})
        return in_ms(rows.filter(pl.col("run_id") == run_id))

    def broken(self, run_id: str) -> set[str]:
        """Returns the promises that a check has not found kept."""
        return {row["sla"] for row in self.of_run(SLA_RESULTS, run_id) if row["verdict"] != "pass"}

    def why(self, at_ms: int) -> list[dict[str, Any]]:
        at = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat()
        found: list[dict[str, Any]] = json.loads(self.tidemark("why", NAME, "--at", at, "--format", "json"))
        return found

    def status(self) -> dict[str, Any]:
        (model,) = json.loads(self.tidemark("status", NAME, "--format", "json"))["topologies"]
        return dict(model)

    def epoch(self, sub: str) -> int:
        return Control(self._layout.control(NAME, sub)).epoch()

    def is_running(self, sub: str, epoch: int) -> bool:
        """Returns whether the driver of that *epoch* runs."""
        beat = self.beat(sub)
        return beat is not None and beat.epoch == epoch and beat.state is StreamState.RUNNING

    def batches_since(self, sub: str, since_ms: int) -> int:
        """Returns how many batches have finished since then, and are stored."""
        found = scan_facts(self._layout.stream_table(NAME, sub, BATCHES.name)).select("started_at").collect()
        return found.filter(pl.col("started_at") > datetime.fromtimestamp(since_ms / 1_000, UTC)).height

    def catch_up(self) -> None:
        """Waits until what was sent is read, also behind the hop."""
        ends = ends_of(self.address, {ORDERS: ORDERS, PAYMENTS: PAYMENTS})

        def has_read(sub: str, ends: Mapping[str, int]) -> bool:
            beat = self.beat(sub)
            offsets = beat.offsets if beat else {}
            return all(offsets.get(place, end) >= end for place, end in ends.items()) and bool(offsets)

        wait_until(lambda: has_read("reads", ends) and has_read("payments", ends), "records that are read")
        written = self.beat("reads")
        assert written is not None
        wait_until(lambda: has_read("sums", {"by_id_source/0": written.batch_id + 1}), "the hop that is read")

    def end(self) -> None:
        """Leave nothing of it: Airflow first, which would launch drivers again."""
        airflow.stop(self.home.airflow)
        for driver in self.home.drivers():
            process.stop(driver, stack.DRIVER, grace_s=0)
        process.stop(self.home.broker, broker.NAME, grace_s=0)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    process.wait_until(condition, what, WITHIN_S)


def since(at_ms: int, length_s: float) -> Callable[[], bool]:
    """Returns whether a fault that began then has lasted for so long."""
    return lambda: wall_clock_ms() - at_ms >= length_s * 1_000


Findings = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Planted:
    """A fault, as the surfaces have to tell it: of which promise, whose it is, and how much.

    A fault that lasts has *since_ms* in place of an amount, which is then the time until the check. *why* is what
    `tidemark why` said while results were missing; None: they came, and it says that the SLA is broken.
    """

    promise: str
    owner: str
    detail: str
    amount_ms: int | None = None
    records: int | None = None
    since_ms: int | None = None
    why: Findings | None = None

    @property
    def whose(self) -> tuple[str, str]:
        return self.owner, self.detail


def stands_still(shop: Shop, sub: str) -> tuple[int, Findings]:
    """Stops the driver of *sub* for 12 s; returns for how long it was, ms, and what `why` said meanwhile."""
    stopped_ms = shop.send_signal(sub, signal.SIGSTOP)
    try:
        wait_until(since(stopped_ms, 8), "8 s without a driver")
        said = shop.why(wall_clock_ms())
        wait_until(since(stopped_ms, 12), "12 s without a driver")
    finally:
        went_on_ms = shop.send_signal(sub, signal.SIGCONT)
    return went_on_ms - stopped_ms, said


def of_hops(shop: Shop, feed: Feed) -> list[Planted]:
    """The reader of a hop is stopped for 12 s while the writer goes on, and a partition falls silent."""
    feed.silent.add((PAYMENTS, 1))
    for_ms, said = stands_still(shop, "sums")
    shop.catch_up()
    newest_ms = feed.newest_ms[PAYMENTS, 1]
    wait_until(since(newest_ms, 25), "a silence of 25 s")
    silent = shop.why(wall_clock_ms())
    return [
        Planted("totals_in_time", "pause", "shop/sums", for_ms, why=said),
        Planted("payments_go_on", "next_record", "payments/1", since_ms=newest_ms, why=silent),
    ]


def of_drivers(shop: Shop, feed: Feed) -> list[Planted]:
    """A driver is killed, and another one is stopped for 12 s."""
    epoch = shop.epoch("payments")
    killed_ms = shop.send_signal("payments", signal.SIGKILL)
    for_ms, said = stands_still(shop, "reads")
    wait_until(lambda: shop.is_running("payments", epoch + 1), "the next driver")
    absent_ms = wall_clock_ms() - killed_ms
    shop.catch_up()
    return [
        Planted("board_in_time", "pause", "shop/reads", for_ms, why=said),
        Planted("paid_in_time", "absence", "shop/payments", absent_ms, why=said),
    ]


def of_producers(shop: Shop, feed: Feed) -> list[Planted]:
    """A phone reconnects, a producer is 9 s late, and another one sends no JSON."""
    feed.late_ms[ORDERS, 1] = 9_000
    feed.unusable.add((PAYMENTS, 1))
    feed.reconnect((PAYMENTS, 0), "phone", 36, youngest_ms=30_000, oldest_ms=208_000)
    wait_until(lambda: feed.sent_unusable >= 100, "100 records that are no JSON")
    feed.unusable.clear()
    shop.catch_up()
    return [
        Planted("few_are_late", "key", "phone", records=36),
        Planted("board_in_time", "producer", "orders/1", 9_000),
        Planted("few_are_unusable", "producer", "payments/1", records=feed.sent_unusable),
    ]


def of_operators(shop: Shop, feed: Feed) -> list[Planted]:
    """An operator takes 1.5 s longer for each batch."""
    conductor = Conductor(shop.home, parse(tomllib.loads(SHOP), file=f"{NAME}.toml"), print)
    conductor.drain(shop.api, by="ann")
    drained_ms = wall_clock_ms()
    conductor.launch_streams(shop.api, ["newest=1500"], first_report=False)
    wait_until(lambda: shop.batches_since("reads", drained_ms) >= 15, "15 slow batches")
    return [Planted("newest_is_quick", "operator", "newest", 1_500)]


PLAYS = (of_hops, of_drivers, of_producers, of_operators)
"""The last one launches all streams anew."""


Answer = tuple[str | None, str | None, int | None, int | None]
"""Owner, detail, amount (ms) and records that a surface tells."""


def answer_of(told: Mapping[str, Any]) -> Answer:
    return told["owner"], told["detail"], told["amount_ms"], told["records"]


def answers(
    shop: Shop, run_id: str, planted: Planted, *, status: Mapping[str, Any], why: Findings
) -> dict[str, Answer | None]:
    """Returns what each surface says of the promise after a check; None: it says nothing, or something else.

    *status* and *why* are what the commands of these names say.
    """
    (result,) = (row for row in shop.of_run(SLA_RESULTS, run_id) if row["sla"] == planted.promise)
    cause = event_of(SlaResult, result).cause
    checked = None if cause is None else answer_of(asdict(cause))
    incidents = {row["sla"]: row["blocked_by"] for row in shop.of_run(INCIDENTS, run_id) if row["change"] == "opened"}
    alerts = [event_of(Alert, row) for row in shop.of_run(ALERTS, run_id)]
    of_alert = [alert.cause for alert in alerts if planted.promise in alert.slas]
    is_on_page = (result["blocked_by"] or "no cause") in row_of_page(shop.api, NAME, planted.promise)
    (row,) = (row for row in status["slas"]["rows"] if row["sla"] == planted.promise)
    if planted.why is None:
        open_incidents = [each for each in why if f"SLA {planted.promise} " in each["seen"]]
        of_why = checked if open_incidents else None
    else:
        named = [answer_of(each) for each in planted.why if (each["owner"], each["detail"]) == planted.whose]
        of_why = (*named[0][:2], planted.amount_ms, None) if named else None
    return {
        "check": checked,
        "incident": checked if incidents.get(planted.promise) == result["blocked_by"] else None,
        "alert": answer_of(asdict(of_alert[0])) if of_alert and of_alert[0] else None,
        "status": answer_of(row["causes"][0]) if row["causes"] else None,
        "page": checked if is_on_page else None,
        "why": of_why,
    }


def is_right(answer: Answer | None, planted: Planted) -> bool:
    """Returns whether an answer is what was planted: amounts within 10 %, 100 ms or the clocks' error."""
    if answer is None or answer[:2] != planted.whose or (answer[2] is None) != (planted.amount_ms is None):
        return False
    planted_ms, told_ms = planted.amount_ms or 0, answer[2] or 0
    is_near = abs(told_ms - planted_ms) <= max(planted_ms / 10, 100, CLOCKS_ERROR_MS)
    return is_near and planted.records in {None, answer[3]}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    found = Shop(tmp_path_factory.mktemp("shop"))
    try:
        found.tidemark("up", NAME)
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def feed(shop: Shop) -> Iterator[Feed]:
    """Records that come as usual, for long enough to say what is usual.

    The first record of a partition waits until all code is warm, and none comes before it is visible.
    """
    feed = Feed(shop.address)
    feed.send_all()
    shop.catch_up()
    with feed:
        began_ms = wall_clock_ms()
        wait_until(lambda: shop.batches_since("sums", began_ms) >= 20, "20 healthy batches")
        yield feed


@pytest.mark.parametrize("play", PLAYS, ids=[play.__name__ for play in PLAYS])
def test_every_surface_names_the_planted_owners_with_their_amounts(
    shop: Shop, feed: Feed, play: Callable[[Shop, Feed], list[Planted]]
) -> None:
    """A healthy check comes first: it resolves the incidents of the play before."""
    feed.end_faults()
    wait_until(lambda: not shop.broken(shop.check()), "a check that finds all promises kept")
    planted = play(shop, feed)
    run_id = shop.check()
    checked_ms = shop.of_run(SLA_RESULTS, run_id)[0]["checked_at"]
    planted = [replace(each, amount_ms=checked_ms - each.since_ms) if each.since_ms else each for each in planted]
    status, why = shop.status(), shop.why(wall_clock_ms())
    told = [(each, answers(shop, run_id, each, status=status, why=why)) for each in planted]
    for each, by_surface in told:
        LOG.info("%s: planted %s; told %s", each.promise, (*each.whose, each.amount_ms, each.records), by_surface)
    wrong = {
        (each.promise, surface): answer
        for each, by_surface in told
        for surface, answer in by_surface.items()
        if not is_right(answer, each)
    }
    assert wrong == {}
