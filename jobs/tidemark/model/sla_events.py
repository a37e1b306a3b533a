"""What checks of SLAs, alerts and people leave behind: one frozen event for each row of their tables.

`model.sla_event_rows` turns events into rows and back. Instants are epoch ms; None where nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.semantics.sla import Verdict


@dataclass(frozen=True, kw_only=True)
class AlertCause:
    """The cause of a broken SLA, or of an alert.

    Attributes:
        owner: whose fault it is.
        detail: which operator, source, SOURCE/PARTITION, host, … the owner is; None if *stream* says it.
        stream: whose time it was, TOPOLOGY/STREAM; None if it was spent outside of streams, or no stream is known.
        amount_ms: the time beyond what is expected of the owner, ms; None if the cause is not about time, or if nobody
            measured the time.
        records: how many records the owner kept from being counted, or, if nobody counted these, how many usually come.
            None if the cause is not about numbers of records.
        share: the owner's share of the whole excess, 0 to 1; None if it was not measured.
        results: how many of the results that broke the SLA the cause explains; None if they were not counted.
        broken: how many results broke the SLA; None if they were not counted.
        since_ms: when it began.
    """

    owner: str
    detail: str | None = None
    stream: str | None = None
    amount_ms: int | None = None
    records: int | None = None
    share: float | None = None
    results: int | None = None
    broken: int | None = None
    since_ms: int | None = None

    @property
    def place(self) -> tuple[str | None, int | None]:
        """The detail without its partition, and the number of the partition; None for what is missing.

        >>> AlertCause(owner="silence", detail="orders/3").place, AlertCause(owner="pause", detail="h/x").place
        (('orders', 3), ('h/x', None))
        """
        name, slash, partition = (self.detail or "").rpartition("/")
        return (name, int(partition)) if slash and partition.isdecimal() else (self.detail, None)


@dataclass(frozen=True)
class StaleGroup:
    """A group of an SLA with `by`, and its newest record time, epoch ms."""

    name: str
    newest_ms: int


@dataclass(frozen=True, kw_only=True)
class SlaResult:
    """What one check found of one SLA: a row of `sla_results`, whose columns say more.

    *cause* explains most of the results that broke it, and *other_causes* the next most.
    """

    topology: str
    sla: str
    checked_ms: int
    run_id: str
    verdict: Verdict
    subject: str | None = None
    measure: str | None = None
    severity: str = ""
    owner: str | None = None
    runbook: str | None = None
    observed_ms: float | None = None
    warn_after_ms: float | None = None
    error_after_ms: float | None = None
    crossed_ms: int | None = None
    over_ms: int | None = None
    message: str | None = None
    culprit: str | None = None
    blocked_by: str | None = None
    cause: AlertCause | None = None
    other_causes: tuple[AlertCause, ...] = ()
    records: int | None = None
    share: float | None = None
    burn_rate: float | None = None
    budget_left: float | None = None
    objective: str | None = None
    target: float | None = None
    threshold_ms: int | None = None
    window_ms: int | None = None
    window_records: int | None = None
    window_slow: int | None = None
    resolve_after_ms: int | None = None
    excluded_because: str | None = None
    stale_groups: tuple[StaleGroup, ...] | None = None

    @property
    def causes(self) -> tuple[AlertCause, ...]:
        """All causes that are known, that which explains most first."""
        return () if self.cause is None else (self.cause, *self.other_causes)


@dataclass(frozen=True, kw_only=True)
class BrokenSlaChange:
    """What changes of incidents and changes of alerts say of the broken SLA."""

    topology: str
    sla: str
    change: Change
    changed_ms: int
    verdict: Verdict
    severity: str
    opened_ms: int | None = None
    broken_since_ms: int | None = None
    crossed_ms: int | None = None
    run_id: str | None = None
    subject: str | None = None
    measure: str | None = None
    owner: str | None = None
    runbook: str | None = None
    culprit: str | None = None
    blocked_by: str | None = None
    message: str | None = None
    observed: float | None = None
    threshold: float | None = None
    unit: str | None = None
    budget_left: float | None = None
    decided_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class IncidentChange(BrokenSlaChange):
    """A change of an incident: a row of `incidents`."""

    incident: str

    @property
    def name(self) -> str:
        """The name of the incident."""
        return self.incident


@dataclass(frozen=True, kw_only=True)
class Alert(BrokenSlaChange):
    """A change of an alert: a row of `alerts`.

    *fault* is the same in alerts of all topologies that one fault has broken; None if only this topology can have it.
    """

    alert: str
    cause: AlertCause | None = None
    fault: str | None = None
    incidents: tuple[str, ...] = ()
    slas: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    audience: str | None = None

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.alert


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A channel has delivered a change of an alert: a row of `deliveries`.

    *reminder* is the number of the reminder that was delivered, from 1; None if it was the change itself.
    """

    topology: str
    alert: str
    change: Change
    channel: str
    delivered_ms: int
    run_id: str | None = None
    reminder: int | None = None


@dataclass(frozen=True, kw_only=True)
class AlertDecided:
    """A decision of a person about alerts: a row of `decisions`. *ends_ms* is the end of a silence, exclusive."""

    topology: str
    decision: Decision
    subject_kind: DecisionSubject
    subject: str
    decided_ms: int
    decided_by: str | None = None
    note: str | None = None
    ends_ms: int | None = None


class Changed(Protocol):
    """A change of an incident or of an alert."""

    @property
    def name(self) -> str:
        """Of what it is a change."""

    @property
    def change(self) -> Change:
        """What happened."""

    @property
    def changed_ms(self) -> int:
        """When it happened."""


C = TypeVar("C", bound=Changed)


def in_time(changes: Iterable[C]) -> list[C]:
    """Returns *changes* in order: by instant, then by name, then in the order of the members of Change."""
    order = [*Change]
    return sorted(changes, key=lambda each: (each.changed_ms, each.name, order.index(each.change)))


def still_open(changes: Iterable[C]) -> dict[str, C]:
    """Returns, by name, the newest change of each incident, or alert, that is not resolved.

    Acknowledgements do not count, since the change is one that a check made.
    """
    newest: dict[str, C] = {}
    for each in in_time(changes):
        if each.change is Change.RESOLVED:
            newest.pop(each.name, None)
        elif each.change is not Change.ACKNOWLEDGED:
            newest[each.name] = each
    return newest
