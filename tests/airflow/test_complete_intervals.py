"""Kills lose and repeat no run of a DAG per hour."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.postgres import NEEDS_POSTGRES, Database, served
from support.replayed_days import HOURS, TOML, Days, completed_by, counted, key
from support.supervised_streams import HEARD
from tidemark.control import process
from tidemark.local import airflow
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.query.sql import Warehouse

KILLS = 30
PUBLISHING, CONSUMER = "tidemark_play_completeness", "hours"
SOON = {"SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30", "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15"}
"""Airflow notices tasks of a killed scheduler sooner than after 300 s."""
HOURS_DAG = """
import json
import time
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, task
from tidemark_airflow import OneRunPerInterval, complete_table

HOME = Path({home!r})
BOARD = complete_table("play", "events", "board")

with DAG("hours", schedule=PartitionedAssetTimetable(assets=BOARD), max_active_runs=4):

    @task(retries=9, retry_delay=timedelta(seconds=1))
    def read(dag_run=None):
        import polars as pl
        from tidemark.storage.delta.tables import scan

        started_s, start = time.time(), datetime.fromisoformat(dag_run.partition_key)
        in_hour = pl.col("timestamp").is_between(start, start + timedelta(hours=1), closed="left")
        table = scan(HOME / "warehouse" / "streams" / "play" / "events" / "board").filter(in_hour).collect()
        with (HOME / "reads").open("a") as reads:
            reads.write(f"{{dag_run.partition_key}} {{dag_run.run_id}} {{started_s}}\\n")
        partial = HOME / "read" / f"{{dag_run.partition_key}}.partial"
        partial.write_text(json.dumps({{"n": table.height, "sum": table["v"].sum()}}))
        partial.rename(partial.with_suffix(".json"))

    {tasks}
"""


@dataclass
class Scene:
    """A driver of two days, and an Airflow with a consumer."""

    home: Path
    days: Days
    database: Database

    def start(self) -> AirflowApi:
        """Starts what does not run."""
        variables = {"tidemark_warehouse": str(self.days.warehouse)}
        settings = {**HEARD, **SOON, "DATABASE__SQL_ALCHEMY_CONN": self.database.address}
        project = Project(self.home / "project")
        root = self.home / "root"
        airflow.start(self.home / "airflow", root=root, project=project, variables=variables, settings=settings)
        return airflow.api(self.home / "airflow")

    def drive(self) -> None:
        """Starts the driver if it does not run."""
        program = [sys.executable, str(CHECKOUT / "tests" / "support" / "replayed_days.py")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(CHECKOUT / name) for name in ("jobs", "tests"))}
        command = [*program, str(self.days.home), str(self.days.seed)]
        process.launch("driver", command, home=self.days.home, env=env)

    def kill(self, name: str) -> None:
        """Kills the driver or a part of Airflow, and starts it again."""
        home = self.days.home if name == "driver" else self.home / "airflow"
        found = process.find(home, name)
        assert found is not None, f"{name} has ended by itself"
        os.kill(found.pid, signal.SIGKILL)
        process.wait_until(lambda: not process.is_alive(found), f"the end of {name}", 30)
        if name == "driver":
            self.drive()
        else:
            self.start()

    def reads(self) -> dict[str, float]:
        """Returns when each hour was read first, epoch s."""
        first: dict[str, float] = {}
        for line in (self.days.home / "reads").read_text().splitlines():
            start, _, at_s = line.split()
            first.setdefault(start, float(at_s))
        return first


def scene_of(home: Path, seed: int, database: Database, tasks: str) -> Scene:
    made = Scene(home, Days(home / "days", seed), database)
    for folder in ("root/dags", "project/topologies", "project/expectations", "days/read"):
        (home / folder).mkdir(parents=True)
    (home / "root" / "plugins").symlink_to(CHECKOUT / "plugins")
    (home / "root" / "dags" / "completeness.py").symlink_to(CHECKOUT / "dags" / "tidemark_completeness.py")
    (home / "root" / "dags" / "hours.py").write_text(HOURS_DAG.format(home=str(made.days.home), tasks=tasks))
    (home / "project" / "topologies" / "play.toml").write_text(TOML)
    return made


@pytest.fixture
def database() -> Iterator[Database]:
    """An empty database on the loopback interface."""
    with served() as running:
        yield running


def runs(api: AirflowApi) -> list[dict[str, Any]]:
    return list(api._get(f"/api/v2/dags/{CONSUMER}/dagRuns?limit=100")["dag_runs"])


@pytest.mark.long  # 60 runs of a DAG, and 30 kills of a driver and parts of Airflow
@NEEDS_POSTGRES
@pytest.mark.parametrize(
    ("seed", "tasks"), [(1, "read()"), (2, "OneRunPerInterval(asset=BOARD) >> read()")], ids=["each", "one_run"]
)
def test_kills_lose_and_repeat_no_hour(seed: int, tasks: str, tmp_path: Path, database: Database) -> None:
    scene, dice = scene_of(tmp_path, seed, database, tasks), random.Random(seed)
    days, kills = scene.days, Counter[str]()
    try:
        api = scene.start()
        process.wait_until(api.is_healthy, "a healthy Airflow", 180)
        for dag_id in (CONSUMER, PUBLISHING):
            process.wait_until(lambda dag=dag_id: api.has_dag(dag), "the DAGs", 120)  # type: ignore[misc]
            api.unpause(dag_id)
        scene.drive()
        for _ in range(KILLS):
            time.sleep(dice.uniform(2, 14))
            name = dice.choice(["scheduler", "triggerer", *([] if days.is_over() else ["driver"])])
            scene.kill(name)
            kills[name] += 1
        process.wait_until(days.is_over, "the end of the replay", 600)
        expected = Counter([*map(key, range(HOURS)), *map(key, days.late())])

        def all_ran() -> bool:
            found = runs(api)
            return len(found) >= expected.total() and {run["state"] for run in found} <= ENDED

        process.wait_until(all_ran, "the runs", 400)
        found = runs(api)
        assert Counter(run["partition_key"] for run in found) == expected
        assert {run["state"] for run in found} == {SUCCESS}
    finally:
        process.stop(days.home, "driver", grace_s=0)
        airflow.stop(tmp_path / "airflow")

    plans, first = days.plans(), scene.reads()
    instants = {key(hour): float(plans[batch]["at_s"]) for hour, batch in completed_by(plans).items()}
    assert len(instants) == HOURS
    waited = sorted(first[start] - at_s for start, at_s in instants.items())
    assert waited[0] >= 0, "no hour runs before the oracle's instant"
    figures = {"kills": kills, "waited_s": [round(each, 1) for each in waited]}
    (tmp_path / "figures.json").write_text(json.dumps(figures))  # for docs/complete.md
    read = {hour: json.loads(days.read(hour).read_text()) for hour in range(HOURS)}
    assert read == counted(plans)
    reopened = "SELECT interval_start, reopenings FROM complete_intervals WHERE reopenings > 0 ORDER BY ALL"
    rows = Warehouse(days.warehouse).ask(reopened).rows
    assert [(start.isoformat(), n) for start, n in rows] == [(key(hour), 1) for hour in days.late()]
