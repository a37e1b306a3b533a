"""Derives alerts from incidents: incidents of one fault are one alert.

An alert opens with its first incident and is resolved when no open incident has its fault. It may grow meanwhile
without another change. The fault of an open incident stays until another explains twice as many of its results in two
checks in a row; then the incident moves to the alert of that one, and leaves the lists of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark.model.sla_events import Alert, AlertCause, IncidentChange, SlaResult, in_time, still_open
from tidemark.model.topology import Topology
from tidemark.selection import in_order_of, outside, present
from tidemark.semantics.incidents import BROKEN, CHECKS, Change, next_changes, worst_first
from tidemark.semantics.sla import Severity, Unit, Verdict
from tidemark.sla.incidents.changes import PAST, name_since, observed_in
from tidemark.sla.incidents.faults import AlertFault, Common, common_of, fault_of
from tidemark.sla.incidents.impact import results_downstream

LISTS = ("incidents", "slas", "tables", "topics", "owners")
"""Fields of an alert that grow while it is open."""
TWICE, IN_A_ROW = 2, 2
"""How many times as many results another fault must explain to replace that of an incident, and in how many checks."""
_OF_WORST = (
    "topology", "sla", "verdict", "subject", "measure", "observed", "threshold", "unit", "message", "culprit",
    "blocked_by", "budget_left", "runbook", "run_id",
)  # fmt: skip
_RANKS: Mapping[str, int] = {severity: rank for rank, severity in enumerate(Severity)}
ENDED = "no SLA is broken for this cause any more; one that is still broken has another cause, and an alert of its own"


def alert_changes(
    topology: Topology,
    incidents: Sequence[IncidentChange],
    results: Sequence[SlaResult],
    alerts: Sequence[Alert],
    *,
    at_ms: int,
    since_ms: int,
    project: Iterable[Topology] = (),
    elsewhere: Callable[[], Sequence[Alert]] = lambda: (),
) -> list[Alert]:
    """Returns the changes of alerts that follow from the *incidents*.

    One whose alert and change are among the *alerts* replaces that one: its lists have grown. Called again with the
    result among the *alerts* it returns none.

    Args:
        topology: whose SLAs they are.
        incidents: all changes of incidents.
        results: of the checks since the incidents opened.
        alerts: all changes of alerts so far.
        at_ms: the instant of the newest check, epoch ms.
        since_ms: incidents that were resolved before, and never alerted, are left out. An alert whose incidents ended
            before ends without the others of its fault.
        project: the topologies that may read its topics.
        elsewhere: returns the changes of alerts of other topologies. An alert does not end while a later one of its
            fault is open there: channels that have it do not get the later one.
    """
    # Messages about the impact follow from the alerts.
    own = [each for each in alerts if each.audience is None]
    grouping = _Grouping(topology, incidents, results, own, project, at_ms=at_ms, since_ms=since_ms)
    groups = grouping.groups()
    open_alerts = {common_of(each.cause, each.alert): each for each in _open(own)}
    changed: list[Alert] = []
    for common in {**groups, **open_alerts}:
        members, before = groups.get(common, []), open_alerts.get(common)
        changed += grouping.changes(common, members, before, elsewhere)
    changed.sort(key=lambda each: each.change is Change.RESOLVED)
    return [each for alert in changed for each in (alert, *_impacts(alert, alerts, incidents, at_ms))]


def precedes(one: Alert, other: Alert) -> bool:
    """Returns True if *one* and *other*, of another topology, have one fault and *one* opened first."""
    is_first = (one.opened_ms or 0, one.topology) < (other.opened_ms or 0, other.topology)
    return one.fault is not None and one.fault == other.fault and is_first


class _Grouping:
    """Groups the *incidents* of *topology* by their faults."""

    def __init__(
        self,
        topology: Topology,
        incidents: Sequence[IncidentChange],
        results: Sequence[SlaResult],
        alerts: Sequence[Alert],
        project: Iterable[Topology],
        *,
        at_ms: int,
        since_ms: int,
    ) -> None:
        self._topology, self._incidents, self._alerts = topology, incidents, alerts
        self._at_ms, self._since_ms = at_ms, since_ms
        self._project = [each for each in project if each.name != topology.name]
        self._unresolved = still_open(incidents)
        self._alerted = {incident for alert in alerts for incident in alert.incidents}
        judged = sorted((each for each in results if each.excluded_because != PAST), key=lambda each: each.checked_ms)
        self._results: dict[str, list[SlaResult]] = defaultdict(list)
        for result in judged:
            self._results[result.sla].append(result)
        self._ends = {each.incident: each for each in incidents if each.change is Change.RESOLVED}

    def groups(self) -> dict[Common, list[IncidentChange]]:
        """Returns incidents by what they have in common.

        They are open, or were resolved lately, before any alert had them.
        """
        groups: dict[Common, list[IncidentChange]] = defaultdict(list)
        by_checks = [each for each in self._incidents if each.change in {Change.OPENED, Change.ESCALATED}]
        worst = {each.incident: each for each in in_time(by_checks)}
        for name, incident in {**worst, **self._unresolved}.items():
            end = self._ends.get(name)
            is_new = name not in self._alerted and end is not None and end.changed_ms >= self._since_ms
            if name in self._unresolved or is_new:
                groups[self._common_of(incident)].append(incident)
        return groups

    def _common_of(self, incident: IncidentChange) -> Common:
        """Returns what *incident* has in common with others: its fault, or its name."""
        common: Common = incident.incident
        if incident.sla == CHECKS:
            return common
        end = self._ends.get(incident.incident)
        until_ms = self._at_ms if end is None else end.changed_ms
        rival, checks = None, 0
        for result in self._results[incident.sla]:
            if not (incident.opened_ms or 0) <= result.checked_ms <= until_ms:
                continue
            if result.verdict is Verdict.PASS:
                rival, checks = None, 0
            if result.cause is None or result.verdict not in BROKEN:
                continue
            new = fault_of(result.cause)
            if not isinstance(common, AlertFault):
                common = new
            elif new == common or _explained(result, new) < TWICE * _explained(result, common):
                rival, checks = None, 0
            else:
                rival, checks = new, checks + 1 if new == rival else 1
                if checks >= IN_A_ROW:
                    common, rival, checks = new, None, 0
        return common

    def changes(
        self,
        common: Common,
        members: Sequence[IncidentChange],
        before: Alert | None,
        elsewhere: Callable[[], Sequence[Alert]],
    ) -> Iterator[Alert]:
        """Yields what happens to the alert of *members*, and its opening again if its lists have grown.

        Args:
            common: what its incidents have in common.
            members: its incidents.
            before: its opening as it was written, if it was.
            elsewhere: returns the changes of alerts of other topologies.
        """
        alert = before if before is not None and not members else self._opening(common, members, before)
        written = {each.change: each for each in self._alerts if each.alert == alert.alert}
        if before is not None and alert != before:
            yield alert
        now = self._worst(members, alert.owners, common) if members else {}
        acknowledgement = self._acknowledgement(common) if members else None
        escalated = written.get(Change.ESCALATED)
        has_ended = not any(each.incident in self._unresolved for each in members)
        happened = next_changes(
            written,
            has_ended=has_ended and not self._is_awaited(alert, elsewhere),
            is_worse=bool(now) and _is_worse(now, alert),
            is_acknowledged=acknowledgement is not None,
        )
        for change in happened:
            match change:
                case Change.OPENED:
                    yield alert
                case Change.ESCALATED:
                    at_ms = max(each.changed_ms for each in members)
                    escalated = replace(alert, **now | {"owner": alert.owner}, change=change, changed_ms=at_ms)
                    yield escalated
                case Change.ACKNOWLEDGED if acknowledgement is not None:
                    yield replace(
                        alert,
                        change=change,
                        changed_ms=max(acknowledgement.changed_ms, alert.changed_ms),
                        decided_by=acknowledgement.decided_by,
                        message=acknowledgement.message,
                    )
                case Change.RESOLVED:
                    lists = {name: getattr(alert, name) for name in LISTS}
                    yield self._end(replace(escalated or alert, **lists), elsewhere)

    def _is_awaited(self, alert: Alert, elsewhere: Callable[[], Sequence[Alert]]) -> bool:
        """Returns True if a later alert of the fault of *alert*, whose incidents have ended, is open elsewhere.

        That of a topology which is not checked any more would be open for ever.
        """
        ended_ms = [self._ends[name].changed_ms for name in alert.incidents if name in self._ends]
        if alert.fault is None or max(ended_ms, default=self._at_ms) < self._since_ms:
            return False
        return any(precedes(alert, each) for each in _open(elsewhere()))

    def _opening(self, common: Common, members: Sequence[IncidentChange], before: Alert | None) -> Alert:
        """Returns an alert's opening, with its lists as they are now."""
        opened = {each.incident: each for each in self._incidents if each.change is Change.OPENED}
        moved = [name for name in (before.incidents if before else ()) if self._has_moved(opened.get(name), common)]
        incidents = outside(_joined(before, "incidents", (each.incident for each in members)), moved)
        of_alert = [each for name, each in opened.items() if name in incidents]
        tables, topics = self._impact(common, of_alert)
        owners = present(each.owner or None for each in of_alert)
        left = [opened[name] for name in moved]
        slas_left = {each.sla for each in left} - {each.sla for each in of_alert}
        owners_left = {each.owner for each in left} - {*owners}
        slas = _joined(before, "slas", (each.sla for each in members))
        lists: dict[str, Any] = {
            "incidents": tuple(incidents),
            "slas": tuple(sla for sla in slas if sla not in slas_left),
            "owners": tuple(owner for owner in _joined(before, "owners", owners) if owner not in owners_left),
            "tables": _joined(before, "tables", tables),
            "topics": _joined(before, "topics", topics),
        }
        if before is not None:
            return replace(before, **lists)
        opened_ms = min(each.changed_ms for each in of_alert)
        if any(each.incident in self._alerted for each in members):
            # It moves here from the alert of another cause.
            opened_ms = self._at_ms
        cause = self._cause(common, members)
        broken_ms, crossed_ms = _began(members)
        return Alert(
            **self._worst(members, lists["owners"], common),
            **lists,
            alert=str(common) if cause is None else _name(cause, opened_ms),
            change=Change.OPENED,
            changed_ms=opened_ms,
            opened_ms=opened_ms,
            broken_since_ms=broken_ms,
            crossed_ms=crossed_ms,
            cause=cause,
            fault=None if cause is None else fault_everywhere(cause, self._topology),
        )

    def _has_moved(self, incident: IncidentChange | None, common: Common) -> bool:
        """Returns True if *incident* left the alert of *common* for another cause."""
        now = common if incident is None else self._common_of(incident)
        # Results of an incident that was resolved long ago may not be known.
        return isinstance(now, AlertFault) and now != common

    def _cause(self, common: Common, members: Sequence[IncidentChange]) -> AlertCause | None:
        """Returns the cause that is the fault in *common*, as the newest check of *members* has found it, and of
        several that of the worst.
        """
        found = [
            (result.checked_ms, result.cause)
            for member in sorted(members, key=_badness)
            for result in self._of_fault(member.sla, common)
            if result.cause is not None
        ]
        return max(found, key=lambda pair: pair[0], default=(0, None))[1]

    def _of_fault(self, sla: str, common: Common) -> list[SlaResult]:
        """Returns the results of *sla*, broken for the fault in *common*."""
        broken = [each for each in self._results[sla] if each.verdict in BROKEN]
        return [each for each in broken if each.cause is not None and fault_of(each.cause) == common]

    def _impact(self, common: Common, members: Iterable[IncidentChange]) -> tuple[list[str], list[str]]:
        """Returns tables and topics downstream of the fault in *common*.

        A host or a key is no place in the topology: there it is what is downstream of what the *members* are about.
        """
        if not isinstance(common, AlertFault):
            return [], []
        operator, _ = AlertCause(owner=common.owner, detail=common.detail).place
        operators = self._topology.operators
        if common.stream is not None or operator in operators:
            return results_downstream(operator, common.stream, self._topology, self._project)
        subjects = {member.subject for member in members}
        about = [name for name, each in operators.items() if not subjects.isdisjoint({name, each.result_table})]
        found = [results_downstream(name, None, self._topology, self._project) for name in about]
        tables, topics = ({name: None for both in found for name in both[of]} for of in (0, 1))
        return [*tables], [*topics]

    def _worst(self, members: Sequence[IncidentChange], owners: Sequence[str], common: Common) -> dict[str, Any]:
        """Returns the fields of an alert that the worst of *members* decides.

        What was measured, and what blocks it, is of the newest check with its verdict that could explain it by the
        fault in *common*.
        """
        worst = _worst_of(members)
        results = self._of_fault(worst.sla, common) if isinstance(common, AlertFault) else []
        explained = (each for each in reversed(results) if each.blocked_by and each.verdict == worst.verdict)
        newest = next(explained, None)
        measured = {} if newest is None or worst.unit is None else _measured(newest, Unit(worst.unit))
        return {
            **_described(worst),
            **measured,
            "severity": min((each.severity for each in members), key=severity_rank),
            "owner": owners[0] if len(owners) == 1 else self._topology.owner,
        }

    def _acknowledgement(self, common: Common) -> IncidentChange | None:
        """Returns the first acknowledgement of an incident that has its fault in *common* now."""
        made = (each for each in self._incidents if each.change is Change.ACKNOWLEDGED)
        # An incident may have moved to the alert of another cause.
        return next((each for each in made if self._common_of(each) == common), None)

    def _end(self, alert: Alert, elsewhere: Callable[[], Sequence[Alert]]) -> Alert:
        """Returns the end of *alert*."""
        ends = [self._ends[name] for name in alert.incidents if name in self._ends]
        ended = replace(alert, change=Change.RESOLVED, decided_by=None)
        if len(ends) < len(alert.incidents):
            # Others of its incidents are open for another cause.
            return replace(ended, changed_ms=self._at_ms, verdict=Verdict.UNKNOWN, message=ENDED)
        last = max(ends, key=lambda each: each.changed_ms)
        # It waited for the alerts of its fault in other topologies.
        others = elsewhere() if alert.fault else ()
        later = [each.changed_ms for each in others if precedes(alert, each) and each.change is Change.RESOLVED]
        return replace(
            ended,
            changed_ms=max((last.changed_ms, *later)),
            verdict=last.verdict,
            message=last.message,
            observed=last.observed,
            culprit=last.culprit,
            blocked_by=last.blocked_by,
            budget_left=last.budget_left,
            run_id=last.run_id,
        )


