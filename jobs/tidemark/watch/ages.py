"""Records the commits of watched tables in the table `table_ages` of a warehouse.

Each watched table has a mark in the log of `table_ages`, a transaction of Delta, whose number stands for its newest
commit that was recorded. Rows and marks are one commit, so that of two runs at once only one records a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from deltalake import DeltaTable

from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.settings.intervals import is_text
from tidemark.model.tables.catalog import TABLE_AGES
from tidemark.selection import present
from tidemark.storage.delta.format import stamp_warehouse
from tidemark.storage.delta.report_tables import open_report, replace_in
from tidemark.storage.delta.tables import again_after_others
from tidemark.watch.commits import Change, History, PastCommit, Span
from tidemark.watch.rules import age_of


def record_ages(layout: Layout, histories: Iterable[History], now_ms: int) -> None:
    """Adds a row to `table_ages` for each commit of *histories* that changed data and has none.

    A second call changes nothing. If a table was rolled back, its rows are written anew.

    Raises:
        OtherFormat: another version of Tidemark has written to the warehouse.
    """
    path = layout.report_table(WATCH, TABLE_AGES.name)
    recorded = [history for history in histories if _changing(history)]

    def once() -> None:
        stored = open_report(TABLE_AGES, path)
        news = present(_news(stored, history) for history in recorded)
        for each in (each for each in news if each.where is not None):
            replace_in(stored, each.rows(now_ms), TABLE_AGES, where=each.where, marks=each.marks)
        added = [each for each in news if each.where is None]
        if added:
            rows = [row for each in added for row in each.rows(now_ms)]
            marks = {app: mark for each in added for app, mark in each.marks.items()}
            replace_in(stored, rows, TABLE_AGES, where=None, marks=marks)

    if recorded:
        stamp_warehouse(layout.warehouse)
        # The table is opened again for each try, so a try sees the marks of the others.
        again_after_others(once)


@dataclass(frozen=True)
class _News:
    """The `versions` of a table that have no row yet; those rows replace the ones for which `where` is true."""

    history: History
    versions: frozenset[int]
    where: str | None

    @property
    def marks(self) -> dict[str, int]:
        return {_app(self.history): _mark(self.history, _changing(self.history)[-1])}

    def rows(self, now_ms: int) -> list[dict[str, Any]]:
        return [row for row in rows_of_ages(self.history, now_ms) if row["version"] in self.versions]


def _news(stored: DeltaTable, history: History) -> _News | None:
    """Returns what is new in *history*; None: nothing is."""
    changing = _changing(history)
    known = stored.transaction_version(_app(history))
    n = next((n for n, commit in enumerate(changing) if _mark(history, commit) == known), None)
    new = changing if n is None else changing[n + 1 :]
    if not new:
        return None
    # The commit that was recorded last is gone: the table was rolled back, is another one, or was not read for long.
    where = None
    if known is not None and n is None:
        of_table = (is_text("table", str(history.path)), is_text("table_id", history.table_id))
        where = f"({' AND '.join(of_table)} AND version >= {new[0].version})"
    return _News(history, frozenset(commit.version for commit in new), where)


def _changing(history: History) -> Sequence[PastCommit]:
    return [commit for commit in history.commits if commit.change is not Change.NONE]


def _app(history: History) -> str:
    return f"tidemark-watch {sha256(str(history.path).encode()).hexdigest()[:32]}"


def _mark(history: History, commit: PastCommit) -> int:
    """Returns a number that stands for the *commit*: another commit, also of the same version, has another one."""
    text = f"{history.table_id} {commit.version} {commit.at_ms}"
    return int.from_bytes(sha256(text.encode()).digest()[:7])


def rows_of_ages(history: History, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of `table_ages` about *history*, which was read at *now_ms*; instants are epoch ms."""
    before: PastCommit | None = None
    column = history.chosen.column
    newest_after = (*(commit.newest_before for commit in history.commits[1:]), history.newest)
    for commit, newest in zip(history.commits, newest_after, strict=True):
        if commit.change is Change.NONE:
            continue
        seen = newest if column is not None and commit.version >= history.base_version else None
        is_known = column is not None and commit.version > history.base_version
        peak = age_of(commit.newest_before, commit.at_ms) if is_known and commit.newest_before else None
        yield {
            "topology": WATCH,
            "table": str(history.path),
            "table_id": history.table_id,
            "version": commit.version,
            "committed_at": commit.at_ms,
            "clock": commit.clock.value,
            "change": commit.change.value,
            "operation": commit.operation,
            "rows": commit.rows,
            "bytes": commit.bytes,
            "gap_ms": None if before is None else commit.at_ms - before.at_ms,
            "event_column": None if column is None else column.name,
            **_ends("newest", "at", seen),
            **_ends("latency", "ms", commit.latency if column is not None else None),
            **_ends("peak", "ms", peak),
            "engine": commit.writer.engine,
            "job": commit.writer.job,
            "query": commit.writer.query,
            "airflow": commit.writer.airflow,
            "run": commit.writer.run,
            "batch": commit.writer.batch,
            "read_at": now_ms,
        }
        before = commit


def _ends(name: str, unit: str, span: Span | None) -> dict[str, int | None]:
    low_ms, high_ms = span or (None, None)
    return {f"{name}_low_{unit}": low_ms, f"{name}_high_{unit}": high_ms}
