"""Fences off the writes of a driver that has lost its lease.

A driver makes one fence and gives it to all its writers. So every write first checks the lease, is repeated while the
disk is full, and is timed by the same clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.clock import Clock, wall_clock_ms
from tidemark.storage.disk import WriteRepeater, at_once


@dataclass(frozen=True)
class Fence:
    """Guards, repeats, reports and times the writes of a driver.

    Attributes:
        check_lease: called before each write; raises an error if the driver has lost its lease. Default: no check.
        until_written: performs a write, and repeats it while the disk is full or fails. Default: tries each write once.
        reached: called with the name of each step of a batch after it. Default: does nothing.
        clock: returns epoch ms UTC on the driver's host. Default: this machine's clock.
    """

    check_lease: Callable[[], None] = lambda: None
    until_written: WriteRepeater = at_once
    reached: Callable[[str], None] = lambda step: None
    clock: Clock = wall_clock_ms


NO_FENCE = Fence()
"""A fence without a lease, for readers and for tests."""
