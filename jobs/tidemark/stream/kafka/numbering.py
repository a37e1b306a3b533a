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
    """Returns *source* with the topic and Kafka's number of each input partition, as *was* has numbered them."""
    return source.with_topic_partitions(was.inputs.get(source.name, InputProgress()).places)


def number_partitions(sub: SubTopology, ends: Ends, was: StreamProgress) -> tuple[Ends, StreamProgress]:
    """Returns *ends* by input partition, and the progress with the numbers.

    *ends* are the ends of a plan, by Kafka's partition. Without a source over several topics they are returned as they
    are. The progress is *was* itself if the plan has no new partition.
    """
    by_number: dict[str, Mapping[int, int]] = dict(ends)
    inputs = dict(was.inputs)
    for source in multi_topic_sources(sub):
        before = inputs.get(source.name, InputProgress())
        planned: dict[TopicPartition, int] = {}
        for topic in sorted(filter(source.reads, ends)):
            planned |= {TopicPartition(topic, number): end for number, end in sorted(by_number.pop(topic).items())}
        numbered = (*before.places, *(partition for partition in planned if partition not in before.places))
        number_of = {partition: number for number, partition in enumerate(numbered)}
        by_number[source.topic or ""] = {number_of[partition]: end for partition, end in planned.items()}
        if numbered != before.places:
            inputs[source.name] = replace(before, places=numbered)
    return by_number, was if inputs == was.inputs else replace(was, inputs=inputs)


def number_records(
    sub: SubTopology, records: Mapping[str, Mapping[tuple[int, int], R]], was: StreamProgress
) -> dict[str, Mapping[tuple[int, int], R]]:
    """Converts the keys of *records* from topic, Kafka's partition and offset to source, input partition and offset."""
    by_number = dict(records)
    for source in multi_topic_sources(sub):
        numbered = with_topic_partitions(source, was).topic_partitions
        number_of = {partition: number for number, partition in enumerate(numbered)}
        of_source: dict[tuple[int, int], R] = {}
        for topic in sorted(filter(source.reads, records)):
            for (number, offset), record in by_number.pop(topic).items():
                of_source[number_of[TopicPartition(topic, number)], offset] = record
        if of_source:
            by_number[source.topic or ""] = of_source
    return by_number


def number_ranges(
    sub: SubTopology, ranges: Mapping[str, Mapping[int, tuple[int, int]]], was: StreamProgress
) -> dict[str, dict[int, tuple[int, int]]]:
    """Converts the keys of *ranges* from topic and Kafka's partition to `Source.topic` and input partition.

    A range is the offset from which a partition is read, inclusive, and the one until which it is read, exclusive.
    """
    by_number: dict[str, dict[int, tuple[int, int]]] = {}
    for source in (with_topic_partitions(source, was) for source in sub.outside_sources if source.topic):
        of_source = by_number[source.topic or ""] = {}
        for topic in sorted(filter(source.reads, ranges)):
            for number, offsets in ranges[topic].items():
                partition = TopicPartition(topic, number)
                of_source[source.topic_partitions.index(partition) if source.reads_several else number] = offsets
    return by_number
