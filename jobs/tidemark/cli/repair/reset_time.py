"""`tidemark reset-time`: sets the time of a partition back.

A record from the future had moved it.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import quote
from typing import assert_never

from tidemark.cli.shared.options import existing_warehouse, whole_number
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, add_plan, carry_out, refuse_anonymous
from tidemark.cli.shared.streams import topology_with_file
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.folder import Control, TimeReset
from tidemark.errors import InvalidArgument, argument_type
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout, usable
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.model.settings.windows import Shape
from tidemark.model.topology import SubTopology, Topology, load
from tidemark.semantics.progress import STREAMING, StreamProgress
from tidemark.stream.decide.time_resets import TimeResets
from tidemark.stream.startup.unread import newest_progress


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    parser.add_argument("sub_topology", type=argument_type(usable), help="name of the sub-topology")
    parser.add_argument("--source", required=True, help="the source operator, or the reader of a hop")
    parser.add_argument("--partition", type=argument_type(whole_number), required=True, help="partition of the source")
    parser.add_argument(
        "--to",
        type=argument_type(instant_ms),
        required=True,
        metavar="INSTANT",
        help="new time of the newest record of the partition, ISO 8601",
    )
    parser.add_argument("--by", metavar="NAME", help="person who resets the time")
    parser.add_argument("--reason", metavar="TEXT", help="reason for the reset")
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Requests the reset, and prints its consequences."""
    warehouse, topology = existing_warehouse(options), topology_with_file(options)
    refuse_anonymous(options)
    planned = partial(reset_plan, options, warehouse, topology)
    say_inert(carry_out(planned, options, Layout(warehouse), topology.name, note=options.reason))
    return 0


def reset_plan(
    options: argparse.Namespace, warehouse: Path, topology: Topology, clock: Clock = wall_clock_ms
) -> RepairPlan:
    """Returns the plan to set the time of a partition back.

    Its effect are the windows that stay closed, and the commands that reset readers. Raises InvalidArgument if the
    partition is unknown or not later than the new time, if a session would stay closed, or if the upstream of a hop was
    not reset before.
    """
    sub = topology.sub_topology(options.sub_topology)
    layout = Layout(warehouse)
    progress = newest_progress(layout.control(topology.name, sub.name))
    source = progress.inputs.get(options.source)
    part = source.partitions.get(options.partition) if source else None
    if part is None or part.max_timestamp_ms is None or part.max_timestamp_ms <= options.to:
        places: list[str] = []
        for name, source in sorted(progress.inputs.items()):
            for number, of in sorted(source.partitions.items()):
                topic = f" ({source.places[number]})" if source.places else ""
                places.append(f"{name}/{number}{topic} at {_time_text(of.max_timestamp_ms)}")
        partitions = ", ".join(places)
        position = "is not known" if part is None else f"is at {_time_text(part.max_timestamp_ms)}, which is not later"
        partition = f"{options.source}/{options.partition}"
        msg = f"--to {_time_text(options.to)}: {partition} {position}; name one of: {partitions}"
        raise InvalidArgument(msg)
    _refuse_sessions(sub)
    control = Control(layout.control(topology.name, sub.name))
    resets = TimeResets(sub, layout.stream(topology.name, sub.name), control.time_resets, window_ms=topology.window_ms)
    after = resets.preview(progress, options.source, options.partition, options.to)
    from_offset = _batch_after_reset(topology, sub, options.source, layout)
    lines = [
        f"{options.source}, partition {options.partition}: time goes back from {_time_text(part.max_timestamp_ms)} to "
        f"{_time_text(options.to)} with the next batch; the watermark is {_time_text(after.watermark_ms)} then",
        *_closed_lines(after),
    ]
    if after.watermark_ms != progress.watermark_ms and after.watermark_ms is not None:
        author = f"--by {quote(options.by or 'NAME')} --reason {quote(options.reason or 'TEXT')}"
        arguments = f"--to {_time_text(after.watermark_ms + 1)} {author}"
        readers = _readers(topology, sub, layout, after.watermark_ms)
        commands = [f"  tidemark reset-time {place} {arguments}" for place in readers]
        lines += ["then, once that batch is done, for each reader:", *commands] if commands else []
    effect = "\n".join(lines)
    waiting = [reset.id for reset in control.time_resets() if reset.id not in progress.resets]

    def apply() -> str:
        control.request_time_reset(
            TimeReset(
                id=uuid.uuid4().hex,
                source=options.source,
                partition=options.partition,
                to_ms=options.to,
                from_offset=from_offset,
                by=options.by,
                reason=options.reason,
                at_ms=clock(),
            )
        )
        return effect

    # The watermark of a running stream advances with its other partitions, and loses nothing by that.
    state = (options.source, options.partition, part.max_timestamp_ms, options.to, from_offset, waiting)
    return RepairPlan(
        topology=topology.name,
        sub_topology=sub.name,
        effect=effect,
        state=(*state, sorted(after.stay_closed.items())),
        apply=apply,
    )


