"""Decides about one update by the four emission strategies of KIP-557.

A newer update of a key supersedes a held one; the operator that holds it does this.
"""

from __future__ import annotations

from enum import StrEnum

from reference.change import Versioned, is_unchanged
from tidemark.errors import InvalidArgument
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import interval_end_ms
from tidemark.semantics.watermark import is_window_late


class EmissionDecision(StrEnum):
    """The decision about an update."""

    EMIT = "emit"
    SUPPRESS = "suppress"
    HOLD = "hold"


def on_change(stored: Versioned | None, update: Versioned, rule: Rule) -> EmissionDecision:
    """Emits an update unless it is unchanged by *rule*.

    An unchanged update is suppressed and never sent.
    """
    return EmissionDecision.SUPPRESS if is_unchanged(stored, update, rule) else EmissionDecision.EMIT


def on_update() -> EmissionDecision:
    """Emits every update."""
    return EmissionDecision.EMIT


def on_window_close(end_ms: int, watermark_ms: int | None, *, allowed_lateness_ms: int = 0) -> EmissionDecision:
    """Holds an update until its window is closed, then emits it.

    The window is half-open and ends at *end_ms*; the update is its final result. Record time in epoch milliseconds;
    *watermark_ms* is None before there is one.
    """
    closed = is_window_late(end_ms, watermark_ms, allowed_lateness_ms=allowed_lateness_ms)
    return EmissionDecision.EMIT if closed else EmissionDecision.HOLD


def periodic(interval_ms: int, *, held_since_ms: int, now_ms: int) -> EmissionDecision:
    """Holds an update until the next multiple of *interval_ms*, then emits it.

    Multiples count from the epoch, the next one after *held_since_ms*. Both instants are decision times of batches.
    Because the multiples are fixed, a restarted driver keeps the rhythm, and a clock that goes back sends nothing.

    Raises:
        InvalidArgument: *interval_ms* is not above 0.
    """
    if interval_ms <= 0:
        msg = f"an interval is a length of time above 0 ms, got {interval_ms}; use on_update to send everything on"
        raise InvalidArgument(msg)
    return EmissionDecision.EMIT if now_ms >= interval_end_ms(interval_ms, held_since_ms) else EmissionDecision.HOLD
