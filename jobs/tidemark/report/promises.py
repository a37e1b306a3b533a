"""What a topology promises of one streaming window, by its SLAs (ring 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.semantics.sla import BurnRate, Sla
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Lengths in ms, by operator: what has no promise is left out.

    `end_to_end_ms` is how old a window may be when the operator has finished it, `work_ms` how long it may work on one.
    """

    end_to_end_ms: Mapping[str, int] = field(default_factory=dict)
    work_ms: Mapping[str, int] = field(default_factory=dict)


def promises(specs: Iterable[SlaSpec]) -> Promises:
    """Those of *specs*: from when on one is in error, or of one without an error is a warning; of several the least.

    That of an error budget is its threshold.
    """
    end_to_end_ms: dict[str, int] = {}
    work_ms: dict[str, int] = {}
    for spec in specs:
        promised = work_ms if spec.measure is Measure.OPERATOR_LATENCY_P50 else end_to_end_ms
        match spec.limits:
            case Sla() if spec.measure in {*QUANTILES, Measure.OPERATOR_LATENCY_P50}:
                limit_ms = spec.limits.promised_ms
            case BurnRate():
                limit_ms = spec.limits.objective.threshold_ms
            case _:
                continue
        promised[spec.subject] = min(limit_ms, promised.get(spec.subject, limit_ms))
    return Promises(end_to_end_ms=end_to_end_ms, work_ms=work_ms)
