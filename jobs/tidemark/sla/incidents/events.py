"""Formats alerts for the interfaces of pagers and alert managers.

Each function returns what one alert sends. Texts are cut to the lengths that the interfaces accept. Sources:
PagerDuty's Events API v2, version 2 of Alertmanager's API, Opsgenie's Alert API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from tidemark.model.settings.intervals import iso
from tidemark.model.sla_spec import Severity
from tidemark.semantics.incidents import Change
from tidemark.sla.incidents.alert import Alert

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
_PRIORITIES: Mapping[str, str] = MappingProxyType(
    {Severity.CRITICAL: "P1", Severity.WARNING: "P3", Severity.INFO: "P5"}
)
MOST_SUMMARY, MOST_MESSAGE, MOST_DESCRIPTION, MOST_NOTE, MOST_DETAIL = 1_024, 130, 15_000, 25_000, 1_000
"""Lengths that PagerDuty (the first) and Opsgenie accept, in characters.

Opsgenie accepts 8,000 for all details of an alert.
"""
MOST_ENTITY, MOST_USER = 512, 100


@dataclass(frozen=True, kw_only=True)
class ReceiverCall:
    """Holds an HTTP request to a receiver: method, path and JSON."""

    path: str
    body: Any
    method: str = "POST"


def payload_of(alert: Alert) -> dict[str, Any]:
    """Returns *alert* as JSON for a webhook: see docs/alert.schema.json."""
    impact = {name: list(names) for name, names in asdict(alert.impact).items()}
    return {
        "form": FORM,
        "dedup_key": alert.dedup_key,
        "incident": alert.incident,
        "change": alert.change.value,
        "at": iso(alert.at_ms),
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
        "limit": alert.limit,
        "unit": alert.unit,
        "text": alert.text,
        "culprit": alert.culprit,
        "hold_up": alert.hold_up,
        "impact": impact,
        "since": None if alert.since_ms is None else iso(alert.since_ms),
        "owner": alert.owner,
        "runbook": alert.runbook,
        "link": alert.link,
        "operator_link": alert.operator_link,
        "by": alert.by,
        "reminder": alert.reminder,
    }


def pagerduty_event(alert: Alert, texts: Mapping[str, str], *, routing_key: str) -> ReceiverCall:
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
            "summary": _cut(texts["subject"], MOST_SUMMARY),
            "source": f"{SOURCE}/{alert.topology}",
            "severity": alert.severity if alert.severity in [*Severity] else Severity.CRITICAL.value,
            "timestamp": iso(alert.at_ms),
            "component": alert.subject or alert.sla,
            "group": alert.topology,
            "class": alert.measure or alert.sla,
            "custom_details": payload_of(alert),
        },
        "links": links,
        "client": SOURCE,
    }
    return ReceiverCall(path="/v2/enqueue", body=body)


def alertmanager_alert(alert: Alert, texts: Mapping[str, str], *, valid_until_ms: int) -> ReceiverCall:
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
        "hold_up": alert.hold_up,
        "runbook_url": alert.runbook,
        "acknowledged_by": alert.by,
        "slas": ", ".join(alert.impact.slas),
        "tables": ", ".join(alert.impact.tables),
        "topics": ", ".join(alert.impact.topics),
        "dags": ", ".join(alert.impact.dags),
    }
    starts_ms = alert.at_ms if alert.since_ms is None else alert.since_ms
    ends_ms = alert.at_ms if alert.change is Change.RESOLVED else valid_until_ms
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
        bodies.append({**first, "endsAt": iso(max(alert.at_ms, starts_ms))})
    return ReceiverCall(path="/api/v2/alerts", body=bodies)


def opsgenie_calls(alert: Alert, texts: Mapping[str, str]) -> tuple[ReceiverCall, ...]:
    """Returns the requests for *alert* to Opsgenie."""
    at = f"/v2/alerts/{quote(alert.dedup_key, safe='')}"
    priority = _PRIORITIES.get(alert.severity, "P1")
    note = {"source": SOURCE, "note": _cut(texts["text"], MOST_NOTE)}
    match alert.change:
        case Change.OPENED | Change.ESCALATED:
            details = {name: _cut(str(value), MOST_DETAIL) for name, value in _details(alert).items() if value}
            body = {
                "message": _cut(texts["subject"], MOST_MESSAGE),
                "alias": alert.dedup_key,
                "description": _cut(texts["text"], MOST_DESCRIPTION),
                "details": details,
                "entity": _cut(alert.subject or alert.sla, MOST_ENTITY),
                "priority": priority,
                "source": SOURCE,
            }
            created = ReceiverCall(path="/v2/alerts", body=body)
            if alert.change is Change.OPENED:
                return (created,)
            # A channel of critical alerts has not opened one that begins as a warning. An open one only counts this.
            return (
                created,
                ReceiverCall(path=f"{at}/priority?identifierType=alias", body={"priority": priority}, method="PUT"),
                ReceiverCall(path=f"{at}/notes?identifierType=alias", body=note),
            )
        case Change.ACKNOWLEDGED:
            body = {**note, "user": _cut(alert.by or SOURCE, MOST_USER)}
            return (ReceiverCall(path=f"{at}/acknowledge?identifierType=alias", body=body),)
        case Change.RESOLVED:
            return (ReceiverCall(path=f"{at}/close?identifierType=alias", body=note),)


def _details(alert: Alert) -> dict[str, Any]:
    names = ("incident", "topology", "sla", "severity", "owner", "culprit", "runbook", "link")
    return {name: getattr(alert, name) for name in names}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
