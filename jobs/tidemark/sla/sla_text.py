"""Makes a result of an SLA's status, with a sentence about what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from tidemark.model.measures.registry import Need
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import by_number, counted, exact_percent, for_people, percent
from tidemark.model.sla_events import AlertCause, SlaResult, StaleGroup
from tidemark.safe_text import one_line
from tidemark.semantics.sla import (
    BurnRate,
    ChangeMaximums,
    ContractRule,
    Deadline,
    RecordMinimums,
    ShareMaximums,
    Sla,
    Verdict,
)
from tidemark.sla.measures.status import Status


def result_of(
    status: Status,
    causes: Sequence[AlertCause],
    *,
    topology: str,
    checked_ms: int,
    run_id: str,
    excluded_because: str | None,
) -> SlaResult:
    """Returns the result of a check.

    Args:
        status: of the SLA.
        causes: why it is broken, that which explains most first.
        topology: that promises it.
        checked_ms: the instant of the check, epoch ms.
        run_id: of the check.
        excluded_because: why the result changes no incident, if so.
    """
    spec, sla = status.spec, status.spec.limits if isinstance(status.spec.limits, Sla) else None
    burn_rate, left = (status.budget.burn_rate, status.budget.remaining) if status.budget else (None, None)
    threshold_ms, target = astuple(spec.limits.objective) if isinstance(spec.limits, BurnRate) else (None, None)
    objective, window_ms = astuple(spec.compliance) if spec.compliance else (None, None)
    records, slow, left = astuple(status.window_budget) if status.window_budget else (None, None, left)
    return SlaResult(
        topology=topology,
        sla=spec.name,
        checked_ms=checked_ms,
        run_id=run_id,
        verdict=status.verdict,
        subject=spec.subject,
        measure=spec.measure.name,
        severity=spec.severity.value,
        owner=spec.owner,
        runbook=spec.runbook,
        observed_ms=status.observed_ms,
        warn_after_ms=sla.warn_after_ms if sla else None,
        error_after_ms=sla.error_after_ms if sla else None,
        crossed_ms=status.crossed_ms,
        over_ms=spec.over_ms,
        message=measurement_text(status),
        culprit=status.culprit,
        blocked_by=status.blocked_by,
        cause=next(iter(causes), None),
        other_causes=tuple(causes[1:]),
        records=status.groups.n_stale if status.groups else status.records,
        share=status.share,
        burn_rate=burn_rate,
        budget_left=left,
        objective=objective,
        target=target,
        threshold_ms=threshold_ms,
        window_ms=window_ms,
        window_records=records,
        window_slow=slow,
        resolve_after_ms=spec.damping.resolve_after_ms,
        excluded_because=excluded_because,
        stale_groups=_groups(status),
    )


def _groups(status: Status) -> tuple[StaleGroup, ...] | None:
    """Returns the stale groups that a sentence names, or None if the SLA has no groups."""
    if status.groups is None:
        return None
    return tuple(StaleGroup(one_line(name), newest_ms) for name, newest_ms in status.groups.oldest)


def measurement_text(status: Status) -> str:
    """Returns a sentence with the measurement and its limits."""
    spec = status.spec
    match spec.limits:
        case RecordMinimums():
            limits = _limits({"warning": spec.limits.warn_below, "error": spec.limits.error_below}, "below {:,}")
            n = status.value_text or counted(status.records or 0, "record")
            counts = f"{n} of {spec.subject} in {for_people(spec.over_ms)}"
            return f"{counts}{_note(status)}{_since(status)}{_excuse(status)}; {limits}"
        case ChangeMaximums():
            limits = _limits({"warning": spec.limits.warn_above, "error": spec.limits.error_above}, "above {:,}")
            n = "not measured" if status.records is None else f"{status.records:,}"
            return (
                f"{spec.measure.counted} of {spec.subject} in {for_people(spec.over_ms)}{_since(status)}: {n}; {limits}"
            )
        case ShareMaximums():
            return _share_text(status, spec.limits)
        case BurnRate():
            return f"{_burning_text(status, spec.limits)}{_excuse(status)}"
        case ContractRule():
            kept = "holds for all new rows" if status.is_measured else "has no new rows to check"
            return f"the contract of {spec.subject} {f'is broken: {status.breaks}' if status.breaks else kept}"
        case Deadline():
            took = "not measured" if status.observed_ms is None else f"{for_people(status.observed_ms)} after its end"
            by = _deadline_text(spec.limits)
            return f"an interval of {spec.subject}: {took}{_excuse(status)}; it must be complete {by}{_since(status)}"
        case Sla():
            after_ms = {"warning": spec.limits.warn_after_ms, "error": spec.limits.error_after_ms}
            limits = _limits(after_ms, "from {} on", for_people)
            value = "not measured" if status.observed_ms is None else for_people(status.observed_ms)
            value = (status.value_text or value) + _note(status)
            ahead = ", ahead of the clock" if status.verdict is Verdict.AHEAD_OF_CLOCK else ""
            by = f" by {', '.join(spec.by)}" if spec.by else ""
            measure = spec.measure.name.replace("_", " ")
            if Need.ACCOUNTS in spec.measure.needs and status.observed_ms is not None:
                adds_up = f"have not added up for {value}" if status.observed_ms else "add up"
                limits = _limits(after_ms, "if they have not for {}", for_people)
                return f"{spec.subject} {adds_up}{ahead}{_since(status)}; {limits}"
            is_few = status.records is not None and 0 < status.records < spec.limits.min_records
            few = f", and {_too_few(status, spec.limits.min_records)}" if is_few else ""
            measured = f"{measure}{by} of {spec.subject} is {value}{ahead}{few}{_since(status)}{_excuse(status)}"
            return f"{measured}; {limits}{_stale_groups(status)}"


def _share_text(status: Status, at_most: ShareMaximums) -> str:
    spec, n, part = status.spec, status.records or 0, status.part or 0
    limits = _limits({"warning": at_most.warn_above, "error": at_most.error_above}, "above {}", exact_percent)
    few = "" if n >= at_most.min_records else f", too few to judge, {counted(at_most.min_records, 'is', 'are')} needed"
    share = "" if status.share is None else f" ({percent(status.share, 2)})"
    were = f"{by_number(part, 'was', 'were')} {spec.measure.outcome}"
    of_all = f"{part:,} of {counted(n, 'record')} of {spec.subject} in {for_people(spec.over_ms)} {were}"
    return f"{of_all}{share}{_since(status)}{few}; {limits}"


def _deadline_text(deadline: Deadline) -> str:
    if deadline.minute is None:
        return f"within {for_people(deadline.after_ms or 0)} of its end"
    return f"by {deadline.minute // 60:02}:{deadline.minute % 60:02} {deadline.timezone}"


def _stale_groups(status: Status) -> str:
    """Names the groups of an SLA that break it; empty if it has no groups."""
    seen = status.groups
    if seen is None:
        return ""
    names = ", ".join(one_line(name) for name, _ in seen.oldest)
    more = f" and {seen.n_stale - len(seen.oldest):,} more" if seen.n_stale > len(seen.oldest) else ""
    stale = f": {names}{more}" if names else ""
    return f"; {seen.n_stale:,} of {seen.n:,} {by_number(seen.n_stale, 'is', 'are')} stale{stale}"


def _since(status: Status) -> str:
    """Says since when the SLA counts, if that is in what it measures, and which exempt days ended then."""
    since_ms = status.judged_since_ms
    if since_ms is None:
        return ""
    calendars = status.spec.exempt_by(since_ms - 1)
    ended = f", when the exempt time of {' and '.join(calendars)} ended" if calendars else ""
    return f", counted from {iso(since_ms)}{ended}"


def _note(status: Status) -> str:
    return f" ({one_line(status.note)})" if status.note else ""


def _excuse(status: Status) -> str:
    if status.is_catching_up:
        return ", while its streams catch up"
    if status.is_starting:
        return ", while a stream that it needs starts"
    return ", while its sources have nothing to send" if status.idle else ""


def _too_few(status: Status, needed: int, of: str = "") -> str:
    """Says that the records *of* the status are too few to judge."""
    n = status.records or 0
    are = by_number(n, "is", "are")
    return f"{counted(n, 'record')}{of} {are} too few to judge, {counted(needed, 'is', 'are')} needed"


def _burning_text(status: Status, limits: BurnRate) -> str:
    objective, budget = limits.objective, status.budget
    over = f"longer than {for_people(objective.threshold_ms)} in {for_people(status.spec.over_ms)}"
    if budget is None or budget.share_over is None or budget.burn_rate is None:
        return f"no record of {status.spec.subject} to measure{_note(status)}; the SLA counts those that take {over}"
    few = ""
    if status.records is not None and status.records < limits.min_records:
        of = f" of {status.spec.subject} in {for_people(status.spec.over_ms)}"
        few = f"{_too_few(status, limits.min_records, of)}; "
    # The windows of an objective have no warning.
    warn_at = None if limits.warn_at == limits.error_at else limits.warn_at
    rates = _limits({"warning": warn_at, "error": limits.error_at}, "from {:g} on")
    share, allowed = percent(budget.share_over, 2), exact_percent(1 - objective.target)
    slow = f"{share} of the records of {status.spec.subject} took {over}"
    return f"{few}{slow}{_note(status)}{_since(status)}, {budget.burn_rate:,.4g} times {allowed}; {rates}"


def _limits(
    limits: Mapping[str, float | None], form: str, written: Callable[[float], object] = lambda limit: limit
) -> str:
    """Formats the *limits* that are set, by the word for their verdict.

    *form* has a place for a limit, which *written* converts.
    """
    return ", ".join(f"{word} {form.format(written(limit))}" for word, limit in limits.items() if limit is not None)
