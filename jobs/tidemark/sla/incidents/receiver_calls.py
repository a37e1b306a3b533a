"""Formats alerts for the interfaces of pagers and alert managers.

Each function returns what one alert sends. A text is cut to the length that the interface accepts. Sources:
PagerDuty's Events API v2, version 2 of Alertmanager's API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from tidemark.model.settings.intervals import iso
from tidemark.semantics.incidents import Change
from tidemark.semantics.sla import Severity
from tidemark.sla.incidents.alert_message import AlertMessage

SOURCE = "tidemark"
_HTTP = ("http://", "https://")
FORM = 1
"""Version of the JSON that webhooks receive."""
_ACTIONS: Mapping[Change, str] = MappingProxyType(
    {
        Change.OPENED: "trigger",
        Change.ESCALATED: "trigger",
        Change.ACKNOWLEDGED: "acknowledge",
        Change.RESOLVED: "resolve",
    }
)
MOST_SUMMARY = 1_024
"""Length of a summary that PagerDuty accepts, in characters."""


@dataclass(frozen=True, kw_only=True)
class ReceiverCall:
    """An HTTP request to a receiver, a POST: path and JSON."""

    path: str
    body: Any


def payload_of(alert: AlertMessage) -> dict[str, Any]:
    """Returns *alert* as JSON for a webhook: see docs/alert.schema.json."""
    impact = {name: list(names) for name, names in asdict(alert.impact).items()}
    return {
        "form": FORM,
        "dedup_key": alert.dedup_key,
        "incident": alert.incident,
        "change": alert.change.value,
        "changed_at": iso(alert.changed_ms),
        "severity": alert.severity,
        "topology": alert.topology,
        "cause": alert.cause,
        "place": alert.place,
        "audience": alert.audience,
        "sla": alert.sla,
        "subject": alert.subject,
        "measure": alert.measure,
        "verdict": alert.verdict,
        "observed": alert.observed,
        "threshold": alert.threshold,
        "unit": alert.unit,
        "message": alert.message,
        "culprit": alert.culprit,
        "blocked_by": alert.blocked_by,
        "impact": impact,
        "broken_since": None if alert.crossed_ms is None else iso(alert.crossed_ms),
        "owner": alert.owner,
        "runbook": alert.runbook,
        "link": alert.link,
        "operator_link": alert.operator_link,
        "decided_by": alert.decided_by,
        "reminder": alert.reminder,
    }


def pagerduty_event(alert: AlertMessage, texts: Mapping[str, str], *, routing_key: str) -> ReceiverCall:
    """Returns the event of *alert* for PagerDuty.

    Args:
        alert: the alert.
        texts: of the alert, as `alert_texts` returns them.
        routing_key: integration key of the service.
    """
    named = {"Incident": alert.link, "Operator": alert.operator_link, "Runbook": alert.runbook}
    links = [{"href": href, "text": text} for text, href in named.items() if (href or "").startswith(_HTTP)]
    body = {
        "routing_key": routing_key,
        "event_action": _ACTIONS[alert.change],
        "dedup_key": alert.dedup_key,
        "payload": {
            "summary": _cut(texts["subject"]),
            "source": f"{SOURCE}/{alert.topology}",
            "severity": alert.severity if alert.severity in [*Severity] else Severity.CRITICAL.value,
            "timestamp": iso(alert.changed_ms),
            "component": alert.subject or alert.sla,
            "group": alert.topology,
            "class": alert.measure or alert.sla,
            "custom_details": payload_of(alert),
        },
        "links": links,
        "client": SOURCE,
    }
    return ReceiverCall(path="/v2/enqueue", body=body)


def alertmanager_alert(alert: AlertMessage, texts: Mapping[str, str], *, valid_until_ms: int) -> ReceiverCall:
    """Returns *alert* for Alertmanager.

    Its labels are the same for every change of an alert; a new severity ends it and begins another one. An open alert
    is resolved at *valid_until_ms*, epoch ms, if it is not sent again.
    """
    labels = {
        "alertname": alert.cause or alert.sla,
        "topology": alert.topology,
        "severity": alert.severity,
        "owner": alert.audience or alert.owner,
        "dedup_key": alert.dedup_key,
    }
    annotations = {
        "summary": texts["subject"],
        "description": texts["text"],
        "culprit": alert.culprit,
        "blocked_by": alert.blocked_by,
        "runbook_url": alert.runbook,
        "acknowledged_by": alert.decided_by,
        "slas": ", ".join(alert.impact.slas),
        "tables": ", ".join(alert.impact.tables),
        "topics": ", ".join(alert.impact.topics),
        "dags": ", ".join(alert.impact.dags),
    }
    starts_ms = alert.changed_ms if alert.broken_ms is None else alert.broken_ms
    ends_ms = alert.changed_ms if alert.change is Change.RESOLVED else valid_until_ms
    body: dict[str, Any] = {
        # An empty value means no label.
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": iso(starts_ms),
        "endsAt": iso(max(ends_ms, starts_ms)),
        "generatorURL": alert.link if alert.link.startswith("http") else "",
    }
    bodies = [body]
    if alert.severity != alert.opening_severity:
        # With another label it is another alert: the first one ends.
        first = {**body, "labels": {**body["labels"], "severity": alert.opening_severity}}
        bodies.append({**first, "endsAt": iso(max(alert.changed_ms, starts_ms))})
    return ReceiverCall(path="/api/v2/alerts", body=bodies)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SUMMARY else f"{text[: MOST_SUMMARY - 1]}…"
