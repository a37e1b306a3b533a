"""The DAG of each topology that publishes complete intervals of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.sdk import DAG

from tidemark.model.project.extras import can_publish
from tidemark_airflow.dags.settings import WAREHOUSE, dag, topologies
from tidemark_airflow.operators.assets import PublishIntervals
from tidemark_airflow.operators.stream import RETRIES, Supervision

DOC = """
Publishes complete intervals of the tables of the topology `{name}`: one event of an asset for each interval, whose
start is the partition key. A DAG with a partitioned schedule on this asset runs for exactly that interval. Complete
means that the watermark has passed the interval: where late records are accepted, a later record reopens it, and it is
published again.

There is always one run. Its task waits without a slot of a worker, publishes new intervals within seconds, and
succeeds; the next run waits then. `published_intervals` has what was published.
"""


def make() -> Iterator[DAG]:
    """Makes a DAG for each topology with `complete`, not in Airflow 3.2."""
    for topology in topologies().values() if can_publish() else ():
        if topology.has_intervals:
            looks = Supervision()
            with dag(topology, "completeness", doc=DOC, schedule="@continuous") as publishing:
                PublishIntervals(
                    task_id="publish",
                    topology=topology,
                    warehouse=WAREHOUSE,
                    poll_s=looks.poll_s,
                    first_look_s=looks.first_look_s,
                    retries=RETRIES,
                )
            yield publishing
