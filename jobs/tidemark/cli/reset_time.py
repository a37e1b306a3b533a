"""`tidemark reset-time`: set the time of a partition back after a record from the future moved it."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.clock import Clock, wall_clock_ms
from tidemark.control import Control, TimeReset
from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import told
from tidemark.report.batch_job import topology as topology_named
from tidemark.semantics.progress import STREAMING, StreamProgress
from tidemark.spec.intervals import instant_ms, iso
from tidemark.spec.layout import Layout, usable
from tidemark.spec.operators import Aggregate, HopSource, Shape, Sink, Source
from tidemark.spec.project import Project
from tidemark.spec.topology import SubTopology, Topology, load
from tidemark.stream.journal import Journal
from tidemark.stream.time_resets import TimeResets


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("topology", help="its name, or its TOML file")
    parser.add_argument("sub_topology", type=told(usable))
    parser.add_argument("--source", required=True, help="the source operator, or the reading end of a hop")
    parser.add_argument("--partition", type=int, required=True)
    parser.add_argument(
        "--to",
        type=told(instant_ms),
        required=True,
        metavar="INSTANT",
        help="the new time of its newest record, ISO 8601",
    )
    parser.add_argument("--by", required=True, metavar="NAME", help="who decides this")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why time goes back")


def command(asked: argparse.Namespace) -> int:
    """Ask for it, and say what follows."""
    say_inert(reset_time(asked, options.warehouse(asked), topology_named(asked.topology)))
    return 0


def reset_time(asked: argparse.Namespace, warehouse: Path, topology: Topology, clock: Clock = wall_clock_ms) -> str:
    """Ask the driver, and say which windows stay closed and what else to reset; raises InvalidArgument."""
    sub = topology.sub_topology(asked.sub_topology)
    layout = Layout(warehouse)
    progress = newest_progress(layout, topology.name, sub.name)
    part = progress.inputs[asked.source].partitions.get(asked.partition) if asked.source in progress.inputs else None
    if part is None or part.max_timestamp_ms is None or part.max_timestamp_ms <= asked.to:
        known = ", ".join(
            f"{name}/{number} at {_shown(of.max_timestamp_ms)}"
            for name, source in sorted(progress.inputs.items())
            for number, of in sorted(source.partitions.items())
        )
        seen = "is not known" if part is None else f"is at {_shown(part.max_timestamp_ms)}, which is not later"
        msg = f"--to {_shown(asked.to)}: {asked.source}/{asked.partition} {seen}; name one of: {known}"
        raise InvalidArgument(msg)
    _refuse_sessions(sub)
    control = Control(layout.control(topology.name, sub.name))
    resets = TimeResets(sub, layout.stream(topology.name, sub.name), control.time_resets, window_ms=topology.window_ms)
    after = resets.preview(progress, asked.source, asked.partition, asked.to)
    from_offset = _after_reset_of_upstream(topology, sub, asked.source, layout)
    control.request_time_reset(
        TimeReset(
            id=uuid.uuid4().hex,
            source=asked.source,
            partition=asked.partition,
            to_ms=asked.to,
            from_offset=from_offset,
            by=asked.by,
            reason=asked.reason,
            at_ms=clock(),
        )
    )
    lines = [
        f"{asked.source}, partition {asked.partition}: time goes back from {_shown(part.max_timestamp_ms)} to "
        f"{_shown(asked.to)} with the next batch; the watermark is {_shown(after.watermark_ms)} then",
        *_closed_lines(after),
    ]
    if after.watermark_ms != progress.watermark_ms and after.watermark_ms is not None:
        said = f"--to {_shown(after.watermark_ms + 1)} --by {quote(asked.by)} --reason {quote(asked.reason)}"
        commands = [
            f"  tidemark reset-time {place} {said}" for place in _readers(topology, sub, layout, after.watermark_ms)
        ]
        lines += ["then, once that batch is done, for each reader:", *commands] if commands else []
    return "\n".join(lines)


def _closed_lines(after: StreamProgress) -> list[str]:
    lines = [
        f"  {'streaming window' if name == STREAMING else name} {_shown(start)} to {_shown(end)}"
        for name, windows in sorted(after.stay_closed.items())
        for start, end in windows
    ]
    return ["windows that stay closed, whose records are late:", *lines] if lines else ["no window stays closed"]


def _refuse_sessions(sub: SubTopology) -> None:
    for operator in sub.operators:
        if isinstance(operator, Aggregate) and operator.windows and operator.windows.shape is Shape.SESSION:
            msg = (
                f"{operator.name}: sessions that are closed cannot be kept closed when time goes back; give the "
                "topology a new name, under which it reads its topics again"
            )
            raise InvalidArgument(msg)


def _after_reset_of_upstream(topology: Topology, sub: SubTopology, source: str, layout: Layout) -> int:
    """The batch of the upstream of a hop after which its time is back; 0 for what is no hop.

    Marks that the upstream wrote before would move the reader again.
    """
    operator = next((o for o in sub.operators if o.name == source), None)
    if not isinstance(operator, HopSource):
        return 0
    resets = newest_progress(layout, topology.name, operator.upstream).resets
    if not resets:
        command = f"tidemark reset-time {topology.name} {operator.upstream}"
        msg = f"{source}: its time comes from {operator.upstream}; reset that first: {command} --source …"
        raise InvalidArgument(msg)
    return max(resets.values()) + 1


def _readers(topology: Topology, sub: SubTopology, layout: Layout, watermark_ms: int) -> Iterator[str]:
    """Where partitions that read what *sub* writes are ahead of *watermark_ms*, as the command takes it."""
    topics = {o.topic for o in sub.operators if isinstance(o, Sink) and o.topic}
    tables = {
        layout.stream_table(topology.name, sub.name, o.table) for o in sub.operators if isinstance(o, Sink) and o.table
    }
    others = [load(file) for file in sorted(Project.here().topologies.glob("*.toml"))]
    for reader in [topology, *(other for other in others if other.name != topology.name)]:
        for part in reader.sub_topologies:
            for source in part.operators:
                behind_hop = isinstance(source, HopSource) and reader is topology and source.upstream == sub.name
                of_sink = isinstance(source, Source) and (
                    source.topic in topics or bool(source.delta and layout.warehouse / source.delta in tables)
                )
                if not (behind_hop or of_sink) or not layout.control(reader.name, part.name).is_dir():
                    continue
                progress = newest_progress(layout, reader.name, part.name).inputs.get(source.name)
                for number, one in sorted(progress.partitions.items() if progress else ()):
                    if one.watermark_ms is not None and one.watermark_ms > watermark_ms:
                        yield f"{reader.name} {part.name} --source {source.name} --partition {number}"


def newest_progress(layout: Layout, topology: str, sub: str) -> StreamProgress:
    """How far the stream of *sub* has come by its newest journal entry."""
    home = layout.control(topology, sub)
    entry = Journal(home / "journal", "data").newest() if home.is_dir() else None
    return StreamProgress.from_json(entry.notes["progress"]) if entry else StreamProgress()


def _shown(ms: int | None) -> str:
    return "no time" if ms is None else iso(ms)
