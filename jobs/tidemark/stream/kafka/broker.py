"""Defines the protocols of a broker: questions, and records to send.

Spark reads topics by itself. `client.py` and `publishing.py` implement the protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from tidemark.kernels.records.limits import Limits
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.stream.kafka.outgoing import OutgoingRows


@dataclass(frozen=True)
class RefusedRecord:
    """A record that its topic refused.

    `row` is its place among the rows to send, `error` the broker's words.
    """

    row: int
    error: str


class Answers(Protocol):
    """Knows partitions and offsets, by which idleness is decided, and limits."""

    def partitions(self, at: Source | Sink) -> int:
        """Returns the number of partitions of the topic of *at*."""

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the earliest and latest offset of each of *partitions*.

        They are partitions of the topic of *source*. The latest is the offset after the newest record.
        """

    def limits(self, sink: Sink) -> Limits:
        """Returns the limits of the topic of *sink* that the broker knows.

        The broker is asked again from time to time.
        """


class TopicWriter(Protocol):
    """Sends the records of a sink in tasks. It can be pickled."""

    @property
    def tasks(self) -> int:
        """The number of tasks.

        Each sends all records of some partitions, in order.
        """

    def __call__(self, task: int) -> list[pl.DataFrame]:
        """Sends the records of *task*.

        Returns:
            Rows of `undeliverable` for the records that the topic refused.
        """


class Publishers(Protocol):
    """Runs the tasks of a TopicWriter."""

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        """Runs all tasks of *publishing* and returns their results.

        No task runs more than once at a time.
        """


class TopicBroker(Answers, Protocol):
    """Answers questions, and takes records for topics."""

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        """Sends a mark of time to each partition of *sink*'s topic.

        It comes after all records published so far.
        """

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        """Sends *outgoing* from this process until the broker has it.

        Returns:
            Rows of `undeliverable` for the records that the topic refused.
        """

    def publishing(self, outgoing: OutgoingRows) -> TopicWriter:
        """Returns a callable that sends *outgoing* in tasks."""
