"""`tidemark incidents`: lists broken SLAs; acknowledges and silences."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Iterator
from pathlib import Path

from tidemark.cli.shared.options import add_format, add_topology
from tidemark.cli.shared.output import say_inert, with_place
from tidemark.cli.shared.streams import warehouse_and_topology
from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Tables, answers_over
from tidemark.facts.incidents import known_incidents, open_incidents
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.topology import Topology
from tidemark.query.sql import QueryResult
from tidemark.query.text_table import FORMATS
from tidemark.reports.batch_job import report_lock
from tidemark.safe_text import one_line
from tidemark.selection import in_order_of
from tidemark.semantics.incidents import Decision
from tidemark.sla.incidents.decisions import AlertDecision, decide, decisions_made, end_ms, promised_slas, silence_ends
from tidemark.why.causes.drivers import drained
from tidemark.why.walk import scene

SILENCED = "silenced_until"
LISTED = (
    *("incident", "state", "now", "verdict", "worst", "unit", "broke_again", "severity", "broken_since", "opened_at"),
    *("resolved_at", "culprit", "owner", "acknowledged_by", SILENCED, "message", "blocked_by"),
)
"""Columns of the list; the verdict of an incident is its worst, and `broken_since` is null where it is not known."""
NOTIFIED = "notified"
"""Column of the answer: channels that got the change as a message."""
HISTORY = f"""
    WITH first_messages AS (
        SELECT topology, alert, min(delivered_at) AS alert_notified_at FROM deliveries GROUP BY ALL
    )
    SELECT i.changed_at, i.change, i.verdict, i.message, i.culprit, i.blocked_by, i.decided_by,
           list_sort(list(DISTINCT d.channel) FILTER (d.channel IS NOT NULL)) AS {NOTIFIED},
           max_by(o.alert, o.changed_at) AS alert, max_by(f.alert_notified_at, o.changed_at) AS alert_notified_at
    FROM incidents AS i
    LEFT JOIN (
        SELECT topology, alert, alerts.changed_at, unnest(incidents) AS incident FROM alerts
        WHERE audience IS NULL AND change = 'opened'
    ) AS o ON i.topology = o.topology AND i.incident = o.incident
    -- An incident that joins an open alert is no message: the alert's change is older.
    LEFT JOIN alerts AS a
        ON a.topology = o.topology AND a.alert = o.alert AND a.change = i.change AND a.changed_at >= i.changed_at
    LEFT JOIN deliveries AS d
        ON i.topology = d.topology AND d.alert = coalesce(a.alert, i.incident) AND i.change = d.change
    LEFT JOIN first_messages AS f ON f.topology = o.topology AND f.alert = o.alert
    WHERE i.topology = $1 AND i.incident = $2 GROUP BY ALL ORDER BY i.changed_at
"""
MOST_KNOWN = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--all", action="store_true", help="include resolved incidents")
    choice.add_argument(
        "--history", metavar="INCIDENT", help="show the changes of an incident and the channels that received them"
    )
    choice.add_argument("--decisions", action="store_true", help="show who acknowledged and silenced what")
    choice.add_argument("--acknowledge", metavar="INCIDENT", help="acknowledge an open incident")
    choice.add_argument(
        "--silence", metavar="NAME", help="send no alerts of an incident, an SLA or the topology for some time"
    )
    choice.add_argument("--snooze", metavar="INCIDENT", help="send an open incident again after some time")
    choice.add_argument("--unsilence", metavar="NAME", help="end a silence or a snooze")
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--for", dest="length", metavar="LENGTH", help='how long to silence or snooze, such as "2 h"')
    time.add_argument("--until", metavar="INSTANT", help="the end of it, ISO 8601 (default zone: UTC)")
    parser.add_argument("--by", help="person who decides (default: the user of this machine)")
    parser.add_argument("--note", default="", help="reason for the decision")
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the incidents, or decides about their alerts."""
    say_inert(incidents(options, *warehouse_and_topology(options)))
    return 0


def incidents(options: argparse.Namespace, warehouse: Path, of_topology: Topology, clock: Clock = wall_clock_ms) -> str:
    """Returns the answer to the command line *options*.

    Raises InvalidArgument for an unknown incident, and for a decision that cannot be made.
    """
    topology = of_topology.name
    for decision in Decision:
        if subject := getattr(options, decision.value):
            return _record_decision(options, decision, subject, warehouse, of_topology, clock())
    if options.length or options.until:
        msg = 'a time belongs to a silence or snooze; write, for example, --silence NAME --for "2 h"'
        raise InvalidArgument(msg)
    tables = answers_over(warehouse, topology)
    if options.decisions:
        answer = decisions_made(tables, topology)
        if not answer.rows and options.format == "table":
            return "No decisions."
        return FORMATS[options.format](answer.columns, answer.rows)
    if options.history:
        answer = tables.ask(HISTORY, [topology, options.history])
        if not answer.rows:
            known = known_incidents(tables, topology)[-MOST_KNOWN:]
            newest = ", ".join(row["incident"] for row in reversed(known)) or "none"
            msg = f"there is no incident {options.history!r}; the newest of {topology}: {newest}"
            raise InvalidArgument(msg)
    else:
        answer = _listed(tables, topology, clock(), with_resolved=options.all)
    if options.format != "table" or options.history:
        return FORMATS[options.format](answer.columns, answer.rows)
    listed = FORMATS[options.format](answer.columns, answer.rows)
    if not answer.rows:
        listed = "No incidents." if options.all else "No open incidents."
    told = [with_place(line, options) for line in _drained(of_topology, Layout(warehouse), tables, clock())]
    return "\n".join([listed, *told])


def _drained(topology: Topology, layout: Layout, tables: Tables, at_ms: int) -> Iterator[str]:
    """Yields a line for each stream that was drained: nobody is told of one by an alert."""
    for finding in drained(scene(topology, layout, at_ms, stored=tables.stored)):
        yield one_line(f"{topology.name}/{finding.sub_topology}: {finding.seen}; {finding.remedy}")


def _listed(tables: Tables, topology: str, now_ms: int, *, with_resolved: bool) -> QueryResult:
    """Returns the list of incidents with the ends of their silences."""
    ends_ms, rows = silence_ends(tables, topology, at_ms=now_ms), []
    for row in known_incidents(tables, topology) if with_resolved else open_incidents(tables, topology):
        until_ms = ends_ms.get(row["incident"])
        worst = {"verdict": row["worst_verdict"], "worst": row["worst_observed"]}
        listed = {**row, **worst, SILENCED: None if until_ms is None else utc(until_ms)}
        rows.append(tuple(in_order_of(LISTED, listed).values()))
    return QueryResult(LISTED, tuple(rows))


def _record_decision(
    options: argparse.Namespace, decision: Decision, subject: str, warehouse: Path, topology: Topology, now_ms: int
) -> str:
    """Records the decision of the command line *options*, and describes it."""
    layout, by = Layout(warehouse), options.by or getpass.getuser()
    until_ms = end_ms(options.length, options.until, now_ms=now_ms)
    made = AlertDecision(decision=decision, subject=subject, by=by, note=options.note, until_ms=until_ms)
    with report_lock(layout, topology.name):
        return one_line(decide(layout, topology.name, made, slas=promised_slas(topology), at_ms=now_ms).text)