def _explained(result: SlaResult, fault: AlertFault) -> int:
    """Returns how many results the causes in *result* with this *fault* explain; those that nobody counted count 1."""
    return sum(1 if each.results is None else each.results for each in result.causes if fault_of(each) == fault)


def fault_everywhere(cause: AlertCause, topology: Topology) -> str:
    """Returns the fault of *cause* in words that are the same for all topologies.

    What is outside of streams is named by its topic, table or folder, since each topology names sources as it likes.
    Everything else belongs to a stream of *topology*, or to TOPOLOGY/STREAM, one of another topology.
    """
    name, partition = cause.place
    owner = fault_of(cause).owner
    # A source of several topics numbers partitions itself.
    sources = [each for each in topology.outside_sources if each.name == name and not each.reads_several]
    if cause.stream is None and sources:
        (source,) = sources
        return " ".join(str(part) for part in (owner, source.kafka, source.read_from, partition) if part is not None)
    stream = cause.stream or ""
    return " ".join(present((owner, cause.detail, stream if "/" in stream else f"{topology.name}/{stream}")))


def _open(alerts: Sequence[Alert]) -> list[Alert]:
    """Returns the opening of each open alert."""
    ended = {each.alert for each in alerts if each.change is Change.RESOLVED}
    return [each for each in alerts if each.change is Change.OPENED and each.alert not in ended]


