"""Cuts a batch that Spark planned too large into parts: a lower `max_records` does not change what it planned before.

Each part is a batch of the stream, decided and carried out by itself. What is left of the planned batch follows from
how far the stream has come, so that a driver that is killed between two parts is followed by one that goes on there,
with parts of another size if `max_records` has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import polars as pl

from tidemark.kernels.arrivals import KILLS_DRIVERS
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Operator, Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.checkpoint import Ends
from tidemark.stream.intact import Offsets

Ranges = Mapping[str, Offsets]
"""Per topic what is read of each of its partitions."""
Places = Mapping[str, Collection[tuple[int, int]]]
"""Per topic records by partition and offset."""
Earliest = Callable[[Source, list[int]], Mapping[int, int]]
"""The earliest offset of each of these partitions of the topic of a source."""


@dataclass(frozen=True)
class Part:
    """What one batch of the stream reads of a planned batch: *ranges* of topics, and with the first the other sources.

    After the last part the planned batch is done. Per topic, of these partitions the first record is *passed_over*: it
    is not read. With *one_by_one* nothing that is not read is unpacked.
    """

    ranges: Ranges
    is_first: bool
    is_last: bool
    passed_over: Mapping[str, Collection[int]] = field(default_factory=dict)
    one_by_one: bool = False

    @property
    def ends(self) -> Ends:
        """Up to where it reads each topic."""
        return {topic: {number: end for number, (_, end) in of.items()} for topic, of in self.ranges.items()}

    @property
    def is_whole(self) -> bool:
        """Whether it is the planned batch as Spark reads it."""
        return self.is_first and self.is_last and not self.one_by_one


def parts(
    sub: SubTopology,
    ends: Ends,
    was: StreamProgress,
    earliest: Earliest,
    *,
    is_begun: bool,
    passed_over: Places | None = None,
) -> list[Part]:
    """The parts of what is left of a batch planned up to *ends* after the progress *was*; none if nothing is.

    One that has not begun and is not too large is one part. With *is_begun* its first part was carried out. A record
    that is *passed_over* is the first one of a part, and then all are read one by one (None: they are not).
    """
    sources = {o.topic: o for o in sub.operators if isinstance(o, Source) and o.topic is not None}
    at_most = {topic: _left(source, ends.get(topic, {}), was, _from_zero) for topic, source in sources.items()}
    is_small = all(_pieces(source, at_most[topic]) == 1 for topic, source in sources.items())
    if is_small and not is_begun and passed_over is None:
        return [Part(at_most, is_first=True, is_last=True)]  # without asking the broker where new partitions begin
    left = {topic: _left(source, ends.get(topic, {}), was, earliest) for topic, source in sources.items()}
    if is_begun and not any(start < end for offsets in left.values() for start, end in offsets.values()):
        return []
    found = [
        piece
        for layer in _between(left, passed_over or {})
        for piece in _by_size(layer, max((_pieces(sources[topic], of) for topic, of in layer.items()), default=1))
    ]
    return [
        Part(
            ranges,
            is_first=number == 0 and not is_begun,
            is_last=number == len(found) - 1,
            passed_over=_starting_with(ranges, passed_over or {}),
            one_by_one=passed_over is not None,
        )
        for number, ranges in enumerate(found)
    ]


def _between(left: Ranges, passed_over: Places) -> list[Ranges]:
    """What is *left*, cut before each record that is *passed_over*."""
    pieces = {
        topic: {number: _cut_at(start, end, number, passed_over.get(topic, ())) for number, (start, end) in of.items()}
        for topic, of in left.items()
    }
    most = max((len(of) for partitions in pieces.values() for of in partitions.values()), default=1)

    def layer(number: int) -> Ranges:
        return {
            topic: {n: of[number] if number < len(of) else (of[-1][1],) * 2 for n, of in partitions.items()}
            for topic, partitions in pieces.items()
        }

    return [layer(number) for number in range(most)]


def _cut_at(start: int, end: int, partition: int, places: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """The offsets of *partition*, cut before those of its records that are among *places*."""
    within = sorted(offset for number, offset in places if number == partition and start < offset < end)
    return [*pairwise([start, *within, end])]


def _starting_with(ranges: Ranges, places: Places) -> dict[str, list[int]]:
    """Per topic the partitions whose first record in *ranges* is among *places*."""
    found = {
        topic: [n for n, (start, end) in ranges[topic].items() if start < end and (n, start) in of]
        for topic, of in places.items()
        if topic in ranges
    }
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _by_size(ranges: Ranges, pieces: int) -> list[Ranges]:
    """*ranges* in so many *pieces* of one size."""
    return [{topic: _piece(of, number, pieces) for topic, of in ranges.items()} for number in range(pieces)]


def passed_over_rows(operators: Iterable[Operator], part: Part) -> pl.DataFrame:
    """A row for each record that *part* of what *operators* read passes over, as if parsed; its place is all it has."""
    names = {o.topic: o.name for o in operators if isinstance(o, Source)}
    rows = [
        (names[topic], number, part.ranges[topic][number][0], KILLS_DRIVERS)
        for topic, numbers in part.passed_over.items()
        for number in numbers
    ]
    kinds = {"source": pl.String, "partition": pl.Int32, "offset": pl.Int64, "reason": pl.String}
    return pl.DataFrame(rows, schema=kinds, orient="row")


def _from_zero(_: Source, partitions: list[int]) -> Mapping[int, int]:
    return dict.fromkeys(partitions, 0)


def _left(source: Source, ends: Mapping[int, int], was: StreamProgress, earliest: Earliest) -> Offsets:
    """What is unread of each partition up to *ends*; where a topic was made anew, an end may be before its start."""
    known = was.inputs.get(source.name, InputProgress()).partitions
    new = [number for number, end in ends.items() if number not in known and end > 0]
    starts = {number: part.until_offset for number, part in known.items()}
    starts |= earliest(source, new) if new else {}
    return {number: (starts.get(number, 0), end) for number, end in ends.items()}


def _pieces(source: Source, offsets: Offsets) -> int:
    """Into how many parts *offsets* are cut, each of at most `max_records`; Spark rounds up for each partition."""
    most, is_anew = source.max_records, any(end < start for start, end in offsets.values())
    count = sum(end - start for start, end in offsets.values())
    if most is None or is_anew or count <= most + len(offsets):
        return 1
    return ceil(count / most)


def _piece(offsets: Offsets, number: int, pieces: int) -> Offsets:
    """Of each partition the piece of that *number*, of so many of one size."""

    def cut(start: int, end: int, at: int) -> int:
        return start + (end - start) * at // pieces

    return {
        partition: (cut(start, end, number), cut(start, end, number + 1)) for partition, (start, end) in offsets.items()
    }
