"""Cuts a batch that Spark planned too large into parts.

Spark keeps to a plan once it is made, so lowering `max_records` does not make a planned batch smaller.

Each part is a batch of the stream, decided and carried out by itself. What is left of the planned batch follows from
the progress of the stream. So if a driver is killed between two parts, the next driver continues there, with parts of
another size if `max_records` has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from math import ceil
from types import MappingProxyType

import polars as pl

from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, StreamProgress, TopicPartition
from tidemark.stream.journal.checkpoint import Ends
from tidemark.stream.kafka.numbering import with_topic_partitions
from tidemark.stream.read.data_loss import Offsets

Ranges = Mapping[str, Offsets]
"""The offsets to read, by topic and partition."""
Earliest = Callable[[Source, list[int]], Mapping[int, int]]
"""Returns the earliest offset of each of these partitions of a source's topic."""


@dataclass(frozen=True)
class SkippedRecord:
    """A record that is in the topic and is skipped; a row of the table of quarantined records shows it.

    Attributes:
        reason: the reason why it is quarantined.
        detail: the error that it raises, or who accepted its loss and why; None if nothing more is known.
        key: its key; None if it has none, or if it cannot be read.
        value: its bytes; None if it has none, or if it cannot be read.
    """

    reason: str
    detail: str | None = None
    key: bytes | None = None
    value: bytes | None = None


RecordsByTopic = Mapping[str, Mapping[tuple[int, int], SkippedRecord]]
"""Skipped records, by topic, and for each topic by partition and offset."""


@dataclass(frozen=True)
class BatchPart:
    """The part of a planned batch that one batch of the stream reads.

    Attributes:
        ranges: the offsets that it reads of topics.
        is_first: True for the first part, which also reads the sources that are no topics.
        is_last: True for the last part, after which the planned batch is done.
        passed_over: by topic, the partitions whose first record is skipped, with that record.
        one_by_one: records are fetched one by one, so that no skipped record is decompressed.
        places: for sources that read several topics, the topic and Kafka's number of each input partition.
        absent: by topic, partitions whose topics were deleted. Spark would wait for them, and end with an error.
    """

    ranges: Ranges
    is_first: bool
    is_last: bool
    passed_over: Mapping[str, Mapping[int, SkippedRecord]] = field(default_factory=dict)
    one_by_one: bool = False
    places: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    absent: Mapping[str, Collection[int]] = field(default_factory=dict)

    @property
    def ends(self) -> Ends:
        """The offset up to which the part reads each partition (exclusive)."""
        ends: dict[str, dict[int, int]] = {}
        for topic, offsets in self.ranges.items():
            ends[topic] = {number: end for number, (_, end) in offsets.items()}
        return ends

    @property
    def is_whole(self) -> bool:
        """True if the part is the whole planned batch, so that Spark's own rows can be used."""
        return self.is_first and self.is_last and not self.one_by_one and not self.absent


def parts(
    sub: SubTopology,
    ends: Ends,
    was: StreamProgress,
    earliest: Earliest,
    *,
    is_begun: bool,
    passed_over: RecordsByTopic | None = None,
    absent: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> list[BatchPart]:
    """Cuts what is left of a planned batch into parts.

    A batch that has not begun and is not too large is one part. A batch that has begun, and of which no offset is
    unread, has no part left.

    Args:
        sub: The sub-topology.
        ends: The offsets up to which the batch was planned.
        was: The progress so far.
        earliest: Returns where new partitions begin.
        is_begun: True if the first part was carried out already.
        passed_over: Records to skip. The batch is cut before each of them, and all records are fetched one by one,
            even if no record is to be skipped here. If it is None, records are fetched as usual.
        absent: Partitions whose topics were deleted, and which are not read.
    """
    sources = {o.topic: with_topic_partitions(o, was) for o in sub.outside_sources if o.topic is not None}
    at_most = {topic: _unread(source, ends.get(topic, {}), was, _from_zero) for topic, source in sources.items()}
    # Offsets from 0 are the most that can be unread, so a small batch is known to be small.
    is_small = _most_pieces(sources, at_most) == 1
    if is_small and not is_begun and passed_over is None and not absent:
        # The broker need not be asked where new partitions begin.
        return [BatchPart(at_most, is_first=True, is_last=True)]
    unread = {topic: _unread(source, ends.get(topic, {}), was, earliest) for topic, source in sources.items()}
    if is_begun and not _is_any_unread(unread):
        return []
    ranges_of_parts: list[Ranges] = []
    for layer in _between(unread, passed_over or {}):
        ranges_of_parts += _cut_evenly(layer, _most_pieces(sources, layer))
    batch_parts: list[BatchPart] = []
    for number, ranges in enumerate(ranges_of_parts):
        part = BatchPart(
            ranges,
            # Only the first part reads sources without a topic, so a driver that continues has none.
            is_first=number == 0 and not is_begun,
            is_last=number == len(ranges_of_parts) - 1,
            passed_over=_first_records(ranges, passed_over or {}),
            one_by_one=passed_over is not None,
            places={source.name: source.topic_partitions for source in sources.values() if source.topic_partitions},
            absent=absent,
        )
        batch_parts.append(part)
    return batch_parts


def _is_any_unread(unread: Ranges) -> bool:
    offsets = chain.from_iterable(partitions.values() for partitions in unread.values())
    return any(start < end for start, end in offsets)


def _most_pieces(sources: Mapping[str, Source], ranges: Ranges) -> int:
    """Returns into how many pieces the topic with most records is cut."""
    return max((_pieces(sources[topic], offsets) for topic, offsets in ranges.items()), default=1)


def _between(unread: Ranges, passed_over: RecordsByTopic) -> Iterator[Ranges]:
    """Cuts the *unread* offsets before each record that is *passed_over*.

    Yields:
        Layers: the first has the first piece of every partition, the second the second, and so on.
    """
    pieces: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, offsets in unread.items():
        for number, (start, end) in offsets.items():
            pieces[topic, number] = _cut_before(start, end, number, passed_over.get(topic, ()))
    for index in range(max(map(len, pieces.values()), default=1)):
        layer: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in unread}
        for (topic, number), cuts in pieces.items():
            # Partitions that are cut less often have an empty piece at their end in further layers.
            layer[topic][number] = cuts[index] if index < len(cuts) else (cuts[-1][1], cuts[-1][1])
        yield layer


