"""Reads the clocks of this machine; pure functions get instants instead."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns epoch ms UTC."""


def wall_clock_ms() -> int:
    """Returns this machine's clock, epoch ms UTC."""
    return time.time_ns() // 1_000_000


def to_boot_ms() -> int:
    """Returns what takes an instant of the wall clock, as it is set now, to the boot clock: a number of ms to add."""
    # Of ns, since two clocks that are each cut to ms differ by 1 ms now and then.
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns()) // 1_000_000


def since_boot_s() -> float:
    """Returns the seconds since this machine was started."""
    # Unlike time.monotonic() this clock advances while the machine sleeps.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_clock_ms() -> int:
    """Returns the ms since this machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
