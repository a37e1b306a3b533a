"""Judges the SLAs of watched tables, which other programs write, by the logs of these tables.

How it works: the subject of such an SLA is SET.TABLE, and a place of the set and the table make a path. The measure
names a function that returns bounds of what it measures (`tidemark.watch.measures`), and the form of its limits decides
how these are judged. A table that does not exist breaks the promise, since nobody can read it. One that cannot be read
for another reason is unknown, and breaks the promise once that has lasted for as long as the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TypeAlias
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.model.measures.commit_latency import COMMIT_LATENCY
from tidemark.model.settings.lengths import counted, for_people
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.model.watched import WatchedSet, set_of, table_of
from tidemark.semantics.buckets import quantile, value_of
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import (
    BurnRate,
    RecordMinimums,
    Sla,
    Verdict,
    crossed_ms,
    is_ahead,
    judge,
    judge_nothing,
    judge_quantile,
    never_loaded_since_ms,
)
from tidemark.sla.measures.status import Status, burning
from tidemark.storage.location import location
from tidemark.storage.private_folder import private_folder
from tidemark.watch.commits import Clock, History, Span, Unreadable
from tidemark.watch.documents import span_text, writer_text
from tidemark.watch.kept import KeptHistories
from tidemark.watch.measures import Counted, Measurement, SeenTable, judge_length, judge_number, seen
from tidemark.watch.reading import LOG, watched
from tidemark.watch.row_latencies import RowReader
from tidemark.watch.rules import table_age
from tidemark.watch.statistics import TimeColumnRequest

LOGS_EVERY_MS = 30_000
"""In an object store each look at a table is a request or two."""
STAMPED = {
    Clock.IN_COMMIT: "by its in-commit timestamp",
    Clock.WRITER: "by the clock of its writer",
    Clock.FILE: "by the time of its file",
}


class NoTable(Unreadable):
    """A subject of SLAs that no Delta table is."""


@dataclass(frozen=True)
class UnreadSince(Unreadable):
    """A table that this process has not been able to read since *since_ms*, epoch ms."""

    since_ms: int


ReadTable: TypeAlias = History | Unreadable
"""What was read of the subject of an SLA."""


def read_watched(topology: Topology, specs: Sequence[SlaSpec], *, at_ms: int) -> dict[str, ReadTable]:
    """Reads the tables that *specs* are about, by their subjects."""
    # Without an earlier commit it is not known what was usual.
    longest_ms = max(map(_looks_back_ms, specs), default=DAY_MS)
    found: dict[str, ReadTable] = {}
    for each, subjects in _subjects(topology, specs):
        places = {subject: path_of(each, table_of(subject)) for subject in subjects}
        found |= {subject: place for subject, place in places.items() if isinstance(place, Unreadable)}
        paths = {subject: place for subject, place in places.items() if isinstance(place, Path)}
        asked = TimeColumnRequest(each.columns, ZoneInfo(each.timezone))
        since_ms = at_ms - max(longest_ms, DAY_MS)
        read = {table.path: table for table in watched([*paths.values()], asked, since_ms, _kept())}
        of_rows = [spec for spec in specs if spec.subject in paths and _reads_rows(spec)]
        if each.is_exact and of_rows:
            rows_since_ms = at_ms - max(map(_looks_back_ms, of_rows))
            read = {path: _with_rows(table, asked.zone, since_ms=rows_since_ms) for path, table in read.items()}
        found |= {subject: read[path] for subject, path in paths.items()}
    return {subject: _since(subject, table, at_ms=at_ms) for subject, table in found.items()}


_UNREAD_SINCE_MS: dict[tuple[str, Path], int] = {}
"""Since when this process could not read a table, epoch ms, by subject and path."""


def _since(subject: str, table: ReadTable, *, at_ms: int) -> ReadTable:
    if not isinstance(table, Unreadable) or isinstance(table, NoTable):
        _UNREAD_SINCE_MS.pop((subject, table.path), None)
        return table
    since_ms = _UNREAD_SINCE_MS.setdefault((subject, table.path), at_ms)
    return UnreadSince(table.path, table.file, table.found, table.remedy, since_ms)


def _looks_back_ms(spec: SlaSpec) -> int:
    """Returns for how long before a check *spec* counts, in ms."""
    return max(spec.over_ms, spec.compliance.window_ms if spec.compliance else 0)


def _reads_rows(spec: SlaSpec) -> bool:
    return spec.measure.is_of_rows or spec.measure is COMMIT_LATENCY


def _with_rows(table: ReadTable, zone: ZoneInfo, *, since_ms: int) -> ReadTable:
    return table if isinstance(table, Unreadable) else _rows().with_rows(table, since_ms=since_ms, zone=zone)


@cache
def _rows() -> RowReader:
    """Returns the reader of rows that all checks of this process share, so that no file is read twice."""
    return RowReader()


@cache
def _kept() -> KeptHistories:
    """Returns what this process has read of logs, of which it reads new commits alone."""
    return KeptHistories(private_folder("tidemark-watched-"))


def news_of_watched(topology: Topology, specs: Iterable[SlaSpec], at_ms: int) -> tuple[object, ...]:
    """Returns what differs from look to look if the tables that *specs* are about may differ at *at_ms*, epoch ms."""
    news: list[object] = []
    for each, subjects in _subjects(topology, specs):
        if is_in_a_store(each):
            news.append((each.name, at_ms // LOGS_EVERY_MS))
            continue
        for subject in subjects:
            place = path_of(each, table_of(subject))
            news.append((place, None if isinstance(place, Unreadable) else _log_written_at(place)))
    return tuple(news)


def is_in_a_store(watched_set: WatchedSet) -> bool:
    """Returns True if a table of the set may be in an object store."""
    return any("://" in place for place in watched_set.places)


def _log_written_at(table: Path) -> int | None:
    """Returns when a file was made in the log of a *table* on a disk, or removed, in ns."""
    try:
        return (table / LOG).stat().st_mtime_ns
    except OSError:
        return None


def _subjects(topology: Topology, specs: Iterable[SlaSpec]) -> Iterator[tuple[WatchedSet, list[str]]]:
    """Yields each set with the subjects of *specs* that are its tables, if there are any."""
    subjects = sorted({spec.subject for spec in specs})
    for each in topology.watched:
        if of_set := [subject for subject in subjects if set_of(subject) == each.name]:
            yield each, of_set


def path_of(watched_set: WatchedSet, table: str) -> Path | Unreadable:
    """Returns the path of a *table* of a set: the place itself, if it has that name, or below one of the places."""
    candidates: list[Path] = []
    for text in watched_set.places:
        try:
            place = location(text)
        except InvalidArgument as error:
            return Unreadable(Path(text), text, str(error), f"correct `tables` of [watch.{watched_set.name}]")
        candidates += [place] if place.name == table else []
        candidates.append(place / table)
    found = [each for each in dict.fromkeys(candidates) if _may_be_table(each)]
    if len(found) == 1:
        return found[0]
    subject, names = f"{watched_set.name}.{table}", ", ".join(map(str, found or candidates))
    if not found:
        return NoTable(candidates[0], names, f"there is no Delta table {subject}", "correct its name, or the place")
    return Unreadable(found[0], names, f"{len(found)} tables are {subject}", "put them into sets of their own")


def _may_be_table(path: Path) -> bool:
    try:
        return (path / LOG).is_dir()
    except OSError:
        # To read it tells why.
        return True


def watched_statuses(
    specs: Sequence[SlaSpec], tables: Mapping[str, ReadTable], *, at_ms: int, until_ms: int | None = None
) -> list[Status]:
    """Returns the status of each of *specs* at *at_ms* (epoch ms), in order.

    Args:
        specs: the SLAs to judge.
        tables: what was read of their subjects.
        at_ms: the instant of the check, epoch ms.
        until_ms: later commits do not count, epoch ms; None: all count.
    """
    return [_status(spec, tables[spec.subject], at_ms=at_ms, until_ms=until_ms) for spec in specs]


def _status(spec: SlaSpec, table: ReadTable, *, at_ms: int, until_ms: int | None) -> Status:
    if isinstance(table, Unreadable):
        return _unread(spec, table, at_ms=at_ms)
    assert spec.measure.of_watched is not None  # others are refused
    measure: Callable[[SeenTable, Counted], Measurement] = resolve_name(spec.measure.of_watched)
    time, seen_table = Counted(at_ms=at_ms, over_ms=spec.over_ms), seen(table, until_ms)
    measured = measure(seen_table, time)
    since_ms = spec.judged_since_ms(at_ms, after_ms=_reaches_back_to_ms(spec, measured, time))
    if since_ms is not None:
        measured = measure(seen_table, replace(time, since_ms=since_ms))

    def over(length_ms: int) -> Measurement:
        return measure(seen_table, replace(time, over_ms=length_ms, since_ms=since_ms))

    match spec.limits:
        case BurnRate() | Sla() if spec.measure.is_of_rows and measured.rows is None:
            status = Status(spec, Verdict.UNKNOWN)
        case BurnRate():
            status = _burn_rate(spec, spec.limits, over, at_ms=at_ms)
        case Sla() if spec.measure.quantile is not None:
            status = _quantile(spec, spec.limits, spec.measure.quantile, measured.rows or ())
        case _:
            status = _judged(spec, seen_table, measured, at_ms=at_ms, since_ms=since_ms)
    why = _last_commit(table, at_ms=at_ms) if status.verdict in BROKEN else None
    return replace(status, note=measured.note, judged_since_ms=since_ms, blocked_by=why)


def _unread(spec: SlaSpec, table: Unreadable, *, at_ms: int) -> Status:
    """Returns the status of a table that cannot be read.

    Nobody knows whether it keeps the promise, and after its limit, or the time that it counts, somebody has to look.
    """
    note = f"{table.found}: {table.file}; {table.remedy}"
    text = "not measured" if isinstance(spec.limits, Sla) else f"an unknown number of {spec.measure.counted}"
    status = Status(spec, Verdict.NEVER_LOADED, value_text=text, note=note)
    if isinstance(table, NoTable):
        return status
    unread_ms = at_ms - table.since_ms if isinstance(table, UnreadSince) else 0
    match spec.limits:
        case Sla():
            limits = spec.limits
        case RecordMinimums(error_below=None):
            limits = Sla(warn_after_ms=spec.over_ms)
        case _:
            limits = Sla(error_after_ms=spec.over_ms)
    if (verdict := judge(unread_ms, limits)) not in BROKEN:
        return replace(status, verdict=Verdict.UNKNOWN)
    note = f"it cannot be read for {for_people(unread_ms)}: {note}"
    return replace(status, verdict=verdict, note=note, crossed_ms=crossed_ms(unread_ms, limits, now_ms=at_ms))


def _reaches_back_to_ms(spec: SlaSpec, measured: Measurement, time: Counted) -> int:
    """Returns the oldest instant that is in what was *measured*, epoch ms; 0 if it is not known."""
    if isinstance(spec.limits, RecordMinimums) or spec.measure.is_of_rows:
        return time.start_ms
    if measured.value is None or measured.value.high_ms is None:
        return 0
    return time.at_ms - measured.value.high_ms - (0 if measured.is_age else time.over_ms)


def _judged(spec: SlaSpec, table: SeenTable, measured: Measurement, *, at_ms: int, since_ms: int | None) -> Status:
    """Returns the status by the form of the limits."""
    match spec.limits:
        case Sla() if measured.value is None:
            return _nothing(spec, spec.limits, table, at_ms=at_ms, since_ms=since_ms)
        case Sla() if measured.value is not None:
            return _length(spec, spec.limits, measured.value, at_ms=at_ms, is_age=measured.is_age)
        case RecordMinimums() if measured.value is not None:
            return _number(spec, spec.limits, measured.value, table, at_ms=at_ms, since_ms=since_ms)
        case _:
            return Status(spec, Verdict.UNKNOWN)


def _nothing(spec: SlaSpec, sla: Sla, table: SeenTable, *, at_ms: int, since_ms: int | None) -> Status:
    """Returns the status of a table that has had nothing to measure yet: its first data may take as long as any."""
    began_ms, within_ms = max(table.began_ms or 0, since_ms or 0), sla.promised_ms
    return Status(
        spec,
        judge_nothing(now_ms=at_ms, begun_ms=began_ms, within_ms=within_ms),
        crossed_ms=never_loaded_since_ms(now_ms=at_ms, begun_ms=began_ms, within_ms=within_ms),
    )


def _length(spec: SlaSpec, sla: Sla, span: Span, *, at_ms: int, is_age: bool) -> Status:
    verdict = judge_length(span, sla)
    # A length below 0 says that a clock is ahead of the one that it is compared with. If that is less than the limit, a
    # table that stands still is found later by so much, and nobody has to know it at each commit.
    within_ms = max(LEAST_CLOCK_ERROR_MS, round(sla.least_ms))
    if span.high_ms is not None and is_ahead(-span.high_ms, now_ms=0, clock_error_ms=within_ms):
        verdict = Verdict.AHEAD_OF_CLOCK
    crossed = crossed_ms(span.low_ms, sla, now_ms=at_ms) if is_age and span.low_ms is not None else None
    observed_ms = span.high_ms if span.low_ms is None else span.low_ms
    return Status(spec, verdict, observed_ms, value_text=span_text(span), crossed_ms=crossed)


def _number(
    spec: SlaSpec, at_least: RecordMinimums, span: Span, table: SeenTable, *, at_ms: int, since_ms: int | None
) -> Status:
    """Judges a number; too few are unknown if the table, or the time that is judged, began less than `over` ago."""
    low, verdict = span.low_ms or 0, judge_number(span, at_least)
    exactly = "" if span.high_ms == low else "at least "
    text = f"{exactly}{counted(low, spec.measure.counted.removesuffix('s'))}"
    is_new = table.since_ms is None and (table.began_ms or 0) > at_ms - spec.over_ms
    if verdict in BROKEN and (is_new or since_ms is not None):
        verdict = Verdict.UNKNOWN
    return Status(spec, verdict, records=low, value_text=text)


def _quantile(spec: SlaSpec, sla: Sla, q: float, rows: Sequence[tuple[int, int]]) -> Status:
    """Judges a quantile of the latencies of *rows*, which are counted by bucket."""
    length_ms, n = quantile(rows, q), sum(n for _, n in rows)
    return Status(spec, judge_quantile(length_ms, sla, n=n), length_ms, records=n)


def _burn_rate(spec: SlaSpec, limits: BurnRate, over: Callable[[int], Measurement], *, at_ms: int) -> Status:
    """Judges how fast slow rows use up an error budget, by what was measured *over* a length in ms."""

    def slow_rows(length_ms: int) -> tuple[int, int]:
        rows = over(length_ms).rows or ()
        slow = sum(n for bucket, n in rows if value_of(bucket) > limits.objective.threshold_ms)
        return sum(n for _, n in rows), slow

    return burning(spec, limits, slow_rows, counted_ms=spec.counted_ms(at_ms))


def _last_commit(history: History, *, at_ms: int) -> str | None:
    """Returns a sentence about the last commit that changed data; None: there is none in the log."""
    table = table_age(history, now_ms=at_ms, since_ms=at_ms, limit_ms=None)
    if table.commit_age_ms is None or table.clock is None:
        return None
    usually = "" if table.usual_gap_ms is None else f", usually every {for_people(table.usual_gap_ms)}"
    ago = f"{for_people(table.commit_age_ms)} ago {STAMPED[table.clock]}"
    return f"the last commit that changed data was {ago}{usually}; its writer is {writer_text(table.commits[0].writer)}"
