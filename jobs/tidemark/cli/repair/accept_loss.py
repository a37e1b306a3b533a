"""`tidemark accept-loss`: continues a stream without lost records, or without one that is present.

A topic, or the log of a hop, lost them before they were read; or every driver that reads the record fails.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tidemark.cli.explain.trace import record_place
from tidemark.cli.shared.options import existing_warehouse, whole_number
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, add_plan, carry_out, refuse_anonymous
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.folder import AcceptedLoss, AcceptedRecord, Control
from tidemark.errors import InvalidArgument, argument_type
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout, usable
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, TopicPartition
from tidemark.stream.journal.entries import newest_entry
from tidemark.stream.kafka.numbering import with_topic_partitions
from tidemark.stream.startup.unread import numbered_progress, unread_ranges
from tidemark.trace.outcomes import RecordPosition


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command.

    A driver that stopped because of a loss prints the whole command.
    """
    parser.add_argument("topology", type=argument_type(usable), help="name of the topology")
    parser.add_argument("sub_topology", type=argument_type(usable), help="name of the sub-topology")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--source", help="the source that reads the topic or the hop")
    record = "a present record that is not to be read: its source or topic, input partition and offset"
    which.add_argument("--record", metavar="SOURCE/PARTITION/OFFSET", help=record)
    number = argument_type(whole_number)
    parser.add_argument(
        "--partition", type=number, help="partition of the topic; 0 for a hop; with --topic-id the default is all"
    )
    parser.add_argument(
        "--until", type=number, metavar="OFFSET", help="offset to continue from; for a hop, the batch; with --source"
    )
    parser.add_argument("--topic-id", metavar="ID", help="id of the new topic, if the topic was recreated")
    parser.add_argument("--by", metavar="NAME", help="person who accepts the loss")
    parser.add_argument("--reason", metavar="TEXT", help="reason why the records are not needed")
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Records the decision, and prints it."""
    warehouse = existing_warehouse(options)
    refuse_anonymous(options)
    planned = partial(loss_plan if options.record is None else record_plan, options, warehouse)
    say_inert(carry_out(planned, options, Layout(warehouse), options.topology, note=options.reason))
    return 0


def loss_plan(options: argparse.Namespace, warehouse: Path, clock: Clock = wall_clock_ms) -> RepairPlan:
    """Returns the plan to skip records from where the stream is.

    Raises InvalidArgument if the stream does not read the partition.
    """
    if options.until is None:
        msg = "--until: is missing; name the offset to continue from, as the reason of the driver's end does"
        raise InvalidArgument(msg)
    if options.partition is None and options.topic_id is None:
        msg = "--partition: is missing; name the partition that lost records, as the reason of the driver's end does"
        raise InvalidArgument(msg)
    control = Control(Layout(warehouse).control(options.topology, options.sub_topology))
    positions = _positions(control.home, options.source, options.partition)
    accepted = control.accepted_loss()
    done = {
        partition: accepted.get((options.source, partition, options.topic_id or at), -1) >= options.until
        for partition, at in positions.items()
    }
    return RepairPlan(
        topology=options.topology,
        sub_topology=options.sub_topology,
        effect=_effect(options, positions)
        + ("; this is accepted already: start the stream" if all(done.values()) else ""),
        state=(options.source, positions, options.until, options.topic_id, done),
        apply=lambda: _apply(options, control, positions, clock),
        is_needed=not all(done.values()),
    )


def record_plan(options: argparse.Namespace, warehouse: Path, clock: Clock = wall_clock_ms) -> RepairPlan:
    """Returns the plan to skip one present record of the batch that the stream has planned and not decided.

    Raises InvalidArgument if the stream has read the record, or has not planned to read it.
    """
    for name in ("until", "partition", "topic_id"):
        if getattr(options, name) is not None:
            msg = f"--{name.replace('_', '-')}: does not go with --record, which names the record; leave it out"
            raise InvalidArgument(msg)
    layout, wanted = Layout(warehouse), record_place(options.record)
    sub = topology_with_file(options).sub_topology(options.sub_topology)
    stream, control = f"{options.topology}/{sub.name}", Control(layout.control(options.topology, sub.name))
    sources = [o for o in sub.outside_sources if o.topic and (wanted.source == o.name or o.reads(wanted.source))]
    if not sources:
        known = ", ".join(o.name for o in sub.outside_sources if o.topic) or "none"
        msg = f"--record: no source of {stream} over a topic is called {wanted.source}; known: {known}"
        raise InvalidArgument(msg)
    partition = _topic_partition(with_topic_partitions(sources[0], numbered_progress(control.home, sub)), wanted)
    batch_id = _batch_with(control.home, sub, partition, wanted, stream)
    accepted = AcceptedRecord(
        topic=partition.topic,
        partition=partition.partition,
        offset=wanted.offset,
        batch_id=batch_id,
        by=options.by,
        reason=options.reason,
        at_ms=clock(),
    )
    is_done = any(_skips_the_same(accepted, before) for before in control.accepted_records())

    def apply() -> str:
        control.accept_record(accepted)
        return f"{wanted} is skipped; start the stream"

    return RepairPlan(
        topology=options.topology,
        sub_topology=sub.name,
        effect=f"{stream} does not read the record {wanted} (topic {partition.topic}, partition {partition.partition}),"
        " which is present, and sets it aside in quarantine as accepted_loss"
        + ("; this is accepted already: start the stream" if is_done else ""),
        state=(str(wanted), partition, batch_id, is_done),
        apply=apply,
        is_needed=not is_done,
    )


def _skips_the_same(one: AcceptedRecord, other: AcceptedRecord) -> bool:
    places = [(each.topic, each.partition, each.offset, each.batch_id) for each in (one, other)]
    return places[0] == places[1]


def _topic_partition(source: Source, wanted: RecordPosition) -> TopicPartition:
    """Returns topic and Kafka's partition of the record that is *wanted*, which *source* reads."""
    if source.reads_several and wanted.partition >= len(source.topic_partitions):
        msg = (
            f"--record: {source.name} has no input partition {wanted.partition}; it has {len(source.topic_partitions)}"
        )
        raise InvalidArgument(msg)
    return source.topic_partition(wanted.partition)


