"""One Airflow DAG per topology: every day it keeps the topology's tables small, beside its running streams."""

from __future__ import annotations

from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, topologies

DOC = """
Keeps the tables of the topology `{name}` small: old rows go, small files are put together, unused files are removed.

It may be run at any time, as often as you like. Its log ends with files, bytes and rows of each table, after and
before; `table_files` keeps them.
"""

for topology in topologies().values():
    with dag(topology, "maintenance", doc=DOC, schedule="30 3 * * *"):
        TopologyJob(job="maintain", topology=topology, warehouse=WAREHOUSE)
