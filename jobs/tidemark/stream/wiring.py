"""Puts the parts of one stream together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import HOP, TOPOLOGY_CHANGES
from tidemark.storage.delta.format import stamp_warehouse
from tidemark.storage.delta.log import HOP_LOG
from tidemark.storage.delta.requirements import TableWatch
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import NO_FENCE, Fence
from tidemark.stream.decide.decision import Decider
from tidemark.stream.decide.due import DueTimes
from tidemark.stream.decide.time_resets import TimeResets
from tidemark.stream.decide.waits import LooksBefore, no_looks
from tidemark.stream.driver.heartbeats import ClockOffsets
from tidemark.stream.engine import Engine
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.broker import TopicBroker
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.data_loss import LossCheck, Reread, nothing_to_reread
from tidemark.stream.read.hop_log import begins_at, put_back, trimmers
from tidemark.stream.read.joined_tables import JoinedTables, Reference
from tidemark.stream.read.table_marks import TableMarks
from tidemark.stream.shards.host_clocks import HostClocks
from tidemark.stream.shards.shards import Shards
from tidemark.stream.startup.state_compatibility import refuse_other_types, types
from tidemark.stream.state.files import StateFiles
from tidemark.stream.write.commit import BatchCommitter
from tidemark.stream.write.declared import create_tables, declared_tables, tables_alone, tables_written
from tidemark.stream.write.flushing import Flusher
from tidemark.stream.write.measurement import Host, Measurer

HERE = Host()


def build_engine(
    stream: Stream,
    broker: TopicBroker,
    *,
    thread_id: str,
    epoch: int,
    slow_ms: Mapping[str, int],
    fence: Fence = NO_FENCE,
    reread: Reread = nothing_to_reread,
    host: Host = HERE,
    clock_offsets: ClockOffsets | None = None,
    queued: Callable[[int], QueueWait] = lambda since_ms: NOT_QUEUED,
    timeline: Timeline | None = None,
    looks: LooksBefore = no_looks,
) -> Engine:
    """Returns the engine of *stream*.

    Creates the tables of the stream and the hops that it reads.

    Args:
        stream: The stream to run.
        broker: Reads and writes the topics of the stream.
        thread_id: The name of the driver in tables of facts.
        epoch: The number of the driver; newer drivers have higher ones.
        slow_ms: By operator, how long it sleeps in each batch.
        fence: Guards, repeats, reports and times each write; its clock is that of *host*.
        reread: Reads the records that Spark passed over.
        host: The host of the driver.
        clock_offsets: Gets estimates of the clocks of executors' hosts, unless it is None.
        queued: Measures how long a batch that began at an instant waited for other streams of the process.
        timeline: Records what the driver does; None if nobody reads that.
        looks: Returns, for a source and an instant, the earlier looks at the ends of its partitions (kafka/looks.py).

    Raises:
        InvalidArgument: *slow_ms* names an operator that the topology does not have.
        OtherFormat: a version with another format has written to the warehouse.
        TypesChanged: a column that the stream keeps has another type.
        TableRefused: a table requires what Tidemark does not know.
    """
    topology, sub, timeline = stream.topology, stream.sub, timeline or Timeline()
    if unknown := set(slow_ms) - set(topology.operators):
        msg = f"--slow names operators of the topology, got {sorted(unknown)}; known: {', '.join(topology.operators)}"
        raise InvalidArgument(msg)
    # Before the first table, so that a version with another format refuses the whole warehouse.
    stamp_warehouse(stream.layout.warehouse)
    reference = Reference(stream.layout.warehouse)
    steps = Steps(topology, reference)
    control = Control(stream.control)
    kept, now = control.meanings(), types(sub, steps)
    refuse_other_types(kept, now)
    changes = [*control.begun(), *control.source_changes()]
    # A table costs checks and maintenance, and most files never change in such a way.
    create_tables(stream.home, sub, steps.schemas, without=() if changes else [TOPOLOGY_CHANGES.name])
    written = {stream.home / name: access for name, access in tables_written(sub).items()}
    declared = {each.path: each.schema for each in declared_tables(stream.home, sub, steps.schemas)}
    tables = TableWatch(written, declared)
    hops_begin_at: dict[str, int] = {}
    for source in sub.hops_read:
        # The reader creates the hop, so that it may start before the writer.
        hop = stream.layout.hop(topology.name, source.upstream, source.repartition)
        create(hop, arrow_schema(HOP), description=HOP.row, log=HOP_LOG)
        # After this, what is still missing from the log is lost (read/data_loss.py).
        put_back(hop, stream.control)
        hops_begin_at[source.name] = begins_at(hop, stream.control)
    intact = LossCheck(f"{topology.name} {sub.name}", control.accepted_loss, reread, hops_begin_at)
    table_marks = TableMarks(stream.layout.warehouse)
    decider = Decider.of(
        stream,
        steps,
        broker,
        intact,
        table_marks,
        fence.clock,
        slow_ms=slow_ms,
        timeline=timeline,
        looks=looks,
        changes=changes,
    )
    journal_home = stream.control / "journal"
    committer = Committer(
        f"{topology.name}/{sub.name}",
        fence,
        alone=tables_alone(stream.home, sub),
        is_only_writer=True,
        trimmers=trimmers(stream, fence.clock),
    )
    flushing = Flusher(
        stream.home,
        journal_home,
        # Facts have a journal of their own: they are derived from an entry once its data was committed.
        Journal(journal_home, "facts", fence),
        committer,
        every_ms=topology.facts_every_ms,
        fence=fence,
    )
    committing = BatchCommitter(
        sub,
        stream.home,
        committer,
        flushing,
        Measurer(topology, sub, thread_id=thread_id, host=host),
        broker,
        fence,
        tables,
        timeline,
        epoch,
    )
    journal = Journal(journal_home, "data", fence)
    if not now.items() <= kept.items():
        control.keep_meanings(now)
    shards = (
        None
        if stream.shards == 1
        else Shards(
            stream,
            decider,
            steps,
            reference,
            journal,
            broker,
            table_marks,
            fence,
            HostClocks(host.name, clock_offsets or ClockOffsets()),
            slow_ms=slow_ms,
            queued=queued,
            timeline=timeline,
        )
    )
    resets = TimeResets(sub, stream.home, control.time_resets, window_ms=topology.window_ms, flush=flushing.flush)
    return Engine(
        stream,
        steps,
        decider,
        shards,
        journal,
        committing,
        flushing,
        fence,
        epoch=epoch,
        requests=[resets.applied, decider.reopenings.applied],
        state=StateFiles(stream, journal, fence=fence),
        # A driver in shards does not have the states, so any operator may have something due.
        due=DueTimes(topology, sub, steps.keeps_states if shards is None else lambda operator: True),
        queued=queued,
        tables=tables,
        joined=JoinedTables(sub, reference, steps),
        timeline=timeline,
        listed=control.sources(),
    )
