"""Records decisions of people about alerts: acknowledge, silence, snooze."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidemark.collecting import names_in
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.toml_keys import duration_ms
from tidemark.model.sla_spec import load_usable
from tidemark.model.tables.catalog import ALERT_DECISIONS
from tidemark.model.topology import Topology
from tidemark.reports.report_tables import add_rows
from tidemark.semantics.incidents import CHECKS, Decision, DecisionSubject
from tidemark.sla.incidents.due import silences
from tidemark.sla.incidents.tables import acknowledge, open_names, stored_decisions


@dataclass(frozen=True, kw_only=True)
class AlertDecision:
    """A decision about *subject*: the name of an incident, SLA or topology.

    *until_ms* is the end of a silence or snooze, epoch ms; None for other decisions.
    """

    decision: Decision
    subject: str
    by: str
    note: str = ""
    until_ms: int | None = None


def decide(layout: Layout, topology: str, made: AlertDecision, *, slas: Collection[str], at_ms: int) -> bool:
    """Writes the decision *made* at *at_ms*, epoch ms.

    Args:
        layout: of the warehouse.
        topology: whose alerts it is about.
        made: the decision.
        slas: names of the SLAs that the topology promises.
        at_ms: when it was made.

    Returns:
        False if there is nothing to decide: the incident is acknowledged already, or the subject is not silenced.

    Raises:
        InvalidArgument: the subject is unknown, or the time does not fit the decision.
    """
    kind = _kind(layout, topology, made, slas)
    _refuse_wrong_time(made, at_ms)
    if made.decision is Decision.UNSILENCE:
        present = [each for each in silences(stored_decisions(layout, topology)) if each.holds(at_ms)]
        if (kind, made.subject) not in {(each.kind, each.subject) for each in present}:
            return False
    if made.decision is Decision.ACKNOWLEDGE and not acknowledge(
        layout, topology, made.subject, by=made.by, note=made.note, at_ms=at_ms
    ):
        return False
    row = {
        "topology": topology,
        "decision": made.decision.value,
        "subject_kind": kind.value,
        "subject": made.subject,
        "decided_at": at_ms,
        "until": made.until_ms,
        "by": made.by,
        "note": made.note or None,
    }
    add_rows([row], ALERT_DECISIONS, layout.report_table(topology, ALERT_DECISIONS.name))
    return True


def promised_slas(topology: Topology) -> list[str]:
    """Returns the names of the SLAs of *topology*, also of invalid ones.

    If the file cannot be read, there are none: incidents and the topology can still be silenced.
    """
    try:
        slas = load_usable(Project.here().slas, topology)
    except (FileNotFoundError, InvalidSpec):
        return []
    return [*names_in(slas.specs), *slas.errors]


def end_ms(length: str | None, until: str | None, *, now_ms: int) -> int | None:
    """Returns the end of a silence, epoch ms; None: neither is given.

    Args:
        length: a length of time, such as `2 h`, from *now_ms* on.
        until: an instant, ISO 8601, by default in UTC.
        now_ms: the present, epoch ms.

    Raises:
        InvalidArgument: one is invalid, or both are given.
    """
    if length and until:
        msg = "a silence has a length or an end; leave one of them out"
        raise InvalidArgument(msg)
    if until:
        return instant_ms(until)
    if not length:
        return None
    length_ms = duration_ms(length)
    if length_ms is None:
        msg = f'the length of time is {length!r}; write one such as "30 min", "2 h" or "1 d"'
        raise InvalidArgument(msg)
    return now_ms + length_ms


def _kind(layout: Layout, topology: str, made: AlertDecision, slas: Collection[str]) -> DecisionSubject:
    """Returns the kind of the subject of the decision *made*."""
    incidents = open_names(layout, topology)
    if made.decision is Decision.ACKNOWLEDGE or made.subject in incidents:
        # Acknowledging refuses an incident that is not open.
        return DecisionSubject.INCIDENT
    names, reason = [*incidents], ", which is not an open incident"
    if made.decision is not Decision.SNOOZE:
        if made.subject in {CHECKS, *slas}:
            return DecisionSubject.SLA
        if made.subject == topology:
            return DecisionSubject.TOPOLOGY
        names, reason = [*names, *slas, topology], ""
    choices = ", ".join(names) or "none: no incident is open"
    msg = f"cannot {made.decision} {made.subject!r}{reason}; use one of {choices}"
    raise InvalidArgument(msg)


def _refuse_wrong_time(made: AlertDecision, at_ms: int) -> None:
    """Refuses a missing or past end, and one that is not needed."""
    if made.decision not in {Decision.SILENCE, Decision.SNOOZE}:
        if made.until_ms is not None:
            msg = f"{made.decision} has no end; leave the time out"
            raise InvalidArgument(msg)
    elif made.until_ms is None or made.until_ms <= at_ms:
        problem = "has no end" if made.until_ms is None else "would have ended already"
        msg = f'the {made.decision} {problem}; write a length of time, such as "2 h", or a later instant'
        raise InvalidArgument(msg)
