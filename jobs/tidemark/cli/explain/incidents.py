"""`tidemark incidents`: lists broken SLAs, and acknowledges incidents."""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path

from tidemark.cli.shared.options import add_format, add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.escaping import one_line
from tidemark.model.project.layout import Layout
from tidemark.query.sql import Warehouse
from tidemark.query.text_table import FORMATS
from tidemark.reports.batch_job import report_lock
from tidemark.reports.batch_job import topology as topology_named
from tidemark.sla.incidents.tables import STATE_TEXT, acknowledge

LISTED = f"""
    SELECT incident, state, {STATE_TEXT} AS now, worst_verdict AS verdict, worst_observed AS worst, unit, broke_again,
           severity, broken_since, resolved_at, culprit, owner,
           acknowledged_by, incident_history.said
    FROM incident_history WHERE topology = $1 AND ($2 OR state <> 'resolved') ORDER BY opened_at, incident
"""
NOTIFIED = "told"
"""Column of the answer: the channels that got the change."""
HISTORY = f"""
    SELECT i.at, i.change, i.verdict, i.said, i.culprit, i.held_by, i.by,
           list_sort(list(d.channel) FILTER (d.channel IS NOT NULL)) AS {NOTIFIED}
    FROM incidents AS i
    LEFT JOIN (
        SELECT topology, alert, change, unnest(incidents) AS incident FROM sla_alerts WHERE audience IS NULL
    ) AS a ON i.topology = a.topology AND i.incident = a.incident AND i.change = a.change
    LEFT JOIN deliveries AS d
        ON i.topology = d.topology AND d.incident IN (i.incident, a.alert) AND i.change = d.change
    WHERE i.topology = $1 AND i.incident = $2 GROUP BY ALL ORDER BY i.at
"""
KNOWN = "SELECT incident FROM incident_history WHERE topology = $1 ORDER BY opened_at DESC, incident LIMIT 10"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--all", action="store_true", help="include resolved incidents")
    choice.add_argument(
        "--history", metavar="INCIDENT", help="show the changes of an incident and the channels that received them"
    )
    choice.add_argument("--acknowledge", metavar="INCIDENT", help="acknowledge an open incident")
    parser.add_argument("--by", help="person who acknowledges it (default: the user of this machine)")
    parser.add_argument("--note", default="", help="comment on the acknowledgement")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the incidents, or acknowledges one."""
    say_inert(incidents(options, existing_warehouse(options), topology_named(options.topology).name))
    return 0


def incidents(options: argparse.Namespace, warehouse: Path, topology: str, clock: Clock = wall_clock_ms) -> str:
    """Returns the answer to the command line *options*.

    Raises InvalidArgument for an unknown incident, and for one to acknowledge that is not open.
    """
    if options.acknowledge:
        layout, by = Layout(warehouse), options.by or getpass.getuser()
        with report_lock(layout, topology):
            is_new = acknowledge(layout, topology, options.acknowledge, by=by, note=options.note, at_ms=clock())
        return one_line(f"{options.acknowledge} is acknowledged by {by}") if is_new else "already acknowledged"
    tables = Warehouse(warehouse, topology=topology)
    if options.history:
        answer = tables.ask(HISTORY, [topology, options.history])
        if not answer.rows:
            newest = ", ".join(row[0] for row in tables.ask(KNOWN, [topology]).rows) or "none"
            msg = f"there is no incident {options.history!r}; the newest of {topology}: {newest}"
            raise InvalidArgument(msg)
    else:
        answer = tables.ask(LISTED, [topology, options.all])
    if not answer.rows and options.format == "table":
        return "No incidents." if options.all else "No open incidents."
    return FORMATS[options.format](answer.columns, answer.rows)
