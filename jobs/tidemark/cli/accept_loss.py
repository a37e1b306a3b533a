"""`tidemark accept-loss`: go on without records that a topic lost before they were read."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control import AcceptedLoss, Control
from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import told
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.layout import Layout, usable
from tidemark.stream.journal import Journal


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes; a driver that stopped because of a loss prints it whole."""
    parser.add_argument("topology", type=told(usable))
    parser.add_argument("sub_topology", type=told(usable))
    parser.add_argument("--source", required=True, help="the source operator that reads the topic")
    parser.add_argument("--partition", type=int, required=True)
    parser.add_argument("--until", type=int, required=True, metavar="OFFSET", help="the offset from which to go on")
    parser.add_argument("--by", required=True, metavar="NAME", help="who decides this")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why the records may be done without")


def command(asked: argparse.Namespace) -> int:
    """Write the decision down, and say what it was."""
    say_inert(accept_loss(asked, options.warehouse(asked)))
    return 0


def accept_loss(asked: argparse.Namespace, warehouse: Path, clock: Clock = wall_clock_ms) -> str:
    """Write the decision down, and what was decided; raises InvalidArgument when the stream reads no such partition."""
    control = Control(Layout(warehouse).control(asked.topology, asked.sub_topology))
    at = _position(control.home, asked.source, asked.partition)
    control.accept_loss(
        AcceptedLoss(
            source=asked.source,
            partition=asked.partition,
            from_offset=at,
            until_offset=asked.until,
            by=asked.by,
            reason=asked.reason,
            at_ms=clock(),
        )
    )
    return (
        f"{asked.source}, partition {asked.partition}: what is lost from offset {at} on is given up; start the stream"
    )


def _position(home: Path, source: str, partition: int) -> int:
    """The offset that the stream with the control folder *home* reads next."""
    entry = Journal(home / "journal", "data").newest() if home.is_dir() else None
    inputs = StreamProgress.from_json(entry.notes["progress"]).inputs if entry else {}
    known = {(name, number): part.until_offset for name, i in inputs.items() for number, part in i.partitions.items()}
    if (source, partition) not in known:
        places = ", ".join(f"{name}/{number}" for name, number in sorted(known)) or "none: it has read nothing yet"
        msg = f"{home}: a loss is that of a partition which the stream reads, got {source}/{partition}; known: {places}"
        raise InvalidArgument(msg)
    return known[source, partition]
