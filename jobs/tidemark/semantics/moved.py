"""What an owner of time can move, and measures are made of."""

from __future__ import annotations

from enum import StrEnum


class Moved(StrEnum):
    """What an owner can move, and measures are made of."""

    AGE = "age"
    """How old results are when they become visible, or while they are not."""
    NUMBER = "number"
    """How many records, or results, come through."""
    WORK = "work"
    """How long an operator works on a window."""
    REFUSAL = "refusal"
    """How many records are late or cannot be used."""
    FIELDS = "fields"
    """Which fields records have."""
    ROWS = "rows"
    """Whether rows are what they are declared to be, and outcomes add up."""
