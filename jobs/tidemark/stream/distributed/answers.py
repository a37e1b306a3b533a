"""What brokers and logs of tables have answered for a batch, so that all of its tasks go by the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.kernels.limits import Limits
from tidemark.kernels.marks import Told
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Sink, Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.batch import Batch
from tidemark.stream.broker import Answers
from tidemark.stream.table_marks import NewestMarks


@dataclass(frozen=True)
class Answered:
    """Answers by the name of the operator that is asked about."""

    of_partitions: Mapping[str, int]
    of_offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    of_limits: Mapping[str, Limits]
    of_marks: Mapping[str, Told | None]

    @classmethod
    def about(
        cls, sub: SubTopology, was: StreamProgress, batch: Batch, broker: Answers, table_marks: NewestMarks
    ) -> Answered:
        """What *broker* and *table_marks* answer about the sources and sinks of *sub*."""
        sources = [operator for operator in sub.operators if isinstance(operator, Source)]
        counts = {source.name: broker.partitions(source) if source.topic else 1 for source in sources}
        read = {name: was.inputs.get(name, InputProgress()).partitions for name in counts}
        offsets = {
            source.name: broker.offsets(source, sorted({*range(counts[source.name]), *read[source.name]}))
            for source in sources
            if source.topic
        }
        limits = {o.name: broker.limits(o) for o in sub.operators if isinstance(o, Sink) and o.topic}
        marks = {source.name: table_marks.newest(source, batch.versions) for source in sources}
        return cls(counts, offsets, limits, marks)

    def partitions(self, at: Source | Sink) -> int:
        """How many partitions the topic of *at* has."""
        return self.of_partitions[at.name]

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Of each of *partitions* of *source* the earliest offset and the one after its newest record."""
        return {number: self.of_offsets[source.name][number] for number in partitions}

    def limits(self, sink: Sink) -> Limits:
        """What the topic of *sink* takes."""
        return self.of_limits[sink.name]

    def newest(self, source: Source, _: Mapping[str, int]) -> Told | None:
        """What the newest mark of the table of *source* says."""
        return self.of_marks[source.name]
