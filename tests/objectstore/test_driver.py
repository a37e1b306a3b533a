"""Runs the flights driver and its reports in an object store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import Producer
from objectstore.counting import Requests
from streaming.drivers import PATIENCE_S, PROJECT, Driver

from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control, StreamState
from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.tables import scan
from tidemark.storage.location import location

TOPICS = {"flight_events": 2, "weather": 1, "carrier_delays": 1}
SECRET = "secret-of-the-test"
NOW_MS = wall_clock_ms() - 60_000
JFK, LGA = ("AA1", "AA", "JFK"), ("DL2", "DL", "LGA")
BEFORE = [(*JFK, "scheduled", None, 0), (*LGA, "scheduled", None, 1_000), (*JFK, "departed", 5.0, 2_000)]
AFTER = [(*LGA, "cancelled", None, 3_000), (*JFK, "arrived", -2.0, 4_000)]
FLIGHTS = [*BEFORE, *AFTER]
IDLE_AT_MOST, MINUTE_MS = 10, 60_000


@dataclass(frozen=True)
class Flow:
    """Results after one driver was killed, one refused and one drained.

    The first was killed, the third refused and the second drained.
    """

    warehouse: Path
    exits: list[int]
    epochs: list[int]
    state: StreamState | None
    said: str

    def rows(self, table: str) -> pl.DataFrame:
        return scan(Layout(self.warehouse).stream_table("flights", "status", table)).collect()


def send(address: str, topic: str, *records: tuple[str, int, dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for key, partition, fields in records:
        producer.produce(topic, json.dumps(fields), key, partition)
    assert producer.flush(PATIENCE_S) == 0


def flight(name: str, carrier: str, origin: str, status: str, delay: float | None, later_ms: int) -> dict[str, Any]:
    known = {"flight": name, "carrier": carrier, "origin": origin, "status": status, "dep_delay_min": delay}
    return {**known, "event_time": NOW_MS + later_ms}


def send_flights(address: str, flights: list[tuple[str, str, str, str, float | None, int]]) -> None:
    send(address, "flight_events", *((f[0], int(f[0] == "DL2"), flight(*f)) for f in flights))


def fewest_of_a_minute(driver: Driver, requests: Requests) -> int:
    """Returns requests of an idle minute, which must come within five."""
    counted: dict[int, int] = {}  # by the instant of a beat, since the one before
    requests.since_last()
    begun_ms = last_ms = _beat_ms(driver)
    while True:
        driver.wait(lambda before_ms=last_ms: _beat_ms(driver) > before_ms, "a beat")  # type: ignore[misc]
        last_ms = _beat_ms(driver)
        counted[last_ms] = sum(requests.since_last().values())
        of_minute = sum(n for at_ms, n in counted.items() if at_ms > last_ms - MINUTE_MS)
        passed_ms = last_ms - begun_ms
        if passed_ms >= MINUTE_MS and (of_minute <= IDLE_AT_MOST or passed_ms > 5 * MINUTE_MS):
            return of_minute


def _beat_ms(driver: Driver) -> int:
    beat = driver.control.heartbeat()
    assert beat is not None
    return beat.at_ms


@dataclass(frozen=True)
class Stage:
    """A broker in *home* with three flights, and drivers in *warehouse*."""

    home: Path
    warehouse: Path
    address: str
    stack: ExitStack

    def start(self, *arguments: str) -> Driver:
        driver = Driver("status", self.home, self.address, *arguments, topology="flights", warehouse=self.warehouse)
        self.stack.callback(driver.end)
        return driver


def staged(home: Path, warehouse: Path, stack: ExitStack) -> Stage:
    toml = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()
    (home / "flights.toml").write_text(re.sub(r'(?m)^window = "5 s"', 'window = "1 s"', toml))
    stack.callback(embedded.stop, home / "broker")
    address = embedded.start(home / "broker").address
    embedded.create_topics(address, TOPICS)
    weather = [
        (o, 0, {"origin": o, "temp_f": t, "event_time": NOW_MS - 1_000}) for o, t in (("JFK", 70.0), ("LGA", 68.0))
    ]
    send(address, "weather", *weather)
    send_flights(address, BEFORE)
    return Stage(home, warehouse, address, stack)


def play(stage: Stage) -> Flow:
    address, read = stage.address, {"flight_events": "flight_events", "weather": "weather"}
    first = stage.start()
    first.read_everything(address, read)
    epochs = [first.control.epoch()]
    first.end()
    send_flights(address, AFTER)
    second = stage.start("--silent-after", "2")
    second.wait(lambda: second.control.epoch() == 2, "the second driver")
    third = stage.start()
    exits = [third.exit()]
    second.read_everything(address, read)
    epochs.append(second.control.epoch())
    arguments = Path(f"/proc/{second.pid}/cmdline").read_text()
    exits.append(second.drain())
    beat = second.control.heartbeat()
    said = arguments + second.log()
    return Flow(stage.warehouse, exits, epochs, beat and beat.state, said)


@pytest.fixture(scope="module")
def flow(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    with ExitStack() as stack:
        yield play(staged(tmp_path_factory.mktemp("flow"), location("s3a://tests/flow/warehouse"), stack))


@pytest.mark.long  # minutes of idleness
def test_an_idle_driver_asks_at_most_ten_requests_a_minute(store: str, server_log: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        stage = staged(tmp_path, location("s3a://tests/idle/warehouse"), stack)
        driver = stage.start()
        driver.read_everything(stage.address, {"flight_events": "flight_events", "weather": "weather"})
        assert 0 < fewest_of_a_minute(driver, Requests(server_log, stage.warehouse)) <= IDLE_AT_MOST
        assert driver.drain() == 0


def test_a_driver_waits_for_a_killed_one_and_runs_alone(flow):
    assert flow.exits == [3, 0]
    assert flow.epochs == [1, 2]
    assert flow.state is StreamState.DRAINED
    assert "another process with this lease is still alive, and only one process writes these tables" in flow.said


def test_every_update_is_one_change_despite_kills(flow):
    changes = flow.rows("changes").filter(pl.col("operator") == "flight_status").sort("timestamp")
    values = [json.loads(value) for value in changes["value"]]
    assert [(key, value["status"], value["delay_min"]) for key, value in zip(changes["key"], values, strict=True)] == [
        ("AA1", "scheduled", None),
        ("DL2", "scheduled", None),
        ("AA1", "departed", 5.0),
        ("DL2", "cancelled", None),
        ("AA1", "arrived", -2.0),
    ]
    assert changes["timestamp"].dt.epoch("ms").to_list() == [NOW_MS + n * 1_000 for n in range(5)]


def test_the_sink_has_each_flight_with_its_weather_once(flow):
    board = flow.rows("flight_board").sort("timestamp")
    assert list(zip(board["flight"], board["status"], board["temp_f"], strict=True)) == [
        ("AA1", "scheduled", 70.0),
        ("DL2", "scheduled", 68.0),
        ("AA1", "departed", 70.0),
        ("DL2", "cancelled", 68.0),
        ("AA1", "arrived", 70.0),
    ]


def test_no_credential_is_in_arguments_logs_or_control_folder(flow):
    assert SECRET not in flow.said
    kept = [file.read_bytes() for file in (flow.warehouse / "control").rglob("*") if file.is_file()]
    assert kept
    assert not any(SECRET.encode() in content for content in kept)


@pytest.mark.long  # `test_engine.py` has jobs in an object store
def test_reports_are_written_from_tables_of_the_driver(flow):
    hour = datetime.fromtimestamp(NOW_MS / 1_000, UTC).replace(minute=0, second=0, microsecond=0)
    interval = ["--from", hour.isoformat(), "--to", (hour + timedelta(hours=2)).isoformat()]
    run("rollup", flow, *interval)
    run("check_sla", flow, "--at", datetime.now(UTC).isoformat(), "--run-id", "of the test")
    tables = Warehouse(flow.warehouse)
    counted = "select sum(n) from latency_rollup where grain = 'minute' and scope = 'operator' and operator = "
    assert tables.ask(counted + "'flight_board'").rows == ((5,),)
    assert tables.ask("select distinct run_id from sla_results").rows == (("of the test",),)
    assert not Control(Layout(flow.warehouse).report_control("flights")).is_held()


def run(job: str, flow: Flow, *arguments: str) -> None:
    command = [sys.executable, str(PROJECT / "jobs" / f"{job}.py"), "--warehouse", str(flow.warehouse)]
    done = subprocess.run(
        [*command, "--topology", "flights", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-5_000:]
