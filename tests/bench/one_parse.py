"""Parses DAG files as Airflow's DAG processor does; prints costs.

Each file is parsed by itself, after Airflow and its Spark provider were imported.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import airflow.providers.apache.spark.operators.spark_submit  # noqa: F401
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

RUNS_A_DAY = {"reports": 24, "daily": 1}
"""By part, of those with a schedule; the checker asks for runs of `sla_check` where something changes."""


def main(folder: Path) -> None:
    """Prints counts of all files in *folder*, and CPU seconds of each."""
    before, cpu_s, dags = set(sys.modules), {}, []
    for file in sorted(folder.glob("*.py")):
        began_s = time.process_time()
        bag = DagBag(dag_folder=str(file))
        cpu_s[file.stem] = time.process_time() - began_s
        assert not bag.import_errors, bag.import_errors
        dags += bag.dags.values()
    found = {
        "cpu_s": sum(cpu_s.values()),
        "slowest_s": max(cpu_s.values()),
        "modules": len(set(sys.modules) - before),
        "dags": len(dags),
        "task_runs": sum(processes_of(dag) * runs_a_day(dag) for dag in dags),
        "bytes": sum(len(json.dumps(DagSerialization.to_dict(dag))) for dag in dags),
    }
    sys.stdout.write(json.dumps(found))


def processes_of(dag: object) -> int:
    """Returns the tasks of a run of *dag* that are processes: the scheduler ends an empty one by itself."""
    return sum(task.task_type != "EmptyOperator" for task in dag.tasks)


def runs_a_day(dag: object) -> int:
    """Returns how often the schedule of *dag* starts a run."""
    return next((RUNS_A_DAY[tag] for tag in dag.tags if tag in RUNS_A_DAY), 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
