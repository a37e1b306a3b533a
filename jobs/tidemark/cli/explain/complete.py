"""`tidemark complete`: says if an hour of a table is complete.

It returns 0 if the interval is complete, and 1 if it is not, or not known.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, time
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.cli.explain.audited import add_topology, only, topologies
from tidemark.cli.shared.options import add_format, existing_warehouse
from tidemark.cli.shared.output import say_inert, with_place
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import answers_over
from tidemark.facts.topology_changes import RecordedChange
from tidemark.model.kinds.operator import Operator
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso, on_the_clock
from tidemark.model.settings.lengths import counted
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document
from tidemark.safe_text import one_line
from tidemark.why.intervals import IntervalState, interval_state, newest_time_ms, table_operator, with_changes
from tidemark.why.walk import scene


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("table", metavar="TABLE", help="table of a sink with the key `complete`, or its operator")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help="record time in the interval: 14:00 or 14:00:30 (of the newest day of the table), or ISO 8601; without "
        "a zone it is that of the intervals (default: the newest record time)",
    )
    add_topology(parser)
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the state of the interval."""
    topology, operator = _with_table(topologies(options), options.table)
    warehouse = existing_warehouse(options)
    tables = answers_over(warehouse, topology.name)
    of = scene(topology, Layout(warehouse), wall_clock_ms(), stored=tables.stored)
    time_ms = _time_ms(options.at, operator, newest_time_ms(of, operator))
    state = with_changes(interval_state(of, operator, time_ms), tables, of)
    text = FORMATS[options.format](state, operator)
    say_inert(text if options.format == "json" else with_place(text, options))
    return 0 if state.is_complete else 1


def _with_table(candidates: Sequence[Topology], table: str) -> tuple[Topology, Operator]:
    """Returns the topology and the operator that have *table*."""
    having = [(each, operator) for each in candidates if (operator := table_operator(each, table))]
    if having:
        only([topology for topology, _ in having], table)
        return having[0]
    names = [operator.name for each in candidates for operator in each.operators.values() if operator.complete]
    msg = f'no table {table!r} has intervals; write complete = {{ every = "1 h" }} at its operator'
    raise InvalidArgument(f"{msg}; known: {', '.join(names)}" if names else msg)


def _time_ms(text: str | None, operator: Operator, newest_ms: int | None) -> int:
    """Returns the record time that *text* names, epoch ms.

    *newest_ms* is the newest record time of the table's stream; None: there is no record yet.
    """
    zone = _zone(operator)
    clock = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", text or "")
    if newest_ms is None and (clock or text is None):
        msg = f"{operator.name} has no record yet, and so no day; give a date, such as --at 2026-01-31T14:00"
        raise InvalidArgument(msg)
    if text is None:
        return newest_ms or 0
    if clock:
        day = datetime.fromtimestamp((newest_ms or 0) / 1_000, zone).date()
        return _ms(datetime.combine(day, time(int(clock[1]), int(clock[2]), int(clock[3] or 0))), zone)
    at_ms = instant_ms(text)
    named = datetime.fromisoformat(text)
    return at_ms if named.tzinfo else _ms(named, zone)


def _ms(shown: datetime, zone: ZoneInfo) -> int:
    return round(shown.replace(tzinfo=zone).timestamp() * 1_000)


def _zone(operator: Operator) -> ZoneInfo:
    return ZoneInfo(operator.complete.timezone if operator.complete and operator.complete.timezone else "UTC")


def as_line(state: IntervalState, operator: Operator) -> str:
    """Formats a line for people, in the zone of the intervals."""
    zone = _zone(operator)
    start, end = (datetime.fromtimestamp(ms / 1_000, zone) for ms in (state.start_ms, state.end_ms))
    clock = "%H:%M:%S" if start.second or end.second else "%H:%M"
    # Where the clock is changed, one time of a day is two instants.
    has_zone = len({each.utcoffset() for each in (start, end, start.replace(fold=1 - start.fold))}) > 1
    if has_zone:
        clock += " %Z"
    until = f"{end:{clock}}" if end.date() == start.date() else f"{end:%Y-%m-%d {clock}}"
    what = f"{state.operator} {start:%Y-%m-%d {clock}}–{until} {zone.key}"
    told = "; ".join([f"{what}: {_completeness(state)}", *(_told(change, state) for change in state.changes)])
    return on_the_clock(one_line(told), zone, has_zone=has_zone)


def _completeness(state: IntervalState) -> str:
    if state.is_complete is None:
        return f"not known; {state.reason}"
    if not state.is_complete:
        # An estimate is no more exact than a second.
        at_ms = state.expected_at_ms
        expected = "no estimate" if at_ms is None else f"expected about {iso(at_ms // 1_000 * 1_000)}"
        return f"not complete, {expected}; {state.reason}"
    since = "" if state.complete_at_ms is None else f" since {iso(state.complete_at_ms)}"
    passed = f"the watermark has passed {iso(state.watermark_needed_ms)}"
    final = "final, since late records are set aside" if state.is_final else "not final: late records still change it"
    records = "records not counted" if state.records is None else counted(state.records, "record")
    idle = ", by idleness" if state.by_idleness else ""
    again = f", reopened {counted(state.reopenings, 'time')}" if state.reopenings else ""
    return f"complete{since}{idle}{again}: {passed}; {records}; {final}; {state.reason}"


def _told(change: RecordedChange, state: IntervalState) -> str:
    """Says of *change* which rows of the interval have the meaning before it."""
    is_later = state.complete_at_ms is not None and change.at_ms > state.complete_at_ms
    if is_later:
        return f"{change.line} (it was complete before)"
    # By the clock of batches: none that decided records of the interval can be older than its start.
    has_both = change.at_ms > state.start_ms
    rows = "its rows of earlier batches mean what they meant before" if has_both else "before it began"
    return f"{change.line} ({rows})"


def as_object(state: IntervalState, _: Operator) -> str:
    """Formats a JSON object with instants in ISO 8601."""
    row: dict[str, Any] = {}
    for name, value in asdict(replace(state, changes=())).items():
        row[name.removesuffix("_ms")] = iso(value) if name.endswith("_ms") and value is not None else value
    return as_document({**row, "changes": [change.row for change in state.changes]})


FORMATS: Mapping[str, Callable[[IntervalState, Operator], str]] = MappingProxyType(
    {"table": as_line, "json": as_object}
)
