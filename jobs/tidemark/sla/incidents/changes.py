"""Derives the changes of incidents from checks of SLAs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from itertools import pairwise

from tidemark.errors import InvalidArgument
from tidemark.model.measures.limits import Thresholds
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_events import Alert, AlertCause, IncidentChange, SlaResult, in_time, still_open
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.incidents import CHECKS, Change, SlaState, follow, interrupted
from tidemark.semantics.repairs import DECISION
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    ContractRule,
    Deadline,
    RecordMinimums,
    Severity,
    ShareMaximums,
    Sla,
    Unit,
    Verdict,
)

GONE = "the SLA is no longer defined"
MAINTENANCE, CALENDAR = "maintenance", "calendar"
PAST = "past"
"""Reason why a check is excluded: a later instant has been checked already."""
MISSED = 2
"""So many intervals between checks may pass without a check before that is an incident: one check may be missing."""


def looks_back_ms(specs: Sequence[SlaSpec]) -> int:
    """Returns the greatest age, in ms, of checks that affect incidents."""
    return DAY_MS + max((max(s.damping.open_after_ms, s.damping.resolve_after_ms) for s in specs), default=0)


def excluded_because(spec: SlaSpec, at_ms: int, *, is_past: bool) -> str | None:
    """Returns why a check at *at_ms* must not change incidents, or None if it may."""
    if is_past:
        return PAST
    if spec.is_in_maintenance(at_ms):
        return MAINTENANCE
    return None if spec.is_judged(at_ms) else CALENDAR


def gap_ms(topology: Topology) -> int:
    """Returns the longest accepted time between two checks, in ms; a longer gap is an incident."""
    return MISSED * topology.check_every_ms


def changes(
    specs: Sequence[SlaSpec],
    results: Sequence[SlaResult],
    incidents: Sequence[IncidentChange],
    *,
    at_ms: int,
    gap_ms: int,
    made_ms: int | None = None,
    unusable: Collection[str] = (),
) -> list[IncidentChange]:
    """Returns the new changes of incidents that follow from *results*.

    Called again with these among the *incidents* it returns none. Incidents of an SLA that is not promised any more are
    resolved at *at_ms*.

    Args:
        specs: the promised SLAs that can be judged.
        results: of all checks that are not older than `looks_back_ms`. Results for the past are skipped. After results
            in maintenance, or outside a calendar, the delays of opening and resolving count from zero.
        incidents: all changes so far.
        at_ms: the instant of the check, epoch ms.
        gap_ms: the longest accepted time between checks.
        made_ms: the clock when the check was made, epoch ms; None if that is *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents stay as they are.
    """
    by_sla: dict[str, list[SlaResult]] = defaultdict(list)
    for result in results:
        if result.excluded_because != PAST:
            by_sla[result.sla].append(result)
    new: list[IncidentChange] = []
    for spec in specs:
        history = [each for each in incidents if each.sla == spec.name and each.change is not Change.ACKNOWLEDGED]
        new += _changes_of_spec(spec, by_sla[spec.name], in_time(history))
    is_late = made_ms is not None and made_ms - at_ms > gap_ms
    # CHECKS is never promised.
    promised = {*unusable, *names_in(specs)} - {CHECKS}
    for last in still_open(incidents).values():
        if last.sla == CHECKS and (is_late or not _came_in_time(last, results, at_ms, gap_ms)):
            continue
        if last.sla not in promised:
            new.append(_ended(last, at_ms))
    return new


def _came_in_time(opened: IncidentChange, results: Sequence[SlaResult], at_ms: int, gap_ms: int) -> bool:
    """Returns True if the checks of the last *gap_ms* came in time.

    The incident of missed checks was *opened* before. Otherwise slow checks would resolve and open it by turns.
    """
    instants = sorted(
        {each.checked_ms for each in results if each.excluded_because != PAST and each.checked_ms <= at_ms}
    )
    gaps_ms = [later - before for before, later in pairwise(instants) if later > at_ms - gap_ms]
    return opened.changed_ms <= at_ms - gap_ms and all(ms <= gap_ms for ms in gaps_ms)


def missed_check(
    topology: Topology, last_ms: int | None, incidents: Sequence[IncidentChange], *, at_ms: int, is_due: bool = False
) -> list[IncidentChange]:
    """Returns the opening of an incident if a check was missed, as a list.

    No check of the SLAs of *topology* finished in time at *at_ms*. The incident is resolved when checks have come in
    time for as long as a gap may be.

    Args:
        topology: the topology whose SLAs are checked.
        last_ms: the instant of the last check, epoch ms; None before the first.
        incidents: all changes so far. If such an incident is open, the list is empty.
        at_ms: now, or the instant of this check, epoch ms.
        is_due: without a last check an incident opens only if one is due.
    """
    if any(each.sla == CHECKS for each in still_open(incidents).values()):
        return []
    if last_ms is None and not is_due:
        return []
    since_ms = at_ms if last_ms is None else last_ms + gap_ms(topology)
    if last_ms is not None and since_ms >= at_ms:
        return []
    name = name_since(CHECKS, since_ms)
    # The incident is named after its beginning: one of this name was opened, and resolved, before.
    if any(each.incident == name for each in incidents):
        return []
    before = "" if last_ms is None else f" since the one for {iso(last_ms)}"
    # A check that takes longer is not distinguished from one that does not run.
    text = (
        f"no check of the SLAs of {topology.name} has finished{before}, due every "
        f"{for_people(topology.check_every_ms)}: checks do not run, fail, or take longer than "
        f"{for_people(gap_ms(topology))}; look at the DAG tidemark_{topology.name}_sla_check, and raise "
        f"check_every if its runs succeed"
    )
    opened = IncidentChange(
        topology=topology.name,
        incident=name,
        sla=CHECKS,
        change=Change.OPENED,
        changed_ms=at_ms,
        opened_ms=since_ms,
        broken_since_ms=since_ms,
        crossed_ms=since_ms,
        verdict=Verdict.ERROR,
        severity=Severity.CRITICAL.value,
        subject="sla_check",
        threshold=gap_ms(topology),
        unit=Unit.MS.value,
        message=text,
        owner=topology.owner,
    )
    return [opened]


def alert_of(incident: IncidentChange) -> Alert:
    """Returns the change of an alert that consists of this *incident* alone."""
    same = {field.name: getattr(incident, field.name) for field in fields(incident) if field.name != "incident"}
    return Alert(alert=incident.incident, **same)


def asked_decision(
    topology: Topology, *, name: str, command: str, place: str | None, text: str, is_waited_for: bool, at_ms: int
) -> Alert:
    """Returns the opening of an alert that asks about a repair.

    Args:
        topology: the topology whose streams the repair changes.
        name: name of the alert.
        command: the command that makes the repair.
        place: the sub-topology that it repairs; None for the whole topology.
        text: what the repair would do.
        is_waited_for: True if a stream does not run until a person answers.
        at_ms: now, epoch ms.
    """
    return Alert(
        topology=topology.name,
        alert=name,
        sla=DECISION,
        cause=AlertCause(owner=command, stream=place),
        change=Change.OPENED,
        changed_ms=at_ms,
        opened_ms=at_ms,
        broken_since_ms=at_ms,
        verdict=Verdict.UNKNOWN,
        severity=(Severity.CRITICAL if is_waited_for else Severity.WARNING).value,
        subject=place,
        message=text,
        owner=topology.owner,
    )


def answered_decision(asked: Alert, *, text: str, by: str | None, at_ms: int) -> Alert:
    """Returns the end of the alert *asked*, at *at_ms*."""
    return replace(asked, change=Change.RESOLVED, changed_ms=at_ms, message=text, decided_by=by)


def _ended(last: IncidentChange, at_ms: int) -> IncidentChange:
    return replace(
        last,
        change=Change.RESOLVED,
        changed_ms=at_ms,
        verdict=Verdict.UNKNOWN,
        message="the SLAs are checked again" if last.sla == CHECKS else GONE,
        decided_by=None,
        culprit=None,
        blocked_by=None,
        observed=None,
    )


def acknowledgement(
    incidents: Sequence[IncidentChange], incident: str, *, by: str, note: str, at_ms: int
) -> IncidentChange | None:
    """Returns the change that acknowledges *incident*.

    Args:
        incidents: all changes so far.
        incident: name of the incident.
        by: the person who acknowledges it.
        note: what that person notes; may be empty.
        at_ms: when they do so, epoch ms.

    Returns:
        None if the incident is acknowledged already.

    Raises:
        InvalidArgument: it is not open.
    """
    unresolved = still_open(incidents)
    if incident not in unresolved:
        names = ", ".join(unresolved) or "none"
        msg = f"incident {incident!r} is not open and cannot be acknowledged; open incidents: {names}"
        raise InvalidArgument(msg)
    if acknowledged(incidents, incident):
        return None
    return replace(
        unresolved[incident],
        change=Change.ACKNOWLEDGED,
        changed_ms=at_ms,
        decided_by=by,
        message=note or None,
        run_id=None,
    )


def acknowledged(incidents: Sequence[IncidentChange], incident: str) -> IncidentChange | None:
    """Returns the change that acknowledges *incident*, if there is one."""
    found = (each for each in incidents if each.incident == incident and each.change is Change.ACKNOWLEDGED)
    return next(found, None)


def _changes_of_spec(
    spec: SlaSpec, results: Sequence[SlaResult], history: Sequence[IncidentChange]
) -> Iterator[IncidentChange]:
    """Yields the new changes of the incidents of *spec*.

    Args:
        spec: the SLA.
        results: of its checks, in any order.
        history: the changes that checks made of its incidents, oldest first.
    """
    last = history[-1] if history else None
    standing = SlaState()
    if last is not None and last.change is not Change.RESOLVED:
        standing = SlaState(
            opened_at_ms=last.opened_ms,
            worst=last.verdict,
            broken_since_ms=last.broken_since_ms,
            crossed_ms=last.crossed_ms,
        )
    forgotten_ms = 0
    for result in sorted(results, key=lambda each: (each.checked_ms, each.run_id)):
        # An earlier call followed these results.
        if last is not None and result.checked_ms <= last.changed_ms:
            continue
        if result.excluded_because is not None:
            standing, forgotten_ms = interrupted(standing), result.checked_ms
            continue
        before = standing
        standing, change = follow(
            standing,
            at_ms=result.checked_ms,
            verdict=result.verdict,
            damping=spec.damping,
            crossed_ms=_crossed_ms(result, after_ms=forgotten_ms),
        )
        if result.verdict is Verdict.PASS:
            forgotten_ms = result.checked_ms
        if change is not None:
            # A resolved incident is described by what it was.
            yield _changed(change, before if change is Change.RESOLVED else standing, result, spec.limits)


def _crossed_ms(result: SlaResult, *, after_ms: int) -> int | None:
    """Returns when *result* crossed its limit, epoch ms, or None if that is not known.

    The crossing is never before *after_ms*, the last check that passed or was excluded: the SLA was not broken then.
    """
    return None if result.crossed_ms is None else max(after_ms, result.crossed_ms)


def _changed(change: Change, standing: SlaState, result: SlaResult, limits: Thresholds) -> IncidentChange:
    opened_ms = standing.opened_at_ms or result.checked_ms
    observed, threshold, unit = _measured(limits, result)
    return IncidentChange(
        topology=result.topology,
        incident=name_since(result.sla, opened_ms),
        sla=result.sla,
        change=change,
        changed_ms=result.checked_ms,
        opened_ms=opened_ms,
        broken_since_ms=standing.broken_since_ms,
        crossed_ms=standing.crossed_ms,
        run_id=result.run_id,
        verdict=result.verdict,
        severity=result.severity,
        subject=result.subject,
        measure=result.measure,
        owner=result.owner,
        runbook=result.runbook,
        culprit=result.culprit,
        blocked_by=result.blocked_by,
        message=result.message,
        observed=observed,
        threshold=threshold,
        unit=unit.value,
        budget_left=result.budget_left,
    )


def _measured(limits: Thresholds, result: SlaResult) -> tuple[float | None, float | None, Unit]:
    """Returns what *result* measured, the limit that its verdict broke, and their unit.

    The limit of a kept SLA is the one for an error, or else for a warning.
    """
    warn: float | None
    error: float | None
    match limits:
        case Sla():
            unit, warn, error = Unit.MS, limits.warn_after_ms, limits.error_after_ms
        case RecordMinimums():
            unit, warn, error = Unit.RECORDS, limits.warn_below, limits.error_below
        case ChangeMaximums():
            unit, warn, error = Unit.CHANGES, limits.warn_above, limits.error_above
        case ShareMaximums():
            unit, warn, error = Unit.SHARE, limits.warn_above, limits.error_above
        case BurnRate():
            unit, warn, error = Unit.BURN_RATE, limits.warn_at, limits.error_at
        case Deadline():
            unit, warn, error = Unit.MS, None, limits.after_ms
        case ContractRule():
            unit, warn, error = Unit.ROWS, None, 0
    is_warning = result.verdict is Verdict.WARN or error is None
    return observed_in(unit, result), warn if is_warning else error, unit


def observed_in(unit: Unit, result: SlaResult) -> float | None:
    """Returns what *result* measured, in its *unit*."""
    match unit:
        case Unit.MS:
            return result.observed_ms
        case Unit.SHARE:
            return result.share
        case Unit.BURN_RATE:
            return result.burn_rate
        case Unit.RECORDS | Unit.CHANGES | Unit.ROWS:
            return result.records


def name_since(word: str, opened_ms: int) -> str:
    """Returns a name: *word*, and the instant *opened_ms* (epoch ms)."""
    return f"{word}-{datetime.fromtimestamp(opened_ms / 1_000, UTC):%Y%m%dT%H%M%S}"
