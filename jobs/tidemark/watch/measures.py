"""What SLAs measure of a watched table, by what its log says: pure functions, one for each measure.

Each takes the table as readers saw it (`SeenTable`) and the time that counts (`Counted`), and returns the bounds of a
length, or of a number of rows. A log has bounds of event times, may lack the statistics of a file, and may have lost
its older commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.selection import present
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import RecordMinimums, Sla, Verdict, judge, judge_count
from tidemark.watch.commits import Change, ChosenColumn, History, PastCommit, Span

UNKNOWN = Span(None, None)
"""The bounds of what a log does not say."""


@dataclass(frozen=True, kw_only=True)
class SeenTable:
    """A table as its readers saw it at an instant.

    Attributes:
        chosen: its column of event times.
        newest: between which instants the newest event time lies; None: no row has one, or no column is known.
        commits: those that changed data, the oldest first.
        since_ms: all commits since this instant are known; None: all commits ever.
        began_ms: the first commit that is known, whatever it did; None: none is.
    """

    chosen: ChosenColumn
    newest: Span | None
    commits: Sequence[PastCommit]
    since_ms: int | None
    began_ms: int | None


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The time that a measure is about.

    Attributes:
        at_ms: its end: the instant of the check.
        over_ms: its length, of measures that look back.
        since_ms: nothing counts that was before, because the SLA was not judged then; None: all of it counts.
    """

    at_ms: int
    over_ms: int
    since_ms: int | None = None

    @property
    def start_ms(self) -> int:
        """From when on commits count."""
        return max(present((self.at_ms - self.over_ms, self.since_ms)))

    def age_ms(self, at_ms: int) -> int:
        """Returns the age of what was at *at_ms*, counted from where the SLA is judged."""
        return self.at_ms - max(present((at_ms, self.since_ms)))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured.

    Attributes:
        value: between which bounds it lies, ms or rows; None: the table has had nothing to measure yet.
        is_age: whether it grows by a second each second, until a commit.
        note: what a reader of the number should know.
        rows: of latencies of rows, their buckets with numbers; None: they are not known.
    """

    value: Span | None
    is_age: bool = False
    note: str = ""
    rows: Sequence[tuple[int, int]] | None = None


def seen(history: History, until_ms: int | None = None) -> SeenTable:
    """Returns the table of *history* as readers saw it at *until_ms*, by the stamps of its commits; None: as it is."""
    known = [commit for commit in history.commits if until_ms is None or commit.at_ms <= until_ms]
    first = history.commits[0] if history.commits else None
    is_whole = first is not None and first.version == 0
    began_ms = first.at_ms if first else None
    return SeenTable(
        chosen=history.chosen,
        newest=None if history.chosen.column is None else _newest(history, until_ms),
        commits=[commit for commit in known if commit.change is not Change.NONE],
        since_ms=None if is_whole else began_ms,
        began_ms=began_ms,
    )


def _newest(history: History, until_ms: int | None) -> Span | None:
    """Returns between which instants the newest event time lay that readers saw at *until_ms*; None: as it is."""
    later = (commit for commit in history.commits if until_ms is not None and commit.at_ms > until_ms)
    first_later = next(later, None)
    if first_later is None:
        return history.newest
    return first_later.newest_before if first_later.version > history.base_version else UNKNOWN


def staleness(table: SeenTable, counted: Counted) -> Measurement:
    """Measures the age of the newest event time.

    Where its lower bound is not known, that of the last commit is one, since no event is newer than its commit. A table
    without a column of times is judged by its last commit, and one with several by nothing.
    """
    column, by_commit = table.chosen.column, commit_age(table, counted)
    if column is None and table.chosen.candidates:
        names = ", ".join(table.chosen.candidates)
        return Measurement(value=UNKNOWN, note=f"it has several columns of times: name one as `column` of {names}")
    if column is None:
        return Measurement(value=by_commit.value, is_age=True, note="by its last commit: it has no column of times")
    if table.newest is None:
        return Measurement(value=None, note=f"no row has a time in `{column.name}`")
    low_ms, high_ms = (None if end is None else counted.age_ms(end) for end in reversed(table.newest))
    if low_ms is None and by_commit.value is not None:
        low_ms = by_commit.value.low_ms
    unindexed = f": {column.unindexed}" if column.unindexed else ""
    note = f"the log has no bounds of `{column.name}`{unindexed}" if None in table.newest else ""
    return Measurement(value=Span(low_ms, high_ms), is_age=True, note=note)


def commit_age(table: SeenTable, counted: Counted) -> Measurement:
    """Measures the age of the last commit that changed data."""
    if table.commits:
        age_ms = counted.age_ms(table.commits[-1].at_ms)
        return Measurement(value=Span(age_ms, age_ms), is_age=True)
    return _without_data(table, counted)


def _without_data(table: SeenTable, counted: Counted) -> Measurement:
    """Measures the age of a last commit of which it is only known that it was before all others."""
    if table.began_ms is None:
        return Measurement(value=UNKNOWN, note="clean-up left no commit in its log")
    if table.since_ms is None:
        return Measurement(value=None, note="no commit has brought data")
    note = "no commit in its log has changed data"
    return Measurement(value=Span(counted.age_ms(table.since_ms), None), is_age=True, note=note)


def cadence(table: SeenTable, counted: Counted) -> Measurement:
    """Measures the longest time between two commits that changed data.

    The later one is in the counted time. The time since the last one is a time between two commits, too.
    """
    if not table.commits:
        return _without_data(table, counted)
    stamps = [commit.at_ms for commit in table.commits]
    if table.since_ms is not None:
        # One before is not known, and it was before all that are.
        stamps.insert(0, table.since_ms)
    pairs = [(earlier, later) for earlier, later in pairwise([*stamps, counted.at_ms]) if later >= counted.start_ms]
    low_ms = max(later - max(present((earlier, counted.since_ms))) for earlier, later in pairs)
    is_cut = table.since_ms is not None and pairs[0][0] == table.since_ms > counted.start_ms
    return Measurement(value=Span(max(low_ms, 0), None if is_cut else max(low_ms, 0)), note=_cut(is_cut=is_cut))


def commit_latency(table: SeenTable, counted: Counted) -> Measurement:
    """Measures the greatest age that a record had when an append brought it. Commits that removed data have none."""
    spans = present(_greatest_latency(commit) for commit in table.commits if commit.at_ms >= counted.start_ms)
    if not spans:
        return Measurement(value=UNKNOWN, note="nothing was appended")
    highs = [span.high_ms for span in spans]
    low_ms = max(present(span.low_ms for span in spans), default=None)
    high_ms = None if None in highs else max(present(highs))
    return Measurement(value=Span(low_ms, high_ms), note="")


def _greatest_latency(commit: PastCommit) -> Span | None:
    """Returns between which lengths the greatest latency of a row lies; None: no row has one."""
    if commit.by_row is None:
        return commit.latency
    span = commit.by_row.span
    return None if span is None else Span(span.high_ms, span.high_ms)


def row_latencies(table: SeenTable, counted: Counted) -> Measurement:
    """Counts the latencies of the rows that appends brought, by bucket."""
    if table.since_ms is not None and table.since_ms > counted.start_ms:
        return Measurement(value=UNKNOWN, note=_cut(is_cut=True))
    rows: list[tuple[int, int]] = []
    for commit in table.commits:
        if commit.change is not Change.APPENDED or commit.at_ms < counted.start_ms:
            continue
        if commit.by_row is None:
            note = f"the event times of the rows of version {commit.version} cannot be read"
            return Measurement(value=UNKNOWN, note=note)
        rows += commit.by_row.counts
    return Measurement(value=UNKNOWN, rows=rows)


def volume(table: SeenTable, counted: Counted) -> Measurement:
    """Counts the rows in the files that commits wrote that changed data. A MERGE writes unchanged rows again, too."""
    start_ms = counted.start_ms
    rows = [commit.rows for commit in table.commits if commit.at_ms >= start_ms]
    is_cut = table.since_ms is not None and table.since_ms > start_ms
    low, is_exact = sum(present(rows)), not is_cut and None not in rows
    note = _cut(is_cut=is_cut) or ("" if is_exact else "the log has no number of rows of some files")
    return Measurement(value=Span(low, low if is_exact else None), note=note)


def _cut(*, is_cut: bool) -> str:
    return "older commits are not in its log any more" if is_cut else ""


def judge_length(span: Span, sla: Sla) -> Verdict:
    """Returns the verdict on a length in *span*: what its lower end breaks is broken, what its upper end keeps is kept.

    >>> limits = Sla(warn_after_ms=5, error_after_ms=9)
    >>> [judge_length(Span(*ends), limits).value for ends in ((9, 9), (6, 9), (0, 4), (4, 6), (6, None), (None, 4))]
    ['error', 'warn', 'pass', 'unknown', 'warn', 'pass']
    """
    at_least, at_most = judge(span.low_ms, sla), judge(span.high_ms, sla)
    if at_least in BROKEN:
        return at_least
    return Verdict.PASS if at_most is Verdict.PASS else Verdict.UNKNOWN


def judge_number(span: Span, at_least: RecordMinimums) -> Verdict:
    """Returns the verdict on a number in *span*: what its lower end keeps is kept, what its upper end breaks is broken.

    >>> limits = RecordMinimums(warn_below=10, error_below=5)
    >>> [judge_number(Span(*ends), limits).value for ends in ((10, None), (3, 4), (3, 9), (3, 10), (3, None))]
    ['pass', 'error', 'warn', 'unknown', 'unknown']
    """
    if judge_count(span.low_ms or 0, at_least) is Verdict.PASS:
        return Verdict.PASS
    verdict = Verdict.UNKNOWN if span.high_ms is None else judge_count(span.high_ms, at_least)
    return verdict if verdict in BROKEN else Verdict.UNKNOWN
