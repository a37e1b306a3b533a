"""Lists what a batch writes, in order; `commit.py` carries the list out.

First are the rows of `changes`. Then come the rows of repartitions and sinks, in the order of the topology, with the
marks of time that sinks send. Records that a topic or table refuses meanwhile are written last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, assert_never

import pyarrow as pa

from tidemark.kernels.records.marks import MARK, mark_text
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import CHANGES
from tidemark.model.topology import SubTopology
from tidemark.storage.delta.current_rows import ClosedRows
from tidemark.storage.delta.tables import Notes
from tidemark.storage.files import Rows
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.layout import table_of
from tidemark.stream.journal.notes import MarkNotes
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.write.commit_notes import progress_notes
from tidemark.stream.write.open_windows import OpenWindows
from tidemark.stream.write.refused_rows import LateRefusals


@dataclass(frozen=True, kw_only=True)
class AppendRows:
    """Appends *rows* to the table *target*, which accepts them all.

    Attributes:
        target: the name of the rows in an entry (journal/layout.py).
        rows: in memory, or files that become part of the table.
        shows: the operators whose results can be seen when the write ends.
    """

    target: str
    rows: Rows
    shows: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The table."""
        return table_of(self.target)


@dataclass(frozen=True, kw_only=True)
class AppendAccepted:
    """Appends to the table *target* what the table of *sink* accepts.

    Attributes:
        target: the table. For a sink with a key this is the table of changes, which are merged later.
        sink: the sink.
        offered: its rows, or None if the batch only closes windows.
        closed: the windows whose rows become final, if any.
        notes: notes of the commit.
    """

    target: str
    sink: Sink
    offered: LateRefusals | None
    closed: ClosedRows | None
    notes: Notes

    @property
    def place(self) -> str:
        """The table."""
        return self.target

    @property
    def shows(self) -> tuple[str, ...]:
        """The operators whose results can be seen when the write ends: the sink, if it has rows."""
        return () if self.offered is None else (self.sink.name,)


@dataclass(frozen=True, kw_only=True)
class CommitMark:
    """Commits a mark of time, in *notes*, to the table *target* of *sink*, which gets no rows."""

    target: str
    sink: Sink
    notes: Notes
    shows: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The table."""
        return self.target


@dataclass(frozen=True, kw_only=True)
class SendRecords:
    """Sends the records of a sink to its topic."""

    outgoing: OutgoingRows

    @property
    def place(self) -> str:
        """The topic."""
        return str(self.outgoing.sink.topic)

    @property
    def shows(self) -> tuple[str, ...]:
        """The operators whose results can be seen when the write ends: the sink."""
        return (self.outgoing.sink.name,)


@dataclass(frozen=True, kw_only=True)
class SendMark:
    """Sends a *mark* of time to the topic of *sink*."""

    sink: Sink
    mark: MarkNotes
    shows: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The topic."""
        return str(self.sink.topic)


@dataclass(frozen=True, kw_only=True)
class MergeRows:
    """Replaces the rows of the table *target* that have the keys of *rows* (current_tables.py).

    Attributes:
        target: a table with current rows.
        rows: the new rows, one per key.
        key: the columns that identify a row.
        notes_at: returns notes of the commit, given the clock (epoch ms) after all files were written.
        closed: the windows whose rows become final, if any.
    """

    target: str
    rows: pa.Table
    key: tuple[str, ...]
    notes_at: Callable[[int], Notes]
    closed: ClosedRows | None

    @property
    def place(self) -> str:
        """The table."""
        return self.target


TopicWrite: TypeAlias = SendRecords | SendMark
"""Unlike a table, a topic cannot be asked which batch it has. Its readers drop repeated records by their ids."""

BatchWrite: TypeAlias = AppendRows | AppendAccepted | CommitMark | TopicWrite
"""A write that follows from a journal entry."""
Write: TypeAlias = BatchWrite | MergeRows


class BatchWrites:
    """Lists the writes of the batches of *sub*, whose tables are in the folder *home*.

    Args:
        sub: the sub-topology.
        home: the folder.
        app: names the stream in marks of time.
        open_windows: knows which windows are open.
    """

    def __init__(self, sub: SubTopology, home: Path, app: str, open_windows: OpenWindows) -> None:
        self._home, self._app, self._open_windows = home, app, open_windows
        self._handing_out = sub.handing_out
        self._shown_by_changes: list[str] = []
        for operator in sub.operators:
            has_reader = operator.name not in sub.terminals() or operator in self._handing_out
            if operator.emission and not has_reader:
                self._shown_by_changes.append(operator.name)

    def of(self, entry: Entry) -> list[BatchWrite]:
        """Returns the writes of *entry*, in order."""
        writes: list[BatchWrite] = []
        if changes := _rows_of(CHANGES.name, entry):
            operators = entry.notes.decision.operators
            decided = (name for name in self._shown_by_changes if name in operators)
            shown = (name for name in decided if operators[name].counts.get("emitted"))
            # An operator without a reader has finished when its rows can be seen.
            writes.append(AppendRows(target=CHANGES.name, rows=changes, shows=tuple(shown)))
        # The topology may have got other operators since the batch was decided.
        for operator in (each for each in self._handing_out if each.name in entry.notes.decision.operators):
            match operator:
                case Repartition() if rows := _rows_of(operator.name, entry):
                    writes.append(AppendRows(target=operator.output_table, rows=rows, shows=(operator.name,)))
                case Repartition():
                    pass
                case Sink():
                    writes += self._of_sink(operator, entry)
                case _:
                    assert_never(operator)
        return writes

    def _of_sink(self, sink: Sink, entry: Entry) -> Iterator[BatchWrite]:
        rows, mark = _rows_of(sink.name, entry), entry.notes.decision.marks.get(sink.name)
        if sink.table is None:
            if rows:
                yield SendRecords(outgoing=OutgoingRows.of(sink, entry, self._handing_out))
            if mark:
                yield SendMark(sink=sink, mark=mark)
            return
        progress = entry.notes.progress
        notes = progress_notes(sink, progress)
        if not sink.key:
            notes |= {MARK: mark_text(self._app, progress.watermark_ms, idle=progress.idle)}
        closed = self._open_windows.closed(sink, progress.watermark_ms)
        if rows or closed:
            yield AppendAccepted(
                target=str(sink.appends_to),
                sink=sink,
                offered=self._offered(sink, rows, entry) if rows else None,
                closed=closed,
                notes=notes,
            )
        # Rows have the mark in their own commit.
        if mark and not rows:
            yield CommitMark(target=sink.table, sink=sink, notes=notes)

    def _offered(self, sink: Sink, rows: Rows, entry: Entry) -> LateRefusals:
        decided = entry.notes.decision.batch.constraints.get(sink.name, ())
        return LateRefusals(sink, self._home / str(sink.appends_to), rows, entry.batch_id, decided)


def _rows_of(name: str, entry: Entry) -> Rows | None:
    """Returns the rows called *name* in *entry*, if there are any."""
    rows = entry.tables.get(name)
    return rows if rows is not None and rows.num_rows else None