def _closed_lines(after: StreamProgress) -> list[str]:
    lines: list[str] = []
    for name, windows in sorted(after.stay_closed.items()):
        owner = "streaming window" if name == STREAMING else name
        lines += [f"  {owner} {_time_text(start)} to {_time_text(end)}" for start, end in windows]
    return ["windows that stay closed, whose records are late:", *lines] if lines else ["no window stays closed"]


def _refuse_sessions(sub: SubTopology) -> None:
    for operator in sub.operators:
        if operator.windows and operator.windows.shape is Shape.SESSION:
            msg = (
                f"{operator.name}: closed sessions could open again after a reset of time; give the topology a new "
                "name, under which it reads its topics again"
            )
            raise InvalidArgument(msg)


def _batch_after_reset(topology: Topology, sub: SubTopology, source: str, layout: Layout) -> int:
    """Returns the batch of a hop's upstream that follows its reset.

    It is 0 for a source that is no hop. Raises InvalidArgument if the upstream was not reset.
    """
    # Marks that the upstream wrote before its reset would move the reader forward again.
    hop = next((o for o in sub.hops_read if o.name == source), None)
    if hop is None:
        return 0
    resets = newest_progress(layout.control(topology.name, hop.upstream)).resets
    if not resets:
        command = f"tidemark reset-time {topology.name} {hop.upstream}"
        msg = f"{source}: its time comes from {hop.upstream}; reset that first: {command} --source …"
        raise InvalidArgument(msg)
    return max(resets.values()) + 1


def _readers(topology: Topology, sub: SubTopology, layout: Layout, watermark_ms: int) -> Iterator[str]:
    """Yields partitions of readers of *sub* that are ahead of *watermark_ms*.

    They are written as arguments of the command. The watermark is in record time, epoch ms.
    """
    topics = {o.topic_written for o in sub.operators if o.topic_written}
    tables = {layout.stream_table(topology.name, sub.name, o.result_table) for o in sub.operators if o.result_table}
    others = [load(file) for file in sorted(Project.here().topologies.glob("*.toml"))]
    for reader in [topology, *(other for other in others if other.name != topology.name)]:
        for part in reader.sub_topologies:
            for source in part.sources:
                match source:
                    case HopSource():
                        is_reader = reader is topology and source.upstream == sub.name
                    case Source():
                        is_reader = any(map(source.reads, topics)) or bool(
                            source.delta and layout.warehouse / source.delta in tables
                        )
                    case _:
                        assert_never(source)
                if not is_reader or not layout.control(reader.name, part.name).is_dir():
                    continue
                progress = newest_progress(layout.control(reader.name, part.name)).inputs.get(source.name)
                for number, partition in sorted(progress.partitions.items() if progress else ()):
                    if partition.watermark_ms is not None and partition.watermark_ms > watermark_ms:
                        yield f"{reader.name} {part.name} --source {source.name} --partition {number}"


def _time_text(ms: int | None) -> str:
    return "no time" if ms is None else iso(ms)
