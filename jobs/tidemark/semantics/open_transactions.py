"""Transactions of producers that stay open, and hold back streams that read their topics."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.semantics.progress import TopicPartition


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that the stream found open when it last looked at its topics.

    Attributes:
        source: the source that waits for its end.
        partition: the input partition.
        topic_partition: the same partition by its topic and Kafka's number.
        stable_offset: the partition's last stable offset, which is the offset of the transaction's first record.
        since_ms: when the stream first found it open, epoch ms.
    """

    source: str
    partition: int
    topic_partition: TopicPartition
    stable_offset: int
    since_ms: int
