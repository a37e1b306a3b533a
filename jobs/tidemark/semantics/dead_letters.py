"""The kinds of records that did not go on: the rows of the table `dead_letters`."""

from __future__ import annotations

from enum import StrEnum


class DeadLetterKind(StrEnum):
    """Why a record did not go on."""

    LATE = "late"
    """It came after its window, or the history that it asks for, was closed."""
    QUARANTINED = "quarantined"
    """An operator cannot use it, or a topic would refuse it."""
    UNDELIVERABLE = "undeliverable"
    """The table of a sink refused it, or its topic did after the batch had been decided."""
