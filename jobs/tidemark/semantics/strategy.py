"""When an operator's update is sent on: the four emission strategies of KIP-557 ("Reporting Strategies").

Each is one function that decides about one update. A held update that is overtaken by a newer one of its key is
superseded; that is the holder's to see.
"""

from __future__ import annotations

from enum import StrEnum

from tidemark.errors import InvalidArgument
from tidemark.semantics.change import Rule, Versioned, is_unchanged
from tidemark.semantics.watermark import is_window_late


class Strategy(StrEnum):
    """The strategies by the name that a topology's file uses."""

    ON_CHANGE = "on_change"
    ON_UPDATE = "on_update"
    ON_WINDOW_CLOSE = "on_window_close"
    PERIODIC = "periodic"


class Decision(StrEnum):
    """What becomes of an update now."""

    EMIT = "emit"
    SUPPRESS = "suppress"
    HOLD = "hold"


def on_change(stored: Versioned | None, update: Versioned, rule: Rule) -> Decision:
    """Sent on unless it says nothing new by *rule*; then it is suppressed and never sent."""
    return Decision.SUPPRESS if is_unchanged(stored, update, rule) else Decision.EMIT


def on_update() -> Decision:
    """Sent on, whatever it says."""
    return Decision.EMIT


def on_window_close(end_ms: int, watermark_ms: int | None, *, allowed_lateness_ms: int = 0) -> Decision:
    """Held until the half-open window that ends at *end_ms* takes no more records, then sent on as its final result.

    Record time in epoch milliseconds; *watermark_ms* is None before there is one.
    """
    closed = is_window_late(end_ms, watermark_ms, allowed_lateness_ms=allowed_lateness_ms)
    return Decision.EMIT if closed else Decision.HOLD


def periodic(interval_ms: int, *, held_since_ms: int, now_ms: int) -> Decision:
    """Held until the next multiple of *interval_ms* since the epoch after *held_since_ms*, then sent on.

    Both instants are decision times of batches. Because the multiples are fixed, a driver that starts anew keeps the
    rhythm, and a clock that goes back sends nothing.

    Raises:
        InvalidArgument: *interval_ms* is not above 0.
    """
    if interval_ms <= 0:
        msg = f"an interval is a length of time above 0 ms, got {interval_ms}; use on_update to send everything on"
        raise InvalidArgument(msg)
    return Decision.EMIT if now_ms // interval_ms > held_since_ms // interval_ms else Decision.HOLD
