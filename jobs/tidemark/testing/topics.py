"""A broker in memory, which only knows how far its topics reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemark.kernels.records.limits import TopicLimits
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.stream.kafka.broker import SeveralTopics, TopicState


class TopicsInMemory:
    """Topics that reach as far as `have` has told, and accept every record.

    *partitions* has the number of partitions of each topic, by its name.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.partitions = partitions
        self._ends: dict[tuple[str, int], int] = defaultdict(int)

    def have(self, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Makes *topic* end behind *rows*, which have `partition` and `offset`."""
        for row in rows:
            place = (topic, row["partition"])
            self._ends[place] = max(self._ends[place], row["offset"] + 1)

    def read_to(self) -> dict[str, dict[int, int]]:
        """Returns where each partition ends, by topic."""
        ends: dict[str, dict[int, int]] = defaultdict(dict)
        for (topic, number), end in self._ends.items():
            ends[topic][number] = end
        return ends

    def topic(self, source: Source) -> TopicState:
        """Returns the topic of *source*."""
        partitions = self.partitions[source.topic or ""]
        if source.reads_several:
            return SeveralTopics(None, partitions, dict.fromkeys(range(partitions)))
        return TopicState(None, partitions)

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Returns the first and the next offset of each of *partitions*."""
        return {number: (0, self._ends[source.topic or "", number]) for number in partitions}

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns nothing: each transaction has ended."""
        return {}

    def limits(self, sink: Sink) -> TopicLimits:
        """Returns no limits."""
        return TopicLimits()
