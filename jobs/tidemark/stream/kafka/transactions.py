"""Notices transactions that stay open in the topics of a stream.

Purpose: consumers read nothing from the first record of an open transaction on. So a producer that hangs stops a
partition until its transaction times out. If the coordinator does not know of the transaction, the partition stops for
ever (KIP-664).
How it works: a look asks the brokers for the last stable offset and the end of each partition. If two looks find the
same last stable offset and records after it, the same transaction was open all the time between them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from confluent_kafka import KafkaException

from tidemark.clock import Clock
from tidemark.errors import TidemarkError
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import utc
from tidemark.semantics.open_transactions import OpenTransaction

log = logging.getLogger("tidemark.stream")


class AskedBroker(Protocol):
    """Knows open transactions."""

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the last stable offset of those of *partitions* that have an open transaction behind it."""


def row_of(transaction: OpenTransaction) -> dict[str, object]:
    """Returns the row of *transaction* in `heartbeats.open_transactions`."""
    return {
        "source": transaction.source,
        "partition": transaction.partition,
        "topic_partition": str(transaction.topic_partition),
        "stable_offset": transaction.stable_offset,
        "found_at": utc(transaction.since_ms),
    }


class TransactionWatch:
    """Looks for transactions that stay open.

    `open` has those that the newest look and at least one before it have found.

    Args:
        broker: answers a look.
        read: returns the sources of the stream, each with its input partitions.
        clock: epoch ms UTC.
    """

    def __init__(
        self, broker: AskedBroker, read: Callable[[], Iterable[tuple[Source, Sequence[int]]]], clock: Clock
    ) -> None:
        self._broker, self._read, self._clock = broker, read, clock
        self._seen: dict[tuple[str, int], OpenTransaction] = {}
        self.open: tuple[OpenTransaction, ...] = ()

    def look(self) -> None:
        """Asks the brokers; a failure is logged, and leaves what is known as it is."""
        now_ms = self._clock()
        seen: dict[tuple[str, int], OpenTransaction] = {}
        try:
            for source, partitions in self._read():
                for number, offset in self._broker.open_transactions(source, partitions).items():
                    before = self._seen.get((source.name, number))
                    if before is None or before.stable_offset != offset:
                        before = OpenTransaction(
                            source=source.name,
                            partition=number,
                            topic_partition=source.topic_partition(number),
                            stable_offset=offset,
                            since_ms=now_ms,
                        )
                    seen[source.name, number] = before
        except (KafkaException, TidemarkError) as error:
            log.info("cannot look for open transactions: %s", error)
            return
        self._seen = seen
        self.open = tuple(each for each in seen.values() if each.since_ms < now_ms)
