"""`tidemark accept-loss`: continues a stream without lost records.

A topic, or the log of a hop, lost them before they were read.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse, whole_number
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, add_plan, carry_out, refuse_anonymous
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.folder import AcceptedLoss, Control
from tidemark.errors import InvalidArgument, argument_type
from tidemark.model.project.layout import Layout, usable
from tidemark.stream.journal.entries import Journal


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command.

    A driver that stopped because of a loss prints the whole command.
    """
    parser.add_argument("topology", type=argument_type(usable), help="name of the topology")
    parser.add_argument("sub_topology", type=argument_type(usable), help="name of the sub-topology")
    parser.add_argument("--source", required=True, help="the source that reads the topic or the hop")
    number = argument_type(whole_number)
    parser.add_argument(
        "--partition", type=number, help="partition of the topic; 0 for a hop; with --topic-id the default is all"
    )
    parser.add_argument(
        "--until", type=number, required=True, metavar="OFFSET", help="offset to continue from; for a hop, the batch"
    )
    parser.add_argument("--topic-id", metavar="ID", help="id of the new topic, if the topic was recreated")
    parser.add_argument("--by", metavar="NAME", help="person who accepts the loss")
    parser.add_argument("--reason", metavar="TEXT", help="reason why the records are not needed")
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Records the decision, and prints it."""
    warehouse = existing_warehouse(options)
    refuse_anonymous(options)
    planned = partial(loss_plan, options, warehouse)
    say_inert(carry_out(planned, options, Layout(warehouse), options.topology, note=options.reason))
    return 0


def loss_plan(options: argparse.Namespace, warehouse: Path, clock: Clock = wall_clock_ms) -> RepairPlan:
    """Returns the plan to skip records from where the stream is.

    Raises InvalidArgument if the stream does not read the partition.
    """
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
    entry = Journal(home / "journal", "data").newest() if home.is_dir() else None
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
