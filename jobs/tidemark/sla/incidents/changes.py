"""Derives the changes of incidents from checks of SLAs.

Rows are those of `sla_results` and `incidents`, with instants as epoch ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from tidemark.collecting import in_order_of, names_in
from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_spec import Severity, SlaSpec, Thresholds
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import CHECKS, Change, SlaState, follow, interrupted
from tidemark.semantics.repairs import DECISION
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    ContractRule,
    Deadline,
    RecordMinimums,
    ShareMaximums,
    Sla,
    Unit,
    Verdict,
)

Row = Mapping[str, Any]
_COPIED = (
    "verdict",
    "severity",
    "subject",
    "measure",
    "message",
    "culprit",
    "blocked_by",
    "budget_left",
    "owner",
    "runbook",
)
GONE = "the SLA is no longer defined"
MAINTENANCE, CALENDAR = "maintenance", "calendar"
PAST = "past"
"""Reason why a check is excluded.

It is for an instant before one that was checked already.
"""
MISSED = 2
"""Intervals of checks that may pass without a check.

A longer time is an incident. One check less than that may be missing in a row.
"""


def looks_back_ms(specs: Sequence[SlaSpec]) -> int:
    """Returns the greatest age, in ms, of checks that affect incidents."""
    return DAY_MS + max((max(s.damping.open_after_ms, s.damping.resolve_after_ms) for s in specs), default=0)


def excluded_because(spec: SlaSpec, at_ms: int, *, is_past: bool) -> str | None:
    """Returns why a check at *at_ms* changes no incident, if so."""
    if is_past:
        return PAST
    if spec.is_in_maintenance(at_ms):
        return MAINTENANCE
    return None if spec.is_judged(at_ms) else CALENDAR


def gap_ms(topology: Topology) -> int:
    """Returns the longest accepted time between two checks, in ms.

    A longer gap is an incident.
    """
    return MISSED * topology.check_every_ms


def changes(
    specs: Sequence[SlaSpec],
    results: Sequence[Row],
    incidents: Sequence[Row],
    *,
    at_ms: int,
    gap_ms: int,
    made_ms: int | None = None,
    unusable: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Returns the new rows of `incidents` that follow from *results*.

    Called again with these rows among the *incidents* it returns none. Incidents of an SLA that is not promised any
    more are resolved at *at_ms*.

    Args:
        specs: the promised SLAs that can be judged.
        results: of all checks that are not older than `looks_back_ms`. Results for the past are skipped. After results
            in maintenance, or outside a calendar, the delays of opening and resolving count from zero.
        incidents: the rows of `incidents`.
        at_ms: the instant of the check, epoch ms.
        gap_ms: the longest accepted time between checks.
        made_ms: the clock when the check was made, epoch ms; None: *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents stay as they are.
    """
    by_sla: dict[str, list[Row]] = defaultdict(list)
    for result in results:
        if result["excluded_because"] != PAST:
            by_sla[result["sla"]].append(result)
    rows: list[dict[str, Any]] = []
    for spec in specs:
        history = _changes_by_checks(incidents, spec.name)
        rows += _changes_of_spec(spec, by_sla[spec.name], history)
    is_late = made_ms is not None and made_ms - at_ms > gap_ms
    # CHECKS is never promised.
    promised = {*unusable, *names_in(specs)} - {CHECKS}
    for last in open_incidents(incidents).values():
        if last["sla"] == CHECKS and (is_late or not _came_in_time(last, results, at_ms, gap_ms)):
            continue
        if last["sla"] not in promised:
            rows.append(_ended(last, at_ms))
    return rows


def _came_in_time(opened: Row, results: Sequence[Row], at_ms: int, gap_ms: int) -> bool:
    """Returns True if the checks of the last *gap_ms* came in time.

    The incident of missed checks was *opened* before. Otherwise slow checks would resolve and open it by turns.
    """
    instants = sorted(
        {row["checked_at"] for row in results if row["excluded_because"] != PAST and row["checked_at"] <= at_ms}
    )
    gaps_ms = [later - before for before, later in pairwise(instants) if later > at_ms - gap_ms]
    return opened["changed_at"] <= at_ms - gap_ms and all(ms <= gap_ms for ms in gaps_ms)


