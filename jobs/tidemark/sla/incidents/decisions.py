"""Records decisions of people about alerts: acknowledge, silence, snooze."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.facts.checks import Check, newest_check
from tidemark.facts.incidents import open_incidents
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso, utc
from tidemark.model.settings.lengths import duration_ms
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_event_rows import events_of, row_of
from tidemark.model.sla_events import Alert, AlertDecided
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.tables.catalog import DECISIONS as TABLE
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.incidents import CHECKS, Decision, DecisionSubject
from tidemark.sla.incidents.due import Silence, silenced_until, silences
from tidemark.sla.incidents.tables import acknowledge, open_slas, stored_decisions
from tidemark.storage.delta.report_tables import add_rows

if TYPE_CHECKING:
    from tidemark.query.sql import QueryResult

_STATES = {
    Decision.ACKNOWLEDGE: "acknowledged",
    Decision.SILENCE: "silenced",
    Decision.SNOOZE: "snoozed",
    Decision.UNSILENCE: "no longer silenced; decided",
}
"""State of a subject after each decision."""
DECISIONS = """
    SELECT * REPLACE (epoch_ms(decided_at) AS decided_at, epoch_ms(ends_at) AS ends_at) FROM decisions
    WHERE topology = $1 AND outcome IS NULL
"""
MADE = """
    SELECT decided_at, decision, subject, ends_at, decided_by, note FROM decisions
    WHERE topology = $1 AND outcome IS NULL ORDER BY decided_at DESC, subject
"""
OPENINGS = """
    SELECT topology, alert, sla, change, epoch_ms(changed_at) AS changed_at, verdict, severity, incidents, slas
    FROM alerts
    WHERE topology = $1 AND change = 'opened' AND audience IS NULL
          AND alert NOT IN (SELECT alert FROM alerts WHERE topology = $1 AND change = 'resolved')
