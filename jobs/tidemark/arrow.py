"""Keeps Arrow's datasets from importing pandas; import it first.

pyarrow imports pandas with its datasets if it is installed, and that takes longer than all other imports of a job.
This module has an effect only in the project's own processes. Those that import it never give Arrow an object of
pandas. In other processes Arrow would treat a Series like any other sequence.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

from tidemark.allocator import IS_OWN_PROCESS

DATASETS, LAST_NAME = "pyarrow.dataset", "write_dataset"
"""Arrow's datasets, and a name that the complete module has."""


class _PandasHider(MetaPathFinder):
    """Hides pandas while Arrow's datasets are imported."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raises ImportError for pandas; leaves other modules to the other finders."""
        # pyarrow looks for pandas once, at this import. All other imports of pandas work as ever.
        if name == "pandas" and DATASETS in sys.modules and not hasattr(sys.modules[DATASETS], LAST_NAME):
            raise ModuleNotFoundError(name=name)


if IS_OWN_PROCESS and "pandas" not in sys.modules:
    sys.meta_path.insert(0, _PandasHider())
