"""The clock, as a value that is handed on: only `main()` and the commit step call it."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns epoch ms UTC."""


def wall_clock_ms() -> int:
    """This machine's clock, epoch ms UTC."""
    return time.time_ns() // 1_000_000
