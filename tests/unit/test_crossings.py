"""When a measure of an interval crossed its limit is found by judging earlier instants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemark.model.measures.latency import LATENCY_P99
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.semantics.sla import Sla, Verdict
from tidemark.sla.measures.crossings import CheckBefore, with_crossings
from tidemark.sla.measures.status import Status

MINUTE, SECOND = 60_000, 1_000
SPEC = SlaSpec(
    name="in_time", subject="board", measure=LATENCY_P99, limits=Sla(error_after_ms=1), owner="desk",
    over_ms=10 * MINUTE, ignore_when_idle=False,
)  # fmt: skip
BROKE_MS = 5 * MINUTE + 30 * SECOND


def judged_at(specs: Sequence[SlaSpec], at_ms: int) -> list[Status]:
    """The SLA is broken from BROKE_MS on."""
    return [Status(spec, Verdict.ERROR if at_ms >= BROKE_MS else Verdict.PASS) for spec in specs]


@pytest.mark.parametrize(
    ("before", "crossed_ms"),
    [
        (CheckBefore(0, was_broken=False, crossed_ms=None), BROKE_MS),
        (CheckBefore(5 * MINUTE + 29 * SECOND, was_broken=False, crossed_ms=None), BROKE_MS),
        (CheckBefore(10 * MINUTE, was_broken=True, crossed_ms=BROKE_MS), BROKE_MS),
        # The check before lacked facts that are known now, so the instants after it say nothing about the fault.
        (CheckBefore(10 * MINUTE + 7, was_broken=False, crossed_ms=None), BROKE_MS),
        (CheckBefore(15 * MINUTE, was_broken=False, crossed_ms=None), None),
        (None, None),
    ],
)
def test_a_crossing_is_an_instant_of_the_fault_and_not_of_a_check(
    before: CheckBefore | None, crossed_ms: int | None
) -> None:
    found_before = {} if before is None else {SPEC.name: before}
    (found,) = with_crossings(judged_at([SPEC], 20 * MINUTE), lambda: found_before, judged_at, at_ms=20 * MINUTE)
    assert found.crossed_ms == crossed_ms
