"""Keeps the answers of brokers and table logs for a batch, so that all tasks of the batch use the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.kernels.records.limits import TopicLimits
from tidemark.kernels.records.marks import TimeMark
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.selection import in_order_of, pick
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.kafka.broker import Answers, TopicState
from tidemark.stream.kafka.numbering import with_topic_partitions
from tidemark.stream.read.table_marks import NewestMarks


@dataclass(frozen=True)
class BatchAnswers:
    """The answers, by the name of the source or sink. `offsets` are the earliest offset, and the next to write."""

    of_topics: Mapping[str, TopicState]
    of_offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    of_open_transactions: Mapping[str, Mapping[int, int]]
    of_limits: Mapping[str, TopicLimits]
    of_marks: Mapping[str, TimeMark | None]

    @classmethod
    def ask(
        cls, sub: SubTopology, was: StreamProgress, batch: MicroBatch, broker: Answers, table_marks: NewestMarks
    ) -> BatchAnswers:
        """Asks *broker* and *table_marks* about the sources and sinks of *sub*.

        Args:
            sub: The sub-topology.
            was: The progress before the batch. Partitions that it knows are asked about even if their topic has
                fewer now.
            batch: The batch, with the versions of tables that it reads.
            broker: Answers about topics.
            table_marks: Answers about tables.
        """
        topics: dict[str, TopicState] = {}
        offsets: dict[str, Mapping[int, tuple[int, int]]] = {}
        open_transactions: dict[str, Mapping[int, int]] = {}
        marks: dict[str, TimeMark | None] = {}
        for source in sub.outside_sources:
            marks[source.name] = table_marks.newest(source, batch.versions)
            if source.topic:
                source = with_topic_partitions(source, was)
                topic = topics[source.name] = broker.topic(source)
                numbers = topic.numbers(was.inputs.get(source.name, InputProgress()).topic_ids)
                offsets[source.name] = broker.offsets(source, numbers)
                if source.may_be_idle:
                    open_transactions[source.name] = broker.open_transactions(source, numbers)
        limits = {o.name: broker.limits(o) for o in sub.sinks if o.topic}
        return cls(topics, offsets, open_transactions, limits, marks)

    def topic(self, source: Source) -> TopicState:
        """Returns the topic of *source*."""
        return self.of_topics[source.name]

    def partitions(self, name: str) -> int:
        """Returns how many partitions the source *name* has.

        Tables and files have one partition: the driver numbers their rows.
        """
        return self.of_topics[name].partitions if name in self.of_topics else 1

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the earliest offset of each partition, and the next to write."""
        return in_order_of(partitions, self.of_offsets[source.name])

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the last stable offset of those of *partitions* that have an open transaction."""
        return pick(self.of_open_transactions[source.name], partitions)

    def limits(self, sink: Sink) -> TopicLimits:
        """Returns the limits of the topic of *sink*."""
        return self.of_limits[sink.name]

    def newest(self, source: Source, _: Mapping[str, int]) -> TimeMark | None:
        """Returns the newest mark of the table of *source*."""
        return self.of_marks[source.name]
