"""Defines the notes of a journal entry: all that is not rows.

`to_json` and `from_json` define their JSON in a file of the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from tidemark.collecting import omit
from tidemark.kernels.sql.constraints import Constraint
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.state_runs import StateRuns, states_from_json, states_to_json
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.journal.task_run import TaskRun

Json = Mapping[str, Any]
"""A JSON object."""


@dataclass(frozen=True, kw_only=True)
class MarkNotes:
    """The mark of time that a sink sends with the batch."""

    watermark_ms: int | None
    idle: bool = False


@dataclass(frozen=True, kw_only=True)
class PartitionNotes:
    """The records of a source's partition that the batch read."""

    source: str
    partition: int
    seen: PartitionReading

    def to_json(self) -> dict[str, Any]:
        """Returns the notes as a JSON object."""
        seen = asdict(self.seen)
        if not self.seen.traces:  # most sources note none
            del seen["traces"]
        return {"source": self.source, "partition": self.partition, **seen}

    @classmethod
    def from_json(cls, content: Json) -> PartitionNotes:
        """Returns the notes that `to_json` wrote, from parsed JSON."""
        lost = content["lost"]
        tuples = {"lost": lost and (lost[0], lost[1]), "traces": tuple(content.get("traces", ()))}
        seen = PartitionReading(**{**omit(content, ("source", "partition")), **tuples})
        return cls(source=content["source"], partition=content["partition"], seen=seen)


