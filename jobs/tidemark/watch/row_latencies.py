"""Counts the latencies of the rows that appends brought, by the event times in their data files.

Statistics have the greatest and the smallest latency of a commit. Only its rows have quantiles, and the share of slow
ones, so a set of tables with `exact = true` has the column of event times of each added file read. A file never
changes, so each commit is read once in a process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import polars as pl

from tidemark.kernels.columns.buckets import bucket_of
from tidemark.storage.delta.snapshots import DamagedLog, actions_of_commit, is_below, name_of_commit
from tidemark.storage.object_path import ObjectPath
from tidemark.watch.commits import Change, History, PastCommit, RowLatencies, Span, TimeColumn
from tidemark.watch.reading import LOG
from tidemark.watch.statistics import DAYS, TEXTS, ZONED, instant

ROWS_AT_ONCE = 1_000_000
"""So many rows of a file are held at once, of one column."""
_CountsByCommit = dict[tuple[int, int], RowLatencies]
"""What was read of a table, by version and stamp of its commits."""


class RowReader:
    """Reads the rows of appends, and keeps what it has counted."""

    def __init__(self) -> None:
        self._counted: dict[tuple[Path, str, str], _CountsByCommit] = {}

    def with_rows(self, history: History, *, since_ms: int, zone: ZoneInfo) -> History:
        """Returns *history* whose appends since *since_ms* have the latencies of their rows.

        A commit has none if one of its files cannot be read; the next call tries again.

        Args:
            history: of a table.
            since_ms: older commits are not read, epoch ms.
            zone: of event times that have none.
        """
        column = history.chosen.column
        if column is None or column.is_partition or column.kind in DAYS:
            return history
        table = (history.path, history.table_id, column.physical)
        known = {(commit.version, commit.at_ms) for commit in history.commits}
        # An earlier call may have looked further back, and the next one may again.
        counted = {key: rows for key, rows in self._counted.get(table, {}).items() if key in known}
        commits = []
        for commit in history.commits:
            key, rows = (commit.version, commit.at_ms), None
            if commit.change is Change.APPENDED and commit.at_ms >= since_ms:
                rows = counted.get(key) or _rows_of(history.path, commit, column, zone)
            if rows is not None:
                counted[key] = rows
            commits.append(replace(commit, by_row=rows))
        self._counted[table] = counted
        return replace(history, commits=tuple(commits))


def _rows_of(path: Path, commit: PastCommit, column: TimeColumn, zone: ZoneInfo) -> RowLatencies | None:
    """Counts the latencies of the rows of *commit*; None: a file cannot be read."""
    counts: Counter[int] = Counter()
    least_ms, most_ms = list[int](), list[int]()
    try:
        for file in _added_files(path, commit.version):
            for times_ms in _times_ms(file, column, zone):
                latencies = (commit.at_ms - times_ms).drop_nulls()
                if len(latencies):
                    by_bucket = latencies.to_frame("ms").group_by(bucket_of(pl.col("ms")).alias("bucket")).len()
                    counts.update(dict(by_bucket.iter_rows()))
                    least_ms.append(_whole(latencies.min()))
                    most_ms.append(_whole(latencies.max()))
    # Arrow and polars raise OSError and ValueError of their own kinds for files that are gone or damaged.
    except (DamagedLog, OSError, ValueError, pl.exceptions.PolarsError):
        return None
    span = Span(min(least_ms), max(most_ms)) if least_ms else None
    return RowLatencies(tuple(sorted(counts.items())), span)


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _added_files(path: Path, version: int) -> Iterator[Path]:
    """Yields the data files that a commit added.

    Raises:
        DamagedLog: the commit is damaged, or adds a file that is not in the folder of the table.
    """
    file = path / LOG / name_of_commit(version)
    for action in actions_of_commit(file):
        add = action.get("add")
        if add and add["dataChange"]:
            if not is_below(add["path"]):
                raise DamagedLog(file, f"it names {add['path']}, which is not below the table")
            yield path / unquote(add["path"])


def _times_ms(file: Path, column: TimeColumn, zone: ZoneInfo) -> Iterator[pl.Series]:
    """Yields the event times of the rows in *file*, epoch ms; null for a row without one."""
    import pyarrow.parquet as pq

    source = file.open("rb") if isinstance(file, ObjectPath) else file
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as content:
        # A file that was written before the table got the column does not have it.
        if column.physical not in content.schema_arrow.names:
            return
        for rows in content.iter_batches(ROWS_AT_ONCE, columns=[column.physical]):
            values = pl.Series("at", rows.column(0))
            if column.kind in TEXTS:
                yield _of_texts(values, zone)
            elif column.kind == ZONED:
                yield values.dt.epoch("ms")
            else:
                yield values.dt.replace_time_zone(str(zone), ambiguous="earliest", non_existent="null").dt.epoch("ms")


def _of_texts(texts: pl.Series, zone: ZoneInfo) -> pl.Series:
    """Returns the instants that *texts* stand for, epoch ms; null for one that is no time, or a whole day."""
    spans = {text: instant(text, zone) for text in texts.unique().drop_nulls()}
    instants = {
        text: span.low_ms for text, span in spans.items() if span and (span.high_ms or 0) - (span.low_ms or 0) <= 1
    }
    return texts.replace_strict(instants, default=None, return_dtype=pl.Int64)
