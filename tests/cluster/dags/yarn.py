"""A stream and a report on YARN.

They use the warehouse that a run names.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

TESTS = Path(os.environ["TIDEMARK_TESTS"])
sys.path.append(str(TESTS))
from support.supervised_streams import FIRST_LOOK_S, RIGHT_TO_KILL_ON_YARN  # noqa: E402
from tidemark.model.topology import load  # noqa: E402
from tidemark_airflow.operators.spark import BatchJob  # noqa: E402
from tidemark_airflow.operators.stream import RETRIES, StreamOperator, Supervision  # noqa: E402

NUMBERS = Path(os.environ["TIDEMARK_TEST_TOPOLOGIES"]) / "numbers.toml"
WAREHOUSE = "{{ params.warehouse }}"
HOUR = "macros.timedelta(hours=1)"
INTERVAL = (
    *("--from", f"{{{{ (dag_run.run_after - {HOUR}).isoformat() }}}}"),
    *("--to", f"{{{{ (dag_run.run_after + {HOUR}).isoformat() }}}}"),
)
EACH: dict[str, Any] = {
    "schedule": None,
    "params": {"warehouse": Param("", type="string")},
    "default_args": {"retries": RETRIES, "retry_delay": timedelta(seconds=1)},
}

with DAG("yarn", **EACH):
    StreamOperator(
        task_id="numbers",
        topology_file=NUMBERS,
        sub_topology="numbers",
        warehouse=WAREHOUSE,
        bootstrap="127.0.0.1:1",
        supervision=Supervision(poll_s=1, first_look_s=FIRST_LOOK_S, restarts=1, right_to_kill=RIGHT_TO_KILL_ON_YARN),
    )

with DAG("yarn_report", **EACH):
    # A name, as in the DAGs of the product: the job looks it up in its own project.
    BatchJob(
        task_id="rollup",
        job="rollup",
        spark=load(NUMBERS).spark,
        retries=0,
        application_args=["--warehouse", WAREHOUSE, "--topology", "numbers", *INTERVAL],
    )
