"""Cuts a batch that Spark planned too large into parts.

A lower `max_records` does not change a batch that was planned before.

Each part is a batch of the stream, decided and carried out by itself. The rest of the planned batch follows from the
progress of the stream. So a driver that is killed between two parts is followed by one that continues there, with parts
of another size if `max_records` has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import ceil
from types import MappingProxyType

import polars as pl

from tidemark.kernels.records.arrivals import KILLS_DRIVERS
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, Place, StreamProgress
from tidemark.stream.journal.checkpoint import Ends
from tidemark.stream.kafka.numbering import with_places
from tidemark.stream.read.data_loss import Offsets

Ranges = Mapping[str, Offsets]
"""The offsets to read, by topic and partition."""
RecordsByTopic = Mapping[str, Collection[tuple[int, int]]]
"""The partition and offset of each record, by topic."""
Earliest = Callable[[Source, list[int]], Mapping[int, int]]
"""Returns the earliest offset of each of these partitions of a topic.

The topic is that of a source.
"""


@dataclass(frozen=True)
class BatchPart:
    """The part of a planned batch that one batch reads.

    It reads *ranges* of topics, and in the first part the other sources, too. After the last part the planned batch is
    done. `passed_over` has partitions by topic whose first record is not read. With *one_by_one* no record that is not
    read is decompressed. `places` has the places of input partitions by source, of sources over several topics.
    `absent` has partitions whose topics were deleted: Spark would wait for them, and end with an error.
    """

    ranges: Ranges
    is_first: bool
    is_last: bool
    passed_over: Mapping[str, Collection[int]] = field(default_factory=dict)
    one_by_one: bool = False
    places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    absent: Mapping[str, Collection[int]] = field(default_factory=dict)

    @property
    def ends(self) -> Ends:
        """Returns the offset up to which the part reads each partition."""
        ends: dict[str, dict[int, int]] = {}
        for topic, offsets in self.ranges.items():
            ends[topic] = {number: end for number, (_, end) in offsets.items()}
        return ends

    @property
    def is_whole(self) -> bool:
        """Returns whether the part is the planned batch as Spark reads it."""
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
    """Returns the parts of what is left of a planned batch.

    A batch that has not begun and is not too large is one part. Without unread offsets a begun batch has no part left.

    Args:
        sub: The sub-topology.
        ends: The offsets up to which the batch was planned.
        was: The progress so far.
        earliest: Returns where new partitions begin.
        is_begun: Whether the first part was carried out.
        passed_over: Records to skip. Each is the first of a part, and then all are read one by one (None: they are
            not).
        absent: Partitions whose topics were deleted, and which are not read.
    """
    sources = {o.topic: with_places(o, was) for o in sub.outside_sources if o.topic is not None}
    at_most = {topic: _left(source, ends.get(topic, {}), was, _from_zero) for topic, source in sources.items()}
    # Offsets from 0 are the most that can be unread, so a small batch is known to be small.
    is_small = _most_pieces(sources, at_most) == 1
    if is_small and not is_begun and passed_over is None and not absent:
        # The broker need not be asked where new partitions begin.
        return [BatchPart(at_most, is_first=True, is_last=True)]
    unread = {topic: _left(source, ends.get(topic, {}), was, earliest) for topic, source in sources.items()}
    if is_begun and not _is_any_unread(unread):
        return []
    ranges_of_parts: list[Ranges] = []
    for layer in _between(unread, passed_over or {}):
        ranges_of_parts += _by_size(layer, _most_pieces(sources, layer))
    cut: list[BatchPart] = []
    for number, ranges in enumerate(ranges_of_parts):
        part = BatchPart(
            ranges,
            # Only the first part reads sources without a topic, so a driver that continues has none.
            is_first=number == 0 and not is_begun,
            is_last=number == len(ranges_of_parts) - 1,
            passed_over=_starting_with(ranges, passed_over or {}),
            one_by_one=passed_over is not None,
            places={source.name: source.places for source in sources.values() if source.places},
            absent=absent,
        )
        cut.append(part)
    return cut


def _is_any_unread(unread: Ranges) -> bool:
    offsets = chain.from_iterable(partitions.values() for partitions in unread.values())
    return any(start < end for start, end in offsets)


def _most_pieces(sources: Mapping[str, Source], ranges: Ranges) -> int:
    """Returns into how many parts the topic with most records is cut."""
    return max((_pieces(sources[topic], offsets) for topic, offsets in ranges.items()), default=1)


def _between(unread: Ranges, passed_over: RecordsByTopic) -> Iterator[Ranges]:
    """Yields the offsets *unread*, cut before each record *passed_over*.

    They come in layers: each has the next piece of every partition.
    """
    pieces: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for topic, offsets in unread.items():
        for number, (start, end) in offsets.items():
            pieces[topic, number] = _cut_at(start, end, number, passed_over.get(topic, ()))
    for at in range(max(map(len, pieces.values()), default=1)):
        layer: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in unread}
        for (topic, number), cuts in pieces.items():
            # Partitions that are cut less often have an empty last piece in further layers.
            layer[topic][number] = cuts[at] if at < len(cuts) else (cuts[-1][1], cuts[-1][1])
        yield layer


def _cut_at(start: int, end: int, partition: int, places: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the offsets of *partition*, cut before records in *places*."""
    within = sorted(offset for number, offset in places if number == partition and start < offset < end)
    return [*pairwise([start, *within, end])]


