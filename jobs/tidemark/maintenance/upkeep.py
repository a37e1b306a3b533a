"""Keeps the tables of a topology small.

Old rows go, small files become large ones, unused files are removed. So a stream that runs for years starts, reads and
commits as fast as a young one.

How it works, table by table: files whose youngest row is older than the retention go as a whole. Files that were
written long enough ago are merged, those of one UTC day into one, and later those of a week. In tables of which people
ask for the newest row of a key, however old, rows are separated instead: needed rows go into files named NEEDED, the
others into files named SUPERSEDED. The retention removes only the latter.

A stream, another maintenance or an analyst may write meanwhile, and no commit of a stream is ever delayed. A table that
they changed is read again, up to TRIES times, and otherwise left for the next run. A maintenance that is killed leaves
files that no table names; they go when they are old enough.

Known limitation: two OPTIMIZEs by delta-rs at once give a table its rows twice; delta-rs does not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.control.folder import Control
from tidemark.maintenance.live_rows import NeededRows
from tidemark.maintenance.orphan_files import remove_unused, uncommitted_since_ms
from tidemark.maintenance.progress import read_progress
from tidemark.maintenance.retention import RetainedTable, report_tables, retained_tables
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS, WEEK_MS
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import (
    ALERTS,
    DECISIONS,
    DELIVERIES,
    INCIDENTS,
    PUBLISHED_INTERVALS,
)
from tidemark.model.topology import Topology
from tidemark.storage.delta.compaction import (
    AT_MOST,
    DataFile,
    TableBusy,
    data_files_of,
    merge_files,
    mergeable_groups,
    remove_files,
    replace_files,
    rows_of_each,
    write_files,
)
from tidemark.storage.delta.tables import NEEDED, SUPERSEDED
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings

log = logging.getLogger("tidemark.maintain")

CLOSED_AFTER_MS = 3_600_000
"""Age from which on a file is closed, and may be merged with others."""
TRIES = 3
LEAST_WEEKS = 4
"""Files whose rows are kept for so many weeks are merged by weeks, and their rows may stay a week longer."""
_KEPT = (INCIDENTS, ALERTS, DELIVERIES, DECISIONS, PUBLISHED_INTERVALS)
KEPT = {each.name for each in _KEPT}
"""Reports without a retention.

