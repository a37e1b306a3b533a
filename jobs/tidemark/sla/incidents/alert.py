"""Describes a change of an incident to receivers of alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tidemark.escaping import inert
from tidemark.semantics.incidents import Change

MOST_LETTERS_OF_A_KEY = 255
"""Longest key that each receiver accepts (PagerDuty's limit)."""


@dataclass(frozen=True, kw_only=True)
class Impact:
    """Lists what an incident affects, by name."""

    slas: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    dags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A change of an incident, as a receiver gets it.

    Instants are epoch ms. Texts have one line and no control characters.

    Attributes:
        dedup_key: the same for every change of an incident, by which receivers group and resolve.
        incident: its name.
        change: the event.
        at_ms: when that happened.
        topology: the topology.
        sla: the broken SLA.
        severity: of the SLA.
        subject: the table, operator or stream that is measured.
        measure: the measure.
        verdict: of the check that changed it.
        observed: the measured value in *unit*; None: nothing was measured.
        limit: the broken limit in *unit*; None: there is none.
        unit: `ms`, `records`, `rows` or `burn rate`.
        text: measured and allowed values as a sentence; of an acknowledgement the note.
        culprit: the operator or input to look at.
        hold_up: the first finding of `tidemark why`.
        budget_left: unused share of the error budget.
        impact: what the incident affects.
        since_ms: when the SLA broke.
        owner: the responsible team or person.
        runbook: the remedy, a link or a text.
        link: the page of the incident.
        by: the person who acknowledged it.
    """

    dedup_key: str
    incident: str
    change: Change
    at_ms: int
    topology: str
    sla: str
    severity: str
    subject: str | None
    measure: str | None
    verdict: str
    observed: float | None
    limit: float | None
    unit: str | None
    text: str | None
    culprit: str | None
    hold_up: str | None
    budget_left: float | None
    impact: Impact
    since_ms: int | None
    owner: str | None
    runbook: str | None
    link: str
    by: str | None


def alert_of(change: Mapping[str, Any], *, link: str) -> Alert:
    """Returns the alert for *change*.

    Args:
        change: a row of `incidents` with instants as epoch ms.
        link: address of the page to look at.
    """
    row: dict[str, Any] = {name: one_line(value) if isinstance(value, str) else value for name, value in change.items()}
    return Alert(
        dedup_key=_key(f"{change['topology']}/{change['incident']}"),
        incident=row["incident"],
        change=Change(change["change"]),
        at_ms=row["at"],
        topology=row["topology"],
        sla=row["sla"],
        severity=row["severity"],
        subject=row["subject"],
        measure=row["measure"],
        verdict=row["verdict"],
        observed=row["observed"],
        limit=row["threshold"],
        unit=row["unit"],
        text=row["said"],
        culprit=row["culprit"],
        hold_up=row["held_by"],
        budget_left=row["budget_left"],
        impact=Impact(slas=(row["sla"],), owners=(row["owner"],) if row["owner"] else ()),
        since_ms=row["broken_since"],
        owner=row["owner"],
        runbook=row["runbook"],
        link=link,
        by=row["by"],
    )


def _key(name: str) -> str:
    key = f"tidemark/{one_line(name)}"
    if len(key) <= MOST_LETTERS_OF_A_KEY:
        return key
    digest = sha256(name.encode()).hexdigest()
    return f"{key[: MOST_LETTERS_OF_A_KEY - len(digest) - 1]}-{digest}"


def one_line(text: str) -> str:
    """Returns *text* as one line without control characters."""
    return inert(text.replace("\n", " "))
