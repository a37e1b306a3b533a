"""What a topology promises of one streaming window, by its SLAs (ring 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.semantics.buckets import quantile
from tidemark.semantics.sla import BurnRate, Sla
from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import Source, emission_of
from tidemark.spec.sla_spec import QUANTILES, Measure, SlaSpec
from tidemark.spec.toml_keys import length
from tidemark.spec.topology import Topology


@dataclass(frozen=True)
class RecordPromise:
    """That the *q*-quantile of the records' latencies stays below *limit_ms*; or, of an error budget, at it."""

    q: float
    limit_ms: int
    may_equal: bool = False

    def is_broken(self, counts: Iterable[tuple[int, int]]) -> bool:
        """Whether the records of *counts*, buckets and how many are in each, break it; without records they do not."""
        found_ms = quantile(counts, self.q)
        return found_ms is not None and (found_ms > self.limit_ms if self.may_equal else found_ms >= self.limit_ms)


@dataclass(frozen=True, kw_only=True)
class Promises:
    """By operator: what is promised of its records, and how long it may work on a window, ms."""

    records: Mapping[str, tuple[RecordPromise, ...]] = field(default_factory=dict)
    work_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_to_end_ms(self) -> dict[str, int]:
        """By operator the least that is promised of its records."""
        return {name: min(each.limit_ms for each in of) for name, of in self.records.items()}


def promises(specs: Iterable[SlaSpec]) -> Promises:
    """Those of *specs*: from when on one is in error, or of one without an error is a warning; of work the least."""
    records: dict[str, tuple[RecordPromise, ...]] = {}
    work_ms: dict[str, int] = {}
    for spec in specs:
        if (promise := of_records(spec)) is not None:
            records[spec.subject] = (*records.get(spec.subject, ()), promise)
        elif spec.measure is Measure.OPERATOR_LATENCY_P50 and isinstance(spec.limits, Sla):
            limit_ms = spec.limits.promised_ms
            work_ms[spec.subject] = min(limit_ms, work_ms.get(spec.subject, limit_ms))
    return Promises(records=records, work_ms=work_ms)


def of_records(spec: SlaSpec) -> RecordPromise | None:
    """What *spec* promises of records; None: nothing. That of an error budget is its threshold."""
    match spec.limits:
        case Sla() if spec.measure in QUANTILES:
            return RecordPromise(QUANTILES[spec.measure], spec.limits.promised_ms)
        case BurnRate():
            objective = spec.limits.objective
            return RecordPromise(objective.target, objective.threshold_ms, may_equal=True)
    return None


def leading_to(operator: str, topology: Topology) -> set[str]:
    """*operator* and all from which its records come."""
    found = {operator}
    for upstream in topology.upstreams[operator]:
        found |= leading_to(upstream, topology)
    return found


def waits_for_windows(operator: str, topology: Topology) -> bool:
    """Whether results of *operator* wait for the watermark to pass the end of a window."""
    emissions = (emission_of(topology.operators[name]) for name in leading_to(operator, topology))
    return any(each is not None and each.strategy is Strategy.ON_WINDOW_CLOSE for each in emissions)


def cannot_be_kept(specs: Iterable[SlaSpec], topology: Topology) -> Iterator[str]:
    """A sentence for each bound or trigger of *topology* that alone exceeds a promise of *specs*."""
    for spec in specs:
        promise = of_records(spec)
        if promise is None or spec.subject not in topology.operators:
            continue
        named = f"{topology.name}.{spec.name} promises {length(promise.limit_ms)} of {spec.subject}"
        if topology.trigger_ms > promise.limit_ms:
            yield f"{named}, and the trigger alone is {length(topology.trigger_ms)}; shorten it, or promise more"
        is_held = waits_for_windows(spec.subject, topology)
        held = "results wait that long" if is_held else "only results that wait for a window's end wait that long"
        for source in sorted(leading_to(spec.subject, topology)):
            operator = topology.operators[source]
            if isinstance(operator, Source) and operator.bound_ms > promise.limit_ms:
                bound = f"the bound of {source} alone is {length(operator.bound_ms)}: {held}"
                yield f"{named}, and {bound}; shorten it, or promise more"
