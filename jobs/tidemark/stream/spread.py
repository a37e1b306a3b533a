"""Decides a batch that is too large for the driver: executors work on it, and the driver sums up what they tell.

Records never come here. The journal entry that this makes names files, and is carried out and repeated like any other;
files of a batch that was never decided belong to no table, and VACUUM takes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.clock import Clock
from tidemark.delta import Reference
from tidemark.disk import UntilWritten, trouble_of
from tidemark.files import files_of
from tidemark.kernels.schemas import rows_of
from tidemark.place import remove_folder
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.layout import Layout
from tidemark.spec.operators import HopSource, Join, Source
from tidemark.spec.tables import DISORDER_BUCKETS
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.batch import Batch, Moment
from tidemark.stream.decision import Decider, Decision, Tally
from tidemark.stream.intake import Reader, seen_of, without_records
from tidemark.stream.journal import Entry
from tidemark.stream.sharing import NotShared, Sharing, sharing
from tidemark.stream.spread_tasks import SEQ_BITS, Arrived, Arriving, Task, Worked, Working
from tidemark.stream.spread_totals import Input, arrival, followed, of_source, summed, together
from tidemark.stream.steps import Steps

log = logging.getLogger("tidemark.stream")

Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition the offset up to which a batch is read."""


class Executors(Protocol):
    """Whoever runs tasks over the rows of one batch, and sends back what they return."""

    def parallelism(self) -> int:
        """How many tasks run at once."""

    def arrive(self, task: Arriving) -> list[Arrived]:
        """Run *task* on the rows of each partition of each source."""

    def work(self, task: Working) -> list[Worked]:
        """Run *task* for the number of each share, from 0 up."""


