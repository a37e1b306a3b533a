"""What a stream asks of its broker beside Spark's reading; `kafka.py` answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from tidemark.kernels.limits import Limits
from tidemark.spec.operators import Sink, Source


@dataclass(frozen=True)
class Refused:
    """A record that its topic did not take: its place among the rows that were to be sent, and what was said."""

    row: int
    error: str


class Answers(Protocol):
    """Partitions and offsets to decide idleness by, and what topics take."""

    def partitions(self, at: Source | Sink) -> int:
        """How many partitions the topic of *at* has."""

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* of the topic of *source* the earliest offset and the one after its newest record."""

    def limits(self, sink: Sink) -> Limits:
        """What the topic of *sink* takes, as far as the broker tells; asked again from time to time."""


class Broker(Answers, Protocol):
    """What is asked, and takes records for topics."""

    def mark(self, sink: Sink, watermark_ms: int | None, *, idle: bool) -> None:
        """Send a mark of time to each partition of the topic of *sink*, behind all that was published."""

    def publish(self, sink: Sink, rows: pl.DataFrame, *, batch_id: int, epoch: int) -> list[Refused]:
        """Send *rows* to the topic of *sink* and return once the broker has all of them but those that it refused."""