An open incident may be older than any retention, nothing computes decisions of people again, and an interval that is
not known to be published would be published again.
"""


def maintain_stream(stream: Stream, *, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS) -> None:
    """Keeps the tables of *stream* small."""
    # A stream that may not go on as it is keeps all it has: the remedy may need any of its rows.
    reasons = [finding for finding in findings(evidence(stream)) if not finding.fault.startswith("checkpoint")]
    for finding in reasons:
        log.warning("%s/%s is left as it is: %s", stream.topology.name, stream.sub.name, finding.lines)
    if reasons or (at := read_progress(stream)) is None:
        return
    since_ms = uncommitted_since_ms(Control(stream.control), at)
    for table in retained_tables(stream, at):
        if not DeltaTable.is_deltatable(str(table.path)):
            continue
        _maintain(table, now_ms=now_ms, closed_after_ms=closed_after_ms)
        if stream.topology.retention.unused_ms is not None:
            remove_unused(table.path, stream.topology.retention.unused_ms, since_ms=since_ms, done=at.done)


def maintain_reports(
    layout: Layout, topology: Topology, *, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS
) -> None:
    """Keeps the tables of the batch jobs of *topology* small."""
    for path in report_tables(layout, topology.name):
        retention_ms = None if path.name in KEPT else topology.retention.reports_ms
        kept = RetainedTable(path=path, retention_ms=retention_ms)
        _maintain(kept, now_ms=now_ms, closed_after_ms=closed_after_ms)
        if topology.retention.unused_ms is not None:
            remove_unused(path, topology.retention.unused_ms)


def _maintain(table: RetainedTable, *, now_ms: int, closed_after_ms: int) -> None:
    """Removes and merges files of *table* until nothing is left to do."""
    for _ in range(TRIES):
        try:
            # Each step changes the files, so they are listed anew.
            while step := _next_step(table, data_files_of(table.path), now_ms, now_ms - closed_after_ms):
                step()
        except TableBusy as busy:
            log.info("%s", busy)
        else:
            return


def _next_step(
    table: RetainedTable, files: Sequence[DataFile], now_ms: int, until_ms: int
) -> Callable[[], None] | None:
    """Returns the next step for *table* with its *files*, or None if nothing is left to do.

    Files that were written before *until_ms* are closed.
    """
    # Old files go first, so that their rows are not written again before that.
    if old := _too_old(table, files, now_ms):
        return partial(remove_files, table.path, old)
    closed = [file for file in files if file.written_at_ms < until_ms]
    if table.needed and (mixed := _mixed_files(table, closed)):
        return partial(_separate, table, table.needed, mixed)
    if small := _small(table, closed, weeks_until_ms=now_ms - DAY_MS if _keeps_weeks(table) else 0):
        return partial(merge_files, table.path, small, prefix=_prefix(table))
    return None


def _too_old(table: RetainedTable, files: Sequence[DataFile], now_ms: int) -> list[DataFile]:
    """Returns the files whose rows are all older than the retention."""
    if table.retention_ms is None:
        return []
    before_ms = now_ms - table.retention_ms
    # The newest file never goes: it shows since when no record has come.
    may_go = [file for file in files if file.name.startswith(SUPERSEDED)] if table.needed else files[:-1]
    return [file for file in may_go if file.written_at_ms < before_ms]


def _mixed_files(table: RetainedTable, closed: Sequence[DataFile]) -> list[DataFile]:
    """Returns the files that may have both needed and superseded rows."""
    files: list[DataFile] = []
    for file in closed:
        is_done = file.newest_batch is not None and file.newest_batch < table.before_batch
        if is_done and not file.name.startswith(SUPERSEDED):
            files.append(file)
    # If all are NEEDED, no file was written since the rows were separated last.
    return [] if all(file.name.startswith(NEEDED) for file in files) else files


def _separate(table: RetainedTable, needed: NeededRows, files: Sequence[DataFile]) -> None:
    """Writes the rows of *files* that are *needed* and the others into different files."""
    # First the columns that decide, of all files together; the whole rows are then read and written file by file.
    keys = pl.concat([pl.DataFrame(rows) for rows in rows_of_each(table.path, files, needed.columns)])
    is_needed = needed.of(keys).fill_null(value=True)  # a row without a key stays: none supersedes it
    needed_rows, others = _chosen(table.path, files, is_needed), _chosen(table.path, files, ~is_needed)
    # Generators: a file is written when it is asked for, one after the other.
    of_needed = write_files(table.path, needed_rows, prefix=NEEDED, like=files[-1])
    of_others = write_files(table.path, others, prefix=SUPERSEDED, like=files[-1])
    replace_files(table.path, files, chain(of_needed, of_others))


def _chosen(path: Path, files: Sequence[DataFile], chosen: pl.Series) -> Iterator[pa.Table]:
    """Yields the *chosen* rows of *files*, numbered file after file."""
    start = 0
    for rows in rows_of_each(path, files):
        yield rows.filter(chosen[start : start + rows.num_rows].to_arrow())
        start += rows.num_rows


def _prefix(table: RetainedTable) -> str:
    """Returns the prefix of the names of files that are merged: of tables with needed rows only superseded ones."""
    return SUPERSEDED if table.needed else ""


def _keeps_weeks(table: RetainedTable) -> bool:
    """Returns True if the rows of *table* are kept for so long that a week more is little."""
    return table.retention_ms is None or table.retention_ms >= LEAST_WEEKS * WEEK_MS


def _small(table: RetainedTable, closed: Sequence[DataFile], *, weeks_until_ms: int) -> list[DataFile]:
    """Returns two or more small files that can be merged into one of about AT_MOST rows, or none.

    Files of a week that was over at *weeks_until_ms* are merged into one.
    """
    small: list[DataFile] = []
    for file in closed:
        # Two files of half the rows fit into one.
        if file.name.startswith(_prefix(table)) and file.rows < AT_MOST // 2:
            small.append(file)
    for group in mergeable_groups(small, weeks_until_ms=weeks_until_ms):
        rows_before = accumulate((file.rows for file in group), initial=0)
        files = [file for file, before in zip(group, rows_before, strict=False) if before < AT_MOST]
        if len(files) > 1:
            return files
    return []
