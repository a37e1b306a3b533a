"""What the DAG files say more than once: where topologies are, and what every DAG has."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from tidemark.errors import InvalidSpec
from tidemark.spec.project import Project
from tidemark.spec.topology import Topology, load_each

TOPOLOGIES = Project.here().topologies
WAREHOUSE = "{{ var.value.tidemark_warehouse }}"
BOOTSTRAP = "{{ var.value.get('tidemark_bootstrap', '') }}"

SINCE = os.environ.get("TIDEMARK_SINCE", "2026-01-01T00:00:00Z")
"""No schedule asks for what was before: the embedded Airflow says when it was set up."""


def dag(topology: Topology, part: str, *, doc: str, **more: Any) -> DAG:
    """The DAG of *topology* for one *part* of the work: streams, reports, and so on; `{name}` in *doc* is its name."""
    return DAG(
        f"tidemark_{topology.name}_{part}",
        tags=["tidemark", topology.name, part],
        doc_md=doc.format(name=topology.name),
        start_date=datetime.fromisoformat(SINCE),
        catchup=False,
        max_active_runs=1,
        default_args={"owner": topology.owner, "retries": 1, "retry_delay": timedelta(seconds=10)},
        **more,
    )


def instant(otherwise: str) -> Param:
    """A param that is an instant, or empty and means *otherwise*; a new one each time: it is where a value is kept."""
    return Param(None, type=["null", "string"], format="date-time", description=f"ISO 8601; empty: {otherwise}")


def topologies() -> dict[Path, Topology]:
    """Every topology that can be used, by its file; `broken` has the rest."""
    return {path: found for path, found in load_each(TOPOLOGIES).items() if isinstance(found, Topology)}


def broken() -> dict[Path, InvalidSpec]:
    """Why the other files cannot be used."""
    return {path: found for path, found in load_each(TOPOLOGIES).items() if isinstance(found, InvalidSpec)}
