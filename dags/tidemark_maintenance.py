"""One Airflow DAG per topology: every day it keeps the topology's tables small, beside its running streams."""

from __future__ import annotations

from airflow.sdk import DAG

from tidemark_dags import EVERY_DAG, WAREHOUSE, topologies
from tidemark_spark import BatchJob

DOC = """
Keeps the tables of the topology `{name}` small: old rows go, small files are put together, unused files are removed.

It may be run at any time, as often as you like. Its log ends with files, bytes and rows of each table, after and
before; `table_files` keeps them.
"""

for topology in topologies().values():
    with DAG(
        f"tidemark_{topology.name}_maintenance",
        schedule="30 3 * * *",
        tags=["tidemark", topology.name, "maintenance"],
        doc_md=DOC.format(name=topology.name),
        **EVERY_DAG,
    ):
        BatchJob(
            task_id="maintain", job="maintain", application_args=["--warehouse", WAREHOUSE, "--topology", topology.name]
        )
