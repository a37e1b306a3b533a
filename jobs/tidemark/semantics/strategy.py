"""Names the four emission strategies of KIP-557."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """Emission strategies by their names in topology files."""

    ON_CHANGE = "on_change"
    ON_UPDATE = "on_update"
    ON_WINDOW_CLOSE = "on_window_close"
    PERIODIC = "periodic"


def interval_end_ms(interval_ms: int, held_since_ms: int) -> int:
    """Returns when a result that is held since *held_since_ms* is sent by the strategy PERIODIC.

    This is the first multiple of *interval_ms* since the epoch that lies after that instant.

    >>> interval_end_ms(10, 19), interval_end_ms(10, 20)
    (20, 30)
    """
    return (held_since_ms // interval_ms + 1) * interval_ms
