"""Why a promise is broken: the one reader of the account of time, which every surface asks.

A promise about records is explained by records, one about windows by windows, one about an operator's work by its work
in batches. A table's staleness and a watermark's lag are the open account of the oldest result that is not visible
yet; where nothing is open, shares of records explain them, as they do numbers of records. A contract names an owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from tidemark.account.excess import Judged, explain
from tidemark.account.explanation import Cause, Explanation, Leaf, Verdict
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.open_results import OpenResults, waits_for_time
from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.interval import INTERVAL
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.recorded import Recorded
from tidemark.account.records import in_order, numbered, record_parts, step
from tidemark.account.steps import AGES, parts_of
from tidemark.account.warehouse import AccountTables
from tidemark.account.windows import window_parts
from tidemark.facts.fact_tables import Stored
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_spec import QUANTILES, WORK_QUANTILES, Measure, SlaSpec
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import BurnRate, Deadline, Sla

OF_RECORDS = frozenset({*QUANTILES, Measure.BURN_RATE})
OF_OPEN = frozenset({Measure.STALENESS, Measure.WATERMARK_LAG})
NOTHING = Explanation(verdict=Verdict.NOT_KNOWN)


def cause_of(
    topology: Topology, layout: Layout, spec: SlaSpec, *, at_ms: int, stored: Stored | None = None
) -> Explanation:
    """Returns why *spec*, a promise of *topology*, was broken at *at_ms* (epoch ms).

    It is told from the tables in *layout* as they were *stored* when others asked; None: as they are now.
    """
    promise = _Promise(AccountTables(layout, topology, stored or Stored()), spec, at_ms)
    if spec.measure in OF_RECORDS:
        return explain(promise.records())
    if spec.measure is Measure.COMPLETE_BY:
        return explain(promise.windows())
    if spec.measure in WORK_QUANTILES:
        return explain(promise.work())
    if spec.measure in OF_OPEN:
        ahead = promise.ahead()
        if ahead is not None:
            return ahead
        if promise.is_fresh:
            return Explanation(verdict=Verdict.KEPT)
        judged = promise.open()
        return NOTHING if judged is None else explain(judged)
    return NOTHING


@dataclass(frozen=True)
class _Promise:
    """A promise at an instant, with what is known of the results that it is about."""

    tables: AccountTables
    spec: SlaSpec
    at_ms: int

    @property
    def topology(self) -> Topology:
        return self.tables.topology

    @cached_property
    def recorded(self) -> Recorded:
        return self.tables.recorded(since_ms=self.at_ms - self.spec.over_ms - DAY_MS, at_ms=self.at_ms)

    @cached_property
    def facts(self) -> AccountFacts:
        return self.recorded.facts(self.topology, usual_until_ms=self.at_ms - self.spec.over_ms)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of(self.facts)

    @property
    def limit_ms(self) -> float:
        """The limit that a result has to keep, ms: the one whose breach is worse."""
        match self.spec.limits:
            case BurnRate():
                return self.spec.limits.objective.threshold_ms
            case Sla():
                limits = self.spec.limits.error_after_ms, self.spec.limits.warn_after_ms
                return next(limit for limit in limits if limit is not None)
            case _:
                msg = f"{self.spec.name} limits no length"
                raise AssertionError(msg)

    def records(self) -> Judged:
        """Returns the records that became visible late where the promise is about them."""
        results = numbered(self.facts.results).filter(pl.col("place").is_in(self.places))
        return self._judged(results.with_columns(age_ms=pl.col("visible_ms") - pl.col("event_ms")), record_parts)

    def windows(self) -> Judged:
        """Returns the intervals that were complete after their deadline, each as a window."""
        limits, intervals = self.spec.limits, self.topology.operators[self.spec.subject].complete
        assert isinstance(limits, Deadline)
        assert intervals is not None
        windows = numbered(self.facts.windows).filter(pl.col("place").is_in(self.places))
        ends = [
            end_ms
            for end_ms in windows["end_ms"].unique()
            if intervals.end_of(intervals.start_of(end_ms - 1)) == end_ms
        ]
        late_ms = {end_ms: limits.at_ms(end_ms) - end_ms for end_ms in ends}
        windows = windows.filter(pl.col("end_ms").is_in(ends)).with_columns(
            n=pl.lit(1, pl.Int64()),
            limit_ms=pl.col("end_ms").replace_strict(late_ms, return_dtype=pl.Int64()),
            age_ms=pl.col("visible_ms") - pl.col("end_ms"),
        )
        return self._judged(windows, window_parts)

    def work(self) -> Judged:
        """Returns the batches in which the operator worked for too long, by the operator's segments alone."""
        name = self.spec.subject
        segments = self.facts.segments.filter(
            pl.col("owner") == OPERATOR, pl.col("detail").is_in(self._step_names(name))
        )
        placed = segments.join(self.ledger.clocks, on=["stream", "driver"], maintain_order="left").with_columns(
            start_ms=pl.col("began_ms") + pl.col("to_reference_ms"),
            until_ms=pl.col("ended_ms") + pl.col("to_reference_ms"),
        )
        results = numbered(placed).with_columns(
            n=pl.lit(1, pl.Int64()), age_ms=pl.col("until_ms") - pl.col("start_ms"), visible_ms="until_ms",
            ahead_ms=pl.lit(0, pl.Int64()), producer=pl.lit(None, pl.String()),
        )  # fmt: skip

        def parts(ledger: Ledger, asked: pl.DataFrame) -> pl.DataFrame:
            rows = asked.with_row_index("result").cast({"result": pl.Int64()})
            steps = step(rows, 0, 1, "until_ms", stream="stream", error_ms="clock_error_ms")
            return parts_of(rows.select(AGES.names()), in_order(steps), ledger.timeline)

        return self._judged(results, parts)

    def ahead(self) -> Explanation | None:
        """Returns whose clock is ahead, if records have event times that are still to come; None: none has."""
        reads = self.facts.reads.filter(
            pl.col("event_ms") > self.at_ms + LEAST_CLOCK_ERROR_MS, pl.col("writer").is_null()
        )
        if reads.is_empty():
            return None
        read = reads.sort("event_ms").row(-1, named=True)
        whose = read["input"] if read["partition"] is None else f"{read['input']}/{read['partition']}"
        early_ms = (
            self.at_ms - read["event_ms"] if read["arrived_ms"] is None else read["arrived_ms"] - read["event_ms"]
        )
        leaf = Leaf(owner=PRODUCER, detail=whose, amount_ms=early_ms, largest_ms=early_ms, touched=read["n"])
        cause = Cause(owner=PRODUCER, detail=whose, explained=1.0)
        return Explanation(
            verdict=Verdict.EXPLAINED, causes=(cause,), leaves=(leaf,), explained=1.0, broken=1, results=1
        )

    @property
    def is_fresh(self) -> bool:
        """Whether the newest record of the table, or the watermark, is younger than the limit."""
        if self.spec.measure is Measure.STALENESS:
            rows = self.recorded.operator_batches.filter(pl.col("operator").is_in(self.places))
            newest_ms = rows["newest_ms"].max()
        else:
            rows = self.recorded.partition_batches.filter(
                pl.col("partition").is_null(),
                pl.col("source").eq_missing(None if self.spec.subject == self.sub_topology.name else self.spec.subject),
                pl.col("sub_topology") == self.sub_topology.name,
            )
            newest_ms = rows.select(pl.col("watermark").dt.epoch("ms").max()).item()
        return isinstance(newest_ms, int) and self.at_ms - newest_ms <= self.limit_ms

    def open(self) -> Judged | None:
        """Returns the oldest result that is not visible yet, with results before it; None: nothing is open."""
        results = OpenResults(self.tables, self.recorded, self.ledger, self.at_ms)
        if self.spec.measure is Measure.STALENESS:
            found, of_time = results.of_table(self.places), self._waits_for_time
        else:
            found, of_time = results.of_time(self.sub_topology), True
        if found is None:
            return None
        if of_time:
            rows = numbered(self.facts.windows).with_columns(
                n=pl.lit(1, pl.Int64()), age_ms=pl.col("visible_ms") - pl.col("end_ms")
            )
            history, parts_of_results = (
                rows.unique(["stream", "batch_id", "end_ms"], keep="first", maintain_order=True),
                window_parts,
            )
        else:
            rows = numbered(self.facts.results)
            history, parts_of_results = (
                rows.with_columns(age_ms=pl.col("visible_ms") - pl.col("event_ms")),
                record_parts,
            )
        stream = f"{self.topology.name}/{self.sub_topology.name}"
        history = history.filter(pl.col("place").is_in(self.places) if not of_time else pl.col("stream") == stream)
        history = history.filter(pl.col("visible_ms") < self.at_ms - found.age_ms, pl.col("age_ms") <= self.limit_ms)
        kept = parts_of_results(self.ledger, history.drop("result", "age_ms"))
        open_row = pl.DataFrame({"result": [-1], "n": [1], "age_ms": [found.age_ms], "is_broken": [True]})
        kept_rows = numbered(history.drop("result")).select("result", "n", "age_ms", is_broken=pl.lit(value=False))
        return Judged(
            results=pl.concat([open_row, kept_rows]),
            parts=pl.concat([found.parts.with_columns(result=pl.lit(-1, pl.Int64())), kept]),
            limit_ms=self.limit_ms,
            batch_records=batch_records(self.facts),
            volume_of=volume_of(self.topology),
            configured=configured(self.topology),
            judged=1,
            is_open=True,
        )

    @property
    def sub_topology(self) -> SubTopology:
        """The stream that the promise is about: the one it names, or that of its subject."""
        subject = self.spec.subject
        for sub in self.topology.sub_topologies:
            if subject == sub.name:
                return sub
        return self.topology.sub_topology_of(self.places[0])

    @property
    def _waits_for_time(self) -> bool:
        return any(waits_for_time(o) for place in self.places for o in self.topology.path_into(place))

    @cached_property
    def places(self) -> list[str]:
        """The operators whose rows the promise is about."""
        subject = self.spec.subject
        of_table = [o.name for o in self.topology.operators.values() if subject in {o.result_table, o.name}]
        if of_table:
            return of_table
        return [o.name for o in self.topology.operators.values()]

    def _step_names(self, operator: str) -> list[str]:
        """Returns the details of segments that are the operator's work: a stateless one belongs to the next step."""
        details = self.facts.segments.filter(pl.col("owner") == OPERATOR)["detail"].unique()
        return [detail for detail in details if operator in detail.split("+")]

    def _judged(self, results: pl.DataFrame, parts_of_results) -> Judged:  # type: ignore[no-untyped-def]
        """Returns *results*, which have `result`, `n`, `age_ms` and `visible_ms`, as broken ones and history."""
        limit_ms = pl.col("limit_ms") if "limit_ms" in results.columns else pl.lit(self.limit_ms)
        results = results.with_columns(exceeds=pl.col("age_ms") > limit_ms)
        is_now = pl.col("visible_ms").is_between(self.at_ms - self.spec.over_ms, self.at_ms, closed="right")
        now = results.filter(is_now)
        broken = now.filter("exceeds")
        first_ms = broken["visible_ms"].min()
        start_ms = first_ms if isinstance(first_ms, int) else self.at_ms
        before = results.filter(pl.col("visible_ms") < start_ms, pl.col("visible_ms") >= start_ms - DAY_MS)
        chosen = pl.concat(
            [broken.with_columns(is_broken=True), before.filter(~pl.col("exceeds")).with_columns(is_broken=False)]
        )
        parts = parts_of_results(self.ledger, chosen.drop("result", "age_ms", "is_broken", "exceeds"))
        chosen = numbered(chosen.drop("result"))
        history = int(before["n"].sum())
        return Judged(
            results=chosen.select("result", "n", "age_ms", "is_broken"),
            parts=parts,
            limit_ms=self.limit_ms if "limit_ms" not in results.columns else float(broken["limit_ms"].min() or 0),  # type: ignore[arg-type]
            batch_records=batch_records(self.facts),
            volume_of=volume_of(self.topology),
            configured=configured(self.topology),
            usual_share=int(before.filter("exceeds")["n"].sum()) / history if history else None,
            judged=int(now["n"].sum()),
        )