def _batch_with(home: Path, sub: SubTopology, partition: TopicPartition, wanted: RecordPosition, stream: str) -> int:
    """Returns Spark's number of the undecided batch that has the record *wanted*.

    Raises InvalidArgument, which says where the stream is, if that batch does not have it.
    """
    batch_id, ranges = unread_ranges(home, sub)
    start, end = ranges.get(partition.topic, {}).get(partition.partition, (None, None))
    if start is not None and end is not None and start <= wanted.offset < end:
        return batch_id
    position = _read_to(home, sub, partition) if start is None else start
    if wanted.offset < position:
        msg = (
            f"--record: {stream} has read {wanted} already: it continues at offset {position}; "
            f"`tidemark trace --record {wanted}` shows what became of it"
        )
        raise InvalidArgument(msg)
    beyond = f"it has planned to read until offset {end}" if end is not None else "no batch of it is undecided there"
    msg = (
        f"--record: {wanted} lies beyond the end of what {stream} is about to read: {beyond}; a record is skipped once "
        "a driver has begun the batch that has it"
    )
    raise InvalidArgument(msg)


def _read_to(home: Path, sub: SubTopology, partition: TopicPartition) -> int:
    """Returns the offset up to which *sub* has read the *partition*; 0 if it has not begun."""
    progress = numbered_progress(home, sub)
    for source in sub.outside_sources:
        numbered = with_topic_partitions(source, progress)
        for number, part in progress.inputs.get(source.name, InputProgress()).partitions.items():
            if source.topic and numbered.topic_partition(number) == partition:
                return part.until_offset
    return 0


def _effect(options: argparse.Namespace, positions: dict[int, int]) -> str:
    stream = f"{options.topology}/{options.sub_topology}"
    places = [(f"partition {partition}", at) for partition, at in positions.items()]
    if options.topic_id is not None:
        read = ", ".join(f"{place} was read until offset {at}" for place, at in places)
        return (
            f"{stream} gives up unread records of the earlier topic of {options.source} ({read}), and reads the topic "
            f"with the id {options.topic_id} from offset {options.until} on"
        )
    lost = ", ".join(
        f"{place} from offset {at} until {options.until} ({max(options.until - at, 0):,})" for place, at in places
    )
    return f"{stream} skips records of {options.source} that it has not read: {lost} (of a hop these are batches)"


def _apply(options: argparse.Namespace, control: Control, positions: dict[int, int], clock: Clock) -> str:
    for partition, at in positions.items():
        control.accept_loss(
            AcceptedLoss(
                source=options.source,
                partition=partition,
                from_offset=at,
                until_offset=options.until,
                by=options.by,
                reason=options.reason,
                at_ms=clock(),
                topic_id=options.topic_id,
            )
        )
    lost = ", ".join(f"partition {partition} from offset {at} on" for partition, at in positions.items())
    return f"{options.source}: the lost records are skipped, {lost}; start the stream"


def _positions(home: Path, source: str, partition: int | None) -> dict[int, int]:
    """Returns the next offset that a stream reads, by partition.

    It is that of *partition* of *source*, or of all its partitions if that is None. *home* is the control folder of the
    stream. Raises InvalidArgument if the stream does not read the partition.
    """
    entry = newest_entry(home)
    inputs = entry.notes.progress.inputs if entry else {}
    partitions = inputs[source].partitions if source in inputs else {}
    positions = {number: partitions[number].until_offset for number in sorted(partitions)}
    if partition is None and positions:
        return positions
    if partition in positions:
        return {partition: positions[partition]}
    places = inputs[source].places if source in inputs else ()
    if partition is not None and positions and (partition > max(positions) or 0 <= partition < len(places)):
        return {partition: 0}  # it was added to the topics, and the stream has not read it
    names: list[str] = []
    for name in sorted(inputs):
        names += [f"{name}/{number}" for number in sorted(inputs[name].partitions)]
    place = "all" if partition is None else partition
    listed = ", ".join(names) or "none (the stream has read no records yet)"
    msg = f"{home}: the stream does not read this partition, got {source}/{place}; known: {listed}"
    raise InvalidArgument(msg)
