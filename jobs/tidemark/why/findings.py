"""What keeps a stream from giving results: a closed vocabulary, and one row per thing that was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemark.spec.intervals import iso


class Cause(StrEnum):
    """Why an operator gives nothing."""

    NEVER_STARTED = "never_started"
    """Its driver has not finished a batch, or never was there."""
    DRIVER_DEAD = "driver_dead"
    """Its driver failed, was drained, or does not beat any more."""
    UPSTREAM_DEAD = "upstream_dead"
    """The driver of a sub-topology that it reads from did."""
    DRIVER_STARTING = "driver_starting"
    """Its driver is starting, and reads nothing yet."""
    DRIVER_RESTARTED = "driver_restarted"
    """Its driver was replaced, and records waited meanwhile."""
    CANNOT_WRITE = "cannot_write"
    """Its driver lives, and the disk takes no writes."""
    SHORT_OF_MEMORY = "short_of_memory"
    """Its driver has less than a tenth of the memory left that it may take."""
    SLOW_BATCH = "slow_batch"
    """Its driver lives, and one batch has been running for long."""
    SLOW_OPERATOR = "slow_operator"
    """One operator uses most of the trigger interval, and batches take longer than that."""
    SOURCE_EMPTY = "source_empty"
    """A source never had a record."""
    UPSTREAM_IDLE = "upstream_idle"
    """All sources of the sub-topology that it reads from are idle: time stands still there."""
    SOURCE_QUIET = "source_quiet"
    """A source had records, all of them went through, and there are no more."""
    BACKLOG = "backlog"
    """Records wait unread."""
    POISON_AT_HEAD = "poison_at_head"
    """All that a partition gives is quarantined."""
    WRONG_TIME_UNIT = "wrong_time_unit"
    """It is, and its timestamps would be plausible in another unit."""
    PRODUCER_AHEAD = "producer_ahead"
    """A producer sends records from the future."""
    PARTITION_IDLE_HOLDS_BACK = "partition_idle_holds_back"
    """A silent partition, which does not count as idle, holds the watermark back."""
    PARTITION_BEHIND_HOLDS_BACK = "partition_behind_holds_back"
    """A partition that gives older records than the others holds the watermark back."""
    ALL_DUPLICATES = "all_duplicates"
    """All that came in had been read before, by the ids of a writer that the source names."""
    ALIGNMENT_WAIT = "alignment_wait"
    """Records of a partition that is ahead by more than `max_drift` wait for the others."""
    BOUND_TOO_SMALL = "bound_too_small"
    """More than half of the records are late."""
    WINDOW_NOT_CLOSED = "window_not_closed"
    """Results wait for the watermark to pass the end of their window."""
    TIME_STANDS_STILL = "time_stands_still"
    """Results wait for the end of their window, and every source is silent: only records move time."""
    ALLOWED_LATENESS_HOLDS = "allowed_lateness_holds"
    """A window is complete, and its result waits for late records."""
    SESSION_KEPT_OPEN = "session_kept_open"
    """Records keep coming to a session, which ends after a gap without any."""
    HELD_UNTIL_INTERVAL = "held_until_interval"
    """Results wait for the end of an interval (`periodic`)."""
    ALL_SUPPRESSED = "all_suppressed"
    """All that came in was unchanged."""
    ALL_FILTERED = "all_filtered"
    """All that came in was left out by a condition, or had no match."""
    NOTHING_WRONG = "nothing_wrong"
    """Results came, from the newest records that were read."""
    UNEXPLAINED = "unexplained"
    """There are no results, and none of the above."""


EVENT_TIME = frozenset(
    {
        Cause.WINDOW_NOT_CLOSED,
        Cause.TIME_STANDS_STILL,
        Cause.PARTITION_IDLE_HOLDS_BACK,
        Cause.PARTITION_BEHIND_HOLDS_BACK,
        Cause.BOUND_TOO_SMALL,
    }
)
"""Causes that would not be there on processing time."""
QUIET = frozenset({Cause.SOURCE_EMPTY, Cause.SOURCE_QUIET, Cause.UPSTREAM_IDLE, Cause.TIME_STANDS_STILL})
"""Causes that say that no records come in."""
USUAL = frozenset(
    {
        Cause.NOTHING_WRONG,
        Cause.WINDOW_NOT_CLOSED,
        Cause.ALLOWED_LATENESS_HOLDS,
        Cause.SESSION_KEPT_OPEN,
        Cause.HELD_UNTIL_INTERVAL,
        Cause.ALL_SUPPRESSED,
        Cause.ALL_FILTERED,
        Cause.DRIVER_STARTING,
        Cause.DRIVER_RESTARTED,
        Cause.SLOW_OPERATOR,
    }
)
"""Causes for which a stream that keeps up has no results, either."""
_LAST = (Cause.SOURCE_QUIET, Cause.NOTHING_WRONG)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that keeps *operator* from giving results, or that nothing does.

    It waits for *input*, an operator, and *partition* of it; None where that is no part of it. `since_ms` is a clock
    of the driver, epoch ms; None when it has always been so.
    """

    cause: Cause
    sub_topology: str
    operator: str
    seen: str
    remedy: str
    input: str | None = None
    partition: int | None = None
    since_ms: int | None = None

    @property
    def row(self) -> dict[str, object]:
        """The finding for programs; `since` is an ISO instant or None."""
        return {
            "cause": self.cause.value,
            "sub_topology": self.sub_topology,
            "operator": self.operator,
            "input": self.input,
            "partition": self.partition,
            "since": None if self.since_ms is None else iso(self.since_ms),
            "seen": self.seen,
            "remedy": self.remedy,
        }

    @property
    def line(self) -> str:
        """All of it in one line for people."""
        place = self.operator if self.input in {None, self.operator} else f"{self.operator} ← {self.input}"
        where = place if self.partition is None else f"{place} partition {self.partition}"
        since = "" if self.since_ms is None else f" since {iso(self.since_ms)}"
        return f"{self.cause.value}: {where}{since}: {self.seen}; {self.remedy}"


def in_order(findings: list[Finding]) -> list[Finding]:
    """*findings* once each, as they came, but those of an end to the records after those of a wait."""
    return sorted(
        dict.fromkeys(findings), key=lambda found: _LAST.index(found.cause) + 1 if found.cause in _LAST else 0
    )
