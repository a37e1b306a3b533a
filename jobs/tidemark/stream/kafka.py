"""The broker beside Spark's own reading: partitions and offsets to decide idleness by, and records for topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tidemark.clock import Clock
from tidemark.errors import TidemarkError
from tidemark.kernels.headers import headers_to_send
from tidemark.spec.operators import Sink
from tidemark.stream.encoding import values_to_send

TIMEOUT_S = 10.0


class PublishError(TidemarkError):
    """Raised when the broker did not take a record; the batch is run again and sends it again."""


class KafkaBroker:
    """The broker at *bootstrap*, for one stream of *topology*.

    Records are published at least once: a batch that is run again sends them again, with the same batch and sequence
    in their header `tidemark-id` (kernels/headers.py), by which readers drop them. *clock* (epoch ms) tells when they
    were sent on.
    """

    def __init__(self, bootstrap: str, topology: str, sub_topology: str, clock: Clock) -> None:
        # The group is never joined: this client only asks for metadata and offsets.
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tidemark-offsets"})
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._topology, self._writer, self._clock = topology, f"{topology}/{sub_topology}", clock
        self._sent: dict[tuple[str, int], int] = {}

    def partitions(self, topic: str) -> int:
        """How many partitions *topic* has; raises TidemarkError when there is no such topic."""
        found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:
            msg = f"topic {topic!r}: {found.error.str()}; create it before the stream starts"
            raise TidemarkError(msg)
        return len(found.partitions)

    def offsets(self, topic: str, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* the earliest offset and the one after its newest record."""
        specs = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        earliest, latest = (self._listed(topic, partitions, spec) for spec in specs)
        return {number: (earliest[number], latest[number]) for number in partitions}

    def _listed(self, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        """The offset of each of *partitions* by *spec*: one request for all of them."""
        places = {TopicPartition(topic, number): spec for number in partitions}
        answers = self._admin.list_offsets(places, request_timeout=TIMEOUT_S)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def publish(self, sink: Sink, rows: pl.DataFrame, *, batch_id: int, epoch: int) -> None:
        """Send *rows* to the topic of *sink* and return when the broker has all of them; raises PublishError.

        A row that deletes its key has no value.
        """
        failed: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())

        topic = sink.topic or ""
        # Two sinks with one topic count on, or the records of the second would look like repeats of the first.
        first = self._sent.get((topic, batch_id), 0)
        hop = f"{self._topology}/{sink.name}:{self._clock()}"
        partitions = self.partitions(topic) if rows["_key"].null_count() or (rows["_key"] == "").any() else 1
        records = zip(
            rows.select("_key", "_timestamp_ms", "_headers").iter_rows(), values_to_send(sink, rows), strict=True
        )
        for sequence, ((key, timestamp_ms, received), value) in enumerate(records, first):
            id_ = f"{self._writer}/{epoch}/{batch_id}/{sequence}"
            headers = headers_to_send(received, id_=id_, hop=hop)
            # Without a key a partition is drawn by lot, and a record that is sent again would be no repeat there.
            where = -1 if key else sequence % partitions
            self._producer.produce(
                topic, value, key, where, timestamp=timestamp_ms, headers=headers, on_delivery=delivered
            )
            self._producer.poll(0)
        self._sent = {place: n for place, n in self._sent.items() if place[1] == batch_id and place[0] != topic}
        self._sent[topic, batch_id] = first + rows.height
        unsent = self._producer.flush(TIMEOUT_S)
        if failed or unsent:
            msg = f"topic {topic!r} took all but {len(failed) + unsent} of {rows.height} records: {failed[:1]}"
            raise PublishError(msg)
