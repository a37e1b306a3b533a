"""Names what the main thread of a stream does, piece by piece, and who has each piece of time.

Clock: boot, the ms since the driver's host was started (`CLOCK_BOOTTIME`). This clock goes on while the host is
suspended, and is never set.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class SegmentOwner(StrEnum):
    """Who has the time of a segment.

    In the phases of a query that a listener records, the detail is Spark's name of the phase instead.
    """

    TRIGGER = "trigger"
    """Nothing was due: the stream waited for its next batch."""
    BROKER = "broker"
    """Looking for records, and reading them; the detail names the sources."""
    SPARK = "spark"
    """Spark's own work: planning, starting tasks, its commit."""
    SLOTS = "slots"
    """The detail names the streams that held Spark's task slots."""
    OPERATOR = "operator"
    """The work of the operator that the detail names."""
    TARGET = "target"
    """A write; the detail names the table or the topic, or is JOURNAL or FACTS."""
    ENGINE = "engine"
    """What Tidemark does for a batch around the operators and the writes."""


NEXT = -1
"""In place of the number of a batch that was not planned yet."""
JOURNAL, FACTS = "journal", "facts"
TASKS_OF_SPARK = "tasks"
"""The detail of segments of Spark in which tasks work and the driver waits for them."""


class Segment(NamedTuple):
    """A stretch of time, from `began_ms` until `ended_ms` (boot), that was spent on the batch `batch_id`.

    A wait for the trigger, and looks at sources that found nothing, belong to the batch after them.
    """

    owner: str
    detail: str
    batch_id: int
    began_ms: int
    ended_ms: int


PAUSE_MS = 1_000
"""Shortest gap between two beats that counts as a pause. The pulse is a thread of the driver that beats regularly."""


def is_pause(length_ms: Any, cpu_ms: Any) -> Any:
    """Returns True for a gap of the pulse in which the process did not run; both lengths are numbers, or columns.

    In a gap in which the process used CPU for over half of the time, an operator worked and kept the pulse from
    beating.
    """
    return (length_ms >= PAUSE_MS) & (2 * cpu_ms <= length_ms)


class Gap(NamedTuple):
    """A stretch of boot time in which the pulse did not beat, and the CPU time that the process used in it (ms)."""

    began_ms: int
    ended_ms: int
    cpu_ms: int
