"""Creates a checkout for a real Airflow with a test's topology."""

from __future__ import annotations

import shutil
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def own_checkout(root: Path, toml: str) -> Path:
    """Copies DAGs and plugins to *root*, and writes `flights` there.

    *toml* is the text of the topology's file. There are no jobs.
    """
    for name in ("dags", "plugins"):
        shutil.copytree(PROJECT / name, root / name)
    file = root / "jobs" / "topologies" / "flights.toml"
    file.parent.mkdir(parents=True)
    file.write_text(toml)
    return file
