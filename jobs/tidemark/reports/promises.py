"""Derives the latency limits of streaming windows from SLAs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.model.settings.lengths import for_people
from tidemark.model.sla_spec import QUANTILES, WORK_QUANTILES, ResultPlace, SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.buckets import quantile
from tidemark.semantics.critical_path import leading_to
from tidemark.semantics.sla import BurnRate, Sla
from tidemark.semantics.strategy import Strategy


@dataclass(frozen=True)
class RecordPromise:
    """A promise about the latency of records.

    The *q*-quantile of the latency is below *limit_ms*. With *may_equal*, as in an error budget, it may also equal it.
    """

    q: float
    limit_ms: int
    may_equal: bool = False

    def is_broken(self, counts: Iterable[tuple[int, int]]) -> bool:
        """Returns True if records break the promise.

        *counts* has buckets of latency with the number of records in each. Without records it returns False.
        """
        latency_ms = quantile(counts, self.q)
        return latency_ms is not None and (
            latency_ms > self.limit_ms if self.may_equal else latency_ms >= self.limit_ms
        )


@dataclass(frozen=True, kw_only=True)
class Promises:
    """The promises of each operator, by its name.

    `records` has the promises about its records. `work_ms` has the longest time of work on a window, ms.
    """

    records: Mapping[str, tuple[RecordPromise, ...]] = field(default_factory=dict)
    work_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def end_to_end_ms(self) -> dict[str, int]:
        """The lowest latency limit of the records of each operator, ms."""
        lowest_ms: dict[str, int] = {}
        for name, limits in self.records.items():
            lowest_ms[name] = min(limit.limit_ms for limit in limits)
        return lowest_ms

    def are_broken(self, operator: str, *, is_late: bool, worked_ms: int | None) -> bool | None:
        """Returns True if a window broke a promise of *operator*.

        *is_late*: its records did; *worked_ms*: the operator's work on it. None: there is no promise.
        """
        if operator not in self.records and operator not in self.work_ms:
            return None
        work_ms = self.work_ms.get(operator)
        return is_late or (work_ms is not None and worked_ms is not None and worked_ms > work_ms)


def promises(specs: Iterable[SlaSpec]) -> Promises:
    """Collects the promises of *specs*.

    The limit is the threshold of an error or, without one, of a warning. If an operator has several limits of work, the
    lowest one applies.
    """
    records: dict[str, tuple[RecordPromise, ...]] = {}
    work_ms: dict[str, int] = {}
    for spec in specs:
        # The path of a window ends when its results are in the view; they come to the table's files later.
        if spec.place is ResultPlace.TABLE:
            continue
        if (promise := record_promise(spec)) is not None:
            # All windows of an objective make one promise.
            records[spec.subject] = tuple(dict.fromkeys((*records.get(spec.subject, ()), promise)))
        elif spec.measure in WORK_QUANTILES and isinstance(spec.limits, Sla):
            limit_ms = spec.limits.promised_ms
            work_ms[spec.subject] = min(limit_ms, work_ms.get(spec.subject, limit_ms))
    return Promises(records=records, work_ms=work_ms)


def record_promise(spec: SlaSpec) -> RecordPromise | None:
    """Returns the promise of *spec* about records; None if it has none.

    The limit of a burn rate is its threshold.
    """
    match spec.limits:
        case Sla() if spec.measure in QUANTILES:
            return RecordPromise(QUANTILES[spec.measure], spec.limits.promised_ms)
        case BurnRate():
            objective = spec.limits.objective
            return RecordPromise(objective.target, objective.threshold_ms, may_equal=True)
    return None


def waits_for_windows(operator: str, topology: Topology) -> bool:
    """Returns True if results of *operator* wait for the end of windows.

    A result then waits until the watermark has passed the end of its window.
    """
    emissions = (topology.operators[name].emission for name in leading_to([operator], topology.upstreams))
    return any(each is not None and each.strategy is Strategy.ON_WINDOW_CLOSE for each in emissions)


def cannot_be_kept(specs: Iterable[SlaSpec], topology: Topology) -> Iterator[str]:
    """Yields a sentence for each setting that alone exceeds a limit.

    The settings are the bounds and the trigger of *topology*; the limits are those of *specs*.
    """
    # All windows of an objective make one promise.
    for spec in {spec.table: spec for spec in specs}.values():
        promise = record_promise(spec)
        if promise is None or spec.subject not in topology.operators:
            continue
        named = f"{topology.name}.{spec.table} promises {for_people(promise.limit_ms)} of {spec.subject}"
        if topology.trigger_ms > promise.limit_ms:
            yield f"{named}, and the trigger alone is {for_people(topology.trigger_ms)}; shorten it, or raise the limit"
        # A bound holds up only results that wait for the watermark.
        is_held = waits_for_windows(spec.subject, topology)
        wait = "results wait that long" if is_held else "only results that wait for a window's end wait that long"
        for source in sorted(leading_to([spec.subject], topology.upstreams)):
            operator = topology.operators[source]
            if operator.out_of_order_ms > promise.limit_ms:
                bound = f"the bound of {source} alone is {for_people(operator.out_of_order_ms)}: {wait}"
                yield f"{named}, and {bound}; shorten it, or raise the limit"
