"""Formats the alert for a change of an incident.

It is plain text, HTML, and text in Slack's format. Markup in names and messages is inert in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from tidemark.escaping import inert
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.toml_keys import length
from tidemark.semantics.incidents import Change
from tidemark.semantics.sla import Verdict

LOOK_HERE = "Look here"
LATE_AFTER_MS = 900_000
"""Age from which an alert has the line `Delayed alert`, in ms."""


def alert(change: Mapping[str, Any], *, notified_ms: int, link: str) -> dict[str, str]:
    """Returns the parts of the alert for *change*.

    Args:
        change: a row of `incidents` with instants as epoch ms.
        notified_ms: when the alert is sent, epoch ms.
        link: address of the page to look at.

    Returns:
        `subject` is one line, `text` is several. `html` and `slack` have the same content, escaped. `message_id` is the
        same however often the alert of a change is sent.
    """
    subject = _one_line(f"[{change['severity']}] {change['topology']}: {change['sla']} {_event_text(change)}")
    details = _details(change, notified_ms, link)
    lines = {name: _one_line(f"{name}: {value}" if name else value) for name, value in details}
    text = "\n".join(lines.values())
    html_lines = {name: escape(line) for name, line in lines.items()}
    html_lines[LOOK_HERE] = f'{LOOK_HERE}: <a href="{escape(link)}">{escape(link)}</a>'
    place = quote(f"{change['topology']}.{change['incident']}.{change['change']}", safe="")
    return {
        "subject": subject,
        "text": f"{subject}\n{text}",
        "html": f"<p><b>{escape(subject)}</b></p><p>{'<br>'.join(html_lines.values())}</p>",
        "slack": f"*{_slack(subject)}*\n{_slack(text)}",
        "message_id": f"<{place}@tidemark>",
    }


def _event_text(change: Mapping[str, Any]) -> str:
    match Change(change["change"]):
        case Change.OPENED:
            return f"is broken ({change['verdict']})"
        case Change.ESCALATED:
            return f"got worse ({change['verdict']})"
        case Change.ACKNOWLEDGED:
            return f"is acknowledged by {change['by']}"
        case Change.RESOLVED:
            return "is met again" if change["verdict"] == Verdict.PASS else "has ended"


def _details(change: Mapping[str, Any], notified_ms: int, link: str) -> list[tuple[str, str]]:
    """Returns names and values of the lines that have a value."""
    broken_ms = change["broken_since"]
    # In whole seconds.
    lasted_ms = 0 if broken_ms is None else (change["at"] - broken_ms) // 1_000 * 1_000
    since = "" if broken_ms is None else iso(broken_ms) + (f", {length(lasted_ms)}" if lasted_ms else "")
    budget_left = change["budget_left"]
    late_ms = notified_ms - change["at"]
    is_open = change["change"] != Change.RESOLVED
    details = {
        "": change["said"],
        "Broken since" if is_open else "Was broken since": since,
        "Look at": change["culprit"],
        "Blocked by": change["held_by"],
        "Error budget left": "" if budget_left is None else _remaining_text(budget_left),
        "Owner": change["owner"],
        "Runbook": change["runbook"],
        "Incident": change["incident"],
        LOOK_HERE: link,
        "Delayed alert": f"the change happened {length(late_ms // 60_000 * 60_000)} ago"
        if late_ms >= LATE_AFTER_MS
        else "",
    }
    return [(name, value) for name, value in details.items() if value]


def _remaining_text(budget: float) -> str:
    """Formats the remaining part of an error *budget*.

    It is 1 at most; below 0 the budget is overspent.
    """
    return f"{budget:.0%}" if budget >= 0 else f"none, {1 - budget:,.1f} times the budget was spent"


def _one_line(text: str) -> str:
    return inert(text.replace("\n", " "))


def _slack(text: str) -> str:
    """Escapes *text* so that Slack finds no link or mention in it."""
    return escape(text, quote=False)
