"""What the DAG files say more than once: where topologies are, and what every DAG has."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.spec.topology import Topology, load
from tidemark_spark import ROOT

TOPOLOGIES = ROOT / "jobs" / "topologies"
WAREHOUSE = "{{ var.value.tidemark_warehouse }}"
BOOTSTRAP = "{{ var.value.tidemark_bootstrap }}"

SINCE = os.environ.get("TIDEMARK_SINCE", "2026-01-01T00:00:00Z")
"""No schedule asks for what was before: the embedded Airflow says when it was set up."""

EVERY_DAG: dict[str, Any] = {
    "start_date": datetime.fromisoformat(SINCE),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {"owner": "tidemark", "retries": 1, "retry_delay": timedelta(seconds=10)},
}


def topologies() -> dict[Path, Topology]:
    """Every topology that can be used, by its file; `broken` has the rest."""
    return {path: found for path, found in _read().items() if isinstance(found, Topology)}


def broken() -> list[InvalidSpec]:
    """Why the other files cannot be used."""
    return [found for found in _read().values() if isinstance(found, InvalidSpec)]


def _read() -> dict[Path, Topology | InvalidSpec]:
    return {path: _topology(path) for path in sorted(TOPOLOGIES.glob("*.toml"))}


def _topology(path: Path) -> Topology | InvalidSpec:
    try:
        return load(path)
    except InvalidSpec as error:
        return error
