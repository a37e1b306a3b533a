"""Imports Arrow's datasets without pandas; import it first.

pyarrow imports pandas with its datasets if it is installed, and that takes longer than all other imports of a job.
This module has an effect only in the project's own processes: the command, and jobs that Airflow runs without Spark.
They never give Arrow an object of pandas. In other processes Arrow would treat a Series like any other sequence.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

from tidemark.model.project.spark_settings import WITHOUT_SPARK


class _PandasHider(MetaPathFinder):
    """Hides pandas from imports."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raises ImportError for pandas; leaves other modules to the other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def _is_own_process() -> bool:
    return WITHOUT_SPARK in os.environ or Path(sys.argv[0]).name == "tidemark"


def _import_datasets() -> None:
    """Imports Arrow's datasets while pandas is hidden."""
    # pyarrow looks for pandas once, at this import. Later imports of pandas work as ever.
    finder = _PandasHider()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


if _is_own_process() and "pandas" not in sys.modules:
    _import_datasets()
