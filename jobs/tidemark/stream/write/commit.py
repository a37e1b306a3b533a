"""Carries out a batch of the journal: commits and measures it.

Order:

1. changes; their commit ends the latency of tables and aggregates without readers;
2. the rows of repartitions and sinks, in the order of the topology; the latency of each ends with its own commit;
3. records that a topic or table refused;
4. small files of a table may be compacted.

A step that was done before is skipped, so a batch may be carried out again from any point. Ledgers and measurements
wait for the next flush (`flushing.py`). Each step has a name; tests stop a driver there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import assert_never

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.collecting import index_by_name
from tidemark.kernels.records.marks import MARK, mark_text
from tidemark.kernels.sql.constraints import Constraint
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import HandingOut
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import (
    CHANGES,
    DEAD_LETTERS,
    TABLES,
)
from tidemark.model.topology import SubTopology
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import StreamProgress
from tidemark.storage.delta.current_rows import CLOSED_UP_TO, ClosedRows, closed_row
from tidemark.storage.delta.requirements import TableWatch
from tidemark.storage.delta.tables import NO_NOTES, Accept, Committer, Notes
from tidemark.storage.fence import Fence
from tidemark.storage.files import Files, Rows, frames, write_file
from tidemark.stream.journal.entries import MANY, Entry
from tidemark.stream.journal.notes import MarkNotes
from tidemark.stream.journal.place import COMMITTED_WITH_BATCH, table_of
from tidemark.stream.kafka.broker import Publishers, TopicBroker
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.operate.sink import sink_rows
from tidemark.stream.write.commit_notes import progress_notes
from tidemark.stream.write.compaction import Compactor
from tidemark.stream.write.current_tables import CurrentTables
from tidemark.stream.write.flushing import Flusher
from tidemark.stream.write.measurement import Clocks, Measurer
from tidemark.stream.write.open_windows import OpenWindows
from tidemark.stream.write.refused_rows import NOTE, LateRefusals


class BatchCommitter:
    """Commits the batches of *sub* into its folder *home* of tables."""

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
    ) -> None:
        self._tables = tables
        # By sink, keys of updates that its table refused after their batch was decided. The next batch takes them.
        self.refused: dict[str, tuple[str, ...]] = {}
        self._operators = index_by_name(sub.operators)
        self._home, self._committer, self._flushing, self._measurer = home, committer, flushing, measurer
        self._broker, self._fence = broker, fence
        self._handing_out = sub.handing_out
        self._shown_by_changes: list[str] = []
        for operator in sub.operators:
            has_reader = operator.name not in sub.terminals() or operator in self._handing_out
            if operator.emission and not has_reader:
                self._shown_by_changes.append(operator.name)
        self._compactor, self._hops = Compactor(committer), frozenset(o.hop_table for o in sub.operators if o.hop_table)
        self._open_windows = OpenWindows(home)
        self._current_tables = CurrentTables(sub, home, committer, measurer, fence, tables)
        self._dead_letters = Committer(f"{committer.app}/{DeadLetterKind.UNDELIVERABLE}", fence)
        # Both are of one batch: `_commit_data` sets them.
        self._undeliverable: list[pl.DataFrame] = []
        self._done_at_ms: int | None = None

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
        return Files((self._fence.until_written(lambda: write_file(*place, batch_id=entry.batch_id)),))

    def carry_out(
        self,
        entry: Entry,
        publishers: Publishers | None = None,
        *,
        recovers: bool = False,
        done_at_ms: int | None = None,
    ) -> None:
        """Commits the data of *entry* and measures its facts.

        The facts wait for the next flush.

        Args:
            entry: the journal entry.
            publishers: send large outputs to topics. None: the driver sends all.
            recovers: an earlier driver decided the batch and was killed.
            done_at_ms: when Spark recorded the batch as done, epoch ms; nothing is sent to topics again. None: it may
                not have been done.
        """
        self._fence.reached("decided")
        clocks = self._commit_data(entry, publishers, recovers=recovers, done_at_ms=done_at_ms)
        finished_at_ms = self._fence.clock() if done_at_ms is None else done_at_ms
        self._flushing.take(entry, self._measurer.facts(entry, clocks, finished_at_ms=finished_at_ms))
        if compacted := self._compactor.compact():
            self._fence.reached(f"compacted {compacted.name}")

    def _commit_data(
        self, entry: Entry, publishers: Publishers | None, *, recovers: bool, done_at_ms: int | None
    ) -> dict[str, Clocks]:
        """Commits the data of *entry* and returns the clocks of each operator.

        The arguments are those of `carry_out`. The clocks are when it started and finished, how long it was queued, and
        if it was recovered.
        """
        self._undeliverable, self._done_at_ms = [], done_at_ms
        carried_ms = self._fence.clock()
        # An operator without a reader has finished when its rows can be seen, so the clock is read after the commit.
        ready_ms = self._commit(CHANGES.name, entry.tables.get(CHANGES.name), entry.batch_id)
        notes = entry.notes.decision
        clocks: dict[str, Clocks] = {}
        for name, operator_notes in notes.operators.items():
            clocks[name] = operator_notes.clocks | {"recovered": False}
        # An operator waits for siblings and the journal from its own result until the entry is carried out. It waits
        # for siblings again from the commit of the changes until its own turn.
        for name in self._shown_by_changes:
            if notes.operators[name].counts.get("emitted"):
                waited_ms = carried_ms - clocks[name]["finished_at_ms"]
                clocks[name] = shown(clocks[name], ready_ms, waited_ms, recovers=recovers)
        for operator in self._handing_out:
            began_ms, own_ms = self._fence.clock(), clocks[operator.name]["finished_at_ms"]
            finished_ms = self._hand_out(operator, entry, publishers)
            if isinstance(operator, Sink) and (mark := notes.marks.get(operator.name)):
                self._mark(operator, mark, entry)
            if finished_ms is not None:
                waited = carried_ms - own_ms, began_ms - max(own_ms, ready_ms)
                clocks[operator.name] = shown(clocks[operator.name], finished_ms, *waited, recovers=recovers)
        self._commit_undeliverable(entry)
        return clocks

    def _commit_undeliverable(self, entry: Entry) -> None:
        """Commits the refused records to `dead_letters`: those of *entry*, and those that were refused since."""
        refused = self._refused(entry)
        if refused is None:
            return
        path = self._home / DEAD_LETTERS.name
        if isinstance(refused, Files):
            self._dead_letters.adopt(path, refused, entry.batch_id)
        else:
            self._dead_letters.commit(path, refused, entry.batch_id)
        self._flushing.committed_with_batch(COMMITTED_WITH_BATCH, entry.batch_id)
        self._fence.reached(f"committed {DeadLetterKind.UNDELIVERABLE}")

    def _refused(self, entry: Entry) -> Rows | None:
        decided = entry.tables.get(COMMITTED_WITH_BATCH)
        refused = [rows for rows in self._undeliverable if rows.height]
        if not refused:
            return decided
        rows = pl.concat(refused).with_columns(decided_at=pl.lit(entry.notes.decision.batch.decided_at_ms))
        since = self._measurer.of_batch(DEAD_LETTERS, rows, entry.batch_id)
        return since if decided is None else pl.concat([*frames(decided), pl.DataFrame(since)]).to_arrow()

    def _mark(self, sink: Sink, mark: MarkNotes, entry: Entry) -> None:
        """Writes a mark of time for the readers of *sink*."""
        if sink.table is None:
            # A batch that is done has sent its mark.
            if self._done_at_ms is not None:
                return
            self._fence.check_lease()
            self._broker.mark(sink, mark.watermark_ms, idle=mark.idle)
        # A table that gets rows has its mark in the commit of the rows.
        elif _has_rows(sink, entry):
            return
        else:
            notes = self._time_mark(sink, entry)
            self._committer.commit_notes(self._home / sink.table, entry.batch_id, notes=notes)
            self._flushing.committed(sink.table, entry.batch_id)
        self._fence.reached(f"marked {sink.name}")

    def _time_mark(self, sink: Sink, entry: Entry) -> dict[str, str]:
        """Returns the notes of a commit of *sink*, with its mark."""
        progress = entry.notes.progress
        mark = mark_text(self._committer.app, progress.watermark_ms, idle=progress.idle)
        return {MARK: mark, **progress_notes(sink, progress)}

    def _hand_out(self, operator: HandingOut, entry: Entry, publishers: Publishers | None) -> int | None:
        """Commits the rows that a repartition or sink hands out.

        Returns:
            The clock after the commit, epoch ms; None without rows. For a topic of a batch that was done before: when
            it was done.
        """
        rows = entry.tables.get(operator.name)
        if rows is not None and not rows.num_rows:
            rows = None
        match operator:
            case Sink(appends_to=str() as table):
                return self._append(operator, table, rows, entry)
            case _ if rows is None:
                return None
            case Repartition():
                return self._commit(operator.output_table, rows, entry.batch_id)
            # A batch that is done has sent its records, and a topic would take them twice.
            case Sink() if self._done_at_ms is not None:
                return self._done_at_ms
            case Sink():
                # Unlike a table, a topic does not refuse what a driver without the lease sends.
                self._fence.check_lease()
                self._undeliverable += self._publish(OutgoingRows.of(operator, entry, self._handing_out), publishers)
                self._fence.reached(f"committed {operator.name}")
                return self._fence.clock()
            case _:
                assert_never(operator)

    def _publish(self, outgoing: OutgoingRows, publishers: Publishers | None) -> list[pl.DataFrame]:
        """Sends *outgoing* to its topic, on *publishers* if it is large.

        Returns:
            Rows of `dead_letters` for the records that the topic refused.
        """
        if publishers is not None and outgoing.tasks:
            return publishers.publish(self._broker.publishing(outgoing))
        return self._broker.publish(outgoing)

    def _append(self, sink: Sink, table: str, rows: Rows | None, entry: Entry) -> int | None:
        """Appends *rows* of *sink* to its table.

        If the sink keeps current rows, also appends a row for the windows that are closed now.

        Returns:
            The clock after the commit, epoch ms; None without *rows*.
        """
        late = None if rows is None else self._late(sink, table, rows, entry)
        if not sink.key:
            return (
                None if late is None else self._commit_accepted(late, late.accept, notes=self._time_mark(sink, entry))
            )
        closed = self._open_windows.closed(sink, entry.notes.progress.watermark_ms)
        notes = progress_notes(sink, entry.notes.progress)
        if late is None:
            mark = self._with_closed(None, table, closed, entry.batch_id)
            self._commit(table, mark, entry.batch_id, notes=notes)
            self._open_windows.committed(sink, None, closed)
            self._current_tables.appended(sink, mark)
            return None

        def accept(_: tuple[Constraint, ...]) -> tuple[Rows, Notes]:
            # The table into which the rows are merged later refuses them.
            accepted, more = late.accept(self._tables.constraints_now(self._home / str(sink.table)))
            marked = self._with_closed(accepted, table, closed, entry.batch_id)
            assert marked is not None
            return marked, more

        at_ms = self._commit_accepted(late, accept, notes=notes)
        self._open_windows.committed(sink, late.accepted, closed)
        self._current_tables.appended(sink, late.accepted)
        return at_ms

    def _commit_accepted(self, late: LateRefusals, accept: Accept, *, notes: Notes) -> int:
        """Commits the rows of *late* that *accept* returns; those that the table refuses are undeliverable."""
        in_files = isinstance(late.rows, Files)
        at_ms = self._committer.commit_accepted(late.folder, late.batch_id, accept, notes=notes, in_files=in_files)
        self._record_commit(late.folder.name, late.batch_id)
        if late.refused is None:
            # The batch was committed before, perhaps under constraints that others have changed since.
            late.accept_as_noted(self._committer.noted(late.folder, late.batch_id, NOTE))
        self._add_refused(late)
        return at_ms

    def _add_refused(self, late: LateRefusals) -> None:
        for rows in late.refused or ():
            self._undeliverable.append(rows)
            keys = rows["key"].drop_nulls().cast(pl.String)
            self.refused[late.sink.name] = (*self.refused.get(late.sink.name, ()), *keys)

    def recall_refused(self, entry: Entry) -> None:
        """Finds again which keys tables refused after *entry*, which was carried out, had been decided."""
        if self._dead_letters.newest(self._home / DEAD_LETTERS.name) != entry.batch_id:
            return
        for operator in self._handing_out:
            rows = entry.tables.get(operator.name)
            if isinstance(operator, Sink) and operator.appends_to and rows is not None:
                late = self._late(operator, operator.appends_to, rows, entry)
                late.accept_as_noted(self._committer.noted(late.folder, late.batch_id, NOTE))
                self._add_refused(late)

    def _late(self, sink: Sink, table: str, rows: Rows, entry: Entry) -> LateRefusals:
        decided = entry.notes.decision.batch.constraints.get(sink.name, ())
        return LateRefusals(sink, self._home / table, rows, entry.batch_id, decided)

    def _with_closed(self, rows: Rows | None, table: str, closed: ClosedRows | None, batch_id: int) -> Rows | None:
        """Returns *rows* with a row for the windows that are *closed*."""
        if closed is None:
            return rows
        path = self._home / table
        mark = closed_row(closed, pa.schema(DeltaTable(str(path)).schema().to_arrow()), batch_id)
        if isinstance(rows, Files):
            written = self._fence.until_written(lambda: write_file(path, mark, batch_id=batch_id))
            return Files((*rows.files, written))
        if rows is None:
            return mark
        own = pl.DataFrame(mark.select(["batch_id", CLOSED_UP_TO]))
        return pl.concat([pl.DataFrame(rows), own], how="diagonal").to_arrow()

    def refresh(self, progress: StreamProgress, *, at_once: bool = False) -> None:
        """Merges tables with current rows up to the batch of *progress*.

        Merges those that are due, or all of them *at_once*.
        """
        for table in self._current_tables.refresh(progress, at_once=at_once):
            self._record_commit(table, progress.batch_id)
        for sink, keys in self._current_tables.take_refused().items():
            self.refused[sink] = (*self.refused.get(sink, ()), *keys)

    @property
    def refresh_at_ms(self) -> int | None:
        """Returns when a table with current rows is next due.

        By the clock, epoch ms; None: all rows are merged.
        """
        return self._current_tables.due_at_ms

    def _commit(self, name: str, rows: Rows | None, batch_id: int, *, notes: Notes = NO_NOTES) -> int:
        if rows is None or not rows.num_rows:
            return self._fence.clock()
        path = self._home / name
        if isinstance(rows, Files):
            at_ms = self._committer.adopt(path, rows, batch_id, notes=notes)
        else:
            at_ms = self._committer.commit(path, rows, batch_id, notes=notes)
        self._record_commit(name, batch_id)
        return at_ms

    def _record_commit(self, name: str, batch_id: int) -> None:
        self._flushing.committed(name, batch_id)
        # Files of a hop are left to maintenance, which knows what the readers have read.
        if name not in self._hops:
            self._compactor.committed(self._home / name)
        self._fence.reached(f"committed {name}")


def _has_rows(sink: Sink, entry: Entry) -> bool:
    rows = entry.tables.get(sink.name)
    return rows is not None and rows.num_rows > 0


def shown(clock: Clocks, finished_ms: int, *waited_ms: int, recovers: bool) -> Clocks:
    """Returns the clocks of an operator whose rows became visible.

    Args:
        clock: the operator's clocks before.
        finished_ms: when its rows became visible, epoch ms. What an earlier driver committed did not wait for this
            one: the operator's result counts if it is later.
        waited_ms: how long it waited, ms; less than 0 counts as 0. The sum counts up to the time that passed since the
            operator's result.
        recovers: an earlier driver decided the batch and was killed.
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
    """Returns the table for rows of a journal entry, and its rows.

    Args:
        home: folder of the tables.
        operator: the operator that made the rows. None: no operator has this name.
        name: name of the rows in the entry.
        rows: the rows in the entry.
        batch_id: number of the entry's batch.

    Returns:
        None if the rows belong to no table, or are not appended as they are.
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