def batch_records(facts: AccountFacts) -> pl.DataFrame:
    """Returns how many `records` each batch read, by `stream` and `batch_id`."""
    return facts.plans.group_by("stream", "batch_id").agg(records=pl.sum("n"))


def volume_of(topology: Topology) -> dict[str, str]:
    """Returns the source that more records in a batch of a stream come from, by the stream's full name."""
    found: dict[str, str] = {}
    for sub in topology.sub_topologies:
        of_sub = sub
        while True:
            leading = [o for o in of_sub.sources if o.name not in of_sub.table_inputs()]
            hop = next((o for o in leading if isinstance(o, HopSource)), None)
            if hop is None:
                break
            of_sub = topology.sub_topology(hop.upstream)
        found[f"{topology.name}/{sub.name}"] = leading[0].name if leading else of_sub.sources[0].name
    return found


def configured(topology: Topology) -> dict[tuple[str, str | None], int]:
    """Returns the lengths that the file sets, ms, by owner and detail; None stands for any detail."""
    found: dict[tuple[str, str | None], int] = {(TRIGGER, None): topology.trigger_ms}
    for name, operator in topology.operators.items():
        if isinstance(operator, Source) and operator.bound_ms is not None:
            found[BOUND, name] = operator.bound_ms
        if isinstance(operator, Aggregate) and operator.allowed_lateness_ms:
            found[ALLOWED_LATENESS, name] = operator.allowed_lateness_ms
        if operator.emission is not None and operator.emission.interval_ms is not None:
            found[INTERVAL, name] = operator.emission.interval_ms
    return found
