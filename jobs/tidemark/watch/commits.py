"""The commits of a Delta table, as its log has them.

Instants are epoch ms. Each is one of two clocks': event times are of whoever produced the records, and commits are of
the clock that `Clock` names. Nothing is corrected or clamped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tidemark.semantics.table_commits import CommitClock as Clock
from tidemark.semantics.table_commits import DataChange as Change

__all__ = [
    "UNBOUNDED",
    "AddedFile",
    "Change",
    "ChosenColumn",
    "Clock",
    "Commit",
    "FileTimes",
    "History",
    "PastCommit",
    "RowLatencies",
    "Span",
    "TimeColumn",
    "Unreadable",
    "Writer",
]


class Span(NamedTuple):
    """A length or an instant that is known to lie between two, both included; None: there is no bound on that side."""

    low_ms: int | None
    high_ms: int | None


class FileTimes(NamedTuple):
    """What a log says of the event times in a file.

    No visible row is older than `oldest_ms`, if that is known, and the newest one lies in `newest`.
    """

    oldest_ms: int | None
    newest: Span


UNBOUNDED = FileTimes(None, Span(None, None))
"""The times of a file without statistics of the column."""


@dataclass(frozen=True)
class AddedFile:
    """A file that a commit added.

    `rows` are those that are visible, None if the log does not say. `times` is None if no row has an event time.
    `changes_data` is False for rows that were in other files before.
    """

    path: str
    size: int
    rows: int | None
    changes_data: bool
    times: FileTimes | None


@dataclass(frozen=True)
class Writer:
    """Who wrote a commit; each is None if the log does not say.

    `query` is the application whose transaction identifier the commit has, of Spark the id of a streaming query.
    `airflow` is DAG and task. The `run` of a DAG or job, and the `batch` of a query, make no other writer.
    """

    engine: str | None = None
    job: str | None = None
    query: str | None = None
    airflow: str | None = None
    run: str | None = field(default=None, compare=False)
    batch: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Commit:
    """A version of a table: when it was stamped, by which clock, and what it did.

    `removes_data` is True if rows that were visible before were removed.
    """

    version: int
    at_ms: int
    clock: Clock
    operation: str
    writer: Writer
    added: tuple[AddedFile, ...] = ()
    removed: tuple[str, ...] = ()
    removes_data: bool = False


@dataclass(frozen=True)
class TimeColumn:
    """The column whose values are event times.

    `physical` is its name in files and statistics, and `kind` Delta's type. `unindexed` says why writers keep no
    statistics of it; empty: they do.
    """

    name: str
    physical: str
    kind: str
    is_partition: bool = False
    unindexed: str = ""


@dataclass(frozen=True)
class ChosenColumn:
    """The column of event times; None if there is none, or if there are several `candidates`."""

    column: TimeColumn | None
    candidates: tuple[str, ...] = ()


class RowLatencies(NamedTuple):
    """The latencies of the rows of a commit that have an event time.

    `counts` are buckets (`tidemark.semantics.buckets`) with numbers of rows. `span` reaches from the smallest to the
    greatest latency; None: there are no such rows.
    """

    counts: tuple[tuple[int, int], ...]
    span: Span | None


@dataclass(frozen=True)
class PastCommit:
    """What a commit did, with the `rows` (None: the log does not say) and `bytes` of the files that it wrote.

    `latency` is that of its rows; None for a commit that appended none. `newest_before` is the newest event time that
    readers saw until then (None: none); of a commit up to the history's `base_version` it is not known. `by_row` is
    None if its rows were not read.
    """

    version: int
    at_ms: int
    clock: Clock
    change: Change
    operation: str
    rows: int | None
    bytes: int
    latency: Span | None
    writer: Writer
    newest_before: Span | None
    by_row: RowLatencies | None = None


@dataclass(frozen=True)
class History:
    """What the log of a table says up to its newest version.

    `commits` are the newest ones, ascending and without a gap; none if the log was cleaned up to its checkpoint.
    `newest` is the newest event time that readers see (None: none). What they saw is known from `base_version` on (-1:
    from the first version on).
    """

    path: Path
    table_id: str
    version: int
    chosen: ChosenColumn
    commits: tuple[PastCommit, ...]
    base_version: int
    newest: Span | None


@dataclass(frozen=True)
class Unreadable:
    """A table, or a folder of tables, that cannot be read: the file, what was seen there, and the remedy."""

    path: Path
    file: str
    found: str
    remedy: str
