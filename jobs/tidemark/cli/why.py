"""Why there are no results, as lines for people and as JSON for programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.cli.text_table import as_document
from tidemark.clock import wall_clock_ms
from tidemark.inert import one_line
from tidemark.report.batch_job import topology
from tidemark.spec.intervals import instant_ms
from tidemark.spec.layout import Layout
from tidemark.why import walk
from tidemark.why.findings import Finding


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_topology(parser)
    parser.add_argument("operator", nargs="?", help="the operator without results (each that nobody reads)")
    parser.add_argument("--at", metavar="INSTANT", help="ask about a past instant, ISO 8601 (now)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(asked: argparse.Namespace) -> int:
    """Show what was found."""
    at_ms = instant_ms(asked.at) if asked.at else wall_clock_ms()
    layout = Layout(options.warehouse(asked))
    say_inert(FORMATS[asked.format](walk.why(topology(asked.topology), layout, at_ms=at_ms, operator=asked.operator)))
    return 0


def as_lines(findings: Sequence[Finding]) -> str:
    """One line per finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[Finding]) -> str:
    """A JSON array of one object per finding; `since` is an ISO instant or null."""
    return as_document([finding.row for finding in findings])


FORMATS: Mapping[str, Callable[[Sequence[Finding]], str]] = MappingProxyType({"table": as_lines, "json": as_objects})
