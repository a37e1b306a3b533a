"""Watermark alignment: a source far ahead of its group pauses.

Source: Apache Flink, SourceCoordinator.announceCombinedWatermark and SourceOperator.shouldWaitForAlignment.
Watermarks are epoch milliseconds of record time.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import InvalidArgument
from tidemark.selection import present
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress

LAST_INSTANT_MS = 2**63 - 1
"""Latest instant of a 64-bit column; limits beyond it do not limit."""


def lowest_reported(group: Iterable[Progress]) -> int | None:
    """Returns the lowest watermark in a *group* of sources, or None when none has one to report."""
    # Idle sources, and sources without a watermark, have nothing to report.
    awake = (member.watermark_ms for member in group if member.activity is not Activity.IDLE)
    return min(present(awake), default=None)


def max_allowed_ms(group: Iterable[Progress], *, max_drift_ms: int) -> int | None:
    """Returns the highest watermark at which a source of the *group* may still read.

    This limit is the lowest watermark of the group plus the drift. There is no limit (None) while no source reports a
    watermark.


    Raises:
        InvalidArgument: *max_drift_ms* is negative.
    """
    if max_drift_ms < 0:
        msg = f"the drift must be 0 ms or more, got {max_drift_ms}; leave alignment out to allow any"
        raise InvalidArgument(msg)
    lowest_ms = lowest_reported(group)
    if lowest_ms is None or lowest_ms + max_drift_ms > LAST_INSTANT_MS:
        return None
    return lowest_ms + max_drift_ms


def must_wait(watermark_ms: int | None, *, allowed_ms: int | None) -> bool:
    """Returns True while a source at *watermark_ms* is ahead of *allowed_ms*."""
    return watermark_ms is not None and allowed_ms is not None and allowed_ms < watermark_ms
