"""Finds when a measure of an interval crossed its limit: a quantile, a share, or a number of records.

For an age it is clear when it crossed its limit. What is counted over an interval is judged again, by the same rule,
for each minute back from the check, and then within the minute that broke it, down to a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.model.measures.contract import CONTRACT
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.selection import names_in
from tidemark.semantics.incidents import BROKEN
from tidemark.sla.measures.status import Status

STEP_MS = 60_000
MOST_STEPS = 60
"""A check that follows the one before it after more than an hour takes longer steps."""
SECOND_MS = 1_000
"""A crossing is looked for down to this length, and is a whole second."""


@dataclass(frozen=True)
class CheckBefore:
    """What the last check before this one has found of an SLA: `crossed_ms` is None if it is not known
    when it broke.
    """

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

    A check at every minute from the crossing to *at_ms* would have found the SLA broken, and one a second before the
    crossing would not. An SLA that was found broken before keeps the crossing of then.

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
    is_contract = status.spec.measure is CONTRACT
    return status.verdict in BROKEN and status.crossed_ms is None and not is_contract


def _searched(
    specs: Sequence[SlaSpec],
    before: Mapping[str, CheckBefore],
    judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]],
    *,
    at_ms: int,
) -> dict[str, int]:
    """Searches the crossings of *specs* by judging them for ever earlier instants; the check *before* found none
    broken.

    That check may have lacked facts that are known now. So the search goes on before it, for as long again. An SLA that
    was broken all that time has no crossing.
    """
    checks_ms = {before[spec.name].at_ms for spec in specs}
    since_check_ms = at_ms - min(checks_ms, default=at_ms)
    step_ms = max(STEP_MS, -(-since_check_ms // MOST_STEPS))
    steps_ms = range(at_ms - step_ms, at_ms - 2 * since_check_ms - step_ms, -step_ms)
    crossed_ms: dict[str, int] = {}
    still_broken, later_ms = specs, at_ms
    for instant_ms in sorted({*steps_ms, *checks_ms}, reverse=True):
        if not still_broken:
            break
        asked, still_broken = still_broken, _broken_at(still_broken, judged_at, instant_ms)
        kept = [spec for spec in asked if spec not in still_broken]
        crossed_ms |= _to_the_second(kept, judged_at, instant_ms, later_ms)
        later_ms = instant_ms
    return crossed_ms


def _to_the_second(
    specs: Sequence[SlaSpec],
    judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]],
    kept_ms: int,
    broken_ms: int,
) -> dict[str, int]:
    """Returns, by SLA, a whole second that finds it broken while the second before does not.

    At *kept_ms* none of *specs* is broken, at *broken_ms* all are.
    """
    first_ms, last_ms = (kept_ms // SECOND_MS + 1) * SECOND_MS, (broken_ms - 1) // SECOND_MS * SECOND_MS
    if not specs or first_ms > last_ms:
        return dict.fromkeys(names_in(specs), broken_ms)
    middle_ms = (first_ms + last_ms) // 2 // SECOND_MS * SECOND_MS
    broken = _broken_at(specs, judged_at, middle_ms)
    kept = [spec for spec in specs if spec not in broken]
    return _to_the_second(broken, judged_at, kept_ms, middle_ms) | _to_the_second(kept, judged_at, middle_ms, broken_ms)


def _broken_at(
    specs: Sequence[SlaSpec], judged_at: Callable[[Sequence[SlaSpec], int], Sequence[Status]], instant_ms: int
) -> list[SlaSpec]:
    return [status.spec for status in judged_at(specs, instant_ms) if status.verdict in BROKEN]
