"""Keeps Arrow from a memory pool of its own; import it first.

Arrow's pool keeps 30 MB of what it has read, a large batch or the files of a check, which other allocations of this
process could use. This module has an effect only in the project's own processes: the command, drivers of topologies,
and jobs that Airflow runs without Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tidemark.model.project.spark_settings import WITHOUT_SPARK

IS_OWN_PROCESS = WITHOUT_SPARK in os.environ or Path(sys.argv[0]).name in ("tidemark", "stream.py")
"""True if this process is one of the project's own."""

if IS_OWN_PROCESS:
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