def _cut_before(start: int, end: int, partition: int, records: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the offsets from *start* until *end* of *partition*, cut before *records*: their partition and offset."""
    within = sorted(offset for number, offset in records if number == partition and start < offset < end)
    return [*pairwise([start, *within, end])]


def _first_records(ranges: Ranges, records: RecordsByTopic) -> dict[str, dict[int, SkippedRecord]]:
    """Returns, by topic and partition, those of *records* that are at the start of one of *ranges*."""
    first: dict[str, dict[int, SkippedRecord]] = defaultdict(dict)
    for topic, offsets in ranges.items():
        for number, (start, end) in offsets.items():
            record = records.get(topic, {}).get((number, start))
            # An empty range has no first record.
            if start < end and record is not None:
                first[topic][number] = record
    return first


def first_read(unread: Ranges, passed_over: RecordsByTopic) -> Ranges:
    """Returns the *unread* offsets that are read before the next record of *passed_over* is reached.

    The parts of a batch are decided one after the other, so if a driver fails, one of these records is the reason.
    """
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, offsets in next(_between(unread, passed_over)).items():
        for number, (start, end) in offsets.items():
            # The record itself is not read.
            first = start + ((number, start) in passed_over.get(topic, {}))
            if first < end:
                ranges.setdefault(topic, {})[number] = (first, end)
    return ranges


def _cut_evenly(ranges: Ranges, pieces: int) -> list[Ranges]:
    """Returns *ranges*, cut into so many *pieces* of the same size."""
    cut: list[Ranges] = []
    for number in range(pieces):
        cut.append({topic: _piece(offsets, number, pieces) for topic, offsets in ranges.items()})
    return cut


def passed_over_rows(operators: Iterable[Operator], part: BatchPart) -> pl.DataFrame:
    """Returns a row for each record that *part* skips, for the *operators* that read the part.

    The rows are like parsed ones, but have only the partition and offset of the record, and what is known of it.
    """
    names = {o.topic_read: o.name for o in operators if o.topic_read}
    rows: list[dict[str, str | int | bytes | None]] = []
    for topic, records in part.passed_over.items():
        for number, record in records.items():
            offset, _ = part.ranges[topic][number]
            rows.append({"source": names[topic], "partition": number, "offset": offset, **asdict(record)})
    offset_columns = {"source": pl.String, "partition": pl.Int32, "offset": pl.Int64}
    record_columns = {"reason": pl.String, "detail": pl.String, "key": pl.Binary, "value": pl.Binary}
    return pl.DataFrame(rows, schema={**offset_columns, **record_columns})


def to_read(part: BatchPart, topic: str) -> Offsets:
    """Returns the offsets that *part* reads of *topic*, by partition.

    Skipped records, and partitions whose topics were deleted, are left out.
    """
    skipped, absent = part.passed_over.get(topic, ()), part.absent.get(topic, ())
    to_read: dict[int, tuple[int, int]] = {}
    for number, (start, end) in part.ranges[topic].items():
        # A part that passes over a record begins after it.
        first = start + (number in skipped)
        if first < end and number not in absent:
            to_read[number] = (first, end)
    return to_read


def _from_zero(_: Source, partitions: list[int]) -> Mapping[int, int]:
    return dict.fromkeys(partitions, 0)


def _unread(source: Source, ends: Mapping[int, int], was: StreamProgress, earliest: Earliest) -> Offsets:
    """Returns the offsets of each partition of *source* from where *was* has read to, until *ends*.

    *earliest* returns where new partitions begin.
    """
    starts = was.inputs.get(source.name, InputProgress()).offsets_read
    new = [number for number, end in ends.items() if number not in starts and end > 0]
    starts |= earliest(source, new) if new else {}
    # Where a topic was made anew, an end may be before its start.
    return {number: (starts.get(number, 0), end) for number, end in ends.items()}


def _pieces(source: Source, offsets: Offsets) -> int:
    """Returns into how many parts *offsets* are cut."""
    most, is_anew = source.max_records, any(end < start for start, end in offsets.values())
    count = sum(end - start for start, end in offsets.values())
    # Spark rounds up for each partition, so a batch may exceed `max_records` by one record a partition.
    if most is None or is_anew or count <= most + len(offsets):
        return 1
    return ceil(count / most)


def _piece(offsets: Offsets, number: int, pieces: int) -> Offsets:
    """Returns the piece *number* of *offsets* that are cut into so many *pieces* of the same size."""

    def cut(start: int, end: int, index: int) -> int:
        # Rounding down at both ends makes pieces adjacent.
        return start + (end - start) * index // pieces

    pieces_of_partitions: dict[int, tuple[int, int]] = {}
    for partition, (start, end) in offsets.items():
        pieces_of_partitions[partition] = cut(start, end, number), cut(start, end, number + 1)
    return pieces_of_partitions
