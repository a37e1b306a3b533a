"""The rules behind every number about a watched table; pure functions on what its log says.

An age is `now - newest event time`, and a latency `commit - event time`. Statistics give both as spans. A limit is
broken if the lower end of a span reaches it, kept if the upper end is below it, and else nobody knows. Negative lengths
say that one clock is ahead of another; they are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tidemark.model.settings.lengths import counted, for_people
from tidemark.selection import present
from tidemark.semantics.quantiles import MEDIAN, quantile_of
from tidemark.semantics.sla import Sla, Verdict, judge
from tidemark.watch.commits import Change, ChosenColumn, Clock, Commit, History, PastCommit, Span, Writer
from tidemark.watch.statistics import ZONED
from tidemark.watch.visible import VisibleFiles

SHOWN = 5
"""Newest commits that are shown."""
FEWEST = 3
"""Gaps, and commits, from which what is usual is known."""
BY_EVENT_TIME, BY_COMMIT = "event_time", "commit"


@dataclass(frozen=True)
class ShownCommit:
    """A commit that changed data, with the `rows` (None: the log does not say) and `bytes` of the files that it wrote.

    `latency` is that of its rows, and `verdict` that on it; both are None for one that removed data. `verdict` is None
    without a limit, too.
    """

    version: int
    at_ms: int
    clock: Clock
    change: Change
    operation: str
    rows: int | None
    bytes: int
    latency: Span | None
    verdict: Verdict | None
    writer: Writer


@dataclass(frozen=True)
class WriterCount:
    """A writer, as of its last commit, and the number of its commits that changed data."""

    writer: Writer
    commits: int


@dataclass(frozen=True)
class TableAge:
    """What the log of a table says, at an instant.

    Attributes:
        newest: between which instants the newest event time lies; None: no row has one, or no column is known.
        age: of it; None as `newest`.
        commit_at_ms: the last commit that changed data; None: the log has none.
        commit_age_ms: of it.
        clock: whose clock stamped that commit.
        usual_gap_ms: median of the times between commits that changed data; None: fewer than FEWEST of them.
        usual_rows, usual_bytes: medians of what such a commit wrote; None as above.
        peak: the oldest that readers saw since `peak_since_ms`; None: they saw no event time.
        commits: the newest SHOWN that changed data, the newest first.
        latencies: verdicts on the appends since `peak_since_ms`, and their numbers; empty without a limit.
        writers: who made the commits that changed data, the last one first.
        verdict: None without a limit.
        judged_by: what the verdict is about; None: nothing.
        notes: what a reader of the numbers should know.
    """

    path: str
    version: int
    column: str | None
    newest: Span | None
    age: Span | None
    commit_at_ms: int | None
    commit_age_ms: int | None
    clock: Clock | None
    usual_gap_ms: int | None
    usual_rows: int | None
    usual_bytes: int | None
    peak: Span | None
    peak_since_ms: int
    commits: tuple[ShownCommit, ...]
    latencies: Mapping[Verdict, int]
    writers: tuple[WriterCount, ...]
    verdict: Verdict | None = None
    judged_by: str | None = None
    notes: tuple[str, ...] = ()


def change_of(commit: Commit) -> Change:
    """Returns what *commit* did to the data; one that only moves rows, or restores older ones, brings nothing new."""
    # Unlike OPTIMIZE, a RESTORE marks its files as changed data.
    if commit.operation == "RESTORE":
        return Change.NONE
    if commit.removes_data:
        return Change.REPLACED
    has_rows = any(file.changes_data and file.rows != 0 for file in commit.added)
    return Change.APPENDED if has_rows else Change.NONE


def latency_of(commit: Commit) -> Span | None:
    """Returns the latency of the rows that *commit* appended: from that of its newest row to that of its oldest.

    None: it removed data, so that its files have older rows, too; or no row has an event time.
    """
    if change_of(commit) is not Change.APPENDED:
        return None
    times = present(file.times for file in commit.added if file.changes_data)
    if not times:
        return None
    oldest, newest = ([each.oldest_ms for each in times], [each.newest.high_ms for each in times])
    if None in oldest or None in newest:
        return Span(None, None)
    return Span(commit.at_ms - max(present(newest)), commit.at_ms - min(present(oldest)))


def verdict_on(span: Span, limit_ms: int) -> Verdict:
    """Returns the verdict on a length in *span*: a length that is equal to the limit reaches it.

    >>> verdict_on(Span(5, 9), 5), verdict_on(Span(1, 4), 5), verdict_on(Span(4, 5), 5), verdict_on(Span(None, 4), 5)
    (<Verdict.ERROR: 'error'>, <Verdict.PASS: 'pass'>, <Verdict.UNKNOWN: 'unknown'>, <Verdict.PASS: 'pass'>)
    """
    sla = Sla(error_after_ms=limit_ms)
    if judge(span.low_ms, sla) is Verdict.ERROR:
        return Verdict.ERROR
    return Verdict.PASS if judge(span.high_ms, sla) is Verdict.PASS else Verdict.UNKNOWN


def age_of(newest: Span, at_ms: int) -> Span:
    """Returns the age at an instant of the *newest* event time."""
    low_ms = None if newest.high_ms is None else at_ms - newest.high_ms
    return Span(low_ms, None if newest.low_ms is None else at_ms - newest.low_ms)


def past_commits(commits: Iterable[Commit], files: VisibleFiles, base_version: int) -> Iterator[PastCommit]:
    """Yields what each of *commits* did, and applies those after *base_version*, whose *files* are given, to the files.

    Raises ForgottenFilesError as `VisibleFiles.newest` does.
    """
    for commit in commits:
        if commit.version <= base_version:
            yield _past_commit(commit, None)
            continue
        yield _past_commit(commit, files.newest)
        files.apply(commit)


def _past_commit(commit: Commit, newest_before: Span | None) -> PastCommit:
    # A file that lost rows by a deletion vector is added again in place of itself, and not written.
    files = [file for file in commit.added if file.changes_data and file.path not in commit.removed]
    rows = [file.rows for file in files]
    return PastCommit(
        commit.version,
        commit.at_ms,
        commit.clock,
        change_of(commit),
        commit.operation,
        None if None in rows else sum(present(rows)),
        sum(file.size for file in files),
        latency_of(commit),
        commit.writer,
        newest_before,
    )


def peak_of(history: History, *, since_ms: int, now_ms: int) -> Span | None:
    """Returns the greatest age that readers saw from *since_ms* to *now_ms*; None: they saw no event time.

    The age grows until a commit makes it smaller, so it was greatest just before one of them, or is so now.
    """
    known = (commit for commit in history.commits if commit.version > history.base_version)
    seen = [*((commit.at_ms, commit.newest_before) for commit in known), (now_ms, history.newest)]
    ages = [age_of(newest, at_ms) for at_ms, newest in seen if newest is not None and at_ms >= since_ms]
    if not ages:
        return None
    highs = [age.high_ms for age in ages]
    low_ms = max(present(age.low_ms for age in ages), default=None)
    return Span(low_ms, None if None in highs else max(present(highs)))


def _known_since_ms(history: History, since_ms: int, now_ms: int) -> int:
    """Returns from when on it is known what readers saw, not before *since_ms*."""
    known = [commit.at_ms for commit in history.commits if commit.version >= history.base_version]
    return max(since_ms, known[0]) if known else now_ms


def table_age(history: History, *, now_ms: int, since_ms: int, limit_ms: int | None) -> TableAge:
    """Returns what *history* says at *now_ms*, with the peak age since *since_ms*, judged by the limit (None: not)."""
    changing = [commit for commit in history.commits if commit.change is not Change.NONE]
    last = changing[-1] if changing else None
    column = history.chosen.column
    newest = None if column is None else history.newest
    known_ms = _known_since_ms(history, since_ms, now_ms)
    shown = [_shown(commit, limit_ms) for commit in reversed(changing)]
    gaps = [later.at_ms - earlier.at_ms for earlier, later in pairwise(changing)]
    table = TableAge(
        path=str(history.path),
        version=history.version,
        column=column.name if column else None,
        newest=newest,
        age=None if newest is None else age_of(newest, now_ms),
        commit_at_ms=last.at_ms if last else None,
        commit_age_ms=now_ms - last.at_ms if last else None,
        clock=last.clock if last else None,
        usual_gap_ms=_usual(gaps),
        usual_rows=_usual(present(commit.rows for commit in shown)),
        usual_bytes=_usual([commit.bytes for commit in shown]),
        peak=None if column is None else peak_of(history, since_ms=known_ms, now_ms=now_ms),
        peak_since_ms=known_ms,
        commits=tuple(shown[:SHOWN]),
        latencies=dict(Counter(present(commit.verdict for commit in shown if commit.at_ms >= known_ms))),
        writers=_writers(changing),
    )
    if limit_ms is not None:
        verdict, judged_by = _judged(table, history.chosen, limit_ms)
        table = replace(table, verdict=verdict, judged_by=judged_by)
    return replace(table, notes=(*_notes_on_column(table, history), *_notes_on_commits(table, history)))


def _usual(numbers: Sequence[int]) -> int | None:
    return quantile_of(numbers, MEDIAN) if len(numbers) >= FEWEST else None


def _shown(commit: PastCommit, limit_ms: int | None) -> ShownCommit:
    return ShownCommit(
        commit.version,
        commit.at_ms,
        commit.clock,
        commit.change,
        commit.operation,
        commit.rows,
        commit.bytes,
        commit.latency,
        None if commit.latency is None or limit_ms is None else verdict_on(commit.latency, limit_ms),
        commit.writer,
    )


def _writers(changing: Sequence[PastCommit]) -> tuple[WriterCount, ...]:
    counts = Counter(commit.writer for commit in reversed(changing))
    return tuple(WriterCount(writer, n) for writer, n in counts.items())


def _judged(table: TableAge, chosen: ChosenColumn, limit_ms: int) -> tuple[Verdict, str | None]:
    """Returns the verdict on a table, and what it is about.

    The age of the newest event time is judged. If that is not known well enough, a last commit beyond the limit breaks
    it still: nothing came since. A table without a column of times is judged by its last commit. Of several columns
    none is judged.
    """
    age_ms = table.commit_age_ms
    is_late = age_ms is not None and verdict_on(Span(age_ms, age_ms), limit_ms) is Verdict.ERROR
    if chosen.column is None:
        if chosen.candidates:
            return Verdict.UNKNOWN, None
        if age_ms is None:
            return Verdict.UNKNOWN, None
        if age_ms < 0:
            return Verdict.AHEAD_OF_CLOCK, BY_COMMIT
        return (Verdict.ERROR if is_late else Verdict.PASS), BY_COMMIT
    if table.age is None:
        return Verdict.NEVER_LOADED, BY_EVENT_TIME
    if table.age.high_ms is not None and table.age.high_ms < 0:
        return Verdict.AHEAD_OF_CLOCK, BY_EVENT_TIME
    verdict = verdict_on(table.age, limit_ms)
    if verdict is Verdict.UNKNOWN and is_late:
        return Verdict.ERROR, BY_COMMIT
    return verdict, BY_EVENT_TIME


def _notes_on_column(table: TableAge, history: History) -> Iterator[str]:
    """Yields why the newest event time is not known, or not exactly."""
    chosen, column = history.chosen, history.chosen.column
    if column is None and chosen.candidates:
        names = ", ".join(chosen.candidates)
        yield f"none of its columns of times is judged until one is named with --column: {names}"
    elif column is None:
        yield "it has no column of times, so its last commit is judged; a column of text can be named with --column"
    elif table.age is None:
        yield f"no row has a time in `{column.name}`"
    elif None in table.age and column.unindexed:
        remedy = f"SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '{column.name}')"
        yield f"the log has no bounds of `{column.name}`: {column.unindexed}"
        yield f"files that are written after ALTER TABLE delta.`{table.path}` {remedy} have them"
    elif None in table.age:
        yield f"some files have no bounds of `{column.name}`, or loose ones because rows were deleted"
    if column is not None and column.kind != ZONED:
        yield f"`{column.name}` is of type {column.kind}: what has no time zone is read in that of --timezone"


def _notes_on_commits(table: TableAge, history: History) -> Iterator[str]:
    """Yields what does not fit this machine's clock, and why no commit is known that changed data."""
    if table.age is not None and table.age.high_ms is not None and table.age.high_ms < 0:
        yield f"the newest event time is {for_people(-table.age.high_ms)} ahead of this machine's clock"
    if table.commit_age_ms is not None and table.commit_age_ms < 0:
        yield f"the last commit is {for_people(-table.commit_age_ms)} ahead of this machine's clock"
    if table.judged_by == BY_COMMIT and table.column is not None and table.commit_age_ms is not None:
        yield f"its age may be below the limit, but no commit has changed data for {for_people(table.commit_age_ms)}"
    if not history.commits:
        yield f"clean-up left only the checkpoint of version {table.version}: it is not known when data changed"
    elif table.commit_at_ms is None:
        yield f"its {counted(len(history.commits), 'newest commit')} did not change data: it is not known when it did"
