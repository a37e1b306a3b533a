"""The DAG of each topology that launches and supervises its streams."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.sdk import DAG, Param

from tidemark.model.topology import Time
from tidemark_airflow.dags.hours import FirstReport
from tidemark_airflow.dags.settings import BOOTSTRAP, WAREHOUSE, dag, topologies
from tidemark_airflow.operators.stream import RETRIES, StreamOperator

DOC = """
Runs the streams of the topology `{name}`, one task each, until they are drained.

* **Drain**: write `drain.json` into the stream's control folder (`tidemark down` does), or clear or mark the task.
* **time** `processing` runs the separate stream `{name}_on_processing_time`: no record is late.
  Its results go to tables of its own. Only one run is active at a time: end the other one first.
* **first_report** triggers `tidemark_{name}_reports` for the hour so far, 3 minutes after the start.
* **slow** makes operators sleep after each batch, `OPERATOR=MS`, for example to break an SLA on purpose.
"""
BEFORE_OTHERS = 1_000
"""Priority of streams, which get the next free slot: that of other tasks is the number of the tasks after them."""
PAIR = {"type": "string", "pattern": r"^\w+=\d+$"}


def make() -> Iterator[DAG]:
    """Makes the DAG of each topology."""
    for path, topology in topologies().items():
        slow = Param([], type="array", items=PAIR, description="OPERATOR=MS, to try")
        times = [time.value for time in Time]
        time = Param(Time.EVENT.value, type="string", enum=times, description="time of records: event or processing")
        soon = Param(default=True, type="boolean", description="report on the hour so far, 3 minutes after the start")
        params = {"slow": slow, "time": time, "first_report": soon}
        with dag(topology, "streams", doc=DOC, schedule=None, params=params) as of_streams:
            FirstReport(task_id="first_report", reports=f"tidemark_{topology.name}_reports", retries=RETRIES)
            for sub_topology in topology.sub_topologies:
                StreamOperator(
                    task_id=sub_topology.name,
                    topology_file=path,
                    sub_topology=sub_topology.name,
                    warehouse=WAREHOUSE,
                    bootstrap=BOOTSTRAP,
                    slow="{{ params.slow | join(' ') }}",
                    time="{{ params.time }}",
                    decisions=f"tidemark_{topology.name}_decisions",
                    retries=RETRIES,
                    priority_weight=BEFORE_OTHERS,
                )
        yield of_streams
