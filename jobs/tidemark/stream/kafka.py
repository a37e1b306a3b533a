"""The broker beside Spark's own reading: partitions and offsets to decide idleness by, and records for topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidemark.errors import TidemarkError
from tidemark.kernels.values import value_text

TIMEOUT_S = 10.0


class PublishError(TidemarkError):
    """Raised when the broker did not take a record; the batch is run again and sends it again."""


class KafkaBroker:
    """The broker at *bootstrap*, for the stream *sub_topology*.

    Records are published at least once: a batch that is run again sends them again. Each has the header `tidemark-id`,
    `<sub-topology>/<epoch>/<batch>/<sequence>`; sub-topology, batch and sequence name it, so that a consumer can drop
    repeats.
    """

    def __init__(self, bootstrap: str, sub_topology: str) -> None:
        # The group is never joined: this client only asks for metadata and offsets.
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tidemark-offsets"})
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._sub_topology = sub_topology

    def partitions(self, topic: str) -> int:
        """How many partitions *topic* has; raises TidemarkError when there is no such topic."""
        found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:
            msg = f"topic {topic!r}: {found.error.str()}; create it before the stream starts"
            raise TidemarkError(msg)
        return len(found.partitions)

    def offsets(self, topic: str, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* the earliest offset and the one after its newest record."""
        return {
            number: self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S, cached=False)
            for number in partitions
        }

    def publish(self, topic: str, rows: pl.DataFrame, *, batch_id: int, epoch: int) -> None:
        """Send *rows*, their payload as JSON, and return when the broker has all of them; raises PublishError."""
        failed: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())

        payload = [name for name in rows.columns if not name.startswith("_")]
        records = rows.select("_key", "_timestamp_ms", _value=value_text(payload, rows.schema))
        for sequence, (key, timestamp_ms, value) in enumerate(records.iter_rows()):
            headers: list[tuple[str, str | bytes | None]] = [
                ("tidemark-id", f"{self._sub_topology}/{epoch}/{batch_id}/{sequence}")
            ]
            self._producer.produce(topic, value, key, timestamp=timestamp_ms, headers=headers, on_delivery=delivered)
            self._producer.poll(0)
        unsent = self._producer.flush(TIMEOUT_S)
        if failed or unsent:
            msg = f"topic {topic!r} took all but {len(failed) + unsent} of {rows.height} records: {failed[:1]}"
            raise PublishError(msg)
