"""How decisions of people about repairs of streams end."""

from __future__ import annotations

from enum import StrEnum


class RepairOutcome(StrEnum):
    """How a decision about a repair ended."""

    APPLIED = "applied"
    """The repair was approved, and made."""
    REJECTED = "rejected"
    """A person did not want the repair."""
    TIMED_OUT = "timed_out"
    """There was no answer in time."""
    CHANGED = "changed"
    """The repair was approved, but would no longer do what was shown. Nothing was changed."""
    FAILED = "failed"
    """The repair was approved, and ended with an error."""
    SHOWN = "shown"
    """A person has put their name to the plan of a topology file, which changed nothing."""


DECISION = "decision"
"""Stands in place of an SLA's name where a repair waits for a person's decision."""
