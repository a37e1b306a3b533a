"""A real Airflow runs streams and jobs in an object store.

Its credentials are in an Airflow connection alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.driver_folder import processes_of
from tidemark.control.folder import Control, StreamState
from tidemark.local import airflow
from tidemark.local import broker as embedded
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.tables import scan
from tidemark.storage.location import location
from tidemark.storage.warehouse import is_table

pytestmark = pytest.mark.long  # `test_driver.py` and `test_supervision.py` have the short cases
PAGE = (CHECKOUT / "docs" / "object-store.md").read_text(encoding="utf-8")
WITHIN_S = 180.0
SECRET = "secret-of-the-test"
ORDERS = """
name = "orders"
trigger = "1 s"
facts_every = "0 s"
[operators.placed]
kind = "source"
topic = "orders"
fields = "id string, amount bigint, at bigint"
timestamp = "at"
bound = "1 s"
[operators.newest]
kind = "table"
input = "placed"
key = ["id"]
[operators.board]
kind = "sink"
input = "newest"
table = "board"
"""
SLAS = """
[orders.board_is_fresh]
subject = "board"
measure = "staleness"
warn_after = "1 ms"
error_after = "2 ms"
owner = "ann"
"""


@dataclass(frozen=True)
class Flow:
    """A stream that Airflow launched, in an object store."""

    warehouse: Path
    home: Path
    api: AirflowApi
    address: str

    @property
    def control(self) -> Control:
        return Control(Layout(self.warehouse).control("orders", "placed"))

    def send(self, *orders: tuple[str, int]) -> None:
        producer = Producer({"bootstrap.servers": self.address, "acks": "all"})
        for key, amount in orders:
            producer.produce("orders", json.dumps({"id": key, "amount": amount, "at": wall_clock_ms()}), key)
        assert producer.flush(WITHIN_S) == 0

    def board(self) -> list[tuple[str, int]]:
        path = Layout(self.warehouse).stream_table("orders", "placed", "board")
        if not is_table(path):
            return []
        return sorted(scan(path).select("id", "amount").collect().rows())

    def await_board(self, *rows: tuple[str, int]) -> None:
        process.wait_until(lambda: self.board() == [*rows], f"the rows {rows}", WITHIN_S)

    def run(self, part: str, **conf: Any) -> str:
        return self.api.trigger(f"tidemark_orders_{part}", conf)

    def succeeds(self, part: str, run_id: str) -> None:
        dag = f"tidemark_orders_{part}"
        process.wait_until(lambda: self.api.run_state(dag, run_id) in ENDED, f"the end of {part}", WITHIN_S)
        assert self.api.run_state(dag, run_id) == SUCCESS, self.api.task_states(dag, run_id)

    def running(self, *, but: int = 0) -> int:
        """Returns the driver's pid, not *but*, once it runs."""

        def runs() -> bool:
            beat = self.control.heartbeat()
            return beat is not None and beat.state is StreamState.RUNNING and beat.pid != but

        process.wait_until(runs, "a running driver", WITHIN_S)
        beat = self.control.heartbeat()
        assert beat is not None
        return beat.pid


