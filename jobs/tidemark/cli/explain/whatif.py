"""`tidemark whatif`: estimates the lateness of windows after a change.

An operator works less, a bound or a trigger is another one, or an owner of time takes as long as it usually does.
"""

from __future__ import annotations

import argparse
from operator import itemgetter
from pathlib import Path

from tidemark.account.owners.driver import DRIVER
from tidemark.account.owners.registry import OWNERS
from tidemark.cli.explain.path import FORMATS
from tidemark.cli.shared.options import add_format, add_topology, span_ms
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row
from tidemark.model.settings.lengths import counted, duration_ms
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document, format_table
from tidemark.reports.documents.whatif import whatif_document
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.parts import SETTINGS, PartChange, as_usual

AGES = ("window_end", "age_ms", "then_age_ms")
WINDOW = ("window_end", "latency_ms", "then_latency_ms", "then_path")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("--operator", help="operator whose work --scale or --less changes")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--bound", type=_length_ms, metavar="LENGTH", help='bound of every source, for example "5 s"')
    how.add_argument(
        "--trigger", type=_length_ms, metavar="LENGTH", help='trigger of every driver, for example "500 ms"'
    )
    how.add_argument(
        "--cause",
        metavar="OWNER[:DETAIL]",
        help="owner of time, as `tidemark path` lists them, that takes as long as it usually does: producer:orders/0",
    )
    how.add_argument(
        "--scale", type=float, default=1.0, help="factor of the time of work: 0.5 is half, 2 is twice as long"
    )
    how.add_argument(
        "--less",
        type=_length_ms,
        default=0,
        metavar="LENGTH",
        help='time of work that the operator saves, for example "400 ms"',
    )
    parser.add_argument(
        "--from", dest="start", metavar="INSTANT", help="only windows that end at or after this record time, ISO 8601"
    )
    parser.add_argument(
        "--to", dest="end", metavar="INSTANT", help="only windows that end before this record time, ISO 8601"
    )
    parser.add_argument("--windows", action="store_true", help="show every window; JSON output always has them")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the comparison."""
    say_inert(whatif(options, *warehouse_and_topology(options)))
    return 0


def whatif(options: argparse.Namespace, warehouse: Path, topology: Topology) -> str:
    """Returns the answer as text.

    Raises InvalidArgument if there is nothing to compare, or no such operator.
    """
    start_ms, end_ms = span_ms(options)
    change = _change(options)
    comparison = whatif_document(warehouse, topology, change, start_ms=start_ms, end_ms=end_ms)
    if options.format == "json":
        return as_document(comparison)
    as_text = _path_as_text if "other_path" in comparison else _age_as_text
    return as_text(comparison, windows=options.windows)


def _path_as_text(comparison: Row, *, windows: bool) -> str:
    parts = [
        f"{comparison['topology']}, {_work(comparison)}: {counted(comparison['compared'], 'window')}, "
        f"{comparison['other_path']:,} with another path",
        _spreads_as_text("latency", comparison),
    ]
    if comparison["scale"] != 1 or comparison["less_ms"]:
        less, shorter, sooner = (
            ("more", "longer", "later") if comparison["scale"] > 1 else ("less", "shorter", "sooner")
        )
        parts.append(
            f"the estimate includes {less} waiting for earlier batches, which also become {shorter}; {shorter} batches "
            f"may begin {sooner} and then contain other records"
        )
    if windows:
        lines = []
        for window in comparison["windows"]:
            *values, path = itemgetter(*WINDOW)(window)
            lines.append([*values, " → ".join(path)])
        parts.append(format_table(WINDOW, lines))
    return "\n\n".join(parts)


def _change(options: argparse.Namespace) -> WorkChange | PartChange:
    """Returns the change of a bound, a trigger, or an operator's work."""
    for owner, length_ms in zip(SETTINGS, (options.bound, options.trigger), strict=True):
        if length_ms is not None:
            return PartChange(owner=owner, length_ms=length_ms)
    if options.cause is not None:
        return as_usual(options.cause)
    if options.operator is None:
        msg = "--scale and --less change the work of an operator; name it with --operator"
        raise InvalidArgument(msg)
    return WorkChange(operator=options.operator, scale=options.scale, less_ms=options.less)


def _work(comparison: Row) -> str:
    scaled = (
        f"{comparison['scale']:g} times as long" if comparison["scale"] != 1 else f"{comparison['less_ms']:,} ms less"
    )
    return f"{comparison['operator']} working {scaled}"


def _age_as_text(comparison: Row, *, windows: bool) -> str:
    parts = [
        f"{comparison['topology']}, {_changed(comparison)}: {counted(comparison['compared'], 'window')}",
        _spreads_as_text("age", comparison),
        f"an estimate: {_what_else(comparison)} takes as long as it did",
    ]
    if windows:
        parts.append(format_table(AGES, list(map(itemgetter(*AGES), comparison["windows"]))))
    return "\n\n".join(parts)


def _what_else(comparison: Row) -> str:
    owner = None if comparison.get("length_ms") is not None else comparison.get("owner")
    # Without what a driver did, its streams would have waited for their triggers instead.
    is_of_driver = owner is not None and OWNERS[owner].parent == DRIVER
    return "streams look at their triggers, and all else" if is_of_driver else "all else"


def _changed(comparison: Row) -> str:
    if "operator" in comparison:
        return _work(comparison)
    if comparison["length_ms"] is not None:
        return f"a {comparison['owner']} of {comparison['length_ms']:,} ms"
    whose = comparison["owner"].replace("_", " ") + (f" of {comparison['detail']}" if comparison["detail"] else "")
    return f"the {whose} as long as it usually is"


def _spreads_as_text(measure: str, comparison: Row) -> str:
    """Returns a table of the *measure*, as it was and changed."""
    spreads = (("as it was", comparison["before"]), ("then", comparison["after"]))
    rows = [(when, spread["median_ms"], spread["p90_ms"]) for when, spread in spreads]
    return format_table((measure, "median_ms", "p90_ms"), rows)


def _length_ms(text: str) -> int:
    length_ms = duration_ms(text)
    if length_ms is None:
        msg = f'a length has a unit, such as "400 ms" or "1.5 s", got {text!r}'
        raise argparse.ArgumentTypeError(msg)
    return length_ms
