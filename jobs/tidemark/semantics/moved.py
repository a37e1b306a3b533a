"""Kinds of quantities that SLAs measure, and that a cause can move."""

from __future__ import annotations

from enum import StrEnum


class Moved(StrEnum):
    """A kind of quantity that measures of SLAs are made of.

    An owner of time (a broker, Spark, an operator) can move some of them and not others. Only an owner that can move
    what an SLA measures is looked at as its cause.
    """

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
