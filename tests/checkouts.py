"""A checkout of its own for a real Airflow, whose topology is a test's."""

from __future__ import annotations

import shutil
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def own_checkout(root: Path, toml: str) -> Path:
    """The project's DAGs and plugins in *root*, and the topology `flights` that *toml* describes: its file. No jobs."""
    for name in ("dags", "plugins"):
        shutil.copytree(PROJECT / name, root / name)
    file = root / "jobs" / "topologies" / "flights.toml"
    file.parent.mkdir(parents=True)
    file.write_text(toml)
    return file
