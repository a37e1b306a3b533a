"""The daily DAG of each topology that keeps its tables small."""

from __future__ import annotations

from collections.abc import Iterator

from airflow.sdk import DAG

from tidemark.airflow.dags.settings import WAREHOUSE, dag, topologies_and_jobs
from tidemark.airflow.tasks.assets import TopologyJob

DOC = """
Keeps the tables of the topology `{name}` small: it deletes old rows, compacts small files and removes unused ones.

It can run at any time and repeatedly. Its log ends with files, bytes and rows of each table, after and before;
`maintenance` keeps them.
"""


def make() -> Iterator[DAG]:
    """Makes the DAG of each topology, also of those of jobs."""
    for topology in topologies_and_jobs().values():
        with dag(topology, "maintenance", doc=DOC, schedule="30 3 * * *") as daily:
            TopologyJob(job="maintain", topology=topology, warehouse=WAREHOUSE)
        yield daily
