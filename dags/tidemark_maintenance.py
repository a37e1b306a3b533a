"""Keeps each topology's tables small, by a daily DAG per topology."""

# Airflow skips a file in which the words `airflow` and `dag` do not both occur; this one imports nothing of Airflow.

from __future__ import annotations

from tidemark_assets import TopologyJob
from tidemark_dags import WAREHOUSE, dag, topologies

DOC = """
Keeps the tables of the topology `{name}` small: it deletes old rows, compacts small files and removes unused ones.

It can run at any time and repeatedly. Its log ends with files, bytes and rows of each table, after and before;
`table_files` keeps them.
"""

for topology in topologies().values():
    with dag(topology, "maintenance", doc=DOC, schedule="30 3 * * *"):
        TopologyJob(job="maintain", topology=topology, warehouse=WAREHOUSE)
