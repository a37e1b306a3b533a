"""One Airflow DAG per topology: it launches the streams of the topology and looks after them."""

from __future__ import annotations

from airflow.sdk import Param

from tidemark_dags import BOOTSTRAP, WAREHOUSE, dag, topologies
from tidemark_stream import RETRIES, StreamOperator

DOC = """
Runs the streams of the topology `{name}`, one task each, until they are drained.

* **Drain**: write `drain.json` into the stream's control folder (`tidemark down` does), or clear or mark the task.
* **slow** makes operators sleep after each batch, `OPERATOR=MS`: to see an SLA break.
"""
PAIR = {"type": "string", "pattern": r"^\w+=\d+$"}

for path, topology in topologies().items():
    slow = Param([], type="array", items=PAIR, description="OPERATOR=MS, to try")
    with dag(topology, "streams", doc=DOC, schedule=None, params={"slow": slow}):
        for sub_topology in topology.sub_topologies:
            StreamOperator(
                task_id=sub_topology.name,
                topology_file=path,
                sub_topology=sub_topology.name,
                warehouse=WAREHOUSE,
                bootstrap=BOOTSTRAP,
                slow="{{ params.slow | join(' ') }}",
                retries=RETRIES,
            )
