"""Values of a trace: what became of a record, where and when.

Instants are epoch ms, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from tidemark.facts.versions import CommittedVersion, NoVersion, version_fields
from tidemark.model.settings.intervals import iso


class RecordOutcome(StrEnum):
    """What became of an update. The words after `held` are not of the accounting: see NOT_COUNTED."""

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


class RecordPosition(NamedTuple):
    """What identifies a record: its source, input partition and offset."""

    source: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.source}/{self.partition}/{self.offset}"


@dataclass(frozen=True, kw_only=True)
class OperatorResult:
    """What became of one update of a record at an operator.

    Attributes:
        sub_topology: the stream that runs the operator.
        operator: its name.
        kind: its kind.
        batch_id: the batch that decided it; None if no batch did.
        outcome: what became of it.
        key: the key of the update; None if the operator has no key.
        reason: why, as a clause for people; empty where the outcome says enough.
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
    """The time that a record spent in one batch of a stream.

    The record waits from *came_at_ms* until the batch starts. *came_at_ms* is its record time, or the commit of the
    stream before; None where the record time is not known. In the rest of the time until *finished_at_ms* operators
    worked on its batch, or waited for sibling branches in the same driver (*queued_ms*).
    """

    sub_topology: str
    batch_id: int
    came_at_ms: int | None
    started_at_ms: int
    finished_at_ms: int
    queued_ms: int

    @property
    def waiting_ms(self) -> int | None:
        """How long the record waited for its batch, which can be negative; None if it is not known since when."""
        return None if self.came_at_ms is None else self.started_at_ms - self.came_at_ms

    @property
    def working_ms(self) -> int:
        """How long operators worked on the batch."""
        return self.finished_at_ms - self.started_at_ms - self.queued_ms


@dataclass(frozen=True, kw_only=True)
class Visible:
    """A table with rows that the record caused; *commit* is the first version of the Delta table that has them."""

    table: str
    rows: int
    batch_id: int
    commit: CommittedVersion | NoVersion


@dataclass(frozen=True, kw_only=True)
class RecordTrace:
    """All that became of one record.

    Attributes:
        place: what identifies the record.
        timestamp_ms: its record time, epoch ms; None if not known.
        why_no_time: why that is not known, for a record that went through batches; empty otherwise.
        results: what became of its updates at each operator.
        batches: the batches that it went through.
        visible: the tables that have rows of it.
    """

    place: RecordPosition
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
                 "at": iso(each.commit.at_ms) if isinstance(each.commit, CommittedVersion) else None}
                for each in self.visible
            ],
        }  # fmt: skip


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)
