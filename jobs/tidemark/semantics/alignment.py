"""Watermark alignment: a source that is far ahead of the others in its group waits for them.

Source: Apache Flink, SourceCoordinator.announceCombinedWatermark and SourceOperator.shouldWaitForAlignment.
Watermarks are epoch milliseconds of record time.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress

LAST_INSTANT_MS = 2**63 - 1
"""The latest instant that a 64-bit column can hold; a limit beyond it is no limit."""


def lowest_reported(group: Iterable[Progress]) -> int | None:
    """The lowest watermark in a *group* of sources, None when none counts.

    Idle sources do not count, nor do those without a watermark yet: they have nothing to report.
    """
    return min(
        (
            member.watermark_ms
            for member in group
            if member.watermark_ms is not None and member.activity is not Activity.IDLE
        ),
        default=None,
    )


def max_allowed_ms(group: Iterable[Progress], *, max_drift_ms: int) -> int | None:
    """The highest watermark at which a source of the *group* may still read: the lowest reported plus the drift.

    None when there is no limit.

    Raises:
        InvalidArgument: *max_drift_ms* is negative.
    """
    if max_drift_ms < 0:
        msg = f"a drift is a length of time from 0 ms up, got {max_drift_ms}; leave alignment out to allow any"
        raise InvalidArgument(msg)
    lowest_ms = lowest_reported(group)
    if lowest_ms is None or lowest_ms + max_drift_ms > LAST_INSTANT_MS:
        return None
    return lowest_ms + max_drift_ms


def must_wait(watermark_ms: int | None, *, allowed_ms: int | None) -> bool:
    """Whether a source at *watermark_ms* stops reading until *allowed_ms* has risen to it."""
    return watermark_ms is not None and allowed_ms is not None and allowed_ms < watermark_ms
