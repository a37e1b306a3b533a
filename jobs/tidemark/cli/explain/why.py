"""`tidemark why`: shows why there are no results.

The output has lines for people, or JSON for programs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.cli.shared.options import add_format, add_topology
from tidemark.cli.shared.output import say_inert, say_with_commands
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import wall_clock_ms
from tidemark.model.settings.intervals import instant_ms
from tidemark.query.text_table import as_document
from tidemark.reports.documents.why import why_document
from tidemark.safe_text import one_line
from tidemark.why.evidence.findings import WhyFinding

FORMATS = ("table", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("operator", nargs="?", help="operator without results (default: every terminal operator)")
    parser.add_argument("--at", metavar="INSTANT", help="explain the state at this instant, ISO 8601 (default: now)")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the findings."""
    at_ms = wall_clock_ms() if options.at is None else instant_ms(options.at)
    home, of_topology = warehouse_and_topology(options)
    document = why_document(home, of_topology, at_ms=at_ms, operator=options.operator)
    if options.format == "json":
        say_inert(as_objects(document.findings))
    else:
        say_with_commands(as_lines(document.findings), options)
    return 0


def as_lines(findings: Sequence[WhyFinding]) -> str:
    """Formats a line for each finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[WhyFinding]) -> str:
    """Formats a JSON array; `since` is an ISO instant or null."""
    return as_document([finding.row for finding in findings])
