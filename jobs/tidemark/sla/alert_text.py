"""What people are told of a change of an incident: as text, as HTML, and as Slack has it; nothing in it is obeyed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from tidemark.inert import inert
from tidemark.semantics.incidents import Change
from tidemark.semantics.sla import Verdict
from tidemark.spec.intervals import iso
from tidemark.spec.toml_keys import length

LOOK_HERE = "Look here"
LATE_AFTER_MS = 900_000
"""A change that is told so long after it says that it is late."""


def alert(change: Mapping[str, Any], *, told_ms: int, link: str) -> dict[str, str]:
    """What is told at *told_ms* of *change*, a row of `incidents` with instants as epoch ms.

    `subject` is one line, `text` some, `html` and `slack` the same escaped; `message_id` is the same whenever it is
    told. *link* is where to look.
    """
    subject = _one_line(f"[{change['severity']}] {change['topology']}: {change['sla']} {_happened(change)}")
    lines = {name: _one_line(f"{name}: {value}" if name else value) for name, value in _told(change, told_ms, link)}
    text = "\n".join(lines.values())
    shown = {name: escape(line) for name, line in lines.items()}
    shown[LOOK_HERE] = f'{LOOK_HERE}: <a href="{escape(link)}">{escape(link)}</a>'
    place = quote(f"{change['topology']}.{change['incident']}.{change['change']}", safe="")
    return {
        "subject": subject,
        "text": f"{subject}\n{text}",
        "html": f"<p><b>{escape(subject)}</b></p><p>{'<br>'.join(shown.values())}</p>",
        "slack": f"*{_slack(subject)}*\n{_slack(text)}",
        "message_id": f"<{place}@tidemark>",
    }


def _happened(change: Mapping[str, Any]) -> str:
    match Change(change["change"]):
        case Change.OPENED:
            return f"is broken ({change['verdict']})"
        case Change.ESCALATED:
            return f"got worse ({change['verdict']})"
        case Change.ACKNOWLEDGED:
            return f"is looked after by {change['by']}"
        case Change.RESOLVED:
            return "holds again" if change["verdict"] == Verdict.PASS else "has ended"


def _told(change: Mapping[str, Any], told_ms: int, link: str) -> list[tuple[str, str]]:
    """Names and values of what there is to say."""
    broken_ms = change["broken_since"]
    lasted_ms = 0 if broken_ms is None else (change["at"] - broken_ms) // 1_000 * 1_000
    since = "" if broken_ms is None else iso(broken_ms) + (f", {length(lasted_ms)}" if lasted_ms else "")
    budget_left = change["budget_left"]
    late_ms = told_ms - change["at"]
    is_open = change["change"] != Change.RESOLVED
    found = {
        "": change["said"],
        "Broken since" if is_open else "Was broken since": since,
        "Look at": change["culprit"],
        "Held by": change["held_by"],
        "Error budget left": "" if budget_left is None else _left(budget_left),
        "Owner": change["owner"],
        "Runbook": change["runbook"],
        "Incident": change["incident"],
        LOOK_HERE: link,
        "Told late": f"it happened {length(late_ms // 60_000 * 60_000)} ago" if late_ms >= LATE_AFTER_MS else "",
    }
    return [(name, value) for name, value in found.items() if value]


def _left(budget: float) -> str:
    """The part of an error *budget* that is left, 1 at most; below 0 it is overspent."""
    return f"{budget:.0%}" if budget >= 0 else f"none, {1 - budget:,.1f} times of it was spent"


def _one_line(text: str) -> str:
    return inert(text.replace("\n", " "))


def _slack(text: str) -> str:
    """As Slack asks for: nothing is a link or a mention."""
    return escape(text, quote=False)
