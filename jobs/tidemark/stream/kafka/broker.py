"""Defines what a stream asks of a broker, and how it sends records; Spark reads the topics by itself.

`client.py` and `publishing.py` implement these protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from tidemark.kernels.records.limits import TopicLimits
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.stream.kafka.outgoing import OutgoingRows


@dataclass(frozen=True)
class RefusedRecord:
    """A record that its topic refused: its index among the rows to send, and the broker's words."""

    row: int
    error: str


@dataclass(frozen=True)
class TopicState:
    """A topic as it is now: its id, and the number of its partitions.

    A recreated topic has another id. Some clusters give their topics no id; then `id` is None.
    """

    id: str | None
    partitions: int

    def id_of(self, number: int) -> str | None:
        """Returns the id of the topic of partition *number*."""
        return self.id

    def has(self, number: int) -> bool:
        """Returns True if partition *number* exists."""
        return number < self.partitions

    def replaces(self, number: int, topic_id: str | None) -> bool:
        """Returns True if partition *number*, which was read in the topic *topic_id*, is one of another topic now."""
        return None not in {topic_id, self.id_of(number)} and topic_id != self.id_of(number)

    def numbers(self, read: Mapping[int, str | None]) -> list[int]:
        """Returns the partitions of the topic, and those that were *read* in it, by the topic id of each.

        A recreated topic may have fewer partitions than were read.
        """
        of_this = (number for number, topic_id in read.items() if not self.replaces(number, topic_id))
        return sorted({*range(self.partitions), *of_this})


@dataclass(frozen=True)
class SeveralTopics(TopicState):
    """The topics of a source over several, as they are now.

    *ids* has the topic id of each input partition that exists. `partitions` also counts those of deleted topics.
    """

    ids: Mapping[int, str | None] = field(default_factory=dict)

    def id_of(self, number: int) -> str | None:
        """Returns the id of the topic of input partition *number*."""
        return self.ids.get(number)

    def has(self, number: int) -> bool:
        """Returns True if the topic of input partition *number* exists."""
        return number in self.ids

    def numbers(self, read: Mapping[int, str | None]) -> list[int]:
        """Returns the input partitions that exist."""
        return sorted(self.ids)


class Answers(Protocol):
    """Answers questions about topics: their partitions, their offsets, which decide idleness, and their limits."""

    def topic(self, source: Source) -> TopicState:
        """Returns the topic of *source* as it is now, or the topics of a source over several."""

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the earliest and latest offset of each of *partitions*, by input partition of *source*.

        The latest is the offset after the newest record that may be read: records of an open transaction, and what
        follows them, may not.
        """

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the last stable offset of those of *partitions* that have an open transaction behind it."""

    def limits(self, sink: Sink) -> TopicLimits:
        """Returns the limits of the topic of *sink*; the broker is asked for them from time to time."""


class TopicWriter(Protocol):
    """Sends the records of a sink in tasks. It can be pickled."""

    @property
    def tasks(self) -> int:
        """The number of tasks; each sends all records of some partitions, in order."""

    def __call__(self, task: int) -> list[pl.DataFrame]:
        """Sends the records of *task*.

        Returns:
            Rows of `dead_letters` for the records that the topic refused.
        """


class Publishers(Protocol):
    """Runs the tasks of a TopicWriter."""

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        """Runs each task of *publishing*, never twice at the same time, and returns their results."""


class TopicBroker(Answers, Protocol):
    """Answers questions about topics, and sends records and marks to them."""

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        """Sends a mark of time to each partition of *sink*'s topic, behind all records published so far."""

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        """Sends *outgoing* from this process until the broker has it.

        Returns:
            Rows of `dead_letters` for the records that the topic refused.
        """

    def publishing(self, outgoing: OutgoingRows) -> TopicWriter:
        """Returns a callable that sends *outgoing* in tasks."""