def missed_check(
    topology: Topology, last_ms: int | None, incidents: Sequence[Row], *, at_ms: int, is_due: bool = False
) -> list[dict[str, Any]]:
    """Returns a row that opens an incident if a check was missed.

    No check of the SLAs of *topology* finished in time at *at_ms*. The incident is resolved when checks have come in
    time for as long as a gap may be.

    Args:
        topology: whose SLAs are checked.
        last_ms: the instant of the last check, epoch ms; None: there was none.
        incidents: the rows of `incidents`. If such an incident is open, no row is returned.
        at_ms: now, or the instant of this check, epoch ms.
        is_due: without a last check there is a row only if one is due.
    """
    if any(row["sla"] == CHECKS for row in open_incidents(incidents).values()):
        return []
    if last_ms is None and not is_due:
        return []
    since_ms = at_ms if last_ms is None else last_ms + gap_ms(topology)
    if last_ms is not None and since_ms >= at_ms:
        return []
    before = "" if last_ms is None else f" since the one for {iso(last_ms)}"
    # A check that takes longer is not distinguished from one that does not run.
    text = (
        f"no check of the SLAs of {topology.name} has finished{before}, due every "
        f"{for_people(topology.check_every_ms)}: checks do not run, fail, or take longer than "
        f"{for_people(gap_ms(topology))}; look at the DAG tidemark_{topology.name}_sla_check, and raise "
        f"check_every if its runs succeed"
    )
    opened = dict.fromkeys((*_COPIED, "observed", "run_id", "decided_by")) | {
        "incident": name_since(CHECKS, since_ms),
        "topology": topology.name,
        "sla": CHECKS,
        "change": Change.OPENED.value,
        "changed_at": at_ms,
        "opened_at": since_ms,
        "broken_since": since_ms,
        "verdict": Verdict.ERROR.value,
        "severity": Severity.CRITICAL.value,
        "subject": "sla_check",
        "threshold": gap_ms(topology),
        "unit": Unit.MS.value,
        "message": text,
        "owner": topology.owner,
    }
    # The incident is named after its beginning: one of this name was opened, and resolved, before.
    return [] if any(row["incident"] == opened["incident"] for row in incidents) else [opened]


def asked_decision(
    topology: Topology, *, name: str, command: str, place: str | None, text: str, is_waited_for: bool, at_ms: int
) -> dict[str, Any]:
    """Returns the row of an alert that asks about a repair.

    Args:
        topology: whose streams it repairs.
        name: of the question.
        command: the command.
        place: the sub-topology; None: all of the topology.
        text: its effect.
        is_waited_for: True if a stream does not run until the answer.
        at_ms: now, epoch ms.
    """
    return dict.fromkeys((*_COPIED, "observed", "threshold", "unit", "run_id", "decided_by")) | {
        "incident": name,
        "topology": topology.name,
        "sla": DECISION,
        "cause": command,
        "cause_sub_topology": place,
        "change": Change.OPENED.value,
        "changed_at": at_ms,
        "opened_at": at_ms,
        "broken_since": at_ms,
        "verdict": Verdict.UNKNOWN.value,
        "severity": (Severity.CRITICAL if is_waited_for else Severity.WARNING).value,
        "subject": place,
        "message": text,
        "owner": topology.owner,
    }


def answered_decision(asked: Row, *, text: str, by: str | None, at_ms: int) -> dict[str, Any]:
    """Returns the row that ends the alert *asked*, at *at_ms*."""
    return {**asked, "change": Change.RESOLVED.value, "changed_at": at_ms, "message": text, "decided_by": by}


def _ended(last: Row, at_ms: int) -> dict[str, Any]:
    text = "the SLAs are checked again" if last["sla"] == CHECKS else GONE
    change = {"change": Change.RESOLVED.value, "changed_at": at_ms, "verdict": Verdict.UNKNOWN.value, "message": text}
    return {**last, **change, "decided_by": None, "culprit": None, "blocked_by": None, "observed": None}


