"""Defines the notes of a journal entry: all that is not rows.

`to_json` and `from_json` define their JSON in a file of the journal. A key that an older version did not write is read
as its default, and is not added. Unknown keys, which a newer version wrote, are ignored, except those in the progress:
a progress with unknown keys cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from tidemark.collecting import omit
from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.schema_watch import fields_from_json, fields_to_json
from tidemark.stream.journal.batch import MicroBatch, QueueWait
from tidemark.stream.journal.state_runs import StateRuns, states_from_json, states_to_json
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.journal.task_run import TaskRun

T = TypeVar("T")

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
        lost = content.get("lost")
        tuples = {"lost": lost and (lost[0], lost[1]), "traces": tuple(content.get("traces", ()))}
        reading = PartitionReading(**{**_fields_in(PartitionReading, content), **tuples})
        return cls(source=content["source"], partition=content["partition"], seen=reading)


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
        states: the files with the state of each shard. None: the entry names none, or in another format.
        tasks: the work of each task. None: the stream is not in shards.
    """

    batch: MicroBatch
    progress: StreamProgress
    was: StreamProgress
    marks: Mapping[str, MarkNotes] = field(default_factory=dict)
    closed: Sequence[ClosedWindow] = ()
    sources: Sequence[PartitionNotes] = ()
    operators: Mapping[str, OperatorNotes] = field(default_factory=dict)
    states: tuple[StateRuns, ...] | None = None
    tasks: tuple[TaskRun, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the notes as a JSON object."""
        content: dict[str, Any] = {
            "marks": _as_json(self.marks),
            "batch": omit(asdict(self.batch), ["files"]),  # they are in the progress
            "progress": self.progress.to_json(),
            "was": self.was.to_json(),
            "closed": [*map(asdict, self.closed)],
            "sources": [part.to_json() for part in self.sources],
            "operators": _as_json(self.operators),
        }
        if self.progress.fields:
            content["fields"] = fields_to_json(self.progress.fields)
        if self.states is not None:
            content["state"] = states_to_json(self.states)
        if self.tasks is not None:
            content["tasks"] = [*map(asdict, self.tasks)]
        return content

    @classmethod
    def from_json(cls, content: Json) -> DecisionNotes:
        """Returns the notes that `to_json` wrote, from parsed JSON."""
        was, tasks = content.get("was"), content.get("tasks")
        closed = [ClosedWindow(window["start_ms"], window["records"]) for window in content.get("closed", ())]
        return cls(
            batch=_batch(content["batch"]),
            progress=_progress(content),
            was=StreamProgress() if was is None else StreamProgress.from_json(was),
            marks=_parsed_by_name(MarkNotes, content.get("marks", {})),
            closed=tuple(closed),
            sources=tuple(map(PartitionNotes.from_json, content.get("sources", ()))),
            operators=_parsed_by_name(OperatorNotes, content.get("operators", {})),
            states=states_from_json(content.get("state")),
            tasks=None if tasks is None else tuple(_parsed(TaskRun, run) for run in tasks),
        )


@dataclass(frozen=True, kw_only=True)
class FactsNotes:
    """Notes about the measurements in an entry.

    Attributes:
        batch_id: the batch that was measured. None: the entry has no measurements.
        flushed: the newest batch of which all tables have the facts; -1: none.
        newest_batches: the newest batch with a commit, by table. None: an older version wrote the entry.
    """

    batch_id: int | None
    flushed: int
    newest_batches: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the notes as a JSON object."""
        content: dict[str, Any] = {"batch_id": self.batch_id, "flushed": self.flushed}
        return content if self.newest_batches is None else {**content, "newest_batches": dict(self.newest_batches)}

    @classmethod
    def from_json(cls, content: Json) -> FactsNotes:
        """Returns the notes that `to_json` wrote, from parsed JSON."""
        return cls(
            batch_id=content.get("batch_id"),
            flushed=content["flushed"],
            newest_batches=content.get("newest_batches"),
        )


@dataclass(frozen=True, kw_only=True)
class EntryNotes:
    """Notes of a journal entry.

    Attributes:
        decided: notes of the decided batch, or their JSON. Empty in a file of facts.
        facts: notes about the measurements in the entry. None: a file of facts, or an entry of an older version, which
            flushed each batch at once.
        newest_batches: in a file of facts: the newest batch of each table after the flush.
        is_whole: in a file of facts: True if the flush has all tables. None: an older version, whose flushes had all.
    """

    decided: DecisionNotes | Json = field(default_factory=dict)
    facts: FactsNotes | None = None
    newest_batches: Mapping[str, int] | None = None
    is_whole: bool | None = None

    # Each is parsed at its first use: to parse all costs as much as to read the entry, and reports of an older version
    # read facts beside the progress of a newer one.
    @cached_property
    def decision(self) -> DecisionNotes:
        """Returns the notes of the decided batch."""
        return self.decided if isinstance(self.decided, DecisionNotes) else DecisionNotes.from_json(self.decided)

    @cached_property
    def progress(self) -> StreamProgress:
        """Returns `decision.progress` without parsing the other notes."""
        noted = self.decided
        return noted.progress if isinstance(noted, DecisionNotes) else _progress(noted)

    @cached_property
    def states(self) -> tuple[StateRuns, ...] | None:
        """Returns `decision.states` without parsing the other notes."""
        noted = self.decided
        return noted.states if isinstance(noted, DecisionNotes) else states_from_json(noted.get("state"))

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
            "facts": None if self.facts is None else self.facts.to_json(),
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
            facts=None if facts is None else FactsNotes.from_json(facts),
            newest_batches=content.get("newest_batches"),
            is_whole=content.get("is_whole"),
        )


_BESIDE_DECIDED = frozenset({"facts", "newest_batches", "is_whole"})
"""Keys of an entry's notes that are not of the decided batch."""


def _progress(content: Json) -> StreamProgress:
    """Returns the progress after a batch, from its notes in JSON."""
    return replace(StreamProgress.from_json(content["progress"]), fields=fields_from_json(content.get("fields", {})))


def _batch(content: Json) -> MicroBatch:
    wait = content.get("queued", {})
    ends: dict[str, dict[int, int]] = {}
    for topic, offsets in content.get("ends", {}).items():
        # Keys of JSON objects are text, partitions are numbers.
        ends[topic] = {int(number): end for number, end in offsets.items()}
    queued = QueueWait(wait.get("ms", 0), tuple(wait.get("behind", ())))
    return MicroBatch(**{**_fields_in(MicroBatch, content), "ends": ends, "queued": queued})


def _fields_in(cls: type[Any], content: Json) -> dict[str, Any]:
    """Returns the items of *content* that are fields of *cls*."""
    return {item.name: content[item.name] for item in fields(cls) if item.name in content}


def _parsed(cls: type[T], content: Json) -> T:
    """Returns *content* as a *cls*, without keys that it does not know."""
    return cls(**_fields_in(cls, content))


def _parsed_by_name(cls: type[T], content: Json) -> dict[str, T]:
    return {name: _parsed(cls, item) for name, item in content.items()}


def _as_json(notes: Mapping[str, MarkNotes | OperatorNotes]) -> dict[str, Any]:
    return {name: asdict(item) for name, item in notes.items()}
