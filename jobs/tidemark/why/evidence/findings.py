"""Causes that keep a stream from giving results: a closed vocabulary.

A finding is one row per cause at a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Self

from tidemark.model.settings.intervals import iso


class Trait(Flag):
    """Traits of a cause, by which pages and incidents use it.

    Each cause has one of the first three.
    """

    FAULT = auto()
    """The stream needs attention."""
    USUAL = auto()
    """A healthy stream has no results for it."""
    QUIET = auto()
    """No records come in."""
    SILENCE = auto()
    """It explains why no more records came.

    It does not explain why a record came late.
    """
    EVENT_TIME = auto()
    """Processing time would avoid it."""


class Cause(StrEnum):
    """A reason why an operator gives no results: its word and traits."""

    traits: Trait

    def __new__(cls, word: str, traits: Trait) -> Self:
        """Creates a cause; its value is *word*."""
        cause = str.__new__(cls, word)
        cause._value_, cause.traits = word, traits
        return cause

    NEVER_STARTED = ("never_started", Trait.FAULT)
    """Its driver has not finished a batch, or never existed."""
    DRIVER_DEAD = ("driver_dead", Trait.FAULT | Trait.SILENCE)
    """Its driver failed, was drained, or sends no heartbeat any more."""
    UPSTREAM_DEAD = ("upstream_dead", Trait.FAULT | Trait.SILENCE)
    """The driver of an upstream sub-topology is dead."""
    DRIVER_STARTING = ("driver_starting", Trait.USUAL)
    """Its driver is starting, and reads nothing yet."""
    DRIVER_RESTARTED = ("driver_restarted", Trait.USUAL)
    """Its driver was replaced, and records waited meanwhile."""
    CANNOT_WRITE = ("cannot_write", Trait.FAULT)
    """Its driver lives, and the disk refuses writes."""
    SHORT_OF_MEMORY = ("short_of_memory", Trait.FAULT)
    """Its driver has less than a tenth of its memory left."""
    SLOW_BATCH = ("slow_batch", Trait.FAULT)
    """Its driver lives, and one batch has been running for long."""
    SLOW_OPERATOR = ("slow_operator", Trait.USUAL)
    """An operator uses most of the trigger interval, and batches exceed it."""
    SOURCE_EMPTY = ("source_empty", Trait.QUIET | Trait.SILENCE)
    """A source never had a record."""
    UPSTREAM_IDLE = ("upstream_idle", Trait.QUIET)
    """All sources of the upstream sub-topology are idle: time stands still there."""
    SOURCE_QUIET = ("source_quiet", Trait.QUIET | Trait.SILENCE)
    """A source's records were all processed, and no more come."""
    BACKLOG = ("backlog", Trait.FAULT)
    """Records wait unread."""
    POISON_AT_HEAD = ("poison_at_head", Trait.FAULT)
    """All records of a partition are quarantined."""
    WRONG_TIME_UNIT = ("wrong_time_unit", Trait.FAULT)
    """They are, and their timestamps would be plausible in another unit."""
    PRODUCER_AHEAD = ("producer_ahead", Trait.FAULT)
    """A producer sends records from the future."""
    PARTITION_IDLE_HOLDS_BACK = ("partition_idle_holds_back", Trait.FAULT | Trait.EVENT_TIME)
    """A silent, not yet idle partition holds the watermark back."""
    PARTITION_BEHIND_HOLDS_BACK = ("partition_behind_holds_back", Trait.FAULT | Trait.EVENT_TIME)
    """A partition with older records than the others holds the watermark back."""
    ALL_DUPLICATES = ("all_duplicates", Trait.FAULT)
    """All records had been read before.

    The ids of a writer that the source names prove it.
    """
    ALIGNMENT_WAIT = ("alignment_wait", Trait.FAULT)
    """Records of a partition ahead by more than `max_drift` wait."""
    BOUND_TOO_SMALL = ("bound_too_small", Trait.FAULT | Trait.EVENT_TIME)
    """More than half of the records are late."""
    WINDOW_NOT_CLOSED = ("window_not_closed", Trait.USUAL | Trait.EVENT_TIME)
    """Results wait for the watermark to pass the end of their window."""
    TIME_STANDS_STILL = ("time_stands_still", Trait.QUIET | Trait.SILENCE | Trait.EVENT_TIME)
    """Results wait for a window's end, and every source is silent.

    Only records move time.
    """
    ALLOWED_LATENESS_HOLDS = ("allowed_lateness_holds", Trait.USUAL)
    """A window is complete, and its result waits for late records."""
    SESSION_KEPT_OPEN = ("session_kept_open", Trait.USUAL)
    """Records keep a session open, which ends after a gap."""
    HELD_UNTIL_INTERVAL = ("held_until_interval", Trait.USUAL)
    """Results wait for the end of an interval (`periodic`)."""
    ALL_SUPPRESSED = ("all_suppressed", Trait.USUAL | Trait.SILENCE)
    """All updates were unchanged."""
    ALL_FILTERED = ("all_filtered", Trait.USUAL | Trait.SILENCE)
    """A condition left out all records, or they had no match."""
    NOTHING_WRONG = ("nothing_wrong", Trait.USUAL)
    """Results came, from the newest records that were read."""
    UNEXPLAINED = ("unexplained", Trait.FAULT)
    """There are no results, and no other cause applies."""


def _causes_with(trait: Trait) -> frozenset[Cause]:
    return frozenset(cause for cause in Cause if trait in cause.traits)


EVENT_TIME, QUIET, USUAL, SILENCE = map(_causes_with, (Trait.EVENT_TIME, Trait.QUIET, Trait.USUAL, Trait.SILENCE))
_LAST = (Cause.SOURCE_QUIET, Cause.NOTHING_WRONG)


@dataclass(frozen=True, kw_only=True)
class WhyFinding:
    """A cause that keeps *operator* from giving results, or NOTHING_WRONG.

    Attributes:
        cause: the cause.
        sub_topology: of the operator.
        operator: the operator without results.
        seen: what the tables show.
        remedy: what to do.
        input: the operator that it waits for; None where the cause has none.
        partition: the partition of the input; None where the cause has none.
        since_ms: a clock of the driver, epoch ms; None when it has always been so.
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
        """The finding in one line for people."""
        place = self.operator if self.input in {None, self.operator} else f"{self.operator} ← {self.input}"
        where = place if self.partition is None else f"{place} partition {self.partition}"
        since = "" if self.since_ms is None else f" since {iso(self.since_ms)}"
        return f"{self.cause.value}: {where}{since}: {self.seen}; {self.remedy}"


def in_order(findings: list[WhyFinding]) -> list[WhyFinding]:
    """Returns *findings* once each, in order, but ends of records last.

    Findings that say that there are no more records come after those of a wait.
    """
    return sorted(dict.fromkeys(findings), key=lambda each: _LAST.index(each.cause) + 1 if each.cause in _LAST else 0)