def open_incidents(incidents: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Returns the newest change of each open incident, or alert, by its name."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(incidents, key=in_time):
        if row["change"] == Change.RESOLVED:
            newest.pop(name_of(row), None)
        # Acknowledgements do not count: the change was made by a check.
        elif row["change"] != Change.ACKNOWLEDGED:
            newest[name_of(row)] = dict(row)
    return newest


def acknowledgement(
    incidents: Sequence[Row], incident: str, *, by: str, note: str, at_ms: int
) -> dict[str, Any] | None:
    """Returns the row that acknowledges *incident*.

    Args:
        incidents: the rows of `incidents`.
        incident: its name.
        by: the person who acknowledges it.
        note: of that person; may be empty.
        at_ms: when that is, epoch ms.

    Returns:
        None if the incident is acknowledged already.

    Raises:
        InvalidArgument: it is not open.
    """
    still_open = open_incidents(incidents)
    if incident not in still_open:
        names = ", ".join(still_open) or "none"
        msg = f"incident {incident!r} is not open and cannot be acknowledged; open incidents: {names}"
        raise InvalidArgument(msg)
    if acknowledged(incidents, incident):
        return None
    change = {
        "change": Change.ACKNOWLEDGED.value,
        "changed_at": at_ms,
        "decided_by": by,
        "message": note or None,
        "run_id": None,
    }
    return {**still_open[incident], **change}


def acknowledged(incidents: Sequence[Row], incident: str) -> Row | None:
    """Returns the row that acknowledges *incident*, if there is one."""
    rows = (row for row in incidents if row["incident"] == incident and row["change"] == Change.ACKNOWLEDGED)
    return next(rows, None)


def _changes_by_checks(incidents: Sequence[Row], sla: str) -> list[Row]:
    """Returns the changes that checks of *sla* made, oldest first."""
    rows = [row for row in incidents if row["sla"] == sla and row["change"] != Change.ACKNOWLEDGED]
    return sorted(rows, key=in_time)


def _by_check(result: Row) -> tuple[int, str]:
    """Returns a key that sorts results by the time of their check."""
    return result["checked_at"], result["run_id"]


def name_of(change: Row) -> str:
    """Returns the name of the alert that *change* is about, or of the incident."""
    return str(change["alert"] if "alert" in change else change["incident"])


def in_time(change: Row) -> tuple[int, str, int]:
    """Returns a key that sorts changes by time."""
    # Several changes of an incident may have one instant: they come in the order of Change.
    return change["changed_at"], name_of(change), list(Change).index(Change(change["change"]))


def _changes_of_spec(spec: SlaSpec, results: Sequence[Row], history: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yields the new changes of the incidents of *spec*.

    Args:
        spec: the SLA.
        results: of its checks, in any order.
        history: the changes that checks made of its incidents, oldest first.
    """
    last = history[-1] if history else None
    standing = SlaState()
    if last is not None and last["change"] != Change.RESOLVED:
        standing = SlaState(
            opened_at_ms=last["opened_at"], worst=Verdict(last["verdict"]), broken_since_ms=last["broken_since"]
        )
    forgotten_ms = 0
    for result in sorted(results, key=_by_check):
        # An earlier call followed these results.
        if last is not None and result["checked_at"] <= last["changed_at"]:
            continue
        if result["excluded_because"] is not None:
            standing, forgotten_ms = interrupted(standing), result["checked_at"]
            continue
        before = standing
        standing, change = follow(
            standing,
            at_ms=result["checked_at"],
            verdict=Verdict(result["verdict"]),
            damping=spec.damping,
            crossed_ms=_crossed_ms(result, after_ms=forgotten_ms),
        )
        if result["verdict"] == Verdict.PASS:
            forgotten_ms = result["checked_at"]
        if change is not None:
            # A resolved incident is described by what it was.
            yield _row(change, before if change is Change.RESOLVED else standing, result, spec.limits)


def _crossed_ms(result: Row, *, after_ms: int) -> int | None:
    """Returns when *result* crossed its limit, epoch ms; None: it is not known.

    What was before *after_ms*, a check that passed or was not to be judged, is forgotten: the table may have been
    excused.
    """
    return None if result["crossed_at"] is None else max(after_ms, result["crossed_at"])


def _row(change: Change, standing: SlaState, result: Row, limits: Thresholds) -> dict[str, Any]:
    opened_ms = standing.opened_at_ms or result["checked_at"]
    return {
        **in_order_of(("topology", "sla", "run_id", *_COPIED), result),
        **_measured(limits, result),
        "incident": name_since(result["sla"], opened_ms),
        "change": change.value,
        "changed_at": result["checked_at"],
        "opened_at": opened_ms,
        "broken_since": standing.broken_since_ms,
        "decided_by": None,
    }


def _measured(limits: Thresholds, result: Row) -> dict[str, Any]:
    """Returns what *result* measured, and the limit that its verdict broke.

    The limit of a kept SLA is the one for an error, or else for a warning.
    """
    match limits:
        case Sla():
            unit, observed, warn, error = Unit.MS, result["observed_ms"], limits.warn_after_ms, limits.error_after_ms
        case RecordMinimums():
            unit, observed, warn, error = Unit.RECORDS, result["records"], limits.warn_below, limits.error_below
        case ChangeMaximums():
            unit, observed, warn, error = Unit.CHANGES, result["records"], limits.warn_above, limits.error_above
        case ShareMaximums():
            unit, observed, warn, error = Unit.SHARE, result["share"], limits.warn_above, limits.error_above
        case BurnRate():
            unit, observed, warn, error = Unit.BURN_RATE, result["burn_rate"], limits.warn_at, limits.error_at
        case Deadline():
            unit, observed, warn, error = Unit.MS, result["observed_ms"], None, limits.after_ms
        case ContractRule():
            unit, observed, warn, error = Unit.ROWS, result["records"], None, 0
    is_warning = result["verdict"] == Verdict.WARN or error is None
    return {"observed": observed, "threshold": warn if is_warning else error, "unit": unit.value}


def name_since(word: str, opened_ms: int) -> str:
    """Returns a name: *word*, and the instant *opened_ms* (epoch ms)."""
    return f"{word}-{datetime.fromtimestamp(opened_ms / 1_000, UTC):%Y%m%dT%H%M%S}"
