"""A broker in memory, which keeps the records that are published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakValueDictionary

import polars as pl

from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.records.partitioners import partitions_of
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.semantics.progress import TopicPartition
from tidemark.storage.files import frames
from tidemark.stream.kafka.broker import RefusedRecord, SeveralTopics, TopicState
from tidemark.stream.kafka.encoding import to_send
from tidemark.stream.kafka.limits import undeliverable_rows
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.testing.topics import TopicsInMemory

Row = dict[str, Any]


class Silence(TopicsInMemory):
    """A broker that ends where it was read and remembers publications.

    *places* has the partition that each input partition of a source over several topics is; topics in *gone* were
    deleted. *open* has the last stable offsets of partitions with an open transaction.
    """

    def __init__(self, partitions: int | Mapping[str, int] = 1) -> None:
        super().__init__({})
        self.partitions: int | Mapping[str, int] = partitions  # type: ignore[assignment]
        self.topic_ids: dict[str, str] = {}
        self.places: tuple[TopicPartition, ...] = ()
        self.gone: set[str] = set()
        self.open: dict[int, int] = {}
        self.published: list[tuple[str, Row]] = []
        self.sent_by_tasks: list[OutgoingRows] = []
        self.earliest = 0
        self.earliest_of: dict[int, int] = {}
        self.marked: list[tuple[str, int | None, bool]] = []
        self.topic_limits: dict[str, TopicLimits] = {}
        self.refuses: Callable[[Row], bool] = lambda row: False

    def copy(self) -> Self:
        """Returns an independent copy."""
        other = object.__new__(type(self))
        other.__dict__ |= deepcopy(self.__dict__)
        return other

    def topic(self, source: Source) -> TopicState:
        name = source.topic or ""
        if source.reads_several:
            existing = {n: place for n, place in enumerate(source.topic_partitions) if place.topic not in self.gone}
            ids = {number: self.topic_ids.get(place.topic) for number, place in existing.items()}
            return SeveralTopics(None, len(source.topic_partitions), ids)
        partitions = self.partitions if isinstance(self.partitions, int) else self.partitions[name]
        return TopicState(self.topic_ids.get(name), partitions)

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        first = {number: self.earliest_of.get(number, self.earliest) for number in partitions}
        return {number: (first[number], self._ends[source.topic or "", number]) for number in partitions}

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        return {number: offset for number, offset in self.open.items() if number in partitions}

    def read_to(self) -> dict[str, dict[int, int]]:
        """Where each partition ends, by topic."""
        ends: dict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), end in self._ends.items():
            place = self.places[number] if self.places else TopicPartition(topic, number)
            if place.topic not in self.gone:
                ends[place.topic][place.partition] = end
        return ends

    def forget(self, topic: str) -> None:
        """Have *topic* recreated: it is empty."""
        for place in [place for place in self._ends if place[0] == topic]:
            del self._ends[place]

    def limits(self, sink: Sink) -> TopicLimits:
        """Returns `topic_limits`; without them a topic accepts everything."""
        return self.topic_limits.get(sink.topic or "", TopicLimits())

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        self.marked.append((sink.topic or "", watermark_ms, idle))

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        return Remembering(self, outgoing, tasks=1)(0)

    def publishing(self, outgoing: OutgoingRows) -> Remembering:
        self.sent_by_tasks.append(outgoing)
        return Remembering(self, outgoing, tasks=outgoing.tasks)

    def __reduce__(self) -> tuple[Callable[[int], Silence], tuple[int]]:
        """Returns the broker in place of another process's client."""
        _BROKERS[id(self)] = self
        return _broker, (id(self),)


_BROKERS: WeakValueDictionary[int, Silence] = WeakValueDictionary()


def _broker(number: int) -> Silence:
    return _BROKERS[number]


@dataclass(frozen=True)
class Remembering:
    """Makes *broker* remember what *tasks* send; each has some keys."""

    broker: Silence
    outgoing: OutgoingRows
    tasks: int

    def __call__(self, task: int) -> list[pl.DataFrame]:
        sink, undeliverable = self.outgoing.sink, []
        for rows in frames(self.outgoing.rows):
            own = rows.filter(partitions_of(rows["_key"], range(rows.height), self.tasks, sink.partitioner) == task)
            _, refused = to_send(sink, own)
            refused += [
                RefusedRecord(number, "refused")
                for number, row in enumerate(own.to_dicts())
                if self.broker.refuses(row)
            ]
            places = {place.row for place in refused}
            self.broker.published += [(sink.topic or "", r) for n, r in enumerate(own.to_dicts()) if n not in places]
            undeliverable += [undeliverable_rows(sink, own, refused)] if refused else []
        return undeliverable


class Ends(Silence):
    """A broker whose partitions may have unread records: up to these offsets.

    They are those of a partition of every topic, or of `ends_of` one topic.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.ends: dict[int, int] = {}
        self.ends_of: dict[tuple[str | None, int], int] = {}

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        offsets = super().offsets(source, partitions)
        unread = {number: self.ends_of.get((source.topic, number), self.ends.get(number, 0)) for number in offsets}
        return {number: (0, max(end, unread[number])) for number, (_, end) in offsets.items()}
