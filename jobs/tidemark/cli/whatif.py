"""`tidemark whatif`: how late windows would have been had an operator worked less, and which one to split."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.cli.options import add_topology
from tidemark.cli.options import warehouse as existing
from tidemark.cli.output import say_inert
from tidemark.cli.path import FORMATS
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import aligned, as_document
from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import topology as topology_named
from tidemark.report.path_facts import Row
from tidemark.report.what_if import Change
from tidemark.report.what_if_facts import what_if_facts
from tidemark.report.what_if_parts import Setting, what_if_setting
from tidemark.semantics.blame import AgeCause
from tidemark.spec.intervals import instant_ms
from tidemark.spec.toml_keys import duration_ms
from tidemark.spec.topology import Topology

READS = frozenset(
    {"operator_windows", "batches", "critical_path_steps", "operator_latency", "window_parts", "critical_paths"}
)
AGES = ("window_end", "age_ms", "then_age_ms")
WINDOW = ("window_end", "latency_ms", "then_latency_ms", "then_path")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_topology(parser)
    parser.add_argument("--operator", help="whose work to change, with --scale or --less")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--bound", type=_length_ms, metavar="LENGTH", help='"5 s": every source waits that long')
    how.add_argument("--trigger", type=_length_ms, metavar="LENGTH", help='"500 ms": drivers have that trigger')
    how.add_argument("--scale", type=float, default=1.0, help="0.5: it works half as long; 2: twice")
    how.add_argument("--less", type=_length_ms, default=0, metavar="LENGTH", help='"400 ms": it works that much less')
    parser.add_argument("--from", dest="start", metavar="INSTANT", help="first end of a window, record time (all)")
    parser.add_argument("--to", dest="end", metavar="INSTANT", help="the instant before which to end (none)")
    parser.add_argument("--windows", action="store_true", help="show every window; JSON always does")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(options: argparse.Namespace) -> int:
    """Show the comparison that was asked for."""
    say_inert(whatif(options, existing(options), topology_named(options.topology)))
    return 0


def whatif(options: argparse.Namespace, warehouse: Path, topology: Topology) -> str:
    """The answer as text; raises InvalidArgument when there is nothing to compare, or no such operator."""
    start_ms, end_ms = (instant_ms(text) if text else None for text in (options.start, options.end))
    change = _change(options)
    told = document(warehouse, topology, change, start_ms=start_ms, end_ms=end_ms)
    if options.format == "json":
        return as_document(told)
    as_text = _setting_as_text if isinstance(change, Setting) else _work_as_text
    return as_text(told, windows=options.windows)


def document(
    warehouse: Path,
    topology: Topology,
    change: Change | Setting,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """The answer for programs; raises InvalidArgument as `whatif` does."""
    tables = Warehouse(warehouse, READS)
    if isinstance(change, Setting):
        return what_if_setting(tables, topology, change, start_ms=start_ms, end_ms=end_ms)
    return what_if_facts(tables, topology, change, start_ms=start_ms, end_ms=end_ms)


def _work_as_text(told: Row, *, windows: bool) -> str:
    scaled = f"{told['scale']:g} times as long" if told["scale"] != 1 else f"{told['less_ms']:,} ms less"
    before, after = told["before"], told["after"]
    rows = [(when, spread["median_ms"], spread["p90_ms"]) for when, spread in (("as it was", before), ("then", after))]
    parts = [
        f"{told['topology']}, {told['operator']} working {scaled}: {told['compared']:,} windows, "
        f"{told['other_path']:,} with another path",
        aligned(("latency", "median_ms", "p90_ms"), rows),
        "batches that take less time may begin sooner: with other records in them than they had",
    ]
    if windows:
        lines = [[" → ".join(w[c]) if c == "then_path" else w[c] for c in WINDOW] for w in told["windows"]]
        parts.append(aligned(WINDOW, lines))
    parts.append("\n".join(_hint(hint) for hint in told["hints"]) or "no report has said what operators worked")
    return "\n\n".join(parts)


def _change(options: argparse.Namespace) -> Change | Setting:
    """What is to change: a bound, a trigger, or an operator's work."""
    for cause, length_ms in ((AgeCause.BOUND, options.bound), (AgeCause.TRIGGER, options.trigger)):
        if length_ms is not None:
            return Setting(cause=cause, length_ms=length_ms)
    if options.operator is None:
        msg = "--scale and --less change the work of an operator; name it with --operator"
        raise InvalidArgument(msg)
    return Change(operator=options.operator, scale=options.scale, less_ms=options.less)


def _setting_as_text(told: Row, *, windows: bool) -> str:
    spreads = (("as it was", told["before"]), ("then", told["after"]))
    rows = [(when, spread["median_ms"], spread["p90_ms"]) for when, spread in spreads]
    parts = [
        f"{told['topology']}, a {told['setting']} of {told['length_ms']:,} ms: {told['compared']:,} windows",
        aligned(("age", "median_ms", "p90_ms"), rows),
        "an estimate: all else takes as long as it did",
    ]
    if windows:
        parts.append(aligned(AGES, [[window[name] for name in AGES] for window in told["windows"]]))
    return "\n\n".join(parts)


def _hint(hint: Row) -> str:
    verdict = f"splitting helps, by up to {hint['saves_ms']:,} ms" if hint["helps"] else "splitting does not help"
    return f"{hint['operator']}: {verdict} ({'; '.join(hint['reasons'])})"


def _length_ms(text: str) -> int:
    length_ms = duration_ms(text)
    if length_ms is None:
        msg = f'a length has a unit, such as "400 ms" or "1.5 s", got {text!r}'
        raise argparse.ArgumentTypeError(msg)
    return length_ms
