"""Keeps Arrow's datasets from importing pandas, and Arrow from a memory pool of its own; import it first.

pyarrow imports pandas with its datasets if it is installed, and that takes longer than all other imports of a job.
This module has an effect only in the project's own processes: the command, drivers of topologies, and jobs that Airflow
runs without Spark. They never give Arrow an object of pandas. In other processes Arrow would treat a Series like any
other sequence.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

from tidemark.model.project.spark_settings import WITHOUT_SPARK

DATASETS, LAST_NAME = "pyarrow.dataset", "write_dataset"
"""Arrow's datasets, and a name that the complete module has."""


class _PandasHider(MetaPathFinder):
    """Hides pandas while Arrow's datasets are imported."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raises ImportError for pandas; leaves other modules to the other finders."""
        # pyarrow looks for pandas once, at this import. All other imports of pandas work as ever.
        if name == "pandas" and DATASETS in sys.modules and not hasattr(sys.modules[DATASETS], LAST_NAME):
            raise ModuleNotFoundError(name=name)


def _is_own_process() -> bool:
    return WITHOUT_SPARK in os.environ or Path(sys.argv[0]).name in ("tidemark", "stream.py")


if _is_own_process():
    # Arrow's own pool keeps 30 MB of a large batch, which this process's other allocations could use.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _PandasHider())
