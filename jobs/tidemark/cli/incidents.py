"""`tidemark incidents`: which SLAs are broken, since when, and who looks after it."""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import FORMATS
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.inert import one_line
from tidemark.report.batch_job import topology as topology_named
from tidemark.report.batch_job import writing
from tidemark.sla.incident_tables import acknowledge
from tidemark.spec.layout import Layout
from tidemark.spec.tables import DELIVERIES, INCIDENTS

LISTED = """
    SELECT incident, state, worst_verdict AS verdict, severity, broken_since, resolved_at, culprit, owner,
           acknowledged_by, said
    FROM incident_history WHERE topology = $1 AND ($2 OR state <> 'resolved') ORDER BY opened_at, incident
"""
HISTORY = """
    SELECT i.at, i.change, i.verdict, i.said, i.culprit, i.held_by, i.by,
           list_sort(list(d.channel) FILTER (d.channel IS NOT NULL)) AS told
    FROM incidents AS i
    LEFT JOIN deliveries AS d ON i.topology = d.topology AND i.incident = d.incident AND i.change = d.change
    WHERE i.topology = $1 AND i.incident = $2 GROUP BY ALL ORDER BY i.at
"""
KNOWN = "SELECT incident FROM incident_history WHERE topology = $1 ORDER BY opened_at DESC, incident LIMIT 10"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_topology(parser)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--all", action="store_true", help="those that are resolved, too")
    asked.add_argument("--history", metavar="INCIDENT", help="what happened to one, and which channels were told")
    asked.add_argument("--acknowledge", metavar="INCIDENT", help="say that somebody looks after an open one")
    parser.add_argument("--by", help="who does (you, as this machine knows you)")
    parser.add_argument("--note", default="", help="what else there is to say of it")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(asked: argparse.Namespace) -> int:
    """Show them, or say that one is looked after."""
    say_inert(incidents(asked, options.warehouse(asked), topology_named(asked.topology).name))
    return 0


def incidents(asked: argparse.Namespace, warehouse: Path, topology: str, clock: Clock = wall_clock_ms) -> str:
    """What was *asked* for; raises InvalidArgument for an incident that is not there, or not open to acknowledge."""
    if asked.acknowledge:
        layout, by = Layout(warehouse), asked.by or getpass.getuser()
        with writing(layout, topology):
            is_new = acknowledge(layout, topology, asked.acknowledge, by=by, note=asked.note, at_ms=clock())
        return one_line(f"{asked.acknowledge} is looked after by {by}") if is_new else "somebody looks after it already"
    tables = Warehouse(warehouse, {INCIDENTS.name, DELIVERIES.name})
    if asked.history:
        found = tables.ask(HISTORY, [topology, asked.history])
        if not found.rows:
            known = ", ".join(row[0] for row in tables.ask(KNOWN, [topology]).rows) or "none"
            msg = f"a history is that of an incident, and {asked.history!r} is none; the newest of {topology}: {known}"
            raise InvalidArgument(msg)
    else:
        found = tables.ask(LISTED, [topology, asked.all])
    if not found.rows and asked.format == "table":
        return "there is no incident" if asked.all else "no SLA is broken that anybody checked"
    return FORMATS[asked.format](found.columns, found.rows)
