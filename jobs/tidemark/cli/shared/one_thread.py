"""Makes polars compute in one thread; import it before polars.

To wake other threads for the small frames of a state takes a tenth more CPU, and the more the busier the machine is.
"""

from __future__ import annotations

import os

VARIABLE = "POLARS_MAX_THREADS"
_named = os.environ.get(VARIABLE)
os.environ.setdefault(VARIABLE, "1")

import polars  # noqa: E402, F401 - it reads the variable once, now

if _named is None:  # what this process starts computes with all threads
    del os.environ[VARIABLE]
