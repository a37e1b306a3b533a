"""What a stream asks of its broker beside Spark's reading; `kafka.py` answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import polars as pl

from tidemark.spec.operators import Sink


class Broker(Protocol):
    """Partitions and offsets to decide idleness by, and records for topics."""

    def partitions(self, topic: str) -> int:
        """How many partitions *topic* has."""

    def offsets(self, topic: str, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* the earliest offset and the one after its newest record."""

    def publish(self, sink: Sink, rows: pl.DataFrame, *, batch_id: int, epoch: int) -> None:
        """Send *rows* to the topic of *sink* and return once the broker has all of them."""
