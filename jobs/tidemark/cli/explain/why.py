"""`tidemark why`: shows why there are no results.

The output has lines for people, or JSON for programs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tidemark.cli.shared.options import add_format, add_topology
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import wall_clock_ms
from tidemark.escaping import one_line
from tidemark.facts.answers import answers_over
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document
from tidemark.sla.sla_findings import sla_findings
from tidemark.why import walk
from tidemark.why.accounted import accounted
from tidemark.why.evidence.findings import WhyFinding, in_order


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
    reasons = findings(home, of_topology, at_ms=at_ms, operator=options.operator)
    say_inert(FORMATS[options.format](reasons))
    return 0


def findings(home: Path, topology: Topology, *, at_ms: int, operator: str | None = None) -> list[WhyFinding]:
    """Explains missing results: who owns what is missing, then remarks, and what is known of SLAs.

    Args:
        home: the warehouse.
        topology: the topology.
        at_ms: the instant, epoch ms.
        operator: the operator without results; None: every terminal operator, and every SLA.

    Raises:
        InvalidArgument: there is no such operator.
    """
    layout, stored = Layout(home), Stored()
    scene = walk.scene(topology, layout, at_ms, stored=stored)
    remarks = walk.Walk(scene).explain(walk.known(topology, operator))
    asked = topology.terminals if operator is None else (operator,)
    owners = accounted(scene, layout, asked, stored=stored)
    tables = answers_over(home, topology.name, stored=stored)
    return [*owners, *in_order([*remarks, *sla_findings(tables, topology, at_ms=at_ms, operator=operator)])]


def as_lines(findings: Sequence[WhyFinding]) -> str:
    """Formats a line for each finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[WhyFinding]) -> str:
    """Formats a JSON array; `since` is an ISO instant or null."""
    return as_document([finding.row for finding in findings])


FORMATS: Mapping[str, Callable[[Sequence[WhyFinding]], str]] = MappingProxyType({"table": as_lines, "json": as_objects})
