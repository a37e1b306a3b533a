"""Makes the DAGs of all topologies for one DAG file."""

from __future__ import annotations

from importlib import import_module

from airflow.sdk import DAG

PARTS = ("streams", "reports", "sla_check", "decisions", "completeness")
"""A module here for each part; `reports` has two DAGs."""


def topology_dags(*parts: str) -> dict[str, DAG]:
    """Makes the DAGs of each usable topology, and returns them by id; Airflow finds them in a DAG file by itself.

    A topology that cannot be used has none, and `refuse_mistakes` shows why.

    Args:
        parts: the parts of the work; without any, all of PARTS.
    """
    made: dict[str, DAG] = {}
    for part in parts or PARTS:
        # Only this part's module: what others import would cost each parse of a file.
        dags = import_module(f"tidemark_airflow.dags.{part}").make()
        made |= {dag.dag_id: dag for dag in dags}
    return made
