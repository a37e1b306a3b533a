"""Real flights on a Spark cluster that loses a worker.

Then every batch job runs on it. The results must equal a plain-Python calculation, and those of the same jobs on this
machine alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cluster.submitting import spark_table, submit_command
from streaming.drivers import PATIENCE_S, PROJECT, Driver, Row, batches_of, in_kafka, rows_of
from streaming.flights_oracle import FLIGHTS, WEATHER, carriers_of, delays, status_of
from streaming.laws import (
    ONE_ROW_PER,
    check_accounting,
    check_never_back,
    check_read_once,
    check_suppressed,
    skips_of,
    updates_of,
)

from support.oracle import Oracle
from support.oracle_parts import Late, Place, sum_in_state
from tidemark.clock import wall_clock_ms
from tidemark.local import broker as embedded
from tidemark.local.spark_cluster import LocalCluster
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso

pytestmark = pytest.mark.long  # `test_shards.py` is the short case
TOPICS = {FLIGHTS: 3, WEATHER: 1, "carrier_delays": 1}
REPLAY = ["--from", "2013-06-27", "--to", "2013-06-28", "--speed", "28800", "--weather-first", "--seed", "7"]
REPLAY += ["--offline-share", "0.02", "--repeat-share", "0.2", "--bad-records", "8"]
BOUND_MS, IDLE_AFTER_MS = 1_000, 2_000
SHORTENED = {"bound": '"1 s"', "idle_after": '"2 s"', "window": '"1 s"', "idle_advances": "false"}
"""Times of the topology, shortened like the replay of a day.

The replay takes three seconds.
"""
LARGE = 500
"""Records above which a batch goes to the executors.

The day has three times as many flights.
"""
ONE_AFTER_THE_OTHER = """
import json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
REPORTS = {  # what does not depend on when a job ran, or on how many rows there are to a file
    "latency_rollup": pl.all(),
    "critical_paths": pl.all(),
    "critical_path_steps": pl.all(),
    "sla_results": pl.all(),
    "expectation_results": pl.all(),
    "maintenance": pl.col("sub_topology", "table", "rows", "rows_before"),
}


class Submitted(Driver):
    """A driver whose Python is a child of `spark-submit`'s JVM.

    It has another process id.
    """

    def offsets(self) -> dict[str, int]:
        heartbeat = self.control.heartbeat()
        return heartbeat.offsets if heartbeat is not None else {}


@dataclass(frozen=True)
class Flow:
    """Results of the day: exits, workers, tables, and the calculation.

    Exit states are those of its drivers.
    """

    topology: Path
    warehouse: Path
    submit: list[str]
    exits: list[int]
    workers_left: int
    oracle: Oracle

    def rows(self, table: str, sub_topology: str = "status") -> list[Row]:
        return rows_of(self.warehouse, "flights", sub_topology, table)


def topology_toml(spark: str) -> str:
    toml = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()
    for key, value in SHORTENED.items():
        toml, number = re.subn(rf"(?m)^{key} = .*", f"{key} = {value}", toml)
        assert number, key
    strict = f'\ntopic = "flight_events"\nmax_records = {3 * LARGE}\nallowed_lateness = "0 ms"\n'
    toml = toml.replace('\ntopic = "flight_events"\n', strict)
    return "shards = 3\n" + toml + spark


def wait_for_a_batch(driver: Driver, warehouse: Path) -> None:
    """Return once executors have worked on a batch."""
    journal = Layout(warehouse).control("flights", "status") / "journal"
    driver.wait(lambda: bool(list(journal.glob("*.data.zip"))), "executors at work")


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory, broker: str, cluster: LocalCluster) -> Flow:
    home = tmp_path_factory.mktemp("flights")
    warehouse, topology = home / "warehouse", home / "flights.toml"
    topology.write_text(topology_toml(spark_table(cluster.address, home)))
    submit = submit_command(topology, home / "airflow")
    embedded.create_topics(broker, TOPICS)
    with ExitStack() as stack:

        def start(sub_topology: str) -> Driver:
            driver = Submitted(sub_topology, home, broker, topology="flights", program=submit)
            stack.callback(driver.end)
            return driver

        replay = [sys.executable, str(PROJECT / "jobs" / "replay.py"), "--bootstrap", broker, *REPLAY]
        subprocess.run(replay, check=True, capture_output=True, timeout=PATIENCE_S)
        status = start("status")
        wait_for_a_batch(status, warehouse)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        status.read_everything(broker, {FLIGHTS: FLIGHTS, WEATHER: WEATHER})
        exits = [status.drain()]
        carriers = start("carriers")
        last = rows_of(warehouse, "flights", "status", "hop_by_carrier")[-1]["batch_id"]
        carriers.wait(lambda: carriers.offsets() == {"by_carrier_source/0": last + 1}, "the end of the hop")
        exits.append(carriers.drain())
    messages = [message for topic in (FLIGHTS, WEATHER) for message in in_kafka(broker, topic)]
    batches = batches_of(
        *(rows_of(warehouse, "flights", "status", table) for table in ("batches", "partition_batches"))
    )
    oracle = status_of(messages, batches, bound_ms=BOUND_MS, idle_after_ms=IDLE_AFTER_MS)
    return Flow(topology, warehouse, submit, exits, cluster.living(), oracle)


