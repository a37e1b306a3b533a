"""`tidemark accept-loss`: continues a stream without lost records.

A topic, or the log of a hop, lost them before they were read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
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
    parser.add_argument("--partition", type=int, required=True, help="partition of the topic; 0 for a hop")
    parser.add_argument(
        "--until", type=int, required=True, metavar="OFFSET", help="offset to continue from; for a hop, the batch"
    )
    parser.add_argument("--by", required=True, metavar="NAME", help="person who accepts the loss")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="reason why the records are not needed")


def command(options: argparse.Namespace) -> int:
    """Records the decision, and prints it."""
    say_inert(accept_loss(options, existing_warehouse(options)))
    return 0


def accept_loss(options: argparse.Namespace, warehouse: Path, clock: Clock = wall_clock_ms) -> str:
    """Records the decision in the stream's control folder; returns it as text.

    Raises InvalidArgument if the stream does not read the partition.
    """
    control = Control(Layout(warehouse).control(options.topology, options.sub_topology))
    at = _position(control.home, options.source, options.partition)
    control.accept_loss(
        AcceptedLoss(
            source=options.source,
            partition=options.partition,
            from_offset=at,
            until_offset=options.until,
            by=options.by,
            reason=options.reason,
            at_ms=clock(),
        )
    )
    place = f"{options.source}, partition {options.partition}"
    return f"{place}: the lost records from offset {at} on are skipped; start the stream"


def _position(home: Path, source: str, partition: int) -> int:
    """Returns the next offset that a stream reads from a partition.

    It is a partition of *source*, and *home* is the control folder of the stream. Raises InvalidArgument if the stream
    does not read the partition.
    """
    entry = Journal(home / "journal", "data").newest() if home.is_dir() else None
    inputs = entry.notes.progress.inputs if entry else {}
    if source in inputs and partition in inputs[source].partitions:
        return inputs[source].partitions[partition].until_offset
    places: list[str] = []
    for name in sorted(inputs):
        places += [f"{name}/{number}" for number in sorted(inputs[name].partitions)]
    listed = ", ".join(places) or "none (the stream has read no records yet)"
    msg = f"{home}: the stream does not read this partition, got {source}/{partition}; known: {listed}"
    raise InvalidArgument(msg)