def _starting_with(ranges: Ranges, records: RecordsByTopic) -> dict[str, list[int]]:
    """Returns the partitions whose first record is in *records*, by topic.

    The first record is the one at the start of *ranges*.
    """
    partitions: dict[str, list[int]] = defaultdict(list)
    for topic, offsets in ranges.items():
        for number, (start, end) in offsets.items():
            # An empty range has no first record.
            if start < end and (number, start) in records.get(topic, ()):
                partitions[topic].append(number)
    return partitions


def _by_size(ranges: Ranges, pieces: int) -> list[Ranges]:
    """Returns *ranges* in so many *pieces* of one size."""
    parts: list[Ranges] = []
    for number in range(pieces):
        parts.append({topic: _piece(offsets, number, pieces) for topic, offsets in ranges.items()})
    return parts


def passed_over_rows(operators: Iterable[Operator], part: BatchPart) -> pl.DataFrame:
    """Returns a row for each record that *part* passes over.

    The rows are as if parsed, but have only the place of the record and a reason. *operators* read the part.
    """
    names = {o.topic_read: o.name for o in operators if o.topic_read}
    rows: list[tuple[str, int, int, str]] = []
    for topic, numbers in part.passed_over.items():
        offsets = part.ranges[topic]
        rows += [(names[topic], number, offsets[number][0], KILLS_DRIVERS) for number in numbers]
    kinds = {"source": pl.String, "partition": pl.Int32, "offset": pl.Int64, "reason": pl.String}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def to_read(part: BatchPart, topic: str) -> Offsets:
    """Returns the offsets that *part* reads of *topic*, by partition.

    Starts are inclusive and ends exclusive.
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


def _left(source: Source, ends: Mapping[int, int], was: StreamProgress, earliest: Earliest) -> Offsets:
    """Returns the unread offsets of each partition up to *ends*."""
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
    """Returns the piece *number*, of *pieces* of one size, of the offsets."""

    def cut(start: int, end: int, at: int) -> int:
        # Rounding down at both ends makes pieces adjacent.
        return start + (end - start) * at // pieces

    pieces_of_partitions: dict[int, tuple[int, int]] = {}
    for partition, (start, end) in offsets.items():
        pieces_of_partitions[partition] = cut(start, end, number), cut(start, end, number + 1)
    return pieces_of_partitions
