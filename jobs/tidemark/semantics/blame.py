"""Names the parts of the age of a window.

`kernels.reports.ages` splits ages into parts and blames growth.

The age of a window at an operator is the clock when the operator had finished it, less the window's end. The parts add
up to the age. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

HISTORY = 200
"""Windows within the promise that give the usual lengths."""
HISTORY_MS = 86_400_000
"""Windows that ended longer ago do not count as history."""
ENOUGH = 20
"""With fewer windows the usual length is unknown."""


class AgeCause(StrEnum):
    """A part of a window's age in which no operator worked."""

    BOUND = "bound"
    """The source's bound: the wait for records that are out of order."""
    BLOCKING_PARTITION = "blocking_partition"
    """A partition had no record that was new enough, until one came."""
    SILENCE = "silence"
    """A partition had no record that was new enough, until its silence let the watermark advance.

    It became idle, or time advanced while every partition was (`idle_advances`).
    """
    BACKLOG = "backlog"
    """The record that closed the window waited unread.

    The driver read older records, stood still, or had never run; or the record came after the plan of the batch that
    ran, and waited for its end.
    """
    DRIVER_RESTARTED = "driver_restarted"
    """Records waited unread while another driver took over."""
    LATE_PRODUCER = "late_producer"
    """The closing record was written later than its timestamp."""
    UNKNOWN = "unknown"
    """Nothing was read, and no fact says why.

    The timestamp of the closing record is not known, or the source does not report its unread records.
    """
    TRIGGER = "trigger"
    """A driver waited for its next trigger."""
    WAITING = "waiting"
    """A hop's records waited longer than a trigger for an idle driver."""
    QUEUED = "queued"
    """An operator waited for the journal or another stream of its process."""


class Compared(StrEnum):
    """What was compared to find by how much a part is too long."""

    WORK = "work"
    """The operator's work on the window, in the batch that finished it, and the lowest limit of its SLAs.

    This is what an SLA of work measures. The operator's part of the age may be longer: it also has the time for which
    the window waited while the operator kept the driver busy with an earlier batch.
    """
    USUAL = "usual"
    """All of the part of the age, and its usual length."""
    CONFIGURED = "configured"
    """All of the part of the age, and its configured length, because fewer than ENOUGH windows are known."""


HELD_BY_WATERMARK = frozenset({AgeCause.BOUND.value, AgeCause.BLOCKING_PARTITION.value, AgeCause.SILENCE.value})
"""Causes that delay windows.

They delay records only where these wait for the end of a window.
"""


class AgePart(NamedTuple):
    """The owner of a part of the age.

    It is an operator of a *kind*, or an AgeCause, which is its own kind.
    """

    name: str
    kind: str

    @classmethod
    def of(cls, cause: AgeCause) -> AgePart:
        """Returns the part of *cause*."""
        return cls(cause.value, cause.value)