"""
LONGEST_SILENCE_MS = 90 * DAY_MS
"""Longest silence. One without an end that nobody remembers would hide faults for years."""


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


@dataclass(frozen=True)
class DecisionResult:
    """What became of a decision, as *text* for people.

    *is_new* is False if the decision changed nothing: the incident was acknowledged already, or the subject was not
    silenced.
    """

    is_new: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class DecisionFacts:
    """What a person should know before deciding about alerts of a subject.

    Attributes:
        kind: kind of the subject.
        incidents: open incidents that the decision is about, as `open_incidents` has them.
        checked: the newest check of the subject, if that is an SLA without an open incident.
        silences: present silences of the subject, and of other subjects, that keep its alerts from channels.
        is_silenced: the subject itself is silenced, which a person can end.
    """

    kind: DecisionSubject
    incidents: Sequence[Row]
    checked: Check | None
    silences: Sequence[Silence]
    is_silenced: bool


def decision_facts(
    tables: Tables, layout: Layout, topology: str, subject: str, *, slas: Collection[str], at_ms: int
) -> DecisionFacts | None:
    """Returns what is known at *at_ms* about *subject*, or None if this is no open incident, SLA or topology.

    Args:
        tables: tables of the warehouse.
        layout: paths of the same warehouse.
        topology: the topology whose alerts are decided about.
        subject: the name of an incident, of an SLA or of the topology.
        slas: names of the SLAs that the topology promises.
        at_ms: the present, epoch ms.
    """
    every = open_incidents(tables, topology)
    incidents = {row["incident"]: row["sla"] for row in every}
    kind = _kind_of(topology, subject, slas, incidents)
    if kind is None:
        return None
    is_about_all = kind is DecisionSubject.TOPOLOGY
    concerned = [row for row in every if is_about_all or subject in (row["incident"], row["sla"])]
    is_sla_in_order = kind is DecisionSubject.SLA and not concerned
    present = [silence for silence in _silences(tables, topology) if silence.holds(at_ms)]
    own = [silence for silence in present if (silence.kind, silence.subject) == (kind, subject)]
    others = [silence for silence in present if silence not in own and _concerns(silence, subject, kind, incidents)]
    return DecisionFacts(
        kind=kind,
        incidents=concerned,
        checked=newest_check(tables.stored, layout, topology, pl.col("sla") == subject) if is_sla_in_order else None,
        silences=[*own, *others],
        is_silenced=bool(own),
    )


def decide(layout: Layout, topology: str, made: AlertDecision, *, slas: Collection[str], at_ms: int) -> DecisionResult:
    """Writes the decision *made* at *at_ms*, epoch ms.

    Args:
        layout: paths of the warehouse.
        topology: the topology whose alerts it is about.
        made: the decision.
        slas: names of the SLAs that the topology promises.
        at_ms: when it was made.

    Raises:
        InvalidArgument: the subject is unknown, or the time does not fit the decision.
    """
    # Acknowledging refuses an incident that is not open.
    is_acknowledgement = made.decision is Decision.ACKNOWLEDGE
    incidents = {} if is_acknowledgement else open_slas(layout, topology)
    kind = DecisionSubject.INCIDENT if is_acknowledgement else _kind(topology, made, slas, incidents)
    _refuse_wrong_time(made, at_ms)
    others = ""
    if made.decision is Decision.UNSILENCE:
        all_silences = silences(stored_decisions(layout, topology))
        own = [each for each in all_silences if (each.kind, each.subject) == (kind, made.subject)]
        present = [each for each in all_silences if each not in own and each.holds(at_ms)]
        others = _others_text(made.subject, kind, present, incidents)
        if not own or not own[-1].holds(at_ms):
            last = f"that of {own[-1].by} ended at {iso(own[-1].end_ms)}" if own else "no decision is about it"
            return DecisionResult(is_new=False, text=f"{made.subject} is not silenced: {last}{others}")
    if is_acknowledgement:
        earlier = acknowledge(layout, topology, made.subject, by=made.by, note=made.note, at_ms=at_ms)
        if earlier:
            text = f"{made.subject} is acknowledged already, by {earlier.decided_by} at {iso(earlier.changed_ms)}"
            return DecisionResult(is_new=False, text=text)
    decided = AlertDecided(
        topology=topology,
        decision=made.decision,
        subject_kind=kind,
        subject=made.subject,
        decided_ms=at_ms,
        decided_by=made.by,
        note=made.note or None,
        ends_ms=made.until_ms,
    )
    add_rows([row_of(decided)], TABLE, layout.report_table(topology, TABLE.name))
    until = "" if made.until_ms is None else f" until {iso(made.until_ms)}"
    return DecisionResult(is_new=True, text=f"{made.subject} is {_STATES[made.decision]} by {made.by}{until}{others}")


def _others_text(subject: str, kind: DecisionSubject, present: Sequence[Silence], incidents: Mapping[str, str]) -> str:
    """Describes those of the *present* silences, of other subjects, that keep alerts of *subject* from channels.

    *incidents* has the SLA of each open incident.
    """
    sentences = []
    for each in present:
        if _concerns(each, subject, kind, incidents):
            word = _STATES[Decision.SNOOZE if each.is_snooze else Decision.SILENCE]
            sentences.append(f"{each.subject} is still {word} by {each.by} until {iso(each.end_ms)}")
    return "".join(f"; {sentence}" for sentence in sentences)


def _concerns(silence: Silence, subject: str, kind: DecisionSubject, incidents: Mapping[str, str]) -> bool:
    """Returns True if *silence*, of another subject, keeps alerts of *subject* from channels."""
    pairs = {(subject, silence.subject), (silence.subject, subject)}
    return DecisionSubject.TOPOLOGY in {kind, silence.kind} or not pairs.isdisjoint(incidents.items())


def decisions_made(tables: Tables, topology: str) -> QueryResult:
    """Returns the decisions of people about alerts of *topology*, the newest first."""
    return tables.ask(MADE, [topology])


def silence_ends(tables: Tables, topology: str, *, at_ms: int) -> dict[str, int]:
    """Returns the end of the silence of each open incident, epoch ms.

    Incidents without a silence at *at_ms*, epoch ms, are left out. *tables* are those of the warehouse.
    """
    silenced = _silences(tables, topology)
    if not silenced:
        return {}
    ends_ms = {}
    for opening in events_of(Alert, tables.ask(OPENINGS, [topology]).objects):
        until_ms = silenced_until(opening, silenced, at_ms)
        if until_ms is not None:
            ends_ms.update(dict.fromkeys(opening.incidents, until_ms))
    return ends_ms


def _silences(tables: Tables, topology: str) -> list[Silence]:
    return silences(events_of(AlertDecided, tables.ask(DECISIONS, [topology]).objects))


def with_silences(alerts: Sequence[Row], tables: Tables, topology: str, *, at_ms: int) -> list[Row]:
    """Returns open *alerts*, those that no channel gets at *at_ms* with `silenced_until`."""
    ends_ms = silence_ends(tables, topology, at_ms=at_ms)
    rows = []
    for alert in alerts:
        until_ms = next((ends_ms[incident] for incident in alert["incidents"] if incident in ends_ms), None)
        rows.append(alert if until_ms is None else {**alert, "silenced_until": utc(until_ms)})
    return rows


def promised_slas(topology: Topology) -> list[str]:
    """Returns the names of the SLAs of *topology*, also of invalid ones.

    If the file cannot be read, there are none: incidents and the topology can still be silenced.
    """
    slas = known_slas(topology)
    return [*names_in(slas.specs), *slas.errors]


def end_ms(length: str | None, until: str | None, *, now_ms: int) -> int | None:
    """Returns the end of a silence, epoch ms, or None if neither *length* nor *until* is given.

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


def _kind(topology: str, made: AlertDecision, slas: Collection[str], incidents: Collection[str]) -> DecisionSubject:
    """Returns the kind of the subject of the decision *made*.

    *incidents* are the names of those that are open.
    """
    kind = _kind_of(topology, made.subject, slas, incidents)
    names, reason = [*incidents], ", which is not an open incident"
    if made.decision is not Decision.SNOOZE:
        names, reason = [*names, *slas, topology], ""
    if kind is DecisionSubject.INCIDENT or (kind is not None and made.decision is not Decision.SNOOZE):
        return kind
    choices = ", ".join(names) or "none: no incident is open"
    msg = f"cannot {made.decision} {made.subject!r}{reason}; use one of {choices}"
    raise InvalidArgument(msg)


def _kind_of(topology: str, subject: str, slas: Collection[str], incidents: Collection[str]) -> DecisionSubject | None:
    """Returns the kind of *subject*, or None if this is none of *incidents* and *slas*, and not *topology*."""
    if subject in incidents:
        return DecisionSubject.INCIDENT
    if subject in {CHECKS, *slas}:
        return DecisionSubject.SLA
    return DecisionSubject.TOPOLOGY if subject == topology else None


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
    elif made.until_ms - at_ms > LONGEST_SILENCE_MS:
        days = LONGEST_SILENCE_MS // DAY_MS
        msg = f"the {made.decision} would last longer than {days} days; write a shorter time, and decide again then"
        raise InvalidArgument(msg)
