"""Describes a change of an alert to its receivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tidemark.escaping import one_line
from tidemark.model.sla_spec import Severity
from tidemark.semantics.incidents import Change
from tidemark.sla.incidents.changes import name_of

MOST_CHARACTERS_OF_A_KEY = 255
"""Longest key that each receiver accepts (PagerDuty's limit)."""


@dataclass(frozen=True, kw_only=True)
class Impact:
    """Lists what the cause of an alert affects, by name."""

    slas: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    dags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlertMessage:
    """A change of an alert, as a receiver gets it.

    Instants are epoch ms. Texts have one line and no control characters.

    Attributes:
        dedup_key: the same for every change of an alert, by which receivers group and resolve.
        incident: its first incident.
        change: the event.
        changed_ms: when that happened.
        topology: the topology.
        cause: the cause that its SLAs have in common; None: no cause is known.
        place: the driver, operator or partition of the cause.
        audience: the owner to whom this is a message about the impact; None: it is the alert itself.
        sla: the broken SLA; of several, the one that is described.
        severity: of the most severe SLA; lower in a message about the impact.
        opening_severity: the same when the alert was opened.
        subject: the table, operator or stream that is measured.
        measure: the measure.
        verdict: of the check that changed it.
        observed: the measured value in *unit*; None: nothing was measured.
        threshold: the broken limit in *unit*; None: the measure has no limit.
        unit: one of `Unit`.
        message: measured and allowed values as a sentence; of an acknowledgement the note.
        culprit: the operator or input to look at.
        blocked_by: the first finding of `tidemark why`.
        budget_left: unused share of the error budget.
        impact: everything that the cause affects.
        opened_ms: when the alert was opened.
        broken_ms: when the SLA broke; equal to `opened_ms` if only the check that found it broken is known.
        owner: the responsible team or person.
        runbook: the remedy, a link or a text.
        link: the page of the incident.
        operator_link: the page of the operator that is the cause; None: no operator is.
        decided_by: the person who acknowledged it.
        reminder: number of the reminder, from 1; 0: the change itself.
    """

    dedup_key: str
    incident: str
    change: Change
    changed_ms: int
    topology: str
    cause: str | None
    place: str | None
    audience: str | None
    sla: str
    severity: str
    opening_severity: str
    subject: str | None
    measure: str | None
    verdict: str
    observed: float | None
    threshold: float | None
    unit: str | None
    message: str | None
    culprit: str | None
    blocked_by: str | None
    budget_left: float | None
    impact: Impact
    opened_ms: int | None
    broken_ms: int | None
    owner: str | None
    runbook: str | None
    link: str
    operator_link: str | None
    decided_by: str | None
    reminder: int = 0


_LOWER = {Severity.CRITICAL.value: Severity.WARNING.value, Severity.WARNING.value: Severity.INFO.value}
"""Severity of a message about the impact, by that of its SLAs."""


def alert_of(
    change: Mapping[str, Any], *, link: str, operator_link: str | None = None, dags: Iterable[str] = ()
) -> AlertMessage:
    """Returns the alert for *change*.

    Args:
        change: a row of `alerts` or of `incidents`; instants are epoch ms.
        link: address of the page to look at.
        operator_link: address of the page of the operator that is the cause.
        dags: DAGs that wait for late tables.
    """
    row: dict[str, Any] = {name: one_line(value) if isinstance(value, str) else value for name, value in change.items()}
    is_impact = row.get("audience") is not None
    named = ("incidents", "slas", "tables", "topics", "owners")
    lists = {name: tuple(map(one_line, change.get(name) or ())) for name in named}
    owner = (row["owner"],) if row["owner"] else ()
    severity, opening = row["severity"], row.get("opening_severity") or row["severity"]
    partition = row.get("cause_partition")
    where = row.get("cause_operator") or row.get("cause_sub_topology")
    return AlertMessage(
        dedup_key=_key(f"{change['topology']}/{name_of(change)}"),
        incident=lists["incidents"][0] if lists["incidents"] else one_line(name_of(change)),
        change=Change(change["change"]),
        changed_ms=row["changed_at"],
        topology=row["topology"],
        cause=row.get("cause"),
        place=where if where is None or partition is None else f"{where} partition {partition}",
        audience=row.get("audience"),
        sla=row["sla"],
        severity=_LOWER.get(severity, severity) if is_impact else severity,
        opening_severity=_LOWER.get(opening, opening) if is_impact else opening,
        subject=row["subject"],
        measure=row["measure"],
        verdict=row["verdict"],
        observed=row["observed"],
        threshold=row["threshold"],
        unit=row["unit"],
        message=row["message"],
        culprit=row["culprit"],
        blocked_by=row["blocked_by"],
        budget_left=row["budget_left"],
        impact=Impact(
            slas=lists["slas"] or (row["sla"],),
            tables=lists["tables"],
            topics=lists["topics"],
            dags=tuple(map(one_line, dags)),
            owners=lists["owners"] or owner,
        ),
        opened_ms=row["opened_at"],
        broken_ms=row["broken_since"],
        owner=row["owner"],
        runbook=row["runbook"],
        link=link,
        operator_link=operator_link,
        decided_by=row["decided_by"],
        reminder=row.get("reminder") or 0,
    )


def _key(name: str) -> str:
    key = f"tidemark/{one_line(name)}"
    if len(key) <= MOST_CHARACTERS_OF_A_KEY:
        return key
    digest = sha256(name.encode()).hexdigest()
    return f"{key[: MOST_CHARACTERS_OF_A_KEY - len(digest) - 1]}-{digest}"