def _impacts(alert: Alert, alerts: Sequence[Alert], incidents: Sequence[IncidentChange], at_ms: int) -> Iterator[Alert]:
    """Yields messages about the impact of *alert* for other owners.

    Each owner gets one, and its end: at *at_ms* if no SLA of the owner is broken for this cause any more.
    """
    if alert.change not in {Change.OPENED, Change.RESOLVED} or alert.cause is None:
        return
    of_alert = [each for each in alerts if each.audience and each.alert == f"{alert.alert}@{each.audience}"]
    for message in _open(of_alert):
        if message.audience not in alert.owners:
            yield replace(message, change=Change.RESOLVED, changed_ms=at_ms, verdict=Verdict.UNKNOWN, message=ENDED)
    for owner in alert.owners:
        if owner == alert.owner:
            continue
        opened = [each for each in incidents if each.change is Change.OPENED and each.owner == owner]
        own = [each for each in opened if each.incident in alert.incidents]
        named = {each.incident: each.sla for each in own}
        described = _described(_worst_of(own))
        if alert.change is Change.RESOLVED:
            # The end says how the alert ended.
            described = in_order_of(("sla", "subject", "measure", "runbook"), described)
        impact = replace(
            alert,
            **described,
            alert=f"{alert.alert}@{owner}",
            audience=owner,
            incidents=tuple(named),
            slas=tuple(dict.fromkeys(named.values())),
            owners=(owner,),
            severity=min((each.severity for each in own), key=severity_rank),
        )
        same = (each for each in alerts if (each.alert, each.change) == (impact.alert, impact.change))
        written = next(same, None)
        if written is None:
            yield impact
            continue
        # It grows, and is still the message that its owner got.
        grown = replace(written, **{name: getattr(impact, name) for name in LISTS})
        if grown != written:
            yield grown