class Spread:
    """Decides large batches of *sub*; *folder* is for files that are no table's, by driver.

    *until_written* has all of it done again where a disk took no file; then what was written is removed, unless
    *check_lease* raises: a newer driver may have written files of the same batch.
    """

    def __init__(
        self,
        topology: Topology,
        sub: SubTopology,
        layout: Layout,
        folder: Path,
        reader: Reader,
        decider: Decider,
        steps: Steps,
        clock: Clock,
        *,
        slow_ms: Mapping[str, int],
        reached: Callable[[str], None],
        check_lease: Callable[[], None],
        until_written: UntilWritten,
    ) -> None:
        self._check_lease, self._until_written = check_lease, until_written
        self._topology, self._sub, self._layout, self._folder = topology, sub, layout, folder
        self._reader, self._decider, self._steps, self._clock = reader, decider, steps, clock
        self._slow_ms, self._reached = slow_ms, reached
        self._sources = [o for o in sub.operators if isinstance(o, Source | HopSource)]

    def forget(self, epoch: int) -> None:
        """Remove the files of earlier batches, which are done once another one is to be decided.

        Those of drivers newer than *epoch* stay: one that has lost its lease and does not know takes nothing away.
        """
        for folder in self._folder.glob("*"):
            if int(folder.name) <= epoch:
                remove_folder(folder)

    def decide(self, executors: Executors, was: StreamProgress, batch: Batch) -> Decision | None:
        """What becomes of *batch*, of which nothing has been read yet.

        None where the driver had better look at it: it is not too large, its work cannot be shared, or a topic may have
        lost records.
        """
        records = self._records(was, batch.ends)
        if records <= self._topology.executors_above or not self._is_sharable(was, records):
            return None
        task = Task(
            topology=self._topology,
            sub=self._sub,
            layout=self._layout,
            folder=self._folder / str(batch.epoch),
            batch_id=batch.batch_id,
            was=was,
            sharing=self._sharing,
            shares=max(executors.parallelism(), -(-records // self._topology.executors_above)),
        )
        return self._until_written(lambda: self._tried(executors, task, was, batch, records))

    def _tried(
        self, executors: Executors, task: Task, was: StreamProgress, batch: Batch, records: int
    ) -> Decision | None:
        """What becomes of *batch*, of so many *records*; where the disk takes no file, none is left of it."""
        try:
            decision = self._shared(executors, task, was, batch)
        except Exception as error:
            if trouble_of(error) is not None:
                self._remove(task)
            raise
        if decision is None:
            log.warning("a topic may have lost records: the driver looks at all %d of this batch", records)
            self._remove(task)
        return decision

    def _remove(self, task: Task) -> None:
        """Remove what *task* has written."""
        written = files_of(task.home, task.batch_id)
        self._check_lease()  # after the files were seen: a driver that comes later has not written any of them
        for file in written:
            file.unlink(missing_ok=True)
        remove_folder(task.folder)

    def _shared(self, executors: Executors, task: Task, was: StreamProgress, batch: Batch) -> Decision | None:
        """What *executors* make of *batch*; None where a topic may have lost records."""
        task.folder.mkdir(parents=True, exist_ok=True)
        arrived = executors.arrive(
            Arriving(**vars(task), late_up_to_ms=self._decider.late_up_to_ms(was), decided_at_ms=batch.decided_at_ms)
        )
        self._reached("spread out")
        batch = replace(batch, read_at_ms=self._clock())
        inputs = self._inputs(was, batch, arrived)
        if inputs is None:
            return None
        opened = {o.name: {w for part in of_source(o, arrived) for w in part.windows} for o in self._sources}
        now = self._decider.progress(was, {name: part.progress for name, part in inputs.items()}, opened, batch)
        worked, tallies = self._worked(executors, task, arrived, self._decider.moment(was, now))
        self._reached("worked on")
        tallies = {o.name: arrival(batch, of_source(o, arrived)) for o in self._sources} | tallies
        now, closed = self._decider.counted(now, tallies)
        marks = {
            name: self._decider.for_tables.mark(batch.batch_id, was, now, closed, seq=task.shares << SEQ_BITS)
            for name in self._decider.for_tables.hops
        }
        files = [*(part.files for part in arrived), *(share.files for share in worked), task.written(marks)]
        tables = {DISORDER_BUCKETS.name: self._disorder(batch, arrived), **together(files)}
        marked = self._decider.marks(was, now, tables)
        now = replace(now, marks={**was.marks, **marked})
        seen = {name: part.seen for name, part in inputs.items()}
        notes = self._decider.notes(batch, was, now, seen, tallies, closed, marked)
        return Decision(Entry(batch.batch_id, tables, notes), now, None)

    def _worked(
        self, executors: Executors, task: Task, arrived: Iterable[Arrived], at: Moment
    ) -> tuple[list[Worked], dict[str, Tally]]:
        """What came of each share, and the numbers of each operator that is no source, over all of them."""
        began_ms = self._clock()
        worked = executors.work(
            Working(
                **vars(task),
                moment=at,
                records={o.name: tuple(part.records for part in of_source(o, arrived)) for o in self._sources},
                versions=self._versions(),
                slow_ms=self._slow_ms,
            )
        )
        ended_ms = self._clock()
        parts = {
            o.name: [share.tallies[o.name] for share in worked if o.name in share.tallies]
            for o in self._sub.operators
            if o not in self._sources
        }
        return worked, {name: summed(part, began_ms, ended_ms) for name, part in parts.items()}

    @cached_property
    def _sharing(self) -> Sharing:
        return sharing(self._topology, self._sub, self._steps)

    def _is_sharable(self, was: StreamProgress, records: int) -> bool:
        """Whether executors can share the work; says so where they cannot."""
        waiting = any(p.done_until_offset < p.until_offset for i in was.inputs.values() for p in i.partitions.values())
        try:
            return bool(self._sharing) and not waiting
        except NotShared as error:
            log.warning("the driver works on a batch of %d records alone: %s", records, error)
            return False

    def _records(self, was: StreamProgress, ends: Ends) -> int:
        """How many records the batch has at most, of topics and of hops."""
        n = 0
        for source in self._sources:
            partitions = was.inputs.get(source.name, InputProgress()).partitions
            read_to = {number: part.until_offset for number, part in partitions.items()}
            if isinstance(source, HopSource):
                n += self._rows_of_hop(source, read_to.get(0, 0))
            else:
                planned = ends.get(source.topic or "", {})
                n += sum(max(0, end - read_to.get(number, 0)) for number, end in planned.items())
        return n

    def _rows_of_hop(self, source: HopSource, first_batch: int) -> int:
        path = self._layout.hop(self._topology.name, source.upstream, source.repartition)
        files = pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True))
        if "max.batch_id" not in files.columns:
            return 0
        return int(files.filter(pl.col("max.batch_id") >= first_batch)["num_records"].sum())

    def _versions(self) -> dict[str, int]:
        """The newest version of each Delta table that is joined: every share reads that one."""
        reference = Reference(self._layout.warehouse)
        places = [o.delta for o in self._sub.operators if isinstance(o, Join) and o.delta]
        return {place: reference.version(place) for place in places}

    def _inputs(self, was: StreamProgress, batch: Batch, arrived: Iterable[Arrived]) -> dict[str, Input] | None:
        """How far each source has come; None when records of a topic may be gone."""
        found: dict[str, Input] = {}
        for source in self._sources:
            before = was.inputs.get(source.name, InputProgress())
            parts = {part.partition: part for part in of_source(source, arrived)}
            if isinstance(source, HopSource):
                found[source.name] = followed(before, parts.values(), batch)
                continue
            read_to = {number: part.until_offset for number, part in before.partitions.items()}
            offsets = self._reader.offsets(source, parts.keys(), read_to)
            doubtful = without_records(offsets, {number for number, part in parts.items() if not part.gap})
            ends = batch.ends.get(source.topic or "", {})
            if any(
                earliest > read_to[number] or ends.get(number, read_to[number]) < read_to[number]
                for number, (earliest, _) in doubtful.items()
                if number in read_to and source.topic
            ):
                return None
            seen = seen_of({n: part.seen for n, part in parts.items() if part.seen}, read_to, offsets, ends, {})
            seen = dict(self._reader.marked(source, before, seen, batch))
            writers = {n: part.writers for n, part in before.partitions.items()}
            writers |= {n: part.writers for n, part in parts.items()}
            found[source.name] = Input(self._reader.progress(source, before, seen, writers, batch), seen)
        return found

    def _disorder(self, batch: Batch, arrived: Iterable[Arrived]) -> pa.Table:
        """How far records of each source were behind, over all its partitions."""
        parts = [part.disorder.with_columns(source=pl.lit(part.source)) for part in arrived if part.disorder.width]
        columns = {"source": pl.String(), "bucket": pl.Int16(), "n": pl.UInt32()}
        summed = pl.concat([pl.DataFrame(schema=columns), *parts], how="diagonal_relaxed")
        summed = summed.group_by("source", "bucket").agg(pl.col("n").sum()).sort("source", "bucket")
        same = {"topology": self._topology.name, "sub_topology": self._sub.name, "batch_id": batch.batch_id}
        return rows_of(DISORDER_BUCKETS, summed.with_columns(decided_at=batch.decided_at_ms), **same)
