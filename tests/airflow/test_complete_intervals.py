"""Airflow runs a DAG once per hour, while its parts are killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import write_deltalake

from tidemark.control import process
from tidemark.embedded import airflow
from tidemark.embedded.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.errors import TidemarkError
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import COMPLETENESS

MIDNIGHT, HOUR = 1_372_291_200_000, 3_600_000  # 2013-06-27 00:00 UTC
HOURS, PARTS = 48, 8
CONSUMER = """
from airflow.sdk import DAG, PartitionedAssetTimetable, task
from tidemark.airflow import complete_table

board = complete_table("flights", "status", "flight_board")
with DAG("others_hours", schedule=PartitionedAssetTimetable(assets=board), max_active_runs=4):

    @task(retries=3, retry_delay=1)
    def read():
        pass

    read()
"""


@dataclass
class Scene:
    """An Airflow with the project's DAGs and a consumer's."""

    home: Path
    root: Path
    layout: Layout
    batch: int = 0

    def start(self) -> AirflowApi:
        variables = {"tidemark_warehouse": str(self.layout.warehouse), "tidemark_bootstrap": ""}
        settings = {"SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30"}  # a task of a killed scheduler is noticed then
        parts = airflow.start(self.home, root=self.root, variables=variables, settings=settings)
        return airflow.wait_until_healthy(self.home, parts)

    def write(self, hour: int, *, reopened: bool = False) -> None:
        start = MIDNIGHT + hour * HOUR
        more = {"reopened_at": start + 3 * HOUR, "cause": "late_record"} if reopened else {}
        row = {
            "topology": "flights", "sub_topology": "status", "batch_id": self.batch, "operator": "flight_board",
            "table": "flight_board", "interval_start": start, "interval_end": start + HOUR,
            "complete_at": start + 2 * HOUR, "records": 1, "emitted": 1, "waited_ms": 0, "by_idleness": False, **more,
        }  # fmt: skip
        path = self.layout.stream_table("flights", "status", COMPLETENESS.name)
        write_deltalake(path, rows_of(COMPLETENESS, [row]), mode="append")
        self.batch += 1


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    root = tmp_path / "root"
    (root / "dags").mkdir(parents=True)
    (root / "plugins").symlink_to(CHECKOUT / "plugins")
    (root / "dags" / "completeness.py").symlink_to(CHECKOUT / "dags" / "tidemark_completeness.py")
    (root / "dags" / "others.py").write_text(CONSUMER)
    made = Scene(tmp_path / "airflow", root, Layout(tmp_path / "warehouse"))
    try:
        yield made
    finally:
        airflow.stop(made.home)


def key(hour: int) -> str:
    return f"2013-06-{27 + hour // 24}T{hour % 24:02}:00:00+00:00"


def runs(api: AirflowApi) -> list[tuple[str, str]]:
    """Returns partition key and state of each run of the consumer."""
    try:
        listed = api._get("/api/v2/dags/others_hours/dagRuns?limit=100")["dag_runs"]
    except TidemarkError:  # SQLite may be locked while parts start
        return [("", "running")]
    return [(run["partition_key"], run["state"]) for run in listed]


@pytest.mark.long  # 48 runs of a DAG, and eight kills of parts of Airflow
def test_kills_of_airflow_lose_and_repeat_no_hour(scene: Scene) -> None:
    dice, expected = random.Random(99), Counter[str]()
    api = scene.start()
    process.wait_until(lambda: api.has_dag("others_hours"), "the DAG", 120)
    for dag_id in ("others_hours", "tidemark_flights_completeness"):
        api.unpause(dag_id)

    def all_ran() -> bool:
        found = runs(api)
        return len(found) >= expected.total() and {state for _, state in found} <= ENDED

    for part in range(PARTS):
        for hour in range(part * HOURS // PARTS, (part + 1) * HOURS // PARTS):
            scene.write(hour)
            expected[key(hour)] += 1
        if done := sorted({start for start, state in runs(api) if state == SUCCESS and expected[start] == 1}):
            late = dice.choice(done)
            scene.write([key(hour) for hour in range(HOURS)].index(late), reopened=True)
            expected[late] += 1
        time.sleep(dice.uniform(0, 20))
        process.stop(scene.home, dice.choice(["scheduler", "triggerer"]), grace_s=0)
        api = scene.start()
    process.wait_until(all_ran, "the runs", 400)
    assert Counter(start for start, _ in runs(api)) == expected
    assert {state for _, state in runs(api)} == {SUCCESS}
