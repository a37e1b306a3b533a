"""Writes what was found of watched tables as text, JSON and one page; it calculates nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from markupsafe import Markup

from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people
from tidemark.query.text_table import as_document, format_table
from tidemark.safe_text import one_line
from tidemark.semantics.sla import Verdict
from tidemark.watch.commits import Clock, Span, Unreadable, Writer
from tidemark.watch.rules import TableAge

COLUMNS = (
    *("table", "verdict", "newest event", "age", "last data commit", "usually every", "rows", "bytes", "peak age"),
    *("clock", "written by"),
)
CLOCKS = {
    Clock.IN_COMMIT: "in-commit timestamp",
    Clock.WRITER: "the writer's",
    Clock.FILE: "the file's",
}
Found = Sequence[TableAge | Unreadable]


def as_text(found: Found) -> str:
    """Returns a line for each table, then a line for each note, and for each table that cannot be read."""
    tables = [table for table in found if isinstance(table, TableAge)]
    lines = [format_table(COLUMNS, [cells(table) for table in tables])] if tables else ["No Delta table was read."]
    lines += [one_line(f"{table.path}: {note}") for table in tables for note in table.notes]
    lines += [one_line(f"not read: {_file(each)}: {each.found}; {each.remedy}") for each in _unreadable(found)]
    return "\n".join(lines)


def as_json(found: Found, *, now_ms: int, limit_ms: int | None) -> str:
    """Returns a JSON object with the tables, and those that cannot be read; instants are ISO 8601."""
    tables = [_named(asdict(table)) for table in found if isinstance(table, TableAge)]
    unreadable = [{**asdict(each), "path": str(each.path)} for each in _unreadable(found)]
    return as_document({"at": iso(now_ms), "limit_ms": limit_ms, "tables": tables, "unreadable": unreadable})


def as_page(found: Found, *, now_ms: int, limit_ms: int | None) -> str:
    """Returns an HTML page without script that stands alone."""
    # To import pages takes longer than to read a log.
    from tidemark.reports.pages.templates import POLICY, template

    tables = [table for table in found if isinstance(table, TableAge)]
    numbers = Counter(table.verdict for table in tables)
    return template("watch/page.html.j2").render(
        at_ms=now_ms,
        limit=None if limit_ms is None else for_people(limit_ms),
        columns=COLUMNS,
        tables=[(table, cells(table)) for table in tables],
        verdicts=[(verdict, numbers[verdict]) for verdict in WORST_FIRST if verdict in numbers],
        orders=[*ORDERS],
        positions=positions(tables),
        unreadable=[(_file(each), each) for each in _unreadable(found)],
        span=span_text,
        iso=iso,
        by=writer_text,
        policy=Markup(POLICY),
    )


def positions(tables: Sequence[TableAge]) -> list[tuple[int, ...]]:
    """Returns the position of each table in each of ORDERS."""
    in_order = [sorted(tables, key=key) for key in ORDERS.values()]
    by_order = [{id(table): n for n, table in enumerate(order)} for order in in_order]
    return [tuple(numbers[id(table)] for numbers in by_order) for table in tables]


def _oldest_first(age: Span | None) -> float:
    """Returns the key of an *age*: one without an end is the first, and none the last."""
    if age is None:
        return inf
    return -inf if age.high_ms is None else -age.high_ms


WORST_FIRST = (Verdict.ERROR, Verdict.UNKNOWN, Verdict.AHEAD_OF_CLOCK, Verdict.NEVER_LOADED, Verdict.PASS)
ORDERS: Mapping[str, Callable[[TableAge], float]] = {
    "verdict": lambda table: WORST_FIRST.index(table.verdict) if table.verdict in WORST_FIRST else inf,
    "age": lambda table: _oldest_first(table.age),
    "last data commit": lambda table: inf if table.commit_age_ms is None else -table.commit_age_ms,
    "peak age": lambda table: _oldest_first(table.peak),
}
"""Orders of the tables on a page, worst first, with their keys. Tables that are equal keep their order."""


def cells(table: TableAge) -> tuple[str | int | None, ...]:
    """Returns the values of a table's line in the order of COLUMNS."""
    latest = table.commits[0] if table.commits else None
    newest = table.newest.low_ms if table.newest else None
    return (
        table.path,
        table.verdict or "–",
        "–" if newest is None else iso(newest),
        span_text(table.age),
        _length(table.commit_age_ms),
        _length(table.usual_gap_ms),
        latest.rows if latest else None,
        latest.bytes if latest else None,
        span_text(table.peak),
        CLOCKS[table.clock] if table.clock else "–",
        writer_text(latest.writer) if latest else "–",
    )


def span_text(span: Span | None) -> str:
    """Returns a length that lies in *span* for people.

    >>> span_text(Span(999, 1_000)), span_text(Span(None, 5_000)), span_text(Span(60_000, 120_000)), span_text(None)
    ('1 s', 'at most 5 s', '1 min to 2 min', '–')
    """
    match span:
        case None:
            return "–"
        case Span(low_ms=None, high_ms=None):
            return "unknown"
        case Span(low_ms=None, high_ms=int(high_ms)):
            return f"at most {for_people(high_ms)}"
        case Span(low_ms=int(low_ms), high_ms=None):
            return f"at least {for_people(low_ms)}"
        # Two bounds of one instant differ by the millisecond to which writers cut it.
        case Span(low_ms=int(low_ms), high_ms=int(high_ms)) if high_ms - low_ms > 1:
            return f"{for_people(low_ms)} to {for_people(high_ms)}"
        case _:
            return _length(span.high_ms)


def writer_text(writer: Writer) -> str:
    """Returns who wrote a commit, as far as it is known.

    >>> writer_text(Writer(engine="delta-rs:py-1.6.6", query="q", batch=3)), writer_text(Writer())
    ('query q, batch 3, by delta-rs:py-1.6.6', 'unknown')
    """
    parts = [
        f"Airflow {writer.airflow}" if writer.airflow else None,
        f"job {writer.job}" if writer.job else None,
        f"run {writer.run}" if writer.run else None,
        f"query {writer.query}" if writer.query else None,
        f"batch {writer.batch}" if writer.query else None,
    ]
    program = ", ".join(filter(None, parts))
    if writer.engine is None:
        return program or "unknown"
    return f"{program}, by {writer.engine}" if program else writer.engine


def _length(ms: int | None) -> str:
    return "–" if ms is None else for_people(ms)


def _unreadable(found: Found) -> list[Unreadable]:
    return [each for each in found if isinstance(each, Unreadable)]


def _file(each: Unreadable) -> str:
    """Returns the file that was not read, after its table if it is outside of its folder."""
    return each.file if each.file.startswith(str(each.path)) else f"{each.path}: {each.file}"


def _named(value: Any) -> Any:
    """Returns *value* with spans as objects, and instants in ISO 8601."""
    if isinstance(value, dict):
        return {_key(key): _instant(key, each) for key, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list | tuple) else value


def _key(key: str) -> str:
    return key.removesuffix("_ms") if key.endswith(INSTANTS) else key


INSTANTS = ("at_ms", "since_ms")


def _instant(key: str, value: Any) -> Any:
    if key.endswith(INSTANTS):
        return None if value is None else iso(value)
    if key == "newest" and value is not None:
        ends = {"low": value.low_ms, "high": value.high_ms}
        return {end: None if at_ms is None else iso(at_ms) for end, at_ms in ends.items()}
    if isinstance(value, Span):
        return {"low_ms": value.low_ms, "high_ms": value.high_ms}
    return _named(value)
