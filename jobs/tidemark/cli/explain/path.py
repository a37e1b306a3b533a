"""`tidemark path`: shows the critical path of a streaming window.

The output has the addends of its sum, and whose the window's age was.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from tidemark.cli.shared.options import add_format, add_topology
from tidemark.cli.shared.output import say_inert, with_place
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import wall_clock_ms
from tidemark.facts.answers import Row
from tidemark.facts.path_facts import physical_name
from tidemark.facts.topology_changes import change_line
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.lengths import percent
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document, format_table
from tidemark.reports.documents.path import path_document
from tidemark.reports.pages.topology_state import explained_text
from tidemark.reports.paths.path_text import (
    age_text,
    grown_text,
    judged_text,
    task_text,
)
from tidemark.safe_text import one_line
from tidemark.semantics.critical_path import STANDS_STILL

STEPS = ("operator", "kind", "sub_topology", "latency_ms", "waited_ms", "queued_ms", "worked_ms", "promised_ms")
PARTS = ("ms", "usual_ms", "owner", "detail", "stream")
WIDTH = 118
FORMATS = ("table", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--at",
        metavar="INSTANT",
        help="the window with this record time, ISO 8601 (default: the oldest unfinished one, or else the newest)",
    )
    which.add_argument("--last", type=_number, metavar="N", help="the newest N windows of the reports")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the paths of the windows in the options."""
    say_inert(path(options, *warehouse_and_topology(options)))
    return 0


def path(options: argparse.Namespace, warehouse: Path, topology: Topology) -> str:
    """Returns the answer as text; raises InvalidArgument without closed windows."""
    at_ms = None if options.at is None else instant_ms(options.at)
    answer = path_document(warehouse, topology, now_ms=wall_clock_ms(), at_ms=at_ms, last=options.last)
    if options.format == "json":
        return as_document(answer)
    changed = [_fill(change_line(row)) for row in answer["changes"]]
    broken = [_fill(with_place(explained_text(row), options)) for row in answer.get("broken_slas", ())]
    return "\n\n".join([*(as_text(topology.name, window) for window in answer["windows"]), *changed, *broken])


def as_text(topology: str, window: Row) -> str:
    """Formats a window for people, in the manner of Apex's example."""
    steps = [[*_columns(row), _percent(row["share"]), row["state"]] for row in window["steps"]]
    off_path = [[*_columns(row), row["slack_ms"], row["state"]] for row in window["off_path"]]
    parts = [
        f"{topology}, window {_clock(window['window_start'])} to {_clock(window['window_end'])} (record time): "
        f"{one_line(age_text(window))}",
        *([indent(format_table(PARTS, [*map(itemgetter(*PARTS), window["parts"])]), "  ")] if window["parts"] else []),
        _fill(window["path_text"]),
        indent(format_table((*STEPS, "share", "state"), steps), "  "),
        *([_fill(f"physical: {window['physical_path']}")] if window["physical_path"] else []),
        *map(_fill, filter(None, map(task_text, window["steps"]))),
        *map(_fill, _sums(window["leaves"])),
        *map(_fill, _beside_the_sum(window)),
    ]
    if off_path:
        parts += ["  off the path:", indent(format_table((*STEPS, "slack_ms", "state"), off_path), "  ")]
    judged = (judged_text(each, _milliseconds) for each in window["verdicts"] or ())
    return "\n".join([*parts, *map(_fill, judged), f"  {one_line(verdict(window))}"])


def _columns(step: Row) -> list[Any]:
    return [physical_name(step), *(step[name] for name in STEPS[1:])]


def verdict(window: Mapping[str, Any]) -> str:
    """Returns the sentence on whose time made *window* late, if it was."""
    age = f"it took {window['age_ms']:,} ms from the window's end to {window['leaf']}"
    if window["state"] in STANDS_STILL:
        age = f"{window['leaf']} has not finished it"
    if not window["over_sla"]:
        kept = "it keeps the limit of each SLA" if window["verdicts"] else "no SLA judges it"
        return f"{age}, and {kept}"
    return f"{age}: {grown_text(window) or 'what it waited for is not known'}"


def _sums(leaves: Sequence[Row]) -> Iterator[str]:
    """Yields the sum of each leaf's path, the critical one first."""
    for leaf in leaves:
        addends = " + ".join("?" if ms is None else f"{ms:,}" for ms in reversed(leaf["latencies_ms"]))
        behind = f"{leaf['behind_ms']:,} ms behind: {' → '.join(leaf['path'])}"
        place = behind if leaf["behind_ms"] else "the critical path"
        yield f"{addends} = {leaf['latency_ms']:,} ms from {leaf['leaf']}, {place}"


def _beside_the_sum(window: Row) -> Iterator[str]:
    yield f"before the source: {window['before_source_ms']:,} ms from the window's end, not in the sum"
    if window["waited_ms"] is not None:
        parts = (f"{window[f'{what}_ms']:,} ms {what}" for what in ("waited", "queued", "worked"))
        yield f"of the sum: {', '.join(parts)}"
    yield f"clocks: {_clocks_text(window['skew_error_ms'])}"
    if window["moving_average_ms"] is not None:
        yield f"moving averages of up to ten windows: {window['moving_average_path']}"


def _clocks_text(error_ms: int | None) -> str:
    if error_ms is None:
        return "not compared with each other"
    return f"right to within {error_ms:,} ms" if error_ms else "one clock, so none is wrong against another"


def _fill(line: str) -> str:
    return fill(one_line(line), WIDTH, initial_indent="  ", subsequent_indent=" " * 6, break_on_hyphens=False)


def _milliseconds(ms: float) -> str:
    return f"{ms:,.0f} ms"


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        msg = f"the number of windows must be 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
