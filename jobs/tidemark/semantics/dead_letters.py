"""The kinds of records that did not go on: the rows of the table `dead_letters`."""

from __future__ import annotations

from enum import StrEnum


class DeadLetterKind(StrEnum):
    """Why a record did not go on."""

    LATE = "late"
    """The record came after its window was closed, or asks a table for a version that is no longer kept."""
    QUARANTINED = "quarantined"
    """An operator cannot use the record, or a topic would refuse it."""
    UNDELIVERABLE = "undeliverable"
    """The table of a sink refused the record, or its topic did after the batch had been decided."""
