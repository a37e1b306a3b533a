"""Derives alerts from incidents: incidents of one cause are one alert.

Rows are those of `incidents`, `sla_results` and `alerts`, with instants as epoch ms. An alert opens with its first
incident and is resolved when no open incident has its cause. It may grow meanwhile without another change. An incident
whose cause changes moves to the alert of the new one, and leaves the lists of the other. A later outage of a driver is
another cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tidemark.collecting import in_order_of, outside
from tidemark.model.sla_spec import Severity
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import BROKEN, CHECKS, Change, worst_first
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.changes import PAST, in_time, name_since, open_incidents
from tidemark.sla.incidents.roots import ABSENT, AFTERMATH, DRIVER, OF_DRIVERS, results_downstream
from tidemark.sla.measures.status import CAUSE, RootCause
from tidemark.why.causes.drivers import DRIVER_RESTARTED
from tidemark.why.evidence.findings import UNEXPLAINED

Row = Mapping[str, Any]
_OF_WORST = (
    "topology", "sla", "verdict", "subject", "measure", "observed", "threshold", "unit", "message", "culprit",
    "blocked_by", "budget_left", "runbook", "run_id",
)  # fmt: skip
LISTS = ("incidents", "slas", "tables", "topics", "owners")
"""Columns that grow while an alert is open."""
_RANKS: Mapping[str, int] = {severity: rank for rank, severity in enumerate(Severity)}
ENDED = "no SLA is broken for this cause any more; one that is still broken has another cause, and an alert of its own"


def alert_changes(
    topology: Topology,
    incidents: Sequence[Row],
    results: Sequence[Row],
    alerts: Sequence[Row],
    *,
    at_ms: int,
    since_ms: int,
    project: Iterable[Topology] = (),
) -> list[dict[str, Any]]:
    """Returns the rows of `alerts` that follow from the *incidents*.

    A row whose alert and change are among the *alerts* replaces that one: its lists have grown. Called again with the
    result among the *alerts* it returns none.

    Args:
        topology: whose SLAs they are.
        incidents: the rows of `incidents`.
        results: the rows of `sla_results` since the incidents opened.
        alerts: the rows of `alerts`.
        at_ms: the instant of the newest check, epoch ms.
        since_ms: incidents that were resolved before, and never alerted, are left out.
        project: the topologies that may read its topics.
    """
    # Messages about the impact follow from the alerts.
    own = [row for row in alerts if row["audience"] is None]
    grouping = _Grouping(topology, incidents, results, own, at_ms, project)
    groups = grouping.groups(since_ms)
    open_alerts = {grouping.place(row, row["opened_at"]): row for row in _open(own)}
    changed: list[dict[str, Any]] = []
    for place, members in groups.items():
        before = open_alerts.get(place)
        now = grouping.opening(place, members, before)
        if before is None or any(now[name] != [*(before[name] or ())] for name in LISTS):
            changed.append(now)
        open_alerts[place] = now
        changed += grouping.later(now, members)
    for place, alert in open_alerts.items():
        if not any(grouping.is_open(row) for row in groups.get(place, ())):
            key = (alert["alert"], Change.ESCALATED)
            escalated = next((row for row in (*own, *changed) if (row["alert"], row["change"]) == key), {})
            changed.append(grouping.end({**alert, **escalated, **in_order_of(LISTS, alert)}))
    return [row for alert in changed for row in (alert, *_impacts(alert, alerts, incidents, at_ms))]


@dataclass
class _Outage:
    """Time from a fault of a driver until it works again.

    Attributes:
        start_ms: the check that found it; 0: it is the driver's first one.
        after_ms: the last check that showed the outage before; what began earlier belongs to that one.
        last_ms: the last check that showed this one.
        slas: those that no driver worked for.
        is_over: True if a later check shows that the driver worked again.
    """

    start_ms: int = 0
    after_ms: int = 0
    last_ms: int = 0
    slas: set[str] = field(default_factory=set)
    is_over: bool = False

    def has(self, row: Row) -> bool:
        """Returns True if the cause in *row* began in this outage."""
        return (row["cause_since"] or 0) > self.after_ms


class _Grouping:
    """Groups the *incidents* of *topology* by their causes."""

    def __init__(
        self,
        topology: Topology,
        incidents: Sequence[Row],
        results: Sequence[Row],
        alerts: Sequence[Row],
        at_ms: int,
        project: Iterable[Topology],
    ) -> None:
        self._topology, self._incidents, self._alerts, self._at_ms = topology, incidents, alerts, at_ms
        self._project = [each for each in project if each.name != topology.name]
        self._open = open_incidents(incidents)
        self._alerted = {incident for alert in alerts for incident in alert["incidents"]}
        self._broken: dict[str, list[Row]] = defaultdict(list)
        judged = sorted((row for row in results if row["excluded_because"] != PAST), key=lambda row: row["checked_at"])
        for result in judged:
            if result["cause"] is not None and Verdict(result["verdict"]) in BROKEN:
                self._broken[result["sla"]].append(result)
        self._outages = _outages(judged)
        self._ends = {row["incident"]: row for row in incidents if row["change"] == Change.RESOLVED}

    def is_open(self, incident: Row) -> bool:
        """Returns True if *incident* is not resolved."""
        return incident["incident"] in self._open

    def groups(self, since_ms: int) -> dict[tuple[Any, ...], list[Row]]:
        """Returns incidents by cause and place.

        They are open, or were resolved after *since_ms* before any alert had them.
        """
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        by_checks = [row for row in self._incidents if row["change"] in {Change.OPENED, Change.ESCALATED}]
        worst = {row["incident"]: row for row in sorted(by_checks, key=in_time)}
        for name, row in {**worst, **self._open}.items():
            end = self._ends.get(name)
            is_new = name not in self._alerted and end is not None and end["changed_at"] >= since_ms
            if self.is_open(row) or is_new:
                groups[self._root(row)].append(row)
        return groups

    def place(self, row: Row, at_ms: int) -> tuple[Any, ...]:
        """Returns cause and place of *row*, an alert or a result.

        The last part is the instant at which the driver's outage began that was the newest at *at_ms*; 0: the first.
        """
        if row["cause"] is None:
            return (None, row["alert"], None, None, 0)
        cause, *where = (row[name] for name in CAUSE)
        if not _is_of_driver(row):
            return (cause, *where, 0)
        return (DRIVER, *where, self._outage(row, at_ms).start_ms)

    def _outage(self, row: Row, at_ms: int) -> _Outage:
        """Returns the newest outage at *at_ms* of the driver in *row*."""
        begun = (each for each in reversed(self._outages[row["cause_sub_topology"]]) if each.start_ms <= at_ms)
        return next(begun, _Outage())

    def _root(self, incident: Row) -> tuple[Any, ...]:
        """Returns cause and place of *incident*, or its name."""
        own: tuple[Any, ...] = (None, incident["incident"], None, None, 0)
        if incident["sla"] == CHECKS:
            return own
        end = self._ends.get(incident["incident"])
        until_ms = self._at_ms if end is None else end["changed_at"]
        seen = [row for row in self._broken[incident["sla"]] if incident["opened_at"] <= row["checked_at"] <= until_ms]
        place = own
        for row in seen:
            new = self.place(row, row["checked_at"])
            # A check without an explanation does not move an incident that had one, and neither does an aftermath,
            # unless it is that of a later outage.
            is_later = new[:-1] == place[:-1] and self._outage(row, row["checked_at"]).has(row)
            if place is own or is_later or row["cause"] not in {UNEXPLAINED, *AFTERMATH}:
                place = new
        return place

    def opening(self, place: tuple[Any, ...], members: Sequence[Row], before: Row | None) -> dict[str, Any]:
        """Returns an alert's opening, with its lists as they are now.

        Args:
            place: cause and place.
            members: its incidents.
            before: the opening as it was written, if it was.
        """
        opened = {row["incident"]: row for row in self._incidents if row["change"] == Change.OPENED}
        moved = [name for name in (before["incidents"] if before else ()) if self._has_moved(opened.get(name), place)]
        incidents = outside(_joined(before, "incidents", (row["incident"] for row in members)), moved)
        of_alert = [row for name, row in opened.items() if name in incidents]
        tables, topics = self._impact(place)
        lists = {
            "incidents": incidents,
            "slas": _joined(before, "slas", (row["sla"] for row in members)),
            "owners": _joined(before, "owners", (row["owner"] for row in of_alert if row["owner"])),
            "tables": _joined(before, "tables", tables),
            "topics": _joined(before, "topics", topics),
        }
        for name, column in (("slas", "sla"), ("owners", "owner")):
            left = {opened[incident][column] for incident in moved} - {row[column] for row in of_alert}
            lists[name] = outside(lists[name], left)
        if before is not None:
            return {**before, **lists}
        opened_ms = max(min(row["changed_at"] for row in of_alert), place[-1])
        if any(row["incident"] in self._alerted for row in members):
            # It moves here from the alert of another cause.
            opened_ms = self._at_ms
        cause = self._cause(place, members)
        row = self._row(members, lists, place) | dict(zip(CAUSE, cause, strict=True))
        broken_ms = [member["broken_since"] for member in members if member["broken_since"] is not None]
        return row | {
            "alert": place[1] if place[0] is None else _name(cause, opened_ms),
            "change": Change.OPENED.value,
            "changed_at": opened_ms,
            "opened_at": opened_ms,
            "broken_since": min(broken_ms, default=None),
            "audience": None,
            "decided_by": None,
            **lists,
        }

    def _has_moved(self, incident: Row | None, place: tuple[Any, ...]) -> bool:
        """Returns True if *incident* left the alert of *place* for another cause."""
        root = place if incident is None else self._root(incident)
        # Results of an incident that was resolved long ago may not be known.
        return root[0] is not None and root != place

    def _cause(self, place: tuple[Any, ...], members: Sequence[Row]) -> Sequence[Any]:
        """Returns the columns about the cause at *place*.

        Several causes of a driver are one place. The alert has the word of the newest, and not that of a wait for the
        driver.
        """
        if place[0] is None:
            return (None, None, None, None)
        results = [row for member in members for row in self._of_place(member["sla"], place)]
        newest = max(results, key=lambda row: (row["checked_at"], row["cause"] in OF_DRIVERS))
        return [newest[name] for name in CAUSE]

    def _of_place(self, sla: str, place: tuple[Any, ...]) -> list[Row]:
        """Returns the results of *sla*, broken for the cause at *place*."""
        return [row for row in self._broken[sla] if self.place(row, row["checked_at"]) == place]

    def _impact(self, place: tuple[Any, ...]) -> tuple[list[str], list[str]]:
        """Returns tables and topics downstream of *place*."""
        if place[0] is None:
            return [], []
        return results_downstream(RootCause(*place[:-1]), self._topology, self._project)

    def _row(
        self, members: Sequence[Row], lists: Mapping[str, Sequence[str]], place: tuple[Any, ...]
    ) -> dict[str, Any]:
        """Returns the columns that the worst of *members* decides.

        What blocks it is of the newest check that could explain it by the cause at *place*.
        """
        owners, worst = lists["owners"], _worst(members)
        results = [] if place[0] is None else self._of_place(worst["sla"], place)
        newest = next((row for row in reversed(results) if row["blocked_by"]), worst)
        return {
            **in_order_of(_OF_WORST, worst),
            **in_order_of(("culprit", "blocked_by"), newest),
            "severity": min((row["severity"] for row in members), key=_rank),
            "owner": owners[0] if len(owners) == 1 else self._topology.owner,
        }

    def later(self, alert: dict[str, Any], members: Sequence[Row]) -> Iterator[dict[str, Any]]:
        """Yields escalation and acknowledgement of *alert*, if new."""
        written = {row["change"] for row in self._alerts if row["alert"] == alert["alert"]}
        place = self.place(alert, alert["opened_at"])
        now = self._row(members, alert, place)
        is_worse = worst_first(Verdict(now["verdict"])) < worst_first(Verdict(alert["verdict"]))
        if (is_worse or _rank(now["severity"]) < _rank(alert["severity"])) and Change.ESCALATED not in written:
            at_ms = max(row["changed_at"] for row in members)
            yield {**alert, **now, "owner": alert["owner"], "change": Change.ESCALATED.value, "changed_at": at_ms}
        if Change.ACKNOWLEDGED in written:
            return
        for row in self._incidents:
            # An incident may have moved to the alert of another cause.
            if row["change"] == Change.ACKNOWLEDGED and self._root(row) == place:
                acknowledged = {
                    "change": Change.ACKNOWLEDGED.value,
                    **in_order_of(("changed_at", "decided_by", "message"), row),
                }
                yield {**alert, **acknowledged, "changed_at": max(row["changed_at"], alert["changed_at"])}
                return

    def end(self, alert: Row) -> dict[str, Any]:
        """Returns the end of *alert*."""
        ends = [self._ends[name] for name in alert["incidents"] if name in self._ends]
        change = {"change": Change.RESOLVED.value, "decided_by": None}
        if len(ends) < len(alert["incidents"]):
            # Others of its incidents are open for another cause.
            return {**alert, **change, "changed_at": self._at_ms, "verdict": Verdict.UNKNOWN.value, "message": ENDED}
        last = max(ends, key=lambda row: row["changed_at"])
        columns = ("changed_at", "verdict", "message", "observed", "culprit", "blocked_by", "budget_left", "run_id")
        return {**alert, **change, **in_order_of(columns, last)}


def _outages(results: Sequence[Row]) -> dict[str, list[_Outage]]:
    """Returns the outages of each driver, by its sub-topology.

    A later one begins with a check that shows a fault, or one more restart, since an instant after the last check that
    showed the outage before; and only if a check between them showed that the driver worked. It did if it had
    restarted, or if an SLA passes again that no driver had worked for. Otherwise a driver that fails again and again,
    before it works, would be one alert after the other.

    Args:
        results: rows of `sla_results`, oldest check first.
    """
    outages: dict[str, list[_Outage]] = defaultdict(list)
    for at_ms, check in groupby(results, key=lambda row: row["checked_at"]):
        rows = [*check]
        shown: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["cause"] in OF_DRIVERS:
                shown[row["cause_sub_topology"]].append(row)
        passed = {row["sla"] for row in rows if row["verdict"] == Verdict.PASS}
        for sub in {*outages, *shown}:
            _follow(outages[sub], at_ms, shown[sub], passed)
    return outages


def _follow(outages: list[_Outage], at_ms: int, rows: Sequence[Row], passed: Collection[str]) -> None:
    """Adds to the *outages* of a driver what a check shows.

    Args:
        outages: of the driver, oldest first.
        at_ms: the instant of the check, epoch ms.
        rows: results about the driver.
        passed: SLAs that pass.
    """
    faults = [row for row in rows if row["cause"] != DRIVER_RESTARTED]
    since_ms = max((row["cause_since"] or (at_ms if row in faults else 0) for row in rows), default=0)
    if rows and not outages:
        outages.append(_Outage(last_ms=at_ms))
    elif outages and outages[-1].is_over and since_ms > outages[-1].last_ms:
        outages.append(_Outage(start_ms=at_ms, after_ms=outages[-1].last_ms, last_ms=at_ms))
    outage = outages[-1]
    if faults:
        outage.last_ms, outage.is_over = at_ms, False
        outage.slas |= {row["sla"] for row in faults if row["cause"] in ABSENT}
    elif any(map(outage.has, rows)) or outage.slas & {*passed}:
        outage.is_over = True


def _is_of_driver(row: Row) -> bool:
    has_no_operator = row["cause_operator"] is None and row["cause_sub_topology"] is not None
    return row["cause"] in OF_DRIVERS or has_no_operator


def _open(alerts: Sequence[Row]) -> list[Row]:
    """Returns the opening of each open alert."""
    ended = {row["alert"] for row in alerts if row["change"] == Change.RESOLVED}
    return [row for row in alerts if row["change"] == Change.OPENED and row["alert"] not in ended]


def _impacts(alert: Row, alerts: Sequence[Row], incidents: Sequence[Row], at_ms: int) -> Iterator[dict[str, Any]]:
    """Yields messages about the impact of *alert* for other owners.

    Each owner gets one, and its end: at *at_ms* if no SLA of the owner is broken for this cause any more.
    """
    if alert["change"] not in {Change.OPENED, Change.RESOLVED} or alert["cause"] is None:
        return
    of_alert = [row for row in alerts if row["audience"] and row["alert"] == f"{alert['alert']}@{row['audience']}"]
    for message in _open(of_alert):
        if message["audience"] not in alert["owners"]:
            end = {
                "change": Change.RESOLVED.value,
                "changed_at": at_ms,
                "verdict": Verdict.UNKNOWN.value,
                "message": ENDED,
            }
            yield {**message, **end}
    for owner in alert["owners"]:
        if owner == alert["owner"]:
            continue
        opened = [row for row in incidents if row["change"] == Change.OPENED and row["owner"] == owner]
        own = [row for row in opened if row["incident"] in alert["incidents"]]
        named = {row["incident"]: row["sla"] for row in own}
        # The end says how the alert ended.
        columns = _OF_WORST if alert["change"] == Change.OPENED else ("sla", "subject", "measure", "runbook")
        row = {
            **alert,
            **in_order_of(columns, _worst(own)),
            "alert": f"{alert['alert']}@{owner}",
            "audience": owner,
            "incidents": [*named],
            "slas": list(dict.fromkeys(named.values())),
            "owners": [owner],
            "severity": min((row["severity"] for row in own), key=_rank),
        }
        written = next(
            (each for each in alerts if (each["alert"], each["change"]) == (row["alert"], row["change"])), None
        )
        if written is None:
            yield row
        elif any([*(written[name] or ())] != row[name] for name in LISTS):
            # It grows, and is still the message that its owner got.
            yield {**written, **in_order_of(LISTS, row)}


def _joined(before: Row | None, name: str, more: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*((before and before[name]) or ()), *more)))


def _worst(incidents: Iterable[Row]) -> Row:
    return min(
        incidents, key=lambda row: (worst_first(Verdict(row["verdict"])), _rank(row["severity"]), row["changed_at"])
    )


def _rank(severity: str) -> int:
    """Returns 0 for the most severe, and for one that is unknown."""
    return _RANKS.get(severity, 0)


def _name(place: Sequence[Any], opened_ms: int) -> str:
    cause, sub, operator, partition = place
    where = [str(part) for part in (operator or sub, partition) if part is not None]
    return name_since("-".join([cause, *where]), opened_ms)
