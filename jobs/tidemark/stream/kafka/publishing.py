"""Sends a sink's records of a batch to a Kafka topic, from the driver or from tasks that share the partitions.

Purpose: a record gets the same id, in the same partition and order, however often and from whichever process it is
sent.
How it works: the number in an id follows from the journal entry (`outgoing.py`), the partition from the key. Within a
partition the numbers ascend. When Spark repeats a task, or the next driver the batch, readers therefore drop what they
have read: its numbers are not above the highest one that they know (kernels/records/headers.py).
Known limitation: if the topic gets more partitions between two tries, records arrive again in other partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemark.errors import TidemarkError
from tidemark.kernels.records.headers import headers_to_send
from tidemark.kernels.records.partitioners import partitions_of
from tidemark.model.project.connections import Cluster
from tidemark.model.project.kafka_security import ClientSettings
from tidemark.model.project.rights import Operation
from tidemark.storage.files import frames
from tidemark.stream.kafka.access import Refusals, missing_right_of
from tidemark.stream.kafka.broker import RefusedRecord
from tidemark.stream.kafka.encoding import to_send
from tidemark.stream.kafka.limits import undeliverable_rows
from tidemark.stream.kafka.outgoing import OutgoingRows

TIMEOUT_S = 10.0
OF_A_RECORD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        # librdkafka's code for a record that was refused because of another one in its batch.
        KafkaError._INVALID_DIFFERENT_RECORD,
    }
)
"""Errors for which a broker refuses a record, and with it all records that were sent together with it."""


class PublishError(TidemarkError):
    """Raised when the broker did not accept a record; the batch is run again and sends it again."""


@dataclass(frozen=True, kw_only=True)
class KafkaTopicWriter:
    """Sends *outgoing* to its topic.

    Args:
        outgoing: the records.
        partitions: the number of partitions of the topic.
        tasks: how many tasks share the records; no more than there are partitions.
        cluster: the topic's cluster; a task gets it without secrets.
        client: the settings of a producer. They have secrets, which Spark sends to executors with the task.
        writer: `topology/sub-topology`, with which ids begin.
        hop: the header `tidemark-hop`, with the driver's clock before it sends.
        traceparent: the header of the batch, or None if records keep theirs.
    """

    outgoing: OutgoingRows
    partitions: int
    tasks: int
    cluster: Cluster
    client: ClientSettings = field(repr=False)
    writer: str
    hop: str
    traceparent: str | None = None

    def __call__(self, task: int) -> list[pl.DataFrame]:
        """Sends the records of *task*; returns those that the topic refused, as rows of `dead_letters`."""
        refusals = Refusals()
        # The client is new: one that a failed task has left may still send.
        producer = Producer({**self.client, "error_cb": refusals})
        return self.send(producer, range(task, self.partitions, self.tasks), refusals)

    def send(self, producer: Producer, to: Collection[int], refusals: Refusals) -> list[pl.DataFrame]:
        """Sends the records of the partitions *to*; the *producer* has *refusals* as its `error_cb`.

        A broker that refuses a record refuses those that were sent together with it, too. All of them are sent again,
        one by one, after all the rest.

        Returns:
            Once the broker has answered, rows of `dead_letters` with the records that do not fit the sink's schema, and
            those that the topic refuses for their size or time. A row that deletes its key has no value.

        Raises:
            LoginDenied: the cluster refuses the login.
            PublishError: the broker failed in another way.
        """
        sink = self.outgoing.sink
        sending = RecordSender(producer, sink.topic or "", self.cluster, refusals)
        undeliverable, again = [], []
        for rows in self._rows(to):
            values, misfits = to_send(sink, rows)
            if misfits:
                undeliverable.append(undeliverable_rows(sink, rows, misfits))
            if refused := self._refused(sending, rows, values):
                again.append(rows[sorted(refused)])
        for rows in again:
            # Later records have arrived: with their first numbers readers would take these for repeats.
            numbered = rows.with_columns(pl.col("_number") + self.outgoing.rows.num_rows)
            # A broker refuses all records that were sent together with a bad one, so each is sent alone.
            for row in numbered.iter_slices(1):
                if refused := self._refused(sending, row, to_send(sink, row)[0]):
                    undeliverable.append(
                        undeliverable_rows(sink, row, [RefusedRecord(*each) for each in refused.items()])
                    )
        return undeliverable

    def _rows(self, to: Collection[int]) -> Iterator[pl.DataFrame]:
        """Yields the rows of the partitions *to* in order, with `_number` (in the id) and `_to` (the partition)."""
        first = self.outgoing.first
        for rows in frames(self.outgoing.rows):
            numbers = range(first, first + rows.height)
            # Left to the client, a record without a key would go to another partition when it is sent again.
            partitions = partitions_of(rows["_key"], numbers, self.partitions, self.outgoing.sink.partitioner)
            addressed = rows.with_columns(_number=pl.Series(numbers, dtype=pl.Int64), _to=partitions)
            yield addressed.filter(pl.col("_to").is_in([*to]))
            first += rows.height

    def _refused(
        self, sending: RecordSender, rows: pl.DataFrame, values: Mapping[int, bytes | str | None]
    ) -> dict[int, str]:
        """Sends those *rows* that have one of *values*, by index; returns why the topic refused some, by index."""
        batch = f"{self.writer}/{self.outgoing.epoch}/{self.outgoing.batch_id}"
        addressed = rows.select("_number", "_to", "_key", "_timestamp_ms", "_headers")
        for row, (number, partition, key, timestamp_ms, received) in enumerate(addressed.iter_rows()):
            if row in values:
                # The id is in a header, by which readers recognise repeats.
                headers = headers_to_send(received, id_=f"{batch}/{number}", hop=self.hop, traceparent=self.traceparent)
                sending.send(row, values[row], key, partition, timestamp_ms, headers)
        return sending.refused()


class RecordSender:
    """Sends records to *topic* of *cluster*; the *producer* has *refusals* as its `error_cb`."""

    def __init__(self, producer: Producer, topic: str, cluster: Cluster, refusals: Refusals) -> None:
        self._producer, self._topic, self._cluster, self._refusals = producer, topic, cluster, refusals
        self._errors: dict[int, KafkaError] = {}

    def send(
        self,
        row: int,
        value: str | bytes | None,
        key: str | None,
        partition: int,
        timestamp_ms: int,
        headers: list[tuple[str, str | bytes | None]],
    ) -> None:
        """Sends *row*, once the client's queue has room."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._errors[row] = error

        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, timestamp=timestamp_ms, headers=headers, on_delivery=delivered
                )
            except BufferError:
                # The queue empties when the broker acknowledges records.
                self._producer.poll(0.1)
                continue
            # The client itself refuses a record that is larger than its `message.max.bytes`.
            except KafkaException as error:
                self._errors[row] = error.args[0]
            # This serves the delivery callbacks.
            self._producer.poll(0)
            return

    def refused(self) -> dict[int, str]:
        """Waits for the broker's answers; returns why rows since the last call were refused, by row.

        Raises:
            LoginDenied: the cluster refuses the login.
            LoginInterrupted: the cluster ended the connection during the login.
            MissingRight: the cluster does not grant the right to write.
            PublishError: the broker did not accept other records; the client sends none of them later.
        """
        unsent = self._producer.flush(TIMEOUT_S)
        errors, self._errors = self._errors, {}
        if unsent:
            # Records left in the queue must not arrive after the batch is sent again.
            self._producer.purge()
            # Until the client has reported each record it lives, and logs in again and again.
            self._producer.flush(TIMEOUT_S)
            self._refusals.raise_for(self._cluster)
            msg = f"topic {self._topic!r}: the broker did not answer for {unsent} records; the batch is sent again"
            raise PublishError(msg)
        self._refusals.forget()
        for error in errors.values():
            if missing := missing_right_of(error.code(), self._topic, self._cluster, Operation.WRITE):
                raise missing
        if failed := [error.str() for error in errors.values() if error.code() not in OF_A_RECORD]:
            msg = f"topic {self._topic!r} rejected {len(failed)} records: {failed[:1]}; they are sent again"
            raise PublishError(msg)
        return {row: error.str() for row, error in errors.items()}
