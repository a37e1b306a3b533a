"""Derives from SLAs the limits by which streaming windows are judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.graph import reached
from tidemark.model.measures.registry import ExplainedBy
from tidemark.model.settings.lengths import for_people
from tidemark.model.slas.sla_keys import ResultPlace
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.buckets import quantile
from tidemark.semantics.sla import BurnRate, Sla
from tidemark.semantics.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class WindowVerdict:
    """A promise about a window, and what was measured.

    Attributes:
        sla: the name of the SLA's table in the file of SLAs.
        operator: the operator that the SLA is about.
        quantile: the quantile of the latency of the operator's records in the window; None if the operator's work on
            the window was measured.
        limit_ms: the limit.
        value_ms: the measured length.
        broken: whether the promise is broken.
    """

    sla: str
    operator: str
    quantile: float | None
    limit_ms: int
    value_ms: float
    broken: bool


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A limit for windows from one SLA.

    Attributes:
        sla: the name of the SLA's table in the file of SLAs.
        limit_ms: the measured length must be below this.
        quantile: the quantile of the latency of an operator's records that is measured; None if its work is.
        may_equal: the length may also equal the limit, as in an error budget.
    """

    sla: str
    limit_ms: int
    quantile: float | None = None
    may_equal: bool = False

    def judge(self, operator: str, value_ms: float) -> WindowVerdict:
        """Returns the verdict on a window for which *value_ms* was measured at *operator*."""
        return WindowVerdict(
            sla=self.sla,
            operator=operator,
            quantile=self.quantile,
            limit_ms=self.limit_ms,
            value_ms=value_ms,
            broken=value_ms > self.limit_ms if self.may_equal else value_ms >= self.limit_ms,
        )

    def judge_records(
        self, operator: str, counts: Iterable[tuple[int, int]], *, min_ms: int, max_ms: int
    ) -> WindowVerdict | None:
        """Returns the verdict on the records of a window; None without records.

        Args:
            operator: the operator that has finished the records.
            counts: buckets of latency, with the number of records in each.
            min_ms: the lowest latency of the records.
            max_ms: the highest latency of the records.
        """
        assert self.quantile is not None
        value_ms = quantile(counts, self.quantile, min_ms=min_ms, max_ms=max_ms)
        return None if value_ms is None else self.judge(operator, value_ms)


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Promises by operator: `records` about the latency of its records, and `work` about its work on a window."""

    records: Mapping[str, tuple[Promise, ...]] = field(default_factory=dict)
    work: Mapping[str, tuple[Promise, ...]] = field(default_factory=dict)

    @property
    def operators(self) -> frozenset[str]:
        """The operators that have a promise."""
        return frozenset({*self.records, *self.work})

    @property
    def end_to_end_ms(self) -> dict[str, int]:
        """The lowest latency limit of the records of each operator, ms."""
        return _lowest_ms(self.records)

    @property
    def work_ms(self) -> dict[str, int]:
        """The lowest limit of the work of each operator on a window, ms."""
        return _lowest_ms(self.work)


def _lowest_ms(of_operators: Mapping[str, tuple[Promise, ...]]) -> dict[str, int]:
    lowest_ms: dict[str, int] = {}
    for name, limits in of_operators.items():
        lowest_ms[name] = min(limit.limit_ms for limit in limits)
    return lowest_ms


def promises(specs: Iterable[SlaSpec]) -> Promises:
    """Returns the promises that *specs* make. The limit is the threshold of an error or, without one, of a warning."""
    records: dict[str, tuple[Promise, ...]] = {}
    work: dict[str, tuple[Promise, ...]] = {}
    for spec in specs:
        # The path of a window ends when its results are in the view, so no promise about the table's files is judged.
        if spec.place is ResultPlace.TABLE:
            continue
        if (promise := record_promise(spec)) is not None:
            # An objective has an SLA for each of its time windows, which all make the same promise.
            records[spec.subject] = tuple(dict.fromkeys((*records.get(spec.subject, ()), promise)))
        elif spec.measure.explained is ExplainedBy.WORK and isinstance(spec.limits, Sla):
            limit = Promise(sla=spec.table, limit_ms=spec.limits.promised_ms)
            work[spec.subject] = (*work.get(spec.subject, ()), limit)
    return Promises(records=records, work=work)


def record_promise(spec: SlaSpec) -> Promise | None:
    """Returns the promise that *spec* makes about the latency of records; None if it makes none."""
    match spec.limits:
        case Sla() if spec.measure.is_latency:
            return Promise(sla=spec.table, limit_ms=spec.limits.promised_ms, quantile=spec.measure.quantile or 1.0)
        case BurnRate():
            objective = spec.limits.objective
            return Promise(sla=spec.table, limit_ms=objective.threshold_ms, quantile=objective.target, may_equal=True)
    return None


def waits_for_windows(operator: str, topology: Topology) -> bool:
    """Returns True if results of *operator* wait until the watermark has passed the end of their window.

    It may hold them itself, or an operator upstream of it does.
    """
    emissions = (topology.operators[name].emission for name in reached([operator], topology.upstreams))
    return any(emission is not None and emission.strategy is Strategy.ON_WINDOW_CLOSE for emission in emissions)


def cannot_be_kept(specs: Iterable[SlaSpec], topology: Topology) -> Iterator[str]:
    """Yields a sentence for each limit in *specs* that a bound, or the trigger, of *topology* exceeds by itself."""
    # An objective has an SLA for each of its time windows, which all make the same promise.
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
        for source in sorted(reached([spec.subject], topology.upstreams)):
            operator = topology.operators[source]
            if operator.out_of_order_ms > promise.limit_ms:
                bound = f"the bound of {source} alone is {for_people(operator.out_of_order_ms)}: {wait}"
                yield f"{named}, and {bound}; shorten it, or raise the limit"
