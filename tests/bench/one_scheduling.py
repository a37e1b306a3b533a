"""Counts statements of Airflow: to parse DAG files, and to schedule.

The database is a new one of SQLite. Each count is of the second time: nothing has changed since the first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow import settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.executors.base_executor import BaseExecutor
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import event, func, select, update

BUNDLE = "dags-folder"


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
    while len(loops) < 2 or loops[-1] != loops[-2]:  # the first ones make runs and queue tasks
        statements.clear()
        with create_session() as session:
            runner._do_scheduling(session)
        loops.append(len(statements))
    found |= {"loops": len(loops), "first_loops": sum(loops[:-2]), "idle_loop": loops[-1]}
    with create_session() as session:
        found["task_instances"] = session.scalar(select(func.count()).select_from(TaskInstance))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
