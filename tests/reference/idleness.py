"""Measures silence as Flink does, which sees no offsets.

`tidemark.semantics.idleness` decides by offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.semantics.idleness import check_timeout


@dataclass(frozen=True, kw_only=True)
class IdlenessTimer:
    """Measures silence as Flink's WatermarksWithIdleness does.

    It is checked once per emission interval.

    Raises:
        InvalidArgument: `timeout_ms` is not above 0.
    """

    timeout_ms: int
    heard: bool = False
    silent_since_ms: int | None = None

    def __post_init__(self) -> None:
        check_timeout(self.timeout_ms)


def with_record(timer: IdlenessTimer) -> IdlenessTimer:
    """Returns the timer after a record."""
    return replace(timer, heard=True)


def check_idle(timer: IdlenessTimer, *, now_ms: int) -> tuple[IdlenessTimer, bool]:
    """Checks at *now_ms*; returns the timer and True for an idle partition.

    A check after a record resets the timer; the first silent check starts it; from then on silence of more than
    `timeout_ms` is idleness. So idleness shows one to three intervals after it is due (FLINK-40503).
    """
    if timer.heard:
        return replace(timer, heard=False, silent_since_ms=None), False
    if timer.silent_since_ms is None:
        return replace(timer, silent_since_ms=now_ms), False
    return timer, now_ms - timer.silent_since_ms > timer.timeout_ms
