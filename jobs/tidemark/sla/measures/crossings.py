"""Finds when a measure of an interval crossed its limit: a quantile, a share, or a number of records.

An age says itself when it crossed its limit. What is counted over an interval is judged again, by the same rule, for
each minute back from the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.collecting import names_in
from tidemark.model.sla_spec import Measure, SlaSpec
from tidemark.semantics.incidents import BROKEN
from tidemark.sla.measures.status import Status

STEP_MS = 60_000
MOST_STEPS = 60
"""A check that follows the one before it after more than an hour takes longer steps."""


@dataclass(frozen=True)
class CheckBefore:
    """What the check before found of an SLA."""

    at_ms: int
    was_broken: bool
    crossed_ms: int | None


def with_crossings(
    measured: Sequence[Status],
    found_before: Callable[[], Mapping[str, CheckBefore]],
    judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]],
    *,
    at_ms: int,
) -> list[Status]:
    """Returns *measured* with the instant of the crossing where it can be found.

    That is the first of the minutes before *at_ms* since which every one would have found the SLA broken, but none
    before the last check that found it kept. An SLA that was found broken before keeps the crossing of then.

    Args:
        measured: what the check at *at_ms* measured.
        found_before: returns what the check before found, by SLA. For an SLA without one nothing is looked up.
        judged_at: judges SLAs for an earlier instant, epoch ms.
        at_ms: the instant of the check, epoch ms.
    """
    asked = [status.spec for status in measured if _is_asked(status)]
    before = found_before() if asked else {}
    known = [spec for spec in asked if spec.name in before]
    found = {spec.name: before[spec.name].crossed_ms for spec in known if before[spec.name].was_broken}
    found |= _searched([spec for spec in known if spec.name not in found], before, judged_at, at_ms=at_ms)
    return [replace(each, crossed_ms=found.get(each.spec.name)) if _is_asked(each) else each for each in measured]


def _is_asked(status: Status) -> bool:
    # A contract judges the rows since the check before, whose instants are those of their batches.
    is_contract = status.spec.measure is Measure.CONTRACT
    return status.verdict in BROKEN and status.crossed_ms is None and not is_contract


def _searched(
    specs: Sequence[SlaSpec],
    before: Mapping[str, CheckBefore],
    judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]],
    *,
    at_ms: int,
) -> dict[str, int]:
    """Returns the crossings of *specs*, which were kept *before*, by judging them for ever earlier instants."""
    found = {spec.name: at_ms for spec in specs}
    kept_ms = min((before[spec.name].at_ms for spec in specs), default=at_ms)
    step_ms = max(STEP_MS, -(-(at_ms - kept_ms) // MOST_STEPS))
    for instant_ms in range(at_ms - step_ms, kept_ms, -step_ms):
        if not specs:
            break
        specs = [status.spec for status in judged_at(specs, instant_ms) if status.verdict in BROKEN]
        found |= dict.fromkeys(names_in(specs), instant_ms)
    return found
