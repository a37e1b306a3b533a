"""Formats a change of an alert for people.

It is plain text, HTML, and text in Slack's format. Markup in names and messages is inert in each of them.
"""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import by_number, for_people, percent
from tidemark.safe_text import one_line
from tidemark.semantics.incidents import CHECKS, Change
from tidemark.semantics.repairs import DECISION
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.alert_message import AlertMessage
from tidemark.sla.incidents.grouping import ENDED

LOOK_HERE, OPERATOR_PAGE = "Look here", "Operator"
LATE_AFTER_MS = 900_000
"""Age from which an alert has the line `Delayed alert`, in ms."""


def alert_texts(alert: AlertMessage, *, notified_ms: int) -> dict[str, str]:
    """Returns *alert* as text.

    Args:
        alert: the alert.
        notified_ms: when it is sent, epoch ms.

    Returns:
        `subject` is one line, `text` is several. `html` and `slack` have the same content, escaped. `message_id` is the
        same however often the alert of a change, or one reminder, is sent.
    """
    subject = one_line(
        f"[{alert.severity}] {alert.topology}: {_cause_text(alert)}{_slas_text(alert)} {_event_text(alert)}"
    )
    details = _details(alert, notified_ms)
    lines = {name: one_line(f"{name}: {value}" if name else value) for name, value in details}
    text = "\n".join(lines.values())
    html_lines = {name: escape(line) for name, line in lines.items()}
    for name, link in {LOOK_HERE: alert.link, OPERATOR_PAGE: alert.operator_link}.items():
        if link:
            html_lines[name] = f'{name}: <a href="{escape(link)}">{escape(link)}</a>'
    place = quote(f"{alert.dedup_key.removeprefix('tidemark/').replace('/', '.')}.{alert.change}", safe="")
    # A mail server may drop a message with an id that it had.
    place += f".{alert.reminder}" if alert.reminder else ""
    return {
        "subject": subject,
        "text": f"{subject}\n{text}",
        "html": f"<p><b>{escape(subject)}</b></p><p>{'<br>'.join(html_lines.values())}</p>",
        "slack": f"*{_slack(subject)}*\n{_slack(text)}",
        "message_id": f"<{place}@tidemark>",
    }


def _cause_text(alert: AlertMessage) -> str:
    """Names the cause of *alert*; empty if none is known."""
    if alert.cause is None:
        return ""
    what = alert.cause.replace("_", " ")
    where = f" {'of' if alert.sla == DECISION else 'at'} {alert.place}" if alert.place else ""
    affects = f" affects {alert.audience}" if alert.audience else ""
    return f"{what}{where}{affects}: "


def _slas_text(alert: AlertMessage) -> str:
    n = len(alert.impact.slas)
    return alert.sla if n == 1 else f"{n} SLAs"


def _event_text(alert: AlertMessage) -> str:
    are = by_number(len(alert.impact.slas), "is", "are")
    if alert.sla == DECISION:
        return "has an answer" if alert.change is Change.RESOLVED else "waits for an answer"
    if alert.reminder:
        return f"{are} still broken ({alert.verdict}), reminder {alert.reminder}"
    match alert.change:
        case Change.OPENED:
            return f"{are} broken ({alert.verdict})"
        case Change.ESCALATED:
            return f"got worse ({alert.verdict})"
        case Change.ACKNOWLEDGED:
            return f"{are} acknowledged by {alert.decided_by}"
        case Change.RESOLVED:
            if alert.verdict == Verdict.PASS or alert.sla == CHECKS:
                return f"{are} met again"
            # The file has lost the other SLAs whose end has no verdict.
            return f"{are} no longer broken for this cause" if alert.message == ENDED else f"{are} not defined any more"


def _details(alert: AlertMessage, notified_ms: int) -> list[tuple[str, str]]:
    """Returns names and values of the lines that have a value."""
    # A reminder comes later than its change.
    late_ms = 0 if alert.reminder else notified_ms - alert.changed_ms
    began, since = _began(alert)
    details = {
        "": alert.message,
        began: since,
        "Look at": alert.culprit,
        "Blocked by": alert.blocked_by,
        "Remedy": alert.remedy,
        "Error budget left": "" if alert.budget_left is None else _remaining_text(alert.budget_left),
        "Broken SLAs": ", ".join(alert.impact.slas) if len(alert.impact.slas) > 1 else "",
        "Affected tables": ", ".join(alert.impact.tables),
        "Affected topics": ", ".join(alert.impact.topics),
        "Waiting DAGs": ", ".join(alert.impact.dags),
        "Affected owners": ", ".join(alert.impact.owners) if len(alert.impact.owners) > 1 else "",
        "Owner": alert.owner,
        "Runbook": alert.runbook,
        "Incident": alert.incident,
        LOOK_HERE: alert.link,
        OPERATOR_PAGE: alert.operator_link,
        "Delayed alert": f"the change happened {for_people(late_ms // 60_000 * 60_000)} ago"
        if late_ms >= LATE_AFTER_MS
        else "",
    }
    return [(name, value) for name, value in details.items() if value]


def _began(alert: AlertMessage) -> tuple[str, str]:
    """Returns the name and the value of the line that says since when the SLA is broken; no value: it is not known."""
    if alert.broken_ms is None:
        return "", ""
    # In whole seconds, up to the change. A reminder comes later.
    lasted_ms = 0 if alert.reminder else (alert.changed_ms - alert.broken_ms) // 1_000 * 1_000
    lasted = for_people(lasted_ms) if lasted_ms else ""
    if alert.sla == DECISION:
        name = "Asked"
    elif alert.crossed_ms is None:
        # It is not known when the SLA crossed its limit, only which check saw it.
        name = "Was found broken at" if alert.change is Change.RESOLVED else "Found broken at"
        lasted = f"at least {lasted}" if lasted else ""
    else:
        name = "Was broken since" if alert.change is Change.RESOLVED else "Broken since"
    return name, ", ".join(filter(None, (iso(alert.broken_ms), lasted)))


def _remaining_text(budget: float) -> str:
    """Formats the remaining part of an error *budget*.

    It is 1 at most; below 0 the budget is overspent.
    """
    return percent(budget) if budget >= 0 else f"none, {1 - budget:,.1f} times the budget was spent"


def _slack(text: str) -> str:
    """Escapes *text* so that Slack finds no link or mention in it."""
    return escape(text, quote=False)