def test_a_master_is_healthy_for_the_check_of_containers(cluster: LocalCluster) -> None:
    check = [sys.executable, str(PROJECT / "docker" / "healthy.py"), f"{cluster.page}/json/", "status", "ALIVE"]
    assert subprocess.run(check, check=False).returncode == 0


def test_the_drivers_outlive_a_worker_that_is_killed(flow: Flow) -> None:
    assert (flow.exits, flow.workers_left) == ([0, 0], 1)
    assert {row["epoch"] for row in flow.rows("batches")} == {1}
    large = [row["batch_id"] for row in flow.rows("batches") if row["records_in"] > LARGE]
    assert len(large) > 1


def test_every_batch_has_each_row_once_and_its_accounting_closes(flow: Flow) -> None:
    for sub_topology in ("status", "carriers"):
        check_accounting(flow.rows("operator_batches", sub_topology))
        check_suppressed(flow.rows("operator_batches", sub_topology), flow.rows("suppressed", sub_topology))
        check_never_back(flow.rows("partition_batches", sub_topology))
    check_read_once(flow.rows("partition_batches"))
    for table in ONE_ROW_PER.keys() - {"state_changes"}:
        key = ("batch_id", *ONE_ROW_PER[table])
        rows = [tuple(row[name] for name in key) for row in flow.rows(table)]
        assert len(rows) == len(set(rows)) > 0, table


def test_the_tables_are_what_a_calculation_makes_of_the_records(flow: Flow) -> None:
    oracle, changes = flow.oracle, flow.rows("changes")
    for operator in ("flight_status", "weather_now"):
        judge = oracle[operator].changes
        assert sorted(updates_of(changes, operator)) == sorted(judge.sent)
        assert skips_of(flow.rows("suppressed"), operator) == judge.skipped
    quarantined = [
        (Place(row["topic"], row["partition"], row["offset"]), row["reason"]) for row in flow.rows("quarantine")
    ]
    assert sorted(quarantined) == sorted(oracle.quarantined)
    late = [
        Late(Place(r["operator"], r["partition"], r["offset"]), r["timestamp"], r["watermark"])
        for r in flow.rows("late_records")
    ]
    assert sorted(late) == sorted(oracle[FLIGHTS].late)
    board = [{k: v for k, v in row.items() if k not in ("batch_id", "deleted")} for row in flow.rows("flight_board")]
    expected = [
        {
            **row.fields,
            "timestamp": row.timestamp_ms,
            "source_partition": row.place.partition,
            "source_offset": row.place.offset,
        }
        for row in oracle["flight_board"].rows
    ]
    assert sorted(board, key=str) == sorted(expected, key=str)


def test_behind_the_hop_each_carrier_sums_up_its_flights(flow: Flow) -> None:
    last = {row["key"]: json.loads(row["state"]) for row in flow.rows("state_changes", "carriers")}
    assert last == {
        key: {
            **json.loads(key),
            "@flights": len(carrier.rows),
            "@departed": len(minutes := delays([row.fields for row in carrier.rows])),
            **sum_in_state("delay_min", minutes),
        }
        for key, carrier in carriers_of(flow.oracle)["carrier_state"].groups.items()
    }


def jobs(flow: Flow, warehouse: Path, at: str, *counted: str) -> list[list[str]]:
    """Returns the command line of every batch job, in order.

    In this order each job finds what it reads; *counted* are arguments of the rollup.
    """
    where = ["--warehouse", str(warehouse), "--topology", str(flow.topology)]
    arguments = {
        "rollup": counted,
        "critical_path": ["--from", "2020-01-01T00:00:00Z", "--to", "2100-01-01T00:00:00Z", *counted],
        "check_sla": ["--at", at, "--run-id", "a run"],
        "maintain": [],
    }
    return [[str(PROJECT / "jobs" / f"{job}.py"), *where, *given] for job, given in arguments.items()]


def run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr[-5_000:]


def reports(warehouse: Path) -> Mapping[str, list[tuple[Any, ...]]]:
    layout = Layout(warehouse)
    return {
        table: sorted(pl.read_delta(str(layout.report_table("flights", table))).select(columns).rows(), key=str)
        for table, columns in REPORTS.items()
    }


def test_every_batch_job_writes_on_the_cluster_the_same_rows(flow: Flow) -> None:
    here, at = flow.warehouse.with_name("here"), iso(wall_clock_ms())
    shutil.copytree(flow.warehouse, here)
    run(sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(jobs(flow, here, at)))
    for job in jobs(flow, flow.warehouse, at, "--spark-above", "0"):
        run(*flow.submit, "--conf", "spark.cores.max=1", *job)
    expected, found = reports(here), reports(flow.warehouse)
    for table in REPORTS:
        assert found[table] == expected[table] != [], table