@pytest.fixture(scope="module")
def flow(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    home, warehouse = tmp_path_factory.mktemp("airflow"), location("s3://tests/airflow/warehouse")
    project = Project(home / "project")
    for file, text in ((project.folder / "topologies" / "orders.toml", ORDERS), (project.slas, SLAS)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as env:
        stack.callback(embedded.stop, home / "broker")
        address = embedded.start(home / "broker").address
        embedded.create_topics(address, {"orders": 1})
        env.setenv("AIRFLOW_HOME", str(home / "airflow"))
        stack.callback(_end_drivers, warehouse)
        stack.callback(airflow.stop, home / "airflow")
        parts = _start(home, address)
        _follow_the_page(home, store)
        api = airflow.wait_until_healthy(home / "airflow", parts)
        for part in ("streams", "reports", "sla_check", "daily"):
            process.wait_until(lambda part=part: api.has_dag(f"tidemark_orders_{part}"), part, WITHIN_S)  # type: ignore[misc]
            api.unpause(f"tidemark_orders_{part}")
        yield Flow(warehouse, home, api, address)


def _start(home: Path, address: str) -> list[process.Process]:
    """Starts Airflow, without a credential in the environment that it inherits."""
    with pytest.MonkeyPatch.context() as without:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            without.delenv(name)
        return airflow.start(
            home / "airflow",
            root=CHECKOUT,
            project=Project(home / "project"),
            variables={"tidemark_bootstrap": address},
            settings={"WORKERS__MIN_HEARTBEAT_INTERVAL": "1"},
        )


def _follow_the_page(home: Path, store: str) -> None:
    """Writes the page's file with this store's values, and runs its commands."""
    section = PAGE.split("\n## Airflow\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    connections = json.loads(text)
    connections["tidemark_store"] |= {"login": "test", "password": SECRET}
    connections["tidemark_store"]["extra"] |= {"endpoint_url": store}
    (home / "store.json").write_text(json.dumps(connections))
    env = airflow.environment(home / "airflow", airflow._secrets(home / "airflow"), root=CHECKOUT, variables={})
    script = commands.replace("s3://bucket/warehouse", "s3://tests/airflow/warehouse")
    done = subprocess.run(["bash", "-e"], cwd=home, env=env, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (home / "store.json").exists()


def _end_drivers(warehouse: Path) -> None:
    """Ends drivers that a failed test has left."""
    for folder in processes_of(Layout(warehouse).driver("orders", None)).glob("*/"):
        process.stop(folder, "driver", grace_s=0)


@pytest.fixture(scope="module")
def first(flow: Flow) -> str:
    """Returns the run of the first driver, which has results."""
    run_id = flow.run("streams", first_report=False)
    flow.send(("a", 1), ("b", 2))
    flow.await_board(("a", 1), ("b", 2))
    return run_id


@pytest.fixture(scope="module")
def drained(flow: Flow, first: str) -> None:
    """Drains the first driver while SLAs are checked."""
    check = flow.run("sla_check")
    flow.control.request_drain(by="ann", now_ms=wall_clock_ms())
    for part, run_id in {"streams": first, "sla_check": check}.items():
        flow.succeeds(part, run_id)


def test_slas_are_checked_beside_a_drain(flow: Flow, drained: None) -> None:
    assert not flow.control.is_held()
    tables = Warehouse(flow.warehouse)
    assert tables.ask("select sla, change from incidents").rows == (("board_is_fresh", "opened"),)
    assert tables.ask("select channel from deliveries").rows == (("log",),)


def test_reports_and_upkeep_succeed(flow: Flow, first: str) -> None:
    now = datetime.now(UTC)
    interval = {"from": (now - timedelta(minutes=10)).isoformat(), "to": (now + timedelta(minutes=10)).isoformat()}
    for part, run_id in {part: flow.run(part, **interval) for part in ("reports", "daily")}.items():
        flow.succeeds(part, run_id)
    tables = Warehouse(flow.warehouse)
    counted = "select sum(n) from latency_rollup where grain = 'minute' and operator = 'board' and scope = 'operator'"
    assert tables.ask(counted).rows == ((2,),)
    assert list((Layout(flow.warehouse).report_pages("orders")).rglob("*.html"))
    answer = flow.api._get("/tidemark/topologies/orders/latency?grain=minute&operator=board")
    assert sum(row["n"] for row in answer["latencies"]) == 2


def test_a_drained_stream_goes_on_and_a_killed_one_is_replaced(flow: Flow, drained: None) -> None:
    flow.run("streams", first_report=False)
    flow.send(("a", 3))
    flow.await_board(("a", 1), ("a", 3), ("b", 2))
    os.kill(killed := flow.running(), signal.SIGKILL)
    flow.send(("c", 4))
    flow.await_board(("a", 1), ("a", 3), ("b", 2), ("c", 4))
    assert flow.running(but=killed) != killed
    assert flow.control.epoch() == 3


def test_a_task_marked_without_a_triggerer_leaves_no_driver(flow: Flow, first: str) -> None:
    flow.running()
    triggerer = process.find(flow.home / "airflow", "triggerer")
    assert triggerer is not None
    os.kill(triggerer.pid, signal.SIGKILL)
    process.wait_until(lambda: not process.is_alive(triggerer), "the end of the triggerer", WITHIN_S)
    (run_id,) = [run for run, state in flow.api.runs("tidemark_orders_streams").items() if state == "running"]
    flow.api.mark("tidemark_orders_streams", run_id, "placed", "success")
    assert flow.control.is_held()
    _start(flow.home, flow.address)
    process.wait_until(lambda: not flow.control.is_held(), "the end of the driver", WITHIN_S)


def test_no_credential_is_in_arguments_logs_or_files(flow: Flow, first: str) -> None:
    logs = [path.read_bytes() for path in flow.home.rglob("*.log") if path.is_file()]
    assert any(b"Command exited with return code 0" in log for log in logs)
    of_processes = [path.read_bytes() for path in processes_of(flow.warehouse).rglob("*") if path.is_file()]
    assert any(b"spark-submit" in content for content in of_processes)
    in_store = [path.read_bytes() for path in (flow.warehouse / "control").rglob("*") if path.is_file()]
    assert in_store
    found = [content for content in (*logs, *of_processes, *in_store, *_commands()) if SECRET.encode() in content]
    assert found == []


def _commands() -> Iterator[bytes]:
    """Yields the arguments of every process of this machine."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            yield (entry / "cmdline").read_bytes()
