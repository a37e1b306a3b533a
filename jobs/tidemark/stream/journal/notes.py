"""The notes of a journal entry: all that is not rows.

The classes here are the form of the file: msgspec writes them as JSON, with the names of their fields, and reads them
again. `unzip -p <batch>.data.zip notes.json` shows the notes of an entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tidemark.semantics.event_time import PartitionReading
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.segments import Segment
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.journal.streaming_windows import ClosedWindow
from tidemark.stream.journal.task_run import TaskRun

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MarkNotes:
    """The mark of time that a sink sends with the batch: it tells readers how far the stream has come."""

    watermark_ms: int | None
    idle: bool = False


@dataclass(frozen=True, kw_only=True)
class PartitionNotes:
    """The records of a source's partition that the batch read."""

    source: str
    partition: int
    seen: PartitionReading


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
        marks: by sink, the mark of time that it sends.
        closed: the streaming windows that the batch closes.
        sources: the partitions that the batch read.
        operators: clocks and counts by operator.
        dropped: by name, how many updates waited at sources and operators that were removed or begun anew since.
        states: the files with the state of each shard. Empty until the batch is written down.
        tasks: the work of each task, or None if the stream does not run in shards.
        segments: what the driver did since the entry before. Empty until the batch is written down.
    """

    batch: MicroBatch
    progress: StreamProgress
    was: StreamProgress
    marks: Mapping[str, MarkNotes] = field(default_factory=dict)
    closed: tuple[ClosedWindow, ...] = ()
    sources: tuple[PartitionNotes, ...] = ()
    operators: Mapping[str, OperatorNotes] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    states: tuple[StateRuns, ...] = ()
    tasks: tuple[TaskRun, ...] | None = None
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgedNotes:
    """Notes of a batch that `tidemark.api` judged in shards.

    Attributes:
        digest: identifies the rows of the batch.
        counts: its updates by outcome.
        states: the files with the state of each shard.
    """

    digest: str
    counts: Mapping[str, int]
    states: tuple[StateRuns, ...]


@dataclass(frozen=True, kw_only=True)
class FactsNotes:
    """Notes about the measurements in an entry.

    Attributes:
        batch_id: the batch that was measured, or None if the entry has no measurements.
        flushed: the newest batch of which all tables have the facts, or -1 if there is none.
        newest_batches: the newest batch with a commit, by table.
    """

    batch_id: int | None
    flushed: int
    newest_batches: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class EntryNotes:
    """Notes of a journal entry.

    Attributes:
        decided: notes of the batch that a driver decided, or their JSON; None in a file of facts.
        judged: in an entry of `tidemark.api`: notes of the batch that it judged.
        facts: in an entry of a driver: notes about the measurements in the entry.
        newest_batches: in a file of facts: the newest batch of each table after the flush.
        is_whole: in a file of facts: True if the flush has all tables.
    """

    decided: DecisionNotes | msgspec.Raw | None = None
    judged: JudgedNotes | None = None
    facts: FactsNotes | None = None
    newest_batches: Mapping[str, int] | None = None
    is_whole: bool | None = None

    @classmethod
    def of(cls, content: bytes) -> EntryNotes:
        """Reads the notes from JSON.

        Raises:
            msgspec.MsgspecError: *content* is not the JSON of notes.
        """
        written = _WRITTEN.decode(content)
        return cls(
            decided=None if written.decided is UNSET else written.decided,
            judged=written.judged,
            facts=written.facts,
            newest_batches=written.newest_batches,
            is_whole=written.is_whole,
        )

    @property
    def content(self) -> bytes:
        """The notes as JSON."""
        return as_json(
            _Written(
                decided=UNSET if self.decided is None else msgspec.Raw(as_json(self.decided)),
                judged=self.judged,
                facts=self.facts,
                newest_batches=self.newest_batches,
                is_whole=self.is_whole,
            )
        )

    # The three below are parsed when they are first used: many entries are read for their facts alone.
    @cached_property
    def decision(self) -> DecisionNotes:
        """Returns the notes of the decided batch."""
        return self._decided(DecisionNotes)

    @cached_property
    def progress(self) -> StreamProgress:
        """Returns `decision.progress` without parsing the other notes."""
        return self._decided(_Progress).progress

    @cached_property
    def states(self) -> tuple[StateRuns, ...]:
        """Returns the states of the batch without parsing the other notes."""
        return self._decided(_States).states if self.judged is None else self.judged.states

    @property
    def judgement(self) -> JudgedNotes:
        """Returns the notes of the batch that `tidemark.api` judged."""
        assert self.judged is not None
        return self.judged

    def held(self, name: str) -> int:
        """Returns how many updates of an operator, or records of a source, with this *name* wait after the batch."""
        return sum(runs.held.get(name, 0) for runs in self.states)

    @property
    def is_last(self) -> bool:
        """False if other parts of the planned batch follow."""
        return self.decision.batch.is_last

    def with_states(self, states: Sequence[StateRuns], tasks: Sequence[TaskRun] | None = None) -> EntryNotes:
        """Returns the notes with the *states* of all shards, and the work of its *tasks* if the stream has shards."""
        runs = None if tasks is None else tuple(tasks)
        return replace(self, decided=replace(self.decision, states=tuple(states), tasks=runs))

    def with_segments(self, segments: Sequence[Segment]) -> EntryNotes:
        """Returns the notes with what the driver did since the entry before."""
        return replace(self, decided=replace(self.decision, segments=tuple(segments)))

    def _decided(self, kind: type[T]) -> T | DecisionNotes:
        """Returns the notes of the decided batch, of which only the fields of *kind* are parsed if none are yet."""
        assert self.decided is not None
        return self.decided if isinstance(self.decided, DecisionNotes) else msgspec.json.decode(self.decided, type=kind)


@dataclass(frozen=True)
class _Progress:
    progress: StreamProgress


@dataclass(frozen=True)
class _States:
    states: tuple[StateRuns, ...]


class _Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The notes of an entry as its file has them."""

    decided: msgspec.Raw | UnsetType = UNSET
    judged: JudgedNotes | None = None
    facts: FactsNotes | None = None
    newest_batches: Mapping[str, int] | None = None
    is_whole: bool | None = None


_WRITTEN = msgspec.json.Decoder(_Written)


def as_json(notes: object) -> bytes:
    """Returns *notes*, or the value of one of their fields, as JSON."""
    return msgspec.json.encode(notes, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, MappingProxyType):
        return dict(value)
    msg = f"{type(value)} is no type of notes"
    raise NotImplementedError(msg)
