"""Carries out a decided batch: writes its rows to tables and topics, and measures that.

A batch is a list of writes (`writes.py`). An operator's latency ends with the write that makes its rows visible.
Records that a topic or table refused are written last. After that small files of a table may be compacted.

A write that was done before is skipped, so a batch can be carried out again from any point. Measurements and proofs
wait for the next flush (`flushing.py`). Each step reports its name to the fence, at which tests stop a driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.kernels.sql.constraints import Constraint
from tidemark.model.kinds.boundary import HandingOut
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import CHANGES, DEAD_LETTERS, TABLES
from tidemark.model.topology import SubTopology
from tidemark.selection import index_by_name
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.segments import FACTS, SegmentOwner
from tidemark.storage.delta.compactor import OUTPUTS_EVERY, Compactor
from tidemark.storage.delta.current_rows import CLOSED_UP_TO, ClosedRows, closed_row
from tidemark.storage.delta.requirements import TableWatch
from tidemark.storage.delta.tables import NO_NOTES, Committer, Notes
from tidemark.storage.fence import Fence
from tidemark.storage.files import Files, Rows, frames, write_file
from tidemark.stream.journal.batch import MicroBatch
from tidemark.stream.journal.entries import MANY, Entry
from tidemark.stream.journal.layout import COMMITTED_WITH_BATCH, table_of
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.broker import Publishers, TopicBroker
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.operate.sink import sink_rows
from tidemark.stream.write.current_tables import CurrentTables
from tidemark.stream.write.flushing import Flusher
from tidemark.stream.write.measurement import Clocks, Measurer
from tidemark.stream.write.open_windows import OpenWindows
from tidemark.stream.write.refused_rows import NOTE, LateRefusals
from tidemark.stream.write.writes import (
    AppendAccepted,
    AppendRows,
    BatchWrites,
    CommitMark,
    MergeRows,
    SendMark,
    SendRecords,
    TopicWrite,
    Write,
)


@dataclass(frozen=True)
class Ended:
    """How a write ended.

    Attributes:
        at_ms: when it ended, epoch ms. If a table had the batch already, when the table got it.
        refused: rows of `dead_letters` for the records that the topic or table refused.
    """

    at_ms: int
    refused: Sequence[pl.DataFrame] = ()


STEP_MS = 1_000
"""If the wall clock moves by so much against the boot clock within a batch, it was set by hand or by NTP."""


@dataclass(frozen=True)
class BootInstants:
    """Converts instants of a batch, epoch ms, to the boot clock of the driver that read them.

    Attributes:
        decided_by: the epoch of the driver that decided the batch.
        decided_offset_ms: its wall clock minus its boot clock, when the batch began.
        epoch: the lease of the driver that carries the batch out.
        carried_ms: when that driver began to carry it out, epoch ms.
        own_offset_ms: the wall clock of that driver minus its boot clock, at that instant.
    """

    decided_by: int
    decided_offset_ms: int
    epoch: int
    carried_ms: int
    own_offset_ms: int

    @classmethod
    def of(cls, batch: MicroBatch, epoch: int, *, carried_ms: int, carried_boot_ms: int) -> BootInstants:
        """Returns the clocks for *batch*, which the driver *epoch* began to carry out at *carried_ms*, epoch ms.

        *carried_boot_ms* is the same instant by the boot clock.
        """
        decided_offset_ms, own_offset_ms = batch.started_at_ms - batch.started_boot_ms, carried_ms - carried_boot_ms
        if epoch == batch.epoch and abs(own_offset_ms - decided_offset_ms) < STEP_MS:
            own_offset_ms = decided_offset_ms
        return cls(batch.epoch, decided_offset_ms, epoch, carried_ms, own_offset_ms)

    def of_decided(self, at_ms: int) -> Clocks:
        """Returns the columns for an instant that was read before the batch was decided."""
        return {"finished_boot_ms": at_ms - self.decided_offset_ms, "finished_epoch": self.decided_by}

    def of_write(self, at_ms: int, boot_ms: int) -> Clocks:
        """Returns the columns for a write that ended at *at_ms*, epoch ms; *boot_ms* is the boot clock now."""
        # A write of the driver before keeps the time of its commit, by that driver's clock.
        if self.epoch != self.decided_by and at_ms < self.carried_ms:
            return self.of_decided(at_ms)
        offset_ms = at_ms - boot_ms
        return {
            "finished_boot_ms": boot_ms
            if abs(offset_ms - self.own_offset_ms) >= STEP_MS
            else at_ms - self.own_offset_ms,
            "finished_epoch": self.epoch,
        }


class BatchCommitter:
    """Carries out the batches of a sub-topology.

    Args:
        sub: the sub-topology.
        home: the folder of its tables.
        committer: commits rows to tables.
        flushing: keeps facts until their tables have them.
        measurer: makes the rows of facts.
        broker: sends records to topics.
        fence: refuses a write where the lease is lost, and repeats one that a disk rejects; it has the clock.
        tables: knows the constraints of the tables of sinks.
        timeline: records what the driver does.
        epoch: the number of the driver's lease.
    """

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        committer: Committer,
        flushing: Flusher,
        measurer: Measurer,
        broker: TopicBroker,
        fence: Fence,
        tables: TableWatch,
        timeline: Timeline,
        epoch: int,
    ) -> None:
        self._tables, self._timeline, self._epoch = tables, timeline, epoch
        # By sink, keys of updates that its table refused after their batch was decided. The next batch takes them.
        self.refused: dict[str, tuple[str, ...]] = {}
        self._operators = index_by_name(sub.operators)
        self._home, self._committer, self._flushing, self._measurer = home, committer, flushing, measurer
        self._broker, self._fence = broker, fence
        self._compactor = Compactor(committer, every=OUTPUTS_EVERY)
        self._hops = frozenset(o.hop_table for o in sub.operators if o.hop_table)
        self._open_windows = OpenWindows(home)
        self._writes = BatchWrites(sub, home, committer.app, self._open_windows)
        self._current_tables = CurrentTables(sub, home, committer, measurer, fence, tables)
        self._dead_letters = Committer(f"{committer.app}/{DeadLetterKind.UNDELIVERABLE}", fence)

    def lay_out(self, entry: Entry) -> Entry:
        """Returns *entry* with large outputs written as files of their tables."""
        # Large outputs are written once, before the journal, and no reader sees them until they are committed.
        tables = {name: self._lay_out_rows(name, entry) for name in entry.tables}
        if any(rows is not entry.tables[name] for name, rows in tables.items()):
            self._fence.reached("laid out")
        return replace(entry, tables=tables)

    def _lay_out_rows(self, name: str, entry: Entry) -> Rows:
        rows = entry.tables[name]
        if isinstance(rows, Files) or rows.num_rows < MANY:
            return rows
        place = appended(self._home, self._operators.get(name), name, rows, entry.batch_id)
        if place is None:
            return rows
        self._timeline.begin(SegmentOwner.TARGET, place[0].name)
        written = self._fence.until_written(lambda: write_file(*place, batch_id=entry.batch_id))
        self._timeline.begin(SegmentOwner.ENGINE)
        return Files((written,))

    def carry_out(
        self,
        entry: Entry,
        publishers: Publishers | None = None,
        *,
        recovers: bool = False,
        done_at_ms: int | None = None,
    ) -> None:
        """Writes the rows of *entry* to tables and topics, and measures that. The measurements wait for the next flush.

        Args:
            entry: the journal entry.
            publishers: send large outputs to topics. If it is None, the driver sends all.
            recovers: True if an earlier driver decided the batch and was killed.
            done_at_ms: when Spark recorded the batch as done, epoch ms: then nothing is sent to topics again. None if
                the batch may not have been done.
        """
        self._fence.reached("decided")
        carried_ms = self._fence.clock()
        notes, refused = entry.notes.decision, list[pl.DataFrame]()
        placed = BootInstants.of(
            notes.batch, self._epoch, carried_ms=carried_ms, carried_boot_ms=self._timeline.clock()
        )
        clocks: dict[str, Clocks] = {}
        for name, operator in notes.operators.items():
            clocks[name] = {**operator.clocks, **placed.of_decided(operator.finished_at_ms), "recovered": False}
        ready_ms = carried_ms
        for write in self._writes.of(entry):
            began_ms = self._fence.clock()
            if done_at_ms is not None and isinstance(write, TopicWrite):
                ended = Ended(done_at_ms)
            else:
                ended = self._carry_out(write, entry.batch_id, publishers)
            refused += ended.refused
            # An operator waits twice: from its result until its entry begins to be carried out, for its siblings and
            # for the journal; and from the commit of `changes` until its own write, for the writes before it.
            for name in write.shows:
                own_ms = clocks[name]["finished_at_ms"]
                waited_ms = carried_ms - own_ms, began_ms - max(own_ms, ready_ms)
                shown_clocks = shown(clocks[name], ended.at_ms, *waited_ms, recovers=recovers)
                clocks[name] = {
                    **shown_clocks,
                    **placed.of_write(shown_clocks["finished_at_ms"], self._timeline.clock()),
                }
            if isinstance(write, AppendRows) and write.target == CHANGES.name:
                ready_ms = ended.at_ms
        if undeliverable := self._undeliverable(entry, refused):
            self._carry_out(undeliverable, entry.batch_id)
        finished_at_ms = self._fence.clock() if done_at_ms is None else done_at_ms
        facts = self._measurer.facts(entry, clocks, finished_at_ms=finished_at_ms)
        self._timeline.begin(SegmentOwner.TARGET, FACTS)
        self._flushing.take(entry, facts)
        self._timeline.begin(SegmentOwner.ENGINE)
        if compacted := self._compactor.compact():
            self._fence.reached(f"compacted {compacted.name}")

    def _carry_out(self, write: Write, batch_id: int, publishers: Publishers | None = None) -> Ended:
        """Carries out a *write* of *batch_id*, unless the table has the batch already."""
        self._timeline.begin(SegmentOwner.TARGET, write.place)
        ended = self._carried_out(write, batch_id, publishers)
        self._timeline.begin(SegmentOwner.ENGINE)
        return ended

    def _carried_out(self, write: Write, batch_id: int, publishers: Publishers | None) -> Ended:
        match write:
            case AppendRows():
                return Ended(self._append(write.target, write.rows, batch_id))
            case AppendAccepted():
                return self._append_accepted(write, batch_id)
            case CommitMark():
                at_ms = self._committer.commit_notes(self._home / write.target, batch_id, notes=write.notes)
                self._flushing.committed(write.target, batch_id)
                self._fence.reached(f"marked {write.sink.name}")
                return Ended(at_ms)
            case MergeRows():
                return Ended(self._merge(write, batch_id))
            # Unlike a table, a topic does not refuse what a driver without the lease sends.
            case SendRecords():
                self._fence.check_lease()
                refused = self._publish(write.outgoing, publishers)
                self._fence.reached(f"committed {write.outgoing.sink.name}")
                return Ended(self._fence.clock(), refused)
            case SendMark():
                self._fence.check_lease()
                self._broker.mark(write.sink, write.mark.watermark_ms, idle=write.mark.idle)
                self._fence.reached(f"marked {write.sink.name}")
                return Ended(self._fence.clock())
            case _:
                assert_never(write)

    def _append(self, name: str, rows: Rows, batch_id: int) -> int:
        committer = self._dead_letters if name == COMMITTED_WITH_BATCH else self._committer
        at_ms = committer.commit(self._home / table_of(name), rows, batch_id)
        self._record_commit(name, batch_id)
        return at_ms

    def _append_accepted(self, write: AppendAccepted, batch_id: int) -> Ended:
        """Appends the rows that the table accepts, and a row that tells which windows are closed."""
        sink, offered, path = write.sink, write.offered, self._home / write.target

        def accept(constraints: tuple[Constraint, ...]) -> tuple[Rows, Notes]:
            if offered is None:
                rows, more = None, NO_NOTES
            else:
                # Rows that are merged later are refused by the table into which they are merged.
                constraints = self._tables.constraints_now(self._home / str(sink.table)) if sink.key else constraints
                rows, more = offered.accept(constraints)
            marked = self._with_closed(rows, path, write.closed, batch_id)
            assert marked is not None
            return marked, more

        in_files = offered is not None and isinstance(offered.rows, Files)
        at_ms = self._committer.commit_accepted(path, batch_id, accept, notes=write.notes, in_files=in_files)
        self._record_commit(write.target, batch_id)
        if offered is not None and offered.refused is None:
            # The batch was committed before, perhaps under constraints that others have changed since.
            self._recall(offered)
        self._open_windows.committed(sink, None if offered is None else offered.accepted, write.closed)
        self._current_tables.appended(sink)
        return Ended(at_ms, () if offered is None else self._refused_by(offered))

    def _merge(self, write: MergeRows, batch_id: int) -> int:
        path, closed = self._home / write.target, write.closed
        at_ms = self._committer.upsert(path, write.rows, batch_id, key=write.key, shown=write.notes_at, closed=closed)
        self._fence.reached(f"merged {write.target}")
        self._record_commit(write.target, batch_id)
        return at_ms

    def _recall(self, offered: LateRefusals) -> None:
        """Finds out which rows of *offered* the table refused when the batch was committed."""
        offered.accept_as_noted(self._committer.noted(offered.folder, offered.batch_id, NOTE))

    def _refused_by(self, offered: LateRefusals) -> list[pl.DataFrame]:
        """Returns the refused rows of *offered*, and keeps their keys for the next batch."""
        refused = offered.refused or []
        for rows in refused:
            self._keep_refused(offered.sink.name, rows["key"].drop_nulls().cast(pl.String))
        return refused

    def _keep_refused(self, sink: str, keys: Iterable[str]) -> None:
        """Keeps, for the next batch, the *keys* of updates that the table of *sink* refused."""
        self.refused[sink] = (*self.refused.get(sink, ()), *keys)

    def recall_refused(self, entry: Entry) -> None:
        """Finds out, after a restart, which keys tables refused after *entry* had been decided."""
        if self._dead_letters.newest(self._home / DEAD_LETTERS.name) != entry.batch_id:
            return
        for write in self._writes.of(entry):
            if isinstance(write, AppendAccepted) and write.offered is not None:
                self._recall(write.offered)
                self._refused_by(write.offered)

    def _undeliverable(self, entry: Entry, refused: Sequence[pl.DataFrame]) -> AppendRows | None:
        """Returns the write of all records of *entry* that were refused: when it was decided, and since (*refused*)."""
        rows = entry.tables.get(COMMITTED_WITH_BATCH)
        if refused := [each for each in refused if each.height]:
            since = pl.concat(refused).with_columns(decided_at=pl.lit(entry.notes.decision.batch.decided_at_ms))
            more = self._measurer.of_batch(DEAD_LETTERS, since, entry.batch_id)
            rows = more if rows is None else pl.concat([*frames(rows), pl.DataFrame(more)]).to_arrow()
        return None if rows is None else AppendRows(target=COMMITTED_WITH_BATCH, rows=rows)

    def _publish(self, outgoing: OutgoingRows, publishers: Publishers | None) -> list[pl.DataFrame]:
        """Sends *outgoing* to its topic; *publishers* do it if there are many records.

        Returns:
            Rows of `dead_letters` for the records that the topic refused.
        """
        if publishers is not None and outgoing.tasks:
            return publishers.publish(self._broker.publishing(outgoing))
        return self._broker.publish(outgoing)

    def _with_closed(self, rows: Rows | None, path: Path, closed: ClosedRows | None, batch_id: int) -> Rows | None:
        """Returns *rows* for the table at *path*, with a row that tells which windows are *closed*."""
        if closed is None:
            return rows
        mark = closed_row(closed, pa.schema(DeltaTable(str(path)).schema().to_arrow()), batch_id)
        if isinstance(rows, Files):
            written = self._fence.until_written(lambda: write_file(path, mark, batch_id=batch_id))
            return Files((*rows.files, written))
        if rows is None:
            return mark
        own = pl.DataFrame(mark.select(["batch_id", CLOSED_UP_TO]))
        return pl.concat([pl.DataFrame(rows), own], how="diagonal").to_arrow()

    def refresh(self, progress: StreamProgress, *, at_once: bool = False) -> None:
        """Merges rows up to the batch of *progress* into the tables with the current row of each key.

        Only tables that are due are merged, or all of them *at_once*.
        """
        for merge in self._current_tables.merges(progress, at_once=at_once):
            self._carry_out(merge, progress.batch_id)
        for sink, keys in self._current_tables.take_refused().items():
            self._keep_refused(sink, keys)

    @property
    def refresh_at_ms(self) -> int | None:
        """When the next merge into a table with current rows is due, epoch ms, or None if all rows are merged."""
        return self._current_tables.due_at_ms

    def _record_commit(self, name: str, batch_id: int) -> None:
        if name == COMMITTED_WITH_BATCH:
            self._flushing.committed_with_batch(name, batch_id)
            self._fence.reached(f"committed {DeadLetterKind.UNDELIVERABLE}")
            return
        self._flushing.committed(name, batch_id)
        # Files of a hop are left to maintenance, which knows what the readers have read.
        if name not in self._hops:
            self._compactor.committed(self._home / name)
        self._fence.reached(f"committed {name}")


def shown(clock: Clocks, finished_ms: int, *waited_ms: int, recovers: bool) -> Clocks:
    """Returns the clocks of an operator whose rows became visible.

    Args:
        clock: the clocks of the operator when it had its result.
        finished_ms: when its rows became visible, epoch ms. If an earlier driver committed them, this may be before the
            operator's result here, which then counts.
        waited_ms: the times for which it waited; negative ones count as 0. Their sum is cut to the time that has passed
            since the operator's result.
        recovers: True if an earlier driver decided the batch and was killed.
    """
    shown_ms = max(finished_ms, clock["finished_at_ms"])
    return {
        **clock,
        "finished_at_ms": shown_ms,
        "queued_ms": clock["queued_ms"] + min(sum(max(0, ms) for ms in waited_ms), shown_ms - clock["finished_at_ms"]),
        "recovered": recovers,
    }


def appended(
    home: Path, operator: Operator | None, name: str, rows: pa.Table, batch_id: int
) -> tuple[Path, pa.Table] | None:
    """Returns the path of the table to which *rows* of a journal entry are appended, and the rows in its columns.

    Args:
        home: the folder of the tables.
        operator: the operator with this name, if there is one.
        name: the name of the rows in the entry.
        rows: the rows in the entry.
        batch_id: the number of the batch.

    Returns:
        None if the rows belong to no table, or are not simply appended.
    """
    if operator is None:
        return (home / table_of(name), rows) if table_of(name) in TABLES else None
    if not isinstance(operator, HandingOut) or operator.appends_to is None:
        return None
    match operator:
        case Repartition():
            return home / operator.appends_to, rows
        case Sink():
            return home / operator.appends_to, sink_rows(operator, rows, batch_id)
        case _:
            assert_never(operator)
