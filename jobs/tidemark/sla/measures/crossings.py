"""Finds when a measure of an interval crossed its limit: a quantile, a share, or a number of records.

An age says itself when it crossed its limit. What is counted over an interval is judged again, by the same rule, for
each minute back from the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    before: Mapping[str, CheckBefore],
    judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]],
    *,
    at_ms: int,
) -> list[Status]:
    """Returns *measured* with the instant of the crossing where it can be found.

    That is the first of the minutes before *at_ms* since which every one would have found the SLA broken, but none
    before the last check that found it kept. An SLA that was found broken before keeps the crossing of then.

    Args:
        measured: what the check at *at_ms* measured.
        before: by SLA, what the check before found. An SLA without one was never judged, and nothing is looked up.
        judged_at: judges SLAs for an earlier instant, epoch ms.
        at_ms: the instant of the check, epoch ms.
    """
    found: dict[str, int | None] = {}
    searched = []
    for status in measured:
        # A contract judges the rows since the check before, whose instants are those of their batches.
        if status.verdict not in BROKEN or status.crossed_ms is not None or status.spec.measure is Measure.CONTRACT:
            continue
        earlier = before.get(status.spec.name)
        if earlier is None:
            continue
        if earlier.was_broken:
            found[status.spec.name] = earlier.crossed_ms
        else:
            found[status.spec.name] = at_ms
            searched.append(status.spec)
    if searched:
        kept_ms = min(before[spec.name].at_ms for spec in searched)
        step_ms = max(STEP_MS, -(-(at_ms - kept_ms) // MOST_STEPS))
        for instant_ms in range(at_ms - step_ms, kept_ms, -step_ms):
            searched = [spec for spec in searched if before[spec.name].at_ms < instant_ms]
            judged = judged_at(searched, instant_ms) if searched else ()
            searched = [status.spec for status in judged if status.verdict in BROKEN]
            found.update((spec.name, instant_ms) for spec in searched)
    return [
        replace(status, crossed_ms=found[status.spec.name]) if status.spec.name in found else status
        for status in measured
    ]
