"""Finds the batch that a driver was reading when it ended, and the offsets of its records.

Spark had planned this batch, as the checkpoint says, and the journal has no decision of it. A record that expands to
more than fits into memory, or anything else that ends the JVM, leaves no error that names it.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.control.folder import Control
from tidemark.errors import TidemarkError, UnreadableFile
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, StreamProgress, TopicPartition
from tidemark.stream.journal.checkpoint import newest_commit, plans, read_plan
from tidemark.stream.journal.entries import newest_entry
from tidemark.stream.kafka.broker import Answers
from tidemark.stream.kafka.numbering import number_partitions, with_topic_partitions
from tidemark.stream.read.data_loss import Offsets
from tidemark.stream.read.parts import Ranges
from tidemark.stream.startup.source_list import continued


class UnstableOffsets(TidemarkError):
    """Raised when a stream would continue in the middle of an open transaction."""


def unread(control: Path, sub: SubTopology) -> list[str]:
    """Returns the topics, partitions and offsets of the undecided batch of *sub*, if it has one, as text.

    *control* is the control folder.
    """
    _, ranges = unread_ranges(control, sub)
    texts: list[str] = []
    for topic, offsets in ranges.items():
        for number, (start, end) in offsets.items():
            texts.append(f"topic {topic!r}, partition {number}, offsets {start} until {end}")
    return texts


def unread_ranges(control: Path, sub: SubTopology) -> tuple[int, Ranges]:
    """Returns the newest planned batch of *sub*, or -1 if there is none, and its undecided offsets.

    Topics and partitions are Kafka's, also for sources over several topics.
    """
    planned = plans(control / "checkpoint")
    if not planned or not (control / "journal").is_dir():
        return -1, {}
    (batch_id, ends) = max(planned.items())
    committed, _ = newest_commit(control / "checkpoint")
    newest = newest_entry(control)
    progress = continued(newest.notes.progress if newest else StreamProgress(), Control(control).sources(), sub)
    goes_on = newest is not None and not newest.notes.is_last
    # Of a batch in parts the rest is not decided.
    decided = progress.planned_id - goes_on
    # A torn plan was not used yet.
    if ends is None or batch_id <= max(decided, -1 if committed is None else committed):
        return batch_id, {}
    ranges: dict[str, Offsets] = {}
    for source in (with_topic_partitions(o, progress) for o in sub.outside_sources if o.topic):
        partitions = progress.inputs.get(source.name, InputProgress()).partitions
        starts = {source.topic_partition(number): part.until_offset for number, part in partitions.items()}
        for topic in sorted(filter(source.reads, ends)):
            offsets: dict[int, tuple[int, int]] = {}
            for number, end in sorted(ends[topic].items()):
                start = starts.get(TopicPartition(topic, number), 0)
                if start < end:
                    offsets[number] = (start, end)
            ranges[topic] = offsets
    return batch_id, {topic: offsets for topic, offsets in ranges.items() if offsets}


def most_records(control: Path, sub: SubTopology, *, at_ms: int) -> dict[str, int]:
    """Returns how many records of each source the undecided batch of *sub* has at most, most first.

    There are none without such a batch, if it was planned after *at_ms*, and if a file is damaged. *control* is the
    control folder. A topic with gaps has fewer records, and so may one that was not read yet: it may begin later than
    at offset 0.
    """
    ranges = _ranges_planned_by(control, sub, at_ms)
    records: dict[str, int] = {}
    for source in sub.outside_sources if ranges else ():
        of_topics = [ranges[topic] for topic in ranges if source.topic and source.reads(topic)]
        if of_topics:
            records[source.name] = sum(end - start for offsets in of_topics for start, end in offsets.values())
    return dict(sorted(records.items(), key=lambda each: -each[1]))


def planned_ends(control: Path, sub: SubTopology, *, at_ms: int, after: int) -> dict[tuple[str, int], int] | None:
    """Returns up to which offset the undecided batch of *sub* reads the input partitions of its sources.

    The result is None if no batch after the batch *after* is known to have been planned by *at_ms*, and empty if the
    newest one has no undecided records. Partitions of which it has no records are left out.
    """
    try:
        batch_id, ranges = unread_ranges(control, sub)
        if batch_id <= after or read_plan(control / "checkpoint", batch_id).at_ms > at_ms:
            return None
    except UnreadableFile:
        return None
    ends: dict[tuple[str, int], int] = {}
    progress = numbered_progress(control, sub) if ranges else StreamProgress()
    for source in (with_topic_partitions(o, progress) for o in sub.outside_sources if o.topic):
        for topic in filter(source.reads, ranges):
            for number, (_, end) in ranges[topic].items():
                partition = (
                    source.topic_partitions.index(TopicPartition(topic, number)) if source.reads_several else number
                )
                ends[source.name, partition] = end
    return ends


def _ranges_planned_by(control: Path, sub: SubTopology, at_ms: int) -> Ranges:
    """Returns the offsets of the undecided batch of *sub* if it was planned by *at_ms*; none if a file is damaged."""
    try:
        batch_id, ranges = unread_ranges(control, sub)
        is_planned = bool(ranges) and read_plan(control / "checkpoint", batch_id).at_ms <= at_ms
    except UnreadableFile:
        return {}
    return ranges if is_planned else {}


def refuse_unstable(control: Path, sub: SubTopology, broker: Answers) -> None:
    """Raises if *sub* has read, or planned to read, records of a transaction that is still open.

    `isolation.level` was `read_uncommitted` then. With `read_committed` Spark would pass over the rest of the plan
    without a word. *control* is the control folder.

    Raises:
        UnstableOffsets: there are such records.
    """
    progress = numbered_progress(control, sub)
    _, planned = unread_ranges(control, sub)
    for source in (with_topic_partitions(o, progress) for o in sub.outside_sources if o.topic):
        ends = progress.inputs.get(source.name, InputProgress()).offsets_read
        for number in ends:
            topic, partition = source.topic_partition(number)
            ends[number] = max(ends[number], planned.get(topic, {}).get(partition, (0, 0))[1])
        for number, stable in broker.open_transactions(source, [*ends]).items():
            if stable < ends[number]:
                topic, partition = source.topic_partition(number)
                msg = (
                    f"topic {topic!r}, partition {partition}: a transaction is open from offset {stable} "
                    f"on, and the stream was reading until {ends[number]} when isolation.level of "
                    f"[kafka.{source.kafka}.settings] was read_uncommitted; end the transaction, or write "
                    "read_uncommitted until it has ended"
                )
                raise UnstableOffsets(msg)


def newest_progress(control: Path) -> StreamProgress:
    """Returns the progress with the newest decision of the stream with the folder *control*."""
    newest = newest_entry(control)
    return newest.notes.progress if newest else StreamProgress()


def numbered_progress(control: Path, sub: SubTopology) -> StreamProgress:
    """Returns the progress of *sub* with the newest decision, and with numbers of all partitions that are planned.

    *control* is its control folder.
    """
    progress = continued(newest_progress(control), Control(control).sources(), sub)
    for _, ends in sorted(plans(control / "checkpoint").items()):
        _, progress = number_partitions(sub, ends or {}, progress)
    return progress


def record_name(control: Path, sub: SubTopology, at: TopicPartition, offset: int) -> str:
    """Returns the record at *offset* of a topic's partition as SOURCE/PARTITION/OFFSET, with the input partition.

    *control* is the control folder of *sub*, which reads the topic.
    """
    source = next(o for o in sub.outside_sources if o.reads(at.topic))
    numbered = with_topic_partitions(source, numbered_progress(control, sub)).topic_partitions
    return f"{source.name}/{numbered.index(at) if source.reads_several else at.partition}/{offset}"


def skip_command(topology: str, sub_topology: str, record: str) -> str:
    """Returns the command that lets a stream continue without *record*."""
    return f"tidemark accept-loss {topology} {sub_topology} --record {record} --by NAME --reason TEXT"


def unread_clause(control: Path, sub: SubTopology) -> str:
    """Returns what is unread as a clause, or empty if nothing is, or if a file is damaged."""
    try:
        ranges = unread(control, sub)
    except UnreadableFile:
        return ""
    return f"it was reading {'; '.join(ranges)}" if ranges else ""
