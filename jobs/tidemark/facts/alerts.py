"""Queries open alerts, silent groups and error budgets for pages.

They are those of the newest check. Instants are timestamps in UTC, lengths ms.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from operator import itemgetter

from tidemark.collecting import in_order_of
from tidemark.facts.answers import Row, Tables
from tidemark.facts.incidents import known_incidents
from tidemark.model.settings.intervals import utc
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
"""Selects a row per open alert; lists of its opening grow.

`broken_since` is null where only the check that found it broken is known; `since` is the instant of that check then.
Its `measurement` is that of a change of an incident, which the check for `measured_at` made.
"""
ACKNOWLEDGED = """
    SELECT incident, decided_by FROM incidents
    WHERE topology = $1 AND change = 'acknowledged' AND coalesce(changed_at <= make_timestamptz($2 * 1000), true)
"""
_LISTS = ("incidents", "slas", "tables", "topics", "owners")


def open_alerts(tables: Tables, topology: str, *, at_ms: int | None = None) -> list[Row]:
    """Returns alerts that are open at *at_ms*, the most severe first, and last those whose SLAs all hold again.

    An alert is all incidents of one cause. Its `states` are those of its SLAs by the newest check, in the words of
    `tidemark incidents`; None: no check is known. *at_ms* is epoch ms; None: by all that is known.
    """
    opened = tables.ask(OPEN_ALERTS, [topology, at_ms]).objects
    if not opened:
        return []
    # The alert has the acknowledgement with the next check, its incident at once.
    people = {row["incident"]: row["decided_by"] for row in tables.ask(ACKNOWLEDGED, [topology, at_ms]).objects}
    of_alerts = [*chain.from_iterable(alert["incidents"] or () for alert in opened)]
    states_of = known_incidents(tables, topology, of_alerts, at_ms=at_ms)
    alerts = []
    for alert in opened:
        lists = {name: alert[name] or [] for name in _LISTS}
        by = next((people[incident] for incident in lists["incidents"] if incident in people), None)
        known = [row for row in states_of if row["incident"] in lists["incidents"]]
        states = dict.fromkeys(lists["slas"]) | {row["sla"]: row["now"] for row in known}
        holds = bool(known) and all(row["verdict"] == Verdict.PASS or row["resolved_at"] for row in known)
        place = (holds, alert["severity"] != Severity.CRITICAL, alert["opened_at"], alert["alert"])
        alerts.append((place, {**alert, **lists, "acknowledged_by": by, "states": states}))
    return [alert for _, alert in sorted(alerts, key=itemgetter(0))]


def silent_groups(slas: Iterable[Row], *, checked_at: datetime | None) -> list[Row]:
    """Returns the stale groups that *slas* name, by SLA, the stalest first.

    *slas* are rows of sla_results of the check at *checked_at*; None: there was none, and *slas* is empty. `silent_ms`
    is the length from a group's newest record to this check, as nobody has looked for a newer one since.
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
    """Returns the error budget of each objective among *slas*.

    *slas* are rows of sla_results. An objective has several SLAs, with one budget.
    """
    by_objective: dict[str, Row] = {}
    for row in slas:
        if row["objective"] is not None:
            of_objective = ("objective", "subject", "target", "threshold_ms", "window_ms", "budget_left")
            by_objective.setdefault(row["objective"], in_order_of(of_objective, row))
    return [*by_objective.values()]
