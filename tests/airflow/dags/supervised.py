"""Streams of stand-ins and Spark in the warehouse that a run names.

Any number of runs may run at once.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

TESTS = Path(os.environ["TIDEMARK_TESTS"])
sys.path.append(str(TESTS))
from support.supervised_streams import FIRST_LOOK_S, RIGHT_TO_KILL, RIGHT_TO_KILL_WITH_SPARK  # noqa: E402
from tidemark_airflow.operators.stream import RETRIES, StreamOperator, Supervision  # noqa: E402

HERE = TESTS / "airflow"


class StandIn(StreamOperator):
    def _command(self) -> list[str]:
        return [str(HERE / "bin" / "spark-submit"), *super()._command()[1:]]

    def _defer(self, *args: Any, **kwargs: Any) -> Any:
        """Notes the launching process, which is killed there if requested.

        A file requests it.
        """
        waiting = Path(self.warehouse) / "launch slowly"  # never in an object store
        if waiting.exists():
            waiting.rename(Path(self.warehouse) / "launched")
            (Path(self.warehouse) / "task.pid").write_text(str(os.getpid()))
            time.sleep(60)
        super()._defer(*args, **kwargs)


EACH: dict[str, Any] = {
    "schedule": None,
    "params": {"warehouse": Param("", type="string")},
    "default_args": {"retries": RETRIES, "retry_delay": timedelta(seconds=1)},
}
STREAM: dict[str, Any] = {"warehouse": "{{ params.warehouse }}", "bootstrap": "127.0.0.1:1"}
TOPOLOGIES = Path(os.environ["TIDEMARK_TEST_TOPOLOGIES"])

RENAMED = TOPOLOGIES / "renamed"
"""A file with another name for the first DAG."""

with DAG(RENAMED.read_text() if RENAMED.exists() else "stand_in", **EACH):
    StandIn(
        task_id="status",
        topology_file=TOPOLOGIES / "flights.toml",
        sub_topology="status",
        application=str(HERE / "stand_in.py"),
        supervision=Supervision(poll_s=1, first_look_s=FIRST_LOOK_S, restarts=1, right_to_kill=RIGHT_TO_KILL),
        **STREAM,
    )

with DAG("spark", **EACH):
    StreamOperator(
        task_id="numbers",
        topology_file=TOPOLOGIES / "numbers.toml",
        sub_topology="numbers",
        supervision=Supervision(
            poll_s=1, first_look_s=FIRST_LOOK_S, restarts=1, right_to_kill=RIGHT_TO_KILL_WITH_SPARK
        ),
        **STREAM,
    )
