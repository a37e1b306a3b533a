"""Merges changes into tables that have the current row of each key, at intervals of `refresh`.

A batch only appends its changes to a second table. A view over both tables shows the current rows at once.

Purpose: the cost of a batch depends on the number of changed keys, and not on the size of the table.

How it works: `changes_of_T` gets the rows of each batch, as any table does. A merge replaces the rows of T that have
the keys of rows appended since the last merge. Delta's transaction in T is the newest batch that T shows: a merge that
a crash interrupted is repeated or skipped. All that a merge does follows from `changes_of_T`.

Rows that T shows are removed from `changes_of_T` with a later merge, so that a reader that opened T before a merge
still finds the rows that the merge added.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from tidemark.kernels.updates.last_seen import SEEN_ANEW, SEEN_ONLY, newest_rows
from tidemark.model.kinds.sink import Sink
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.model.topology import SubTopology
from tidemark.selection import within
from tidemark.semantics.progress import StreamProgress
from tidemark.storage.delta.compaction import TableBusy, data_files_of, remove_files
from tidemark.storage.delta.current_rows import closed_by
from tidemark.storage.delta.merges import merge_notes
from tidemark.storage.delta.requirements import TableWatch
from tidemark.storage.delta.tables import Committer, Notes, scan
from tidemark.storage.fence import Fence
from tidemark.stream.operate.sink import accepted_rows
from tidemark.stream.write.commit_notes import progress_notes
from tidemark.stream.write.measurement import Measurer
from tidemark.stream.write.open_windows import closed_column
from tidemark.stream.write.writes import MergeRows

log = logging.getLogger(__name__)

LEAST_FILES = 10
"""Fewer files are not worth a commit that removes them."""
READER_MS = 60_000
"""How long merged rows stay in the table of changes: a reader opens one of the two tables, and then the other."""


class CurrentTables:
    """Merges changes into the tables of a sub-topology that have current rows.

    Args:
        sub: the sub-topology.
        home: the folder of its tables.
        committer: commits to tables.
        measurer: adds the columns that name a batch to rows.
        fence: reports each finished step, and has the clock.
        tables: knows the constraints of the tables.
    """

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        committer: Committer,
        measurer: Measurer,
        fence: Fence,
        tables: TableWatch,
    ) -> None:
        self._sinks = [sink for sink in sub.sinks if sink.table and sink.key]
        self._home, self._committer, self._fence = home, committer, fence
        self._measurer, self._tables = measurer, tables
        # A batch may have committed its own refused records already, so those of a merge have another id.
        self._refusals = {o.name: Committer(f"{committer.app}/merges/{o.name}", fence) for o in self._sinks}
        self._refused: dict[str, tuple[str, ...]] = {}
        self._merges: dict[str, list[tuple[int, int]]] = {}
        self._merged_at_ms: dict[str, int] = {}
        self._waiting: set[str] = set()

    def appended(self, sink: Sink) -> None:
        """Records that a batch appended rows of *sink*, if it keeps current rows."""
        if sink in self._sinks:
            self._waiting.add(sink.name)

    @property
    def due_at_ms(self) -> int | None:
        """When the next merge is due, epoch ms, or None if all rows are merged."""
        waiting = (sink for sink in self._sinks if sink.name in self._waiting)
        # A table that this driver has not merged yet is due at 0, which is at once.
        due_times_ms = (self._merged_at_ms.get(sink.name, -sink.refresh_ms) + sink.refresh_ms for sink in waiting)
        return min(due_times_ms, default=None)

    def merges(self, progress: StreamProgress, *, at_once: bool = False) -> Iterator[MergeRows]:
        """Yields the merges into tables that are due, or into all *at_once*.

        After them the tables show all rows up to the batch of *progress*. The caller carries each out before it asks
        for the next.
        """
        for sink in self._sinks:
            if at_once or (sink.name in self._waiting and self._is_due(sink)):
                yield from self._merge(sink, progress)
                self._waiting.discard(sink.name)
                self._merged_at_ms[sink.name] = self._fence.clock()

    def _is_due(self, sink: Sink) -> bool:
        """Returns True if the last merge was `refresh` ago."""
        merged_at_ms = self._merged_at_ms.get(sink.name)
        # A clock that was set back would otherwise put the merge off until it catches up.
        return merged_at_ms is None or not 0 <= self._fence.clock() - merged_at_ms < sink.refresh_ms

    def _merge(self, sink: Sink, progress: StreamProgress) -> Iterator[MergeRows]:
        """Yields the merge that brings the table of *sink* up to the batch of *progress*, if there is anything new."""
        path, changes = self._home / str(sink.table), self._home / str(sink.appends_to)
        if sink.name not in self._merges:
            # It is not known when an earlier driver merged. The latest possible instant is now: so no reader loses
            # rows.
            newest = self._committer.newest(path)
            self._merges[sink.name] = [] if newest is None else [(self._fence.clock(), newest)]
        merges = self._merges[sink.name]
        merged = merges[-1][1] if merges else None
        appended = _after(changes, merged)
        if appended.is_empty():
            return
        rows = newest_rows(self._accepted(sink, appended.filter(pl.col("deleted").is_not_null()), progress), sink.key)
        closed = closed_by(appended, closed_column(sink))
        batch_id, noted = progress.batch_id, progress_notes(sink, progress)

        def shown(shown_at_ms: int) -> Notes:
            return {**merge_notes(appended, shown_at_ms), **noted}

        yield MergeRows(target=str(sink.table), rows=rows.to_arrow(), key=sink.key, notes_at=shown, closed=closed)
        merges.append((self._fence.clock(), batch_id))
        shown_since_ms = merges[-1][0] - READER_MS
        if old := [batch for at_ms, batch in merges if at_ms <= shown_since_ms]:
            self._merges[sink.name] = [merge for merge in merges if merge[1] >= old[-1]]
            self._remove(changes, old[-1])

    def _accepted(self, sink: Sink, rows: pl.DataFrame, progress: StreamProgress) -> pl.DataFrame:
        """Returns *rows* without those that the table of *sink* refuses since they were appended."""
        constraints = self._tables.constraints_now(self._home / str(sink.table))
        if not constraints:
            return rows
        accepted, refused = accepted_rows(sink, rows, constraints)
        if refused.height:
            rows_then = refused.with_columns(decided_at=pl.lit(progress.decided_at_ms))
            dead = self._measurer.of_batch(DEAD_LETTERS, rows_then, progress.batch_id)
            self._refusals[sink.name].commit(self._home / DEAD_LETTERS.name, dead, progress.batch_id)
            self._refused[sink.name] = tuple(refused["key"].drop_nulls().cast(pl.String))
        return accepted

    def take_refused(self) -> dict[str, tuple[str, ...]]:
        """Returns, by sink, the keys of rows that merges refused since the last call."""
        refused, self._refused = self._refused, {}
        return refused

    def _remove(self, changes: Path, merged: int) -> None:
        """Removes the files of *changes* that have no rows of batches after *merged*: all of them are merged."""
        old = [file for file in data_files_of(changes) if file.newest_batch is not None and file.newest_batch <= merged]
        if len(old) < LEAST_FILES:
            return
        # The table is opened again after its files were listed: this fails if another process has written to it.
        self._committer.open_anew(changes)
        self._committer.check_lease()
        try:
            remove_files(changes, old)
        except TableBusy as busy:
            log.info("%s", busy)
        self._committer.open_anew(changes, own_commits=1)
        self._fence.reached(f"removed from {changes.name}")


def _after(changes: Path, merged: int | None) -> pl.DataFrame:
    """Returns the rows of *changes* of batches after *merged*, or of all batches if it is None, in order of batches."""
    rows = scan(changes)
    if merged is not None:
        rows = rows.filter(pl.col("batch_id") > merged)
    in_order = rows.collect().sort("batch_id", maintain_order=True)
    flags = within((SEEN_ONLY, SEEN_ANEW), in_order.columns)
    # Rows from before `last_seen_at` was set have null here.
    return in_order.with_columns(pl.col(flags).fill_null(value=False))
