"""`tidemark why`: shows why there are no results, or why a watched table is late.

The output has lines for people, or JSON for programs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tidemark.cli.shared.options import add_format, place
from tidemark.cli.shared.output import say_inert, say_with_commands
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.slas.sla_spec import known_sets, load_usable
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document
from tidemark.reports.documents.why import why_document
from tidemark.safe_text import one_line
from tidemark.why.evidence.findings import WhyFinding

FORMATS = ("table", "json")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    name = "name of the topology, or its TOML file; SET.TABLE for a table of a set [watch.SET] in slas.toml"
    parser.add_argument("topology", metavar="TOPOLOGY", help=name)
    parser.add_argument("operator", nargs="?", help="operator without results (default: every terminal operator)")
    parser.add_argument("--at", metavar="INSTANT", help="explain the state at this instant, ISO 8601 (default: now)")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the findings."""
    sets = known_sets(Project.here().slas)
    is_of_set = any(options.topology.startswith(f"{each.name}.") for each in sets.watched)
    is_table = is_of_set and not Path(options.topology).is_file()
    findings = _of_table(options, sets) if is_table else _of_topology(options)
    if options.format == "json":
        say_inert(as_objects(findings))
    else:
        say_with_commands(as_lines(findings), options)
    return 0


def _of_topology(options: argparse.Namespace) -> list[WhyFinding]:
    at_ms = wall_clock_ms() if options.at is None else instant_ms(options.at)
    home, of_topology = warehouse_and_topology(options)
    return why_document(home, of_topology, at_ms=at_ms, operator=options.operator).findings


def _of_table(options: argparse.Namespace, sets: Topology) -> list[WhyFinding]:
    if options.at is not None or options.operator is not None:
        msg = f"{options.topology} is a watched table, of which the present is explained; leave out --at and OPERATOR"
        raise InvalidArgument(msg)
    # Most explanations need neither logs of tables nor Airflow.
    from tidemark.cli.shared.local import known_airflow
    from tidemark.sla.watched_evidence import Surroundings
    from tidemark.sla.watched_why import explain_table
    from tidemark.watch.kept import KeptHistories

    known = Surroundings(
        watch=sets,
        specs=load_usable(Project.here().slas, sets).specs,
        layout=Layout(place(options)),
        airflow=known_airflow(options.home),
        kept=KeptHistories(options.home / "watch"),
        at_ms=wall_clock_ms(),
    )
    return explain_table(options.topology, known)


def as_lines(findings: Sequence[WhyFinding]) -> str:
    """Formats a line for each finding."""
    return "\n".join(one_line(finding.line) for finding in findings)


def as_objects(findings: Sequence[WhyFinding]) -> str:
    """Formats a JSON array; `since` is an ISO instant or null."""
    return as_document([finding.row for finding in findings])
