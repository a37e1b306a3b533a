"""Describes a change of an alert to its receivers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from tidemark.account.owners.registry import OWNERS
from tidemark.account.text import remedy_of_cause
from tidemark.model.sla_events import AlertCause
from tidemark.safe_text import one_line
from tidemark.selection import present
from tidemark.semantics.incidents import Change
from tidemark.semantics.sla import Severity
from tidemark.sla.incidents.due import DueAlert

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
        incident: the first incident of the alert.
        change: what happened to the alert.
        changed_ms: when that happened.
        topology: the topology.
        cause: the cause that its SLAs have in common; None if no cause is known.
        place: the driver, operator or partition of the cause.
        audience: the owner whom this message tells that their SLAs are affected; None for the alert itself.
        sla: the broken SLA; if more than one is broken, the one that is described.
        severity: severity of the most severe SLA; one step lower in a message about the impact.
        opening_severity: the severity when the alert was opened.
        subject: the table, operator or stream that is measured.
        measure: the measure.
        verdict: the verdict of the check that changed it.
        observed: the measured value in *unit*; None if nothing was measured.
        threshold: the broken limit in *unit*; None if the measure has no limit.
        unit: one of `Unit`.
        message: measured and allowed values as a sentence; for an acknowledgement the person's note.
        culprit: the operator or input to look at.
        blocked_by: why, in a sentence.
        budget_left: unused share of the error budget.
        impact: everything that the cause affects.
        opened_ms: when the alert was opened.
        broken_ms: when the SLA broke, or the first check that found it broken.
        crossed_ms: when the SLA broke; None if only the check that found it broken is known.
        owner: the responsible team or person.
        runbook: the remedy, a link or a text.
        link: the page of the incident.
        operator_link: the page of the operator that is the cause; None if the cause is no operator.
        decided_by: the person who acknowledged it.
        reminder: number of the reminder, from 1; 0 for the change itself.
        remedy: what to do about the cause, in a sentence; None if no cause is known.
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
    crossed_ms: int | None
    owner: str | None
    runbook: str | None
    link: str
    operator_link: str | None
    decided_by: str | None
    reminder: int = 0
    remedy: str | None = None


_LOWER = {Severity.CRITICAL.value: Severity.WARNING.value, Severity.WARNING.value: Severity.INFO.value}
"""Severity of a message about the impact, by that of its SLAs."""


def message_of(due: DueAlert, *, link: str, operator_link: str | None = None, dags: Iterable[str] = ()) -> AlertMessage:
    """Returns the message of the alert that is *due*.

    Args:
        due: the change, or a reminder of it.
        link: address of the page to look at.
        operator_link: address of the page of the operator that is the cause.
        dags: DAGs that wait for late tables.
    """
    alert = due.alert

    def severity_of(word: str) -> str:
        return one_line(word if alert.audience is None else _LOWER.get(word, word))

    return AlertMessage(
        dedup_key=_key(f"{alert.topology}/{alert.alert}"),
        incident=one_line(alert.incidents[0] if alert.incidents else alert.alert),
        change=alert.change,
        changed_ms=alert.changed_ms,
        topology=one_line(alert.topology),
        cause=one_line(alert.cause.owner) if alert.cause else None,
        place=_line(_place(alert.cause)) if alert.cause else None,
        audience=_line(alert.audience),
        sla=one_line(alert.sla),
        severity=severity_of(alert.severity),
        opening_severity=severity_of(due.opening_severity or alert.severity),
        subject=_line(alert.subject),
        measure=_line(alert.measure),
        verdict=alert.verdict.value,
        observed=alert.observed,
        threshold=alert.threshold,
        unit=alert.unit,
        message=_line(alert.message),
        culprit=_line(alert.culprit),
        blocked_by=_line(alert.blocked_by),
        budget_left=alert.budget_left,
        impact=Impact(
            slas=_lines(alert.slas or (alert.sla,)),
            tables=_lines(alert.tables),
            topics=_lines(alert.topics),
            dags=_lines(dags),
            owners=_lines(alert.owners or present((alert.owner,))),
        ),
        opened_ms=alert.opened_ms,
        broken_ms=alert.broken_since_ms,
        crossed_ms=alert.crossed_ms,
        owner=_line(alert.owner),
        runbook=_line(alert.runbook),
        link=link,
        operator_link=operator_link,
        decided_by=_line(alert.decided_by),
        reminder=due.reminder or 0,
        remedy=_line(_remedy(alert.topology, alert.cause)) if alert.cause else None,
    )


def _place(cause: AlertCause) -> str | None:
    name, partition = cause.place
    where = name or cause.stream
    return where if where is None or partition is None else f"{where} partition {partition}"


def _remedy(topology: str, cause: AlertCause) -> str | None:
    # A check of another version may have named another owner.
    return remedy_of_cause(topology, cause) if cause.owner in OWNERS else None


def _line(text: str | None) -> str | None:
    return None if text is None else one_line(text)


def _lines(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(one_line, texts))


def _key(name: str) -> str:
    key = f"tidemark/{one_line(name)}"
    if len(key) <= MOST_CHARACTERS_OF_A_KEY:
        return key
    digest = sha256(name.encode()).hexdigest()
    return f"{key[: MOST_CHARACTERS_OF_A_KEY - len(digest) - 1]}-{digest}"
