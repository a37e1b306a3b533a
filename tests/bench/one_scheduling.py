"""Counts statements of Airflow: to parse DAG files, and to schedule.

The database is a new one of SQLite. DAG files are parsed twice, and the second time counts. Nothing is due for the
scheduler once UNCHANGED loops have left all runs and tasks as they were. Equal counts alone do not show that: each loop
creates up to ten runs, with as many statements as the one before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from airflow import settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import event, func, select, update

BUNDLE = "dags-folder"
UNCHANGED = 3


def main(folder: Path) -> None:
    """Prints the counts for all DAG files in *folder*."""
    initdb()
    DagBundlesManager().sync_bundles_to_db()
    statements: list[str] = []
    event.listen(settings.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    bags = [
        DagBag(dag_folder=str(file), bundle_path=folder, bundle_name=BUNDLE) for file in sorted(folder.glob("*.py"))
    ]
    found: dict[str, Any] = {}
    for _ in range(2):
        statements.clear()
        for bag in bags:
            sync_bag_to_db(bag, BUNDLE, None)
        found["parse"] = len(statements)
    with create_session() as session:
        session.execute(update(DagModel).values(is_paused=False))
    runner = SchedulerJobRunner(Job(), executors=[BaseExecutor()])
    loops: list[int] = []
    states: list[dict[str, int]] = []
    while len(states) <= UNCHANGED or any(before != states[-1] for before in states[-UNCHANGED - 1 :]):
        statements.clear()
        with create_session() as session:
            runner._do_scheduling(session)
        loops.append(len(statements))
        states.append(_states())
    idle = loops[-UNCHANGED:]
    found |= {
        "loops": len(loops),
        "first_loops": sum(loops) - sum(idle),
        "idle_loop": median(idle),
        "states": states[-1],
    }
    sys.stdout.write(json.dumps(found))


def _states() -> dict[str, int]:
    """Returns the numbers of runs and tasks in each state."""
    with create_session() as session:
        return {
            f"{model.__tablename__} {state}": number
            for model in (DagRun, TaskInstance)
            for state, number in session.execute(select(model.state, func.count()).group_by(model.state))
        }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
