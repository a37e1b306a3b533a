"""Numbers the partitions of sources over several topics.

Each of their topics has a partition 0, and a topic may be found while the stream runs. Such a source numbers its input
partitions itself, in the order in which Spark first plans them; within a plan by topic, then by Kafka's number. The
numbers are in the stream's progress, so that a restart uses the same ones. Everything between the edges works with
these numbers and with the text of the source (`Source.topic`) in place of a topic: plans, rows, and requests to brokers
are translated where they enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tidemark.model.kinds.source import Source
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, StreamProgress, TopicPartition
from tidemark.stream.journal.checkpoint import Ends

R = TypeVar("R")


def multi_topic_sources(sub: SubTopology) -> list[Source]:
    """Returns the sources of *sub* over several topics."""
    return [source for source in sub.outside_sources if source.reads_several]


def with_topic_partitions(source: Source, was: StreamProgress) -> Source:
    """Returns *source* with the places of its input partitions in *was*."""
    return source.with_topic_partitions(was.inputs.get(source.name, InputProgress()).places)


def number_partitions(sub: SubTopology, ends: Ends, was: StreamProgress) -> tuple[Ends, StreamProgress]:
    """Returns *ends* by input partition, and the progress with the numbers.

    *ends* are those of a plan. Without a source over several topics they are returned as they are, and so is the
    progress *was* if the plan has no new partition.
    """
    by_number: dict[str, Mapping[int, int]] = dict(ends)
    inputs = dict(was.inputs)
    for source in multi_topic_sources(sub):
        before = inputs.get(source.name, InputProgress())
        planned: dict[TopicPartition, int] = {}
        for topic in sorted(filter(source.reads, ends)):
            planned |= {TopicPartition(topic, number): end for number, end in sorted(by_number.pop(topic).items())}
        places = (*before.places, *(place for place in planned if place not in before.places))
        number_of = {place: number for number, place in enumerate(places)}
        by_number[source.topic or ""] = {number_of[place]: end for place, end in planned.items()}
        if places != before.places:
            inputs[source.name] = replace(before, places=places)
    return by_number, was if inputs == was.inputs else replace(was, inputs=inputs)


def number_records(
    sub: SubTopology, records: Mapping[str, Mapping[tuple[int, int], R]], was: StreamProgress
) -> dict[str, Mapping[tuple[int, int], R]]:
    """Returns *records* by input partition and offset.

    They are by Kafka's partition and offset, by topic.
    """
    by_number = dict(records)
    for source in multi_topic_sources(sub):
        number_of = {place: number for number, place in enumerate(with_topic_partitions(source, was).topic_partitions)}
        own: dict[tuple[int, int], R] = {}
        for topic in sorted(filter(source.reads, records)):
            of_topic = by_number.pop(topic)
            own |= {
                (number_of[TopicPartition(topic, number)], offset): each for (number, offset), each in of_topic.items()
            }
        if own:
            by_number[source.topic or ""] = own
    return by_number


def number_ranges(
    sub: SubTopology, ranges: Mapping[str, Mapping[int, tuple[int, int]]], was: StreamProgress
) -> dict[str, dict[int, tuple[int, int]]]:
    """Returns *ranges* by the topic of each source of *sub* and by input partition.

    They are the offsets from and until which partitions are read, by Kafka's topic and partition.
    """
    by_number: dict[str, dict[int, tuple[int, int]]] = {}
    for source in (with_topic_partitions(source, was) for source in sub.outside_sources if source.topic):
        own = by_number[source.topic or ""] = {}
        for topic in sorted(filter(source.reads, ranges)):
            for number, offsets in ranges[topic].items():
                own[
                    source.topic_partitions.index(TopicPartition(topic, number)) if source.reads_several else number
                ] = offsets
    return by_number
