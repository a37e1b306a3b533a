"""Words for repairs of streams that people decide about."""

from __future__ import annotations

from enum import StrEnum


class RepairOutcome(StrEnum):
    """The end of a decision about a repair."""

    APPLIED = "applied"
    """It was approved, and made."""
    REJECTED = "rejected"
    """A person did not want it."""
    TIMED_OUT = "timed_out"
    """There was no answer in time."""
    CHANGED = "changed"
    """It was approved, but no longer does what was shown.

    So nothing was changed.
    """
    FAILED = "failed"
    """It was approved, and ended with an error."""
    SHOWN = "shown"
    """A person has put their name to the plan of a topology file, which changed nothing."""


DECISION = "decision"
"""In place of an SLA's name: a repair waits for a person."""
