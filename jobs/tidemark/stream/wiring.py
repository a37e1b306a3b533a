"""Puts the parts of one stream together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemark.clock import Clock, wall_clock_ms
from tidemark.control import Control
from tidemark.delta import Committer, Reference, create
from tidemark.disk import UntilWritten, at_once
from tidemark.errors import InvalidArgument
from tidemark.kernels.schemas import arrow_schema
from tidemark.spec.operators import HopSource
from tidemark.spec.stream import Stream
from tidemark.spec.tables import HOP
from tidemark.stream.broker import Broker
from tidemark.stream.commit import Committing, create_tables, tables_alone
from tidemark.stream.decision import Decider
from tidemark.stream.distributed.shards import Shards
from tidemark.stream.engine import Engine
from tidemark.stream.intact import Intact, Reread, nothing_to_reread
from tidemark.stream.journal import Journal
from tidemark.stream.measurement import Host, Measurer
from tidemark.stream.requests import Requests
from tidemark.stream.state_files import StateFiles
from tidemark.stream.steps import Steps
from tidemark.stream.table_marks import TableMarks
from tidemark.stream.time_resets import TimeResets

HERE = Host()


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
    control = Control(stream.control)
    intact = Intact(f"{topology.name} {sub.name}", control.accepted_loss, reread)
    table_marks = TableMarks(stream.layout.warehouse)
    decider = Decider.of(stream, steps, broker, intact, table_marks, clock, slow_ms=slow_ms)
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
    shards = (
        None
        if stream.shards == 1
        else Shards(
            stream,
            decider,
            steps,
            journal,
            broker,
            table_marks,
            clock,
            slow_ms=slow_ms,
            reached=reached,
            check_lease=check_lease,
            until_written=until_written,
        )
    )
    resets = TimeResets(sub, stream.home, control.time_resets, window_ms=topology.window_ms)
    return Engine(
        stream,
        steps,
        decider,
        shards,
        journal,
        committing,
        clock,
        epoch=epoch,
        requests=Requests(stream.control, resets.applied, decider.reopenings.applied),
        state=StateFiles(stream, journal, check_lease=check_lease, until_written=until_written),
        check_lease=check_lease,
    )
