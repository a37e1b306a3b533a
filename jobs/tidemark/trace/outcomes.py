"""Values of a trace: what became of a record, where and when.

Instants are epoch ms, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from tidemark.facts.versions import Commit, NoVersion, version_fields
from tidemark.model.settings.intervals import iso


class RecordOutcome(StrEnum):
    """Result of an update; `held` is one that still waits."""

    EMITTED = "emitted"
    PASSED = "passed"
    SUPPRESSED = "suppressed"
    SUPERSEDED = "superseded"
    LATE = "late"
    QUARANTINED = "quarantined"
    DUPLICATE = "duplicate"
    FILTERED = "filtered"
    HELD = "held"
    UNREAD = "unread"
    LOST = "lost"
    UNKNOWN = "unknown"


NOT_COUNTED = (RecordOutcome.UNREAD, RecordOutcome.LOST, RecordOutcome.UNKNOWN)
COUNTED = tuple(outcome for outcome in RecordOutcome if outcome not in NOT_COUNTED)
"""Outcomes of the accounting, in the order of reports."""


class RecordPlace(NamedTuple):
    """Place of a record: its source, input partition and offset."""

    source: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.source}/{self.partition}/{self.offset}"


@dataclass(frozen=True, kw_only=True)
class OperatorResult:
    """Result of one update of a record at an operator.

    Attributes:
        sub_topology: the stream that runs the operator.
        operator: its name.
        kind: its kind.
        batch_id: the batch that decided it; None: no batch did.
        outcome: the result.
        key: the key of the update; None: the operator has no key.
        reason: why, for people; empty: the outcome says it.
    """

    sub_topology: str
    operator: str
    kind: str
    batch_id: int | None
    outcome: RecordOutcome
    key: str | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """The way of a record through one stream, in one batch.

    It waits from *came_at_ms* (its record time, or the commit of the stream before; None where the record time is not
    known) until the batch starts; the rest of the time until *finished_at_ms* it queued for others, or was worked on.
    """

    sub_topology: str
    batch_id: int
    came_at_ms: int | None
    started_at_ms: int
    finished_at_ms: int
    queued_ms: int

    @property
    def waiting_ms(self) -> int | None:
        """How long it waited for its batch; it can be negative. None: since when is not known."""
        return None if self.came_at_ms is None else self.started_at_ms - self.came_at_ms

    @property
    def working_ms(self) -> int:
        """How long operators worked on its batch."""
        return self.finished_at_ms - self.started_at_ms - self.queued_ms


@dataclass(frozen=True, kw_only=True)
class Visible:
    """A table that has rows of the record.

    *commit* is the version of the Delta table since which it does.
    """

    table: str
    rows: int
    batch_id: int
    commit: Commit | NoVersion


@dataclass(frozen=True, kw_only=True)
class RecordTrace:
    """All that became of the record at *place*.

    *why_no_time* says why the time of a record that went through batches is not known; empty: it is known.
    """

    place: RecordPlace
    timestamp_ms: int | None
    why_no_time: str = ""
    results: list[OperatorResult] = field(default_factory=list)
    batches: list[BatchTimes] = field(default_factory=list)
    visible: list[Visible] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        """Returns the trace for JSON; instants are ISO texts."""
        return {
            "record": str(self.place),
            "timestamp": _iso(self.timestamp_ms),
            "why_no_time": self.why_no_time or None,
            "results": [{**vars(result), "outcome": result.outcome.value} for result in self.results],
            "batches": [
                {
                    "sub_topology": times.sub_topology,
                    "batch_id": times.batch_id,
                    "started_at": _iso(times.started_at_ms),
                    "finished_at": _iso(times.finished_at_ms),
                    "waiting_ms": times.waiting_ms,
                    "queued_ms": times.queued_ms,
                    "working_ms": times.working_ms,
                }
                for times in self.batches
            ],
            "visible": [
                {"table": each.table, "rows": each.rows, "batch_id": each.batch_id, **version_fields(each.commit),
                 "at": iso(each.commit.at_ms) if isinstance(each.commit, Commit) else None}
                for each in self.visible
            ],
        }  # fmt: skip


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)
