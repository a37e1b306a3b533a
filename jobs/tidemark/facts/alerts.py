"""Queries open alerts, silent groups and error budgets for pages, as the newest check found them.

Instants are timestamps in UTC, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from operator import itemgetter

from tidemark.facts.answers import Row, Tables
from tidemark.facts.incidents import known_incidents
from tidemark.model.settings.intervals import utc
from tidemark.selection import in_order_of
from tidemark.semantics.sla import Severity, Verdict

OPEN_ALERTS = """
    WITH open_alerts AS (
        SELECT alert, arg_max(severity, changed_at) FILTER (change IN ('opened', 'escalated')) AS severity,
               any_value(cause) FILTER (is_opening) AS cause,
               any_value(cause_sub_topology) FILTER (is_opening) AS sub_topology,
               any_value(cause_operator) FILTER (is_opening) AS operator,
               any_value(cause_partition) FILTER (is_opening) AS partition,
               any_value(incidents) FILTER (is_opening) AS incidents, any_value(slas) FILTER (is_opening) AS slas,
               any_value("tables") FILTER (is_opening) AS "tables", any_value(topics) FILTER (is_opening) AS topics,
               any_value(owners) FILTER (is_opening) AS owners,
               min(crossed_at) AS broken_since, coalesce(min(broken_since), min(opened_at)) AS since,
               min(opened_at) AS opened_at,
               arg_max(alerts.message, changed_at) FILTER (change IN ('opened', 'escalated')) AS measurement,
               arg_max(sla, changed_at) FILTER (change IN ('opened', 'escalated')) AS measured_sla,
               max(changed_at) FILTER (change IN ('opened', 'escalated')) AS changed_last_at,
               arg_max(culprit, changed_at) FILTER (change IN ('opened', 'escalated')) AS culprit,
               arg_max(blocked_by, changed_at) FILTER (change IN ('opened', 'escalated')) AS blocked_by,
               arg_max(runbook, changed_at) FILTER (change IN ('opened', 'escalated')) AS runbook
        FROM (
            SELECT *, change = 'opened' AS is_opening FROM alerts
            WHERE topology = $1 AND audience IS NULL AND coalesce(changed_at <= make_timestamptz($2 * 1000), true)
        ) AS alerts
        GROUP BY alert HAVING bool_or(is_opening) AND NOT bool_or(change = 'resolved')
    )
    SELECT * EXCLUDE (measured_sla, changed_last_at), (
        SELECT max(changed_at) FROM incidents
        WHERE topology = $1 AND incidents.message = measurement AND change IN ('opened', 'escalated')
              AND incidents.sla = measured_sla AND changed_at <= changed_last_at
    ) AS measured_at
    FROM open_alerts
"""
"""Selects a row for each open alert of the topology $1 at $2 (epoch ms; null: now), with the lists of its opening.

`broken_since` is null if nobody knows when the SLA broke, and then `since` is the instant of the check that found it
broken. `measurement` is what the check at `measured_at` wrote with an incident of the alert.
"""
ACKNOWLEDGED = """
    SELECT incident, decided_by FROM incidents
    WHERE topology = $1 AND change = 'acknowledged' AND coalesce(changed_at <= make_timestamptz($2 * 1000), true)
"""
_LISTS = ("incidents", "slas", "tables", "topics", "owners")


def open_alerts(tables: Tables, topology: str, *, at_ms: int | None = None) -> list[Row]:
    """Returns the alerts that are open at *at_ms* (epoch ms; None is now), the most severe first.

    Alerts whose SLAs all hold again come last. An alert puts all incidents of one cause together. `states` has for each
    of its SLAs the state by the newest check, in the words of `tidemark incidents`, or None without a check.
    """
    opened = tables.ask(OPEN_ALERTS, [topology, at_ms]).objects
    if not opened:
        return []
    # An acknowledgement is written to the incident at once, and to the alert by the next check.
    people = {row["incident"]: row["decided_by"] for row in tables.ask(ACKNOWLEDGED, [topology, at_ms]).objects}
    names = [*chain.from_iterable(alert["incidents"] or () for alert in opened)]
    incidents = known_incidents(tables, topology, names, at_ms=at_ms)
    alerts = []
    for alert in opened:
        lists = {name: alert[name] or [] for name in _LISTS}
        person = next((people[incident] for incident in lists["incidents"] if incident in people), None)
        known = [row for row in incidents if row["incident"] in lists["incidents"]]
        states = dict.fromkeys(lists["slas"]) | {row["sla"]: row["now"] for row in known}
        holds = bool(known) and all(row["verdict"] == Verdict.PASS or row["resolved_at"] for row in known)
        order = (holds, alert["severity"] != Severity.CRITICAL, alert["opened_at"], alert["alert"])
        alerts.append((order, {**alert, **lists, "acknowledged_by": person, "states": states}))
    return [alert for _, alert in sorted(alerts, key=itemgetter(0))]


def silent_groups(slas: Iterable[Row], *, checked_at: datetime | None) -> list[Row]:
    """Returns the stale groups that the rows *slas* of sla_results name, by SLA, the stalest first.

    The rows are of the check at *checked_at*; None without a check, and then there are no rows. `silent_ms` is the time
    from the newest record of a group to that check: nobody has looked for newer records since.
    """
    rows: list[Row] = []
    if checked_at is None:
        return rows
    for row in slas:
        for group in row["stale_groups"] or ():
            newest_at = utc(group["newest_ms"])
            silent_ms = round((checked_at - newest_at).total_seconds() * 1_000)
            of_group = {"group": group["name"], "newest_at": newest_at, "silent_ms": silent_ms}
            rows.append({**in_order_of(("sla", "subject"), row), **of_group})
    return rows


def budgets(slas: Iterable[Row]) -> list[Row]:
    """Returns the error budget of each objective among the rows *slas* of sla_results.

    An objective is checked by several SLAs, which share one budget.
    """
    by_objective: dict[str, Row] = {}
    for row in slas:
        if row["objective"] is not None:
            of_objective = ("objective", "subject", "target", "threshold_ms", "window_ms", "budget_left")
            by_objective.setdefault(row["objective"], in_order_of(of_objective, row))
    return [*by_objective.values()]