@dataclass(frozen=True, kw_only=True)
class OperatorNotes:
    """Instants of an operator, and its updates by outcome.

    Instants are epoch ms by the driver's clock. `queued_ms` is how long the operator waited for siblings before it
    began; of a source it includes the wait of the batch for task slots.
    """

    started_at_ms: int
    finished_at_ms: int
    queued_ms: int
    counts: Mapping[str, int]

    @property
    def clocks(self) -> dict[str, int]:
        """Returns both instants and `queued_ms` by name."""
        names = ("started_at_ms", "finished_at_ms", "queued_ms")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class DecisionNotes:
    """Notes of a decided batch.

    Attributes:
        batch: the batch.
        progress: the stream's progress after the batch.
        was: the progress before it, without the state of windows.
        marks: marks of time by sink.
        closed: the streaming windows that the batch closes.
        sources: the partitions that the batch read.
        operators: clocks and counts by operator.
        states: the files with the state of each shard. Empty until the batch is written down.
        tasks: the work of each task. None: the stream is not in shards.
    """

    batch: MicroBatch
    progress: StreamProgress
    was: StreamProgress
    marks: Mapping[str, MarkNotes] = field(default_factory=dict)
    closed: Sequence[ClosedWindow] = ()
    sources: Sequence[PartitionNotes] = ()
    operators: Mapping[str, OperatorNotes] = field(default_factory=dict)
    states: tuple[StateRuns, ...] = ()
    tasks: tuple[TaskRun, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the notes as a JSON object."""
        return {
            "marks": _as_json(self.marks),
            "batch": omit(asdict(self.batch), ["files"]),  # they are in the progress
            "progress": self.progress.to_json(),
            "was": self.was.to_json(),
            "closed": [*map(asdict, self.closed)],
            "sources": [part.to_json() for part in self.sources],
            "operators": _as_json(self.operators),
            "state": states_to_json(self.states),
            "tasks": None if self.tasks is None else [*map(asdict, self.tasks)],
        }

    @classmethod
    def from_json(cls, content: Json) -> DecisionNotes:
        """Returns the notes that `to_json` wrote, from parsed JSON."""
        tasks = content["tasks"]
        return cls(
            batch=_batch(content["batch"]),
            progress=StreamProgress.from_json(content["progress"]),
            was=StreamProgress.from_json(content["was"]),
            marks={name: MarkNotes(**mark) for name, mark in content["marks"].items()},
            closed=tuple(ClosedWindow(**window) for window in content["closed"]),
            sources=tuple(map(PartitionNotes.from_json, content["sources"])),
            operators={name: OperatorNotes(**operator) for name, operator in content["operators"].items()},
            states=states_from_json(content["state"]),
            tasks=None if tasks is None else tuple(TaskRun(**run) for run in tasks),
        )


@dataclass(frozen=True, kw_only=True)
class FactsNotes:
    """Notes about the measurements in an entry.

    Attributes:
        batch_id: the batch that was measured. None: the entry has no measurements.
        flushed: the newest batch of which all tables have the facts; -1: none.
        newest_batches: the newest batch with a commit, by table.
    """

    batch_id: int | None
    flushed: int
    newest_batches: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class EntryNotes:
    """Notes of a journal entry.

    Attributes:
        decided: notes of the decided batch, or their JSON. Empty in a file of facts.
        facts: in an entry of a driver: notes about the measurements in the entry. Entries of `tidemark.api` have none.
        newest_batches: in a file of facts: the newest batch of each table after the flush.
        is_whole: in a file of facts: True if the flush has all tables.
    """

    decided: DecisionNotes | Json = field(default_factory=dict)
    facts: FactsNotes | None = None
    newest_batches: Mapping[str, int] | None = None
    is_whole: bool | None = None

    # Each is parsed at its first use: to parse all costs as much as to read the entry.
    @cached_property
    def decision(self) -> DecisionNotes:
        """Returns the notes of the decided batch."""
        return self.decided if isinstance(self.decided, DecisionNotes) else DecisionNotes.from_json(self.decided)

    @cached_property
    def progress(self) -> StreamProgress:
        """Returns `decision.progress` without parsing the other notes."""
        noted = self.decided
        return noted.progress if isinstance(noted, DecisionNotes) else StreamProgress.from_json(noted["progress"])

    @cached_property
    def states(self) -> tuple[StateRuns, ...]:
        """Returns `decision.states` without parsing the other notes."""
        noted = self.decided
        return noted.states if isinstance(noted, DecisionNotes) else states_from_json(noted["state"])

    @property
    def is_last(self) -> bool:
        """False if other parts of the planned batch follow."""
        noted = self.decided
        return noted.batch.is_last if isinstance(noted, DecisionNotes) else _batch(noted["batch"]).is_last

    def with_states(self, states: Sequence[StateRuns], tasks: Sequence[TaskRun] | None = None) -> EntryNotes:
        """Returns the notes with the *states* of all shards.

        *tasks* are the work of each task; None: the stream is not in shards.
        """
        runs = None if tasks is None else tuple(tasks)
        return replace(self, decided=replace(self.decision, states=tuple(states), tasks=runs))

    def to_json(self) -> dict[str, Any]:
        """Returns the notes as a JSON object."""
        decided = self.decided.to_json() if isinstance(self.decided, DecisionNotes) else self.decided
        optional = {
            "facts": None if self.facts is None else asdict(self.facts),
            "newest_batches": self.newest_batches,
            "is_whole": self.is_whole,
        }
        return {**decided, **{key: value for key, value in optional.items() if value is not None}}

    @classmethod
    def from_json(cls, content: Json) -> EntryNotes:
        """Returns the notes that `to_json` wrote, from parsed JSON."""
        facts = content.get("facts")
        return cls(
            decided=omit(content, _BESIDE_DECIDED),
            facts=None if facts is None else FactsNotes(**facts),
            newest_batches=content.get("newest_batches"),
            is_whole=content.get("is_whole"),
        )


_BESIDE_DECIDED = frozenset({"facts", "newest_batches", "is_whole"})
"""Keys of an entry's notes that are not of the decided batch."""


def _batch(content: Json) -> MicroBatch:
    ends: dict[str, dict[int, int]] = {}
    for topic, offsets in content["ends"].items():
        # Keys of JSON objects are text, partitions are numbers.
        ends[topic] = {int(number): end for number, end in offsets.items()}
    queued = QueueWait(content["queued"]["ms"], tuple(content["queued"]["behind"]))
    constraints = {sink: tuple(map(Constraint.of_json, each)) for sink, each in content["constraints"].items()}
    refused = {sink: tuple(keys) for sink, keys in content["refused"].items()}
    noted = {"ends": ends, "queued": queued, "constraints": constraints, "refused": refused}
    return MicroBatch(**{**content, **noted})


def _as_json(notes: Mapping[str, MarkNotes | OperatorNotes]) -> dict[str, Any]:
    return {name: asdict(item) for name, item in notes.items()}
