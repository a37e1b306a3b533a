"""`tidemark path`: the critical path of a streaming window, how it came to its sum, and who is to blame."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from tidemark.cli.options import add_topology
from tidemark.cli.options import warehouse as existing
from tidemark.cli.output import say_inert
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import aligned, as_document
from tidemark.inert import one_line
from tidemark.report.batch_job import topology as topology_named
from tidemark.report.path_facts import (
    PART_WORDS,
    Row,
    mostly_before_source,
    physical_name,
    task_text,
    windows_with_paths,
)
from tidemark.spec.intervals import instant_ms

READS = frozenset(
    {
        "critical_paths",
        "critical_path_steps",
        "critical_path_leaves",
        "sla_results",
        "window_parts",
        "critical_path_blame",
    }
)
STEPS = ("operator", "kind", "sub_topology", "latency_ms", "waited_ms", "queued_ms", "worked_ms", "promised_ms")
WIDTH = 118
FORMATS = ("table", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_topology(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--at", metavar="INSTANT", help="the window that holds this record time, ISO 8601 (the newest)")
    which.add_argument("--last", type=_number, default=1, metavar="N", help="the newest N closed windows (%(default)s)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(options: argparse.Namespace) -> int:
    """Show the paths that were asked for."""
    say_inert(path(options, existing(options), topology_named(options.topology).name))
    return 0


def path(options: argparse.Namespace, warehouse: Path, topology: str) -> str:
    """The answer as text; raises InvalidArgument when no such window is closed."""
    at_ms = instant_ms(options.at) if options.at else None
    told = document(warehouse, topology, at_ms=at_ms, last=options.last)
    if options.format == "json":
        return as_document(told)
    return "\n\n".join(as_text(topology, window) for window in told["windows"])


def document(warehouse: Path, topology: str, *, at_ms: int | None = None, last: int = 1) -> Row:
    """The answer for programs: the window that holds the record time *at_ms*, or the *last* ones.

    Raises:
        InvalidArgument: there is none.
    """
    tables = Warehouse(warehouse, READS)
    return {"topology": topology, "windows": windows_with_paths(tables, topology, at_ms=at_ms, last=last)}


def as_text(topology: str, window: Row) -> str:
    """A window for people, as Apex works its example."""
    steps = [[*_columns(row), _percent(row["share"]), row["state"]] for row in window["steps"]]
    off_path = [[*_columns(row), row["slack_ms"], row["state"]] for row in window["off_path"]]
    parts = [
        f"{topology}, window {_clock(window['window_start'])} to {_clock(window['window_end'])} (record time): "
        f"{window['age_ms']:,} ms old when {one_line(window['leaf'])} had finished it",
        *([_filled(_parts(window["parts"]))] if window["parts"] else []),
        _filled(window["path_text"]),
        indent(aligned((*STEPS, "share", "state"), steps), "  "),
        *map(_filled, filter(None, map(task_text, window["steps"]))),
        *map(_filled, _sums(window["leaves"])),
        *map(_filled, _beside_the_sum(window)),
    ]
    if off_path:
        parts += ["  off the path:", indent(aligned((*STEPS, "slack_ms", "state"), off_path), "  ")]
    return "\n".join([*parts, f"  {one_line(verdict(window))}"])


def _columns(step: Row) -> list[Any]:
    return [physical_name(step), *(step[name] for name in STEPS[1:])]


def verdict(window: Mapping[str, Any]) -> str:
    """Who is to blame for *window*, or that nobody is."""
    promised = "nothing is promised" if window["sla_ms"] is None else f"records are promised {window['sla_ms']:,} ms"
    seen = f"it took {window['age_ms']:,} ms from the window's end to {window['leaf']}, where {promised}"
    if not window["over_sla"]:
        return f"nobody is to blame: {seen}"
    if not window["blame"]:
        return f"over its SLA, and nobody took longer than usual: {seen}"
    first = window["blame"][0]
    usual = "" if first["usual_ms"] is None else f", usually {first['usual_ms']:,.0f} ms"
    return f"{_who(first)} is to blame: {first['excess_ms']:,.0f} ms too many{usual}; {seen}"


def _who(part: Mapping[str, Any]) -> str:
    """Whose a part of the age is, with the partition that it was about."""
    who = PART_WORDS.get(part["kind"], part["operator"])
    return f"{who} ({part['input']})" if part["input"] else who


def _parts(parts: Sequence[Row]) -> str:
    """What the age was spent on, the longest part first."""
    return "of that " + ", ".join(f"{part['ms']:,} ms {_who(part)}" for part in parts)


def _sums(leaves: Sequence[Row]) -> Iterator[str]:
    """What each leaf's walk adds up to, the critical one first."""
    for leaf in leaves:
        addends = " + ".join("?" if ms is None else f"{ms:,}" for ms in reversed(leaf["latencies_ms"]))
        behind = f"{leaf['behind_ms']:,} ms behind: {' → '.join(leaf['path'])}"
        place = behind if leaf["behind_ms"] else "the critical path"
        yield f"{addends} = {leaf['latency_ms']:,} ms from {leaf['leaf']}, {place}"


def _beside_the_sum(window: Row) -> Iterator[str]:
    mostly = mostly_before_source(window)
    spent = "" if mostly is None else f", mostly {mostly}"
    yield f"before the source: {window['before_source_ms']:,} ms from the window's end{spent}, not in the sum"
    if window["waited_ms"] is not None:
        parts = (f"{window[f'{what}_ms']:,} ms {what}" for what in ("waited", "queued", "worked"))
        yield f"of the sum: {', '.join(parts)}"
    error_ms = window["skew_error_ms"]
    yield f"clocks: {'not compared with each other' if error_ms is None else f'right to within {error_ms:,} ms'}"
    if window["moving_average_ms"] is not None:
        yield f"Apex's moving averages: {window['moving_average_path']}"


def _filled(line: str) -> str:
    return fill(one_line(line), WIDTH, initial_indent="  ", subsequent_indent=" " * 6, break_on_hyphens=False)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        msg = f"a number of windows is 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