def _joined(before: Alert | None, name: str, more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*(getattr(before, name) if before else ()), *more)))


def _badness(incident: IncidentChange) -> tuple[int, int, int]:
    return worst_first(incident.verdict), severity_rank(incident.severity), incident.changed_ms


def _worst_of(incidents: Iterable[IncidentChange]) -> IncidentChange:
    return min(incidents, key=_badness)


def _began(members: Sequence[IncidentChange]) -> tuple[int | None, int | None]:
    """Returns since when the first of *members* is broken, and its crossing, if that is known of it."""
    broken_ms = min(present(each.broken_since_ms for each in members), default=None)
    crossed_ms = (each.crossed_ms for each in members if each.broken_since_ms == broken_ms)
    return broken_ms, next(iter(present(crossed_ms)), None)


def _described(incident: IncidentChange) -> dict[str, Any]:
    """Returns the fields of an alert that say what is broken, as *incident* has them."""
    return {name: getattr(incident, name) for name in _OF_WORST}


def _measured(result: SlaResult, unit: Unit) -> dict[str, Any]:
    """Returns the fields of an alert that have to be of one check; what it measured has this *unit*."""
    of_check = {name: getattr(result, name) for name in ("message", "culprit", "blocked_by", "budget_left", "run_id")}
    return {"observed": observed_in(unit, result), **of_check}


def _is_worse(now: Mapping[str, Any], opened: Alert) -> bool:
    is_worse = worst_first(now["verdict"]) < worst_first(opened.verdict)
    return is_worse or severity_rank(now["severity"]) < severity_rank(opened.severity)


def severity_rank(severity: str) -> int:
    """Returns 0 for the most severe, and for one that is unknown."""
    return _RANKS.get(severity, 0)


def _name(cause: AlertCause, opened_ms: int) -> str:
    name, partition = cause.place
    where = present((name or cause.stream, None if partition is None else str(partition)))
    return name_since("-".join([cause.owner, *where]).replace("/", "."), opened_ms)
