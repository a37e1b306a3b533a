"""Topologies, and the settings that all DAGs share."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from tidemark.errors import InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.layout import WATCH
from tidemark.model.slas.sla_spec import known_watch, topologies_of_jobs
from tidemark.model.topology import Topology, load_each

TOPOLOGIES, SLAS = Project.here().topologies, Project.here().slas
# Templates, which a task fills in. A DAG file would look a variable up each time it is parsed.
WAREHOUSE = "{{ var.value.tidemark_warehouse }}"
BOOTSTRAP = "{{ var.value.get('tidemark_bootstrap', '') }}"

SINCE = os.environ.get("TIDEMARK_SINCE", "2026-01-01T00:00:00Z")
"""No schedule covers earlier times. The Airflow of `tidemark up` sets the time of its setup."""


def dag(topology: Topology, part: str, *, doc: str, **more: Any) -> DAG:
    """Returns the DAG of *topology* for one *part* of the work, such as streams; `{name}` in *doc* is the topology."""
    return DAG(
        f"tidemark_{topology.name}_{part}",
        tags=["tidemark", topology.name, part],
        doc_md=doc.format(name=topology.name),
        start_date=datetime.fromisoformat(SINCE),
        catchup=False,
        # By default Airflow waits for 5 minutes before the next try.
        default_args={"owner": topology.owner, "retries": 1, "retry_delay": timedelta(seconds=10)},
        **{"max_active_runs": 1, **more},
    )


def instant(otherwise: str) -> Param:
    """Returns a param for an instant; empty means *otherwise*."""
    # Not shared by DAGs, since a param of Airflow holds its value.
    return Param(None, type=["null", "string"], format="date-time", description=f"ISO 8601; empty: {otherwise}")


def topologies() -> dict[Path, Topology]:
    """Returns every usable topology by its file; `broken` has the rest."""
    loaded = load_each(TOPOLOGIES)
    return {path: result for path, result in loaded.items() if isinstance(result, Topology)}


def topologies_and_jobs() -> dict[str, Topology]:
    """Returns usable topologies by file, and those of jobs and of watched tables by name.

    The queries of jobs are missing: only the warehouse knows them, and a DAG file does not look there.
    """
    of_files = {str(path): topology for path, topology in topologies().items()}
    watch = known_watch(SLAS)
    return of_files | topologies_of_jobs(SLAS, TOPOLOGIES.glob("*.toml")) | ({WATCH: watch} if watch else {})


def broken() -> dict[Path, InvalidSpec]:
    """Returns the errors of files that cannot be used."""
    loaded = load_each(TOPOLOGIES)
    return {path: result for path, result in loaded.items() if isinstance(result, InvalidSpec)}
