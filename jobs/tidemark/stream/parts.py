"""Cuts a batch that Spark planned too large into parts: a lower `max_records` does not change what it planned before.

Each part is a batch of the stream, decided and carried out by itself. What is left of the planned batch follows from
how far the stream has come, so that a driver that is killed between two parts is followed by one that goes on there,
with parts of another size if `max_records` has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.checkpoint import Ends
from tidemark.stream.intact import Offsets

Ranges = Mapping[str, Offsets]
"""Per topic what is read of each of its partitions."""
Earliest = Callable[[Source, list[int]], Mapping[int, int]]
"""The earliest offset of each of these partitions of the topic of a source."""


@dataclass(frozen=True)
class Part:
    """What one batch of the stream reads of a planned batch: *ranges* of topics, and with the first the other sources.

    After the last part the planned batch is done.
    """

    ranges: Ranges
    is_first: bool
    is_last: bool

    @property
    def ends(self) -> Ends:
        """Up to where it reads each topic."""
        return {topic: {number: end for number, (_, end) in of.items()} for topic, of in self.ranges.items()}


def parts(sub: SubTopology, ends: Ends, was: StreamProgress, earliest: Earliest, *, is_begun: bool) -> list[Part]:
    """The parts of what is left of a batch planned up to *ends* after the progress *was*; none if nothing is.

    One that has not begun and is not too large is one part. With *is_begun* its first part was carried out.
    """
    sources = {o.topic: o for o in sub.operators if isinstance(o, Source) and o.topic is not None}
    left = {topic: _left(source, ends.get(topic, {}), was, earliest) for topic, source in sources.items()}
    pieces = max((_pieces(source, left[topic]) for topic, source in sources.items()), default=1)
    if is_begun and not any(start < end for offsets in left.values() for start, end in offsets.values()):
        return []
    return [
        Part(
            {topic: _piece(offsets, number, pieces) for topic, offsets in left.items()},
            is_first=number == 0 and not is_begun,
            is_last=number == pieces - 1,
        )
        for number in range(pieces)
    ]


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
