"""Puts the parts of one stream together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tidemark.clock import Clock, wall_clock_ms
from tidemark.control import Control
from tidemark.delta import Committer, Reference, create
from tidemark.disk import UntilWritten, at_once
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.kernels.schemas import arrow_schema
from tidemark.spec.layout import Layout
from tidemark.spec.operators import HopSource, Source, Time
from tidemark.spec.tables import HOP
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.broker import Broker
from tidemark.stream.commit import Committing, create_tables, tables_alone
from tidemark.stream.decision import Decider
from tidemark.stream.engine import Engine
from tidemark.stream.intact import Intact, Offsets, Reread
from tidemark.stream.intake import Reader
from tidemark.stream.journal import Journal
from tidemark.stream.measurement import Host, Measurer
from tidemark.stream.pipeline import Pipeline
from tidemark.stream.reopenings import Reopenings
from tidemark.stream.requests import Requests
from tidemark.stream.spread import Spread
from tidemark.stream.state_files import StateFiles
from tidemark.stream.steps import Steps
from tidemark.stream.table_marks import TableMarks
from tidemark.stream.time_resets import TimeResets

HERE = Host()


@dataclass(frozen=True)
class Stream:
    """One sub-topology of a topology, in a warehouse."""

    topology: Topology
    sub: SubTopology
    layout: Layout

    @property
    def home(self) -> Path:
        """The folder of its tables."""
        return self.layout.stream(self.topology.name, self.sub.name)

    @property
    def control(self) -> Path:
        """Its control folder."""
        return self.layout.control(self.topology.name, self.sub.name)


def nothing_to_reread(source: Source, _: Offsets) -> pl.DataFrame:
    """For streams without Spark: nobody passes over anything."""
    msg = f"{source.name}: there is no way to read its topic again"
    raise TidemarkError(msg)


def build_engine(
    stream: Stream,
    broker: Broker,
    *,
    thread_id: str,
    epoch: int,
    slow_ms: Mapping[str, int],
    clock: Clock = wall_clock_ms,
    reached: Callable[[str], None] = lambda step: None,
    reread: Reread = nothing_to_reread,
    check_lease: Callable[[], None] = lambda: None,
    until_written: UntilWritten = at_once,
    host: Host = HERE,
) -> Engine:
    """The engine of *stream* with its *broker*; creates its tables and the hops it reads.

    *slow_ms* makes operators sleep; *reached* hears of each commit step; *reread* reads what Spark passed over;
    *check_lease* is called before each write, and *until_written* does it. *host* is the one whose *clock* it reads.
    """
    topology, sub = stream.topology, stream.sub
    if unknown := set(slow_ms) - set(topology.operators):
        msg = f"--slow names operators of the topology, got {sorted(unknown)}; known: {', '.join(topology.operators)}"
        raise InvalidArgument(msg)
    steps = Steps(topology, Reference(stream.layout.warehouse))
    create_tables(stream.home, sub, steps.schemas)
    for operator in sub.operators:
        if isinstance(operator, HopSource):
            hop = stream.layout.hop(topology.name, operator.upstream, operator.repartition)
            create(hop, arrow_schema(HOP), description=HOP.row)
    sources = [operator for operator in sub.operators if isinstance(operator, Source)]
    pipeline = Pipeline(sub, steps, clock, slow_ms=slow_ms, sleep_ms=lambda ms: time.sleep(ms / 1_000))
    control = Control(stream.control)
    intact = Intact(f"{topology.name} {sub.name}", control.accepted_loss, reread)
    reader = Reader(
        sources,
        broker,
        steps,
        intact,
        clock,
        TableMarks(stream.layout.warehouse),
        window_ms=topology.window_ms,
        processing_time=topology.time is Time.PROCESSING,
        max_held=topology.max_held,
    )
    reopenings = Reopenings(sub, stream.home, control, steps.schemas)
    decider = Decider(topology, sub, reader, pipeline, steps, reopenings)
    journal_home = stream.control / "journal"
    committing = Committing(
        sub,
        stream.home,
        Committer(
            f"{topology.name}/{sub.name}",
            clock,
            check_lease=check_lease,
            until_written=until_written,
            alone=tables_alone(stream.home, sub),
            is_only_writer=True,
        ),
        Journal(journal_home, "facts", check_lease=check_lease, until_written=until_written),
        Measurer(topology, sub, thread_id=thread_id, host=host),
        broker,
        clock,
        reached=reached,
        check_lease=check_lease,
        until_written=until_written,
    )
    journal = Journal(journal_home, "data", check_lease=check_lease, until_written=until_written)
    spread = Spread(
        topology,
        sub,
        stream.layout,
        stream.control / "spread",
        reader,
        decider,
        steps,
        clock,
        slow_ms=slow_ms,
        reached=reached,
        check_lease=check_lease,
        until_written=until_written,
    )
    resets = TimeResets(sub, stream.home, control.time_resets, window_ms=topology.window_ms)
    return Engine(
        sub,
        stream.home,
        steps,
        decider,
        spread,
        journal,
        committing,
        clock,
        epoch=epoch,
        requests=Requests(stream.control, resets.applied, reopenings.applied),
        state=StateFiles(
            stream.control / "state",
            journal,
            flush_batches=topology.flush_batches,
            flush_keys=topology.flush_keys,
            check_lease=check_lease,
            until_written=until_written,
        ),
    )
