"""Why a promise is broken. Every page, alert and command that explains one asks here.

A promise about records is explained by the records that were late, one about intervals by windows, and one about an
operator's work by its work in batches. Staleness of a table and lag of a watermark are explained by the oldest result
that is not visible yet. Where no result is on its way, the reason is what became of the records that should have come,
which also explains promises about numbers of records. A broken contract has the owner of the broken rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import polars as pl

from tidemark.account.clocks import driver_clocks
from tidemark.account.configured import configured_lengths, source_of_volume
from tidemark.account.contract import owner_of_contract
from tidemark.account.excess import Judged, explain
from tidemark.account.explanation import Answer, Became, CausingOwner, Explanation, Leaf
from tidemark.account.facts import MS, AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.moves import can_move
from tidemark.account.now import StreamsNow
from tidemark.account.numbers import shares_of_records, shares_since_newest_row
from tidemark.account.open_records import OpenRecords, OpenResult
from tidemark.account.open_time import OpenTime, waits_for_time
from tidemark.account.outcomes import partition_name
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.producer import PRODUCER
from tidemark.account.owners.registry import OWNERS
from tidemark.account.owners.topic import TOPIC
from tidemark.account.recorded import Recorded, since, with_usual
from tidemark.account.records import in_order, numbered, record_parts, step
from tidemark.account.steps import AGES, parts_of
from tidemark.account.warehouse import AccountTables
from tidemark.account.windows import window_parts
from tidemark.facts.fact_tables import Stored
from tidemark.kernels.columns.quantiles import rank
from tidemark.model.kinds.operator import Operator
from tidemark.model.measures.registry import ExplainedBy
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.completeness import Intervals
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import BurnRate, Deadline, Sla, due_ms, longest_kept_ms

MOST_KEPT = 2_000
"""Only this many of the newest results that kept the promise are compared with: they say what is expected."""
LOOKS_BACK_MS, HOUR_MS = 600_000, 3_600_000
"""The ledger of results goes back LOOKS_BACK_MS before the first of them began to age. That of the present begins at a
whole hour, so that several promises share it."""
PartsOf = Callable[[Ledger, pl.DataFrame], pl.DataFrame]
"""A function that returns the PARTS of results, whose numbers are their positions."""


def cause_of(
    topology: Topology, layout: Layout, spec: SlaSpec, *, at_ms: int, stored: Stored | None = None
) -> Explanation:
    """Returns why a promise was broken.

    Args:
        topology: the topology that makes the promise.
        layout: where its tables are.
        spec: the promise.
        at_ms: the instant at which it was broken, epoch ms.
        stored: tables that were opened already, so that several answers come from the same versions.
    """
    return cause_in(Known(AccountTables(layout, topology, stored or Stored()), at_ms, spec.over_ms), spec)


def cause_in(known: Known, spec: SlaSpec) -> Explanation:
    """Returns why *spec* was broken, as `cause_of` does. What is *known* can serve several promises of one length."""
    promise, tables, at_ms = JudgedPromise(known, spec), known.tables, known.at_ms
    match spec.measure.explained:
        case ExplainedBy.RECORDS:
            return explain(promise.records())
        case ExplainedBy.INTERVALS:
            return promise.of_open_interval() or explain(promise.intervals())
        case ExplainedBy.WORK:
            return replace(explain(promise.work()), is_of_batches=True)
        case ExplainedBy.OPEN_RESULT:
            return promise.of_open_result() or promise.of_silence()
        case ExplainedBy.NUMBERS:
            return shares_of_records(tables, spec, at_ms=at_ms)
        case ExplainedBy.CULPRIT:
            return owner_of_contract(tables, spec, at_ms=at_ms)
        case ExplainedBy.COMMITS:
            # Streams have no time in tables that others write.
            return Explanation(answer=Answer.NOT_KNOWN)


@dataclass(frozen=True)
class Known:
    """What *tables* tell at an instant, `at_ms` (epoch ms), of the time that a promise is measured over.

    The measured time is the `over_ms` before the instant. What was usual is learnt from the time before that. Each
    table is read, and each result computed, once, when it is first asked for.
    """

    tables: AccountTables
    at_ms: int
    over_ms: int = 0
    _now: dict[int | None, StreamsNow] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def recorded(self) -> Recorded:
        """The rows of the tables, from a day before the measured time on."""
        return self.tables.recorded(since_ms=self.at_ms - self.over_ms - DAY_MS, at_ms=self.at_ms)

    @cached_property
    def facts(self) -> AccountFacts:
        """The facts from which the account is made, without what is usual."""
        return self.recorded.facts(self.tables.topology)

    def ledger(self, *, since_ms: int | None, usual_until_ms: int | None = None) -> Ledger:
        """Returns the ledger of the streams from *since_ms* on; None goes back as far as rows do.

        What is usual is learnt from batches before *usual_until_ms*; None is the beginning of the measured time. Both
        are epoch ms.
        """
        until_ms = self.at_ms - self.over_ms if usual_until_ms is None else usual_until_ms
        facts = with_usual(self.facts, until_ms=until_ms)
        return Ledger.of(facts if since_ms is None else since(facts, since_ms - LOOKS_BACK_MS))

    def now(self, since_ms: int | None) -> StreamsNow:
        """Returns what the streams do at the instant, and what they have done since *since_ms*, epoch ms; None is
        ever.
        """
        # Promises about the same tables ask for nearly the same time.
        hour = None if since_ms is None else since_ms // HOUR_MS
        if hour not in self._now:
            ledger = self.ledger(since_ms=None if hour is None else hour * HOUR_MS)
            self._now[hour] = StreamsNow(self.tables, self.recorded, ledger, self.at_ms)
        return self._now[hour]


@dataclass(frozen=True)
class JudgedPromise:
    """A promise, with what is `known` of the results that it is about."""

    known: Known
    spec: SlaSpec

    @property
    def topology(self) -> Topology:
        """The topology that promises it."""
        return self.known.tables.topology

    def kept_ms(self, measured_ms: float) -> int:
        """Returns the longest length in whole ms that keeps the promise, for a promise that *measured_ms* breaks.

        If that length breaks the limit of an error, the error limit must be kept, and otherwise the lowest limit.
        """
        match self.spec.limits:
            case BurnRate():
                return self.spec.limits.objective.threshold_ms
            case Sla():
                error_ms = self.spec.limits.error_after_ms
                is_error = error_ms is not None and measured_ms >= error_ms
                return longest_kept_ms(error_ms if is_error and error_ms is not None else self.spec.limits.least_ms)
            case _:
                return 0

    @cached_property
    def operators(self) -> list[str]:
        """The operators whose results the promise is about.

        If it names a table, these are the operators that write it; if it names an operator, this one; otherwise all.
        """
        operators = self.topology.operators.values()
        of_subject = [o.name for o in operators if self.spec.subject in {o.result_table, o.name}]
        return of_subject or [o.name for o in operators]

    @property
    def sub_topology(self) -> SubTopology:
        """The sub-topology that the promise is about, or that runs its subject."""
        named = [sub for sub in self.topology.sub_topologies if sub.name == self.spec.subject]
        return named[0] if named else self.topology.sub_topology_of(self.operators[0])

    # Results that are visible

    def records(self) -> Judged:
        """Returns the records that became visible late."""
        results = self.known.facts.results.filter(pl.col("place").is_in(self.operators))
        return self._judged(_with_ages(results, "event_ms"), record_parts)

    def intervals(self) -> Judged:
        """Returns the intervals that were complete after their deadline, each as a window."""
        return self._judged(self._complete, window_parts)

    @property
    def _deadline(self) -> Deadline:
        assert isinstance(self.spec.limits, Deadline)
        return self.spec.limits

    @property
    def _every(self) -> Intervals:
        """The intervals that the promise is about."""
        intervals = self.topology.operators[self.spec.subject].complete
        assert intervals is not None
        return intervals

    @property
    def _complete(self) -> pl.DataFrame:
        """The intervals that are complete, with `age_ms`, and with `limit_ms`, the age that they may have at their
        deadline.
        """
        windows = self.known.facts.windows.filter(pl.col("place") == self.spec.subject)
        excused_since = partial(self.spec.excused_since_ms, at_ms=self.known.at_ms)
        limits_ms = {
            end_ms: due_ms(self._deadline, end_ms, excused_since=excused_since) - end_ms
            for end_ms in windows["end_ms"].unique()
            if self._every.end_of(self._every.start_of(end_ms - 1)) == end_ms
        }
        limit_ms = pl.col("end_ms").replace_strict(limits_ms, default=None, return_dtype=MS)
        return _with_ages(windows, "end_ms").with_columns(limit_ms=limit_ms).drop_nulls("limit_ms")

    def work(self) -> Judged:
        """Returns the batches in which the operator worked for too long; only its own segments count."""
        # A stateless operator runs in the step of the next one, and the name of that step has both: `map+table`.
        is_of_operator = pl.col("detail").str.split("+").list.contains(self.spec.subject)
        segments = self.known.facts.segments.filter(pl.col("owner") == OPERATOR, is_of_operator)
        placed = segments.join(
            driver_clocks(self.known.facts), on=["stream", "driver"], maintain_order="left"
        ).with_columns(
            pl.col("began_ms", "ended_ms") + pl.col("to_reference_ms"),
            ahead_ms=pl.lit(0, MS),
            producer=pl.lit(None, pl.String()),
        )
        work = placed.with_columns(start_ms="began_ms", visible_ms="ended_ms")
        return self._judged(_with_ages(work, "start_ms"), _parts_of_work)

    def _judged(self, results: pl.DataFrame, parts_of_results: PartsOf) -> Judged:
        """Returns those of *results* that broke the promise, beside those before them that kept it.

        A row of *results* stands for `n` results of `age_ms` that became visible at `visible_ms`. If it has `limit_ms`,
        that is the longest age that keeps the promise; otherwise the promise has one limit for all.
        *parts_of_results* makes their account.
        """
        at_ms = self.known.at_ms
        is_now = pl.col("visible_ms").is_between(at_ms - self.spec.over_ms, at_ms, closed="right")
        of_promise_ms = self.kept_ms(self._measured_ms(results.filter(is_now)))
        limit_ms = pl.col("limit_ms") if "limit_ms" in results.columns else pl.lit(of_promise_ms)
        asked = results.with_columns(over_ms=pl.col("age_ms") - limit_ms, visible=pl.col("visible_ms"))
        now = asked.filter(is_now)
        broken = now.filter(pl.col("over_ms") > 0)
        first_ms = broken.select(pl.min("visible")).item() or at_ms
        before = asked.filter(pl.col("visible").is_between(first_ms - DAY_MS, first_ms, closed="left"))
        kept = before.filter(pl.col("over_ms") <= 0).sort("visible").tail(MOST_KEPT)
        chosen = pl.concat([broken, kept])
        is_broken = pl.Series("is_broken", [True] * broken.height + [False] * kept.height, dtype=pl.Boolean())
        history = int(before["n"].sum())
        return self._with_settings(
            results=numbered(chosen.select("n", "age_ms", "over_ms", is_broken)),
            parts=parts_of_results(self._ledger_of(chosen, usual_until_ms=first_ms), chosen),
            usual_share=int(before.filter(pl.col("over_ms") > 0)["n"].sum()) / history if history else None,
            judged=int(now["n"].sum()),
        )

    def _ledger_of(self, results: pl.DataFrame, *, usual_until_ms: int | None = None) -> Ledger:
        """Returns the ledger of the time in which *results* aged, with what was usual before *usual_until_ms*."""
        began_ms = results.select((pl.col("visible_ms") - pl.col("age_ms")).min()).item()
        return self.known.ledger(since_ms=began_ms, usual_until_ms=usual_until_ms)

    def _measured_ms(self, results: pl.DataFrame) -> float:
        """Returns the quantile of the ages of *results* that the promise limits, ms; 0 without results."""
        quantile = 1.0 if self.spec.measure.quantile is None else self.spec.measure.quantile
        ages = results.sort("age_ms").filter(pl.col("n").cum_sum() > rank(pl.sum("n"), quantile))["age_ms"]
        return float(ages[0]) if len(ages) else 0.0

    def _with_settings(
        self,
        *,
        results: pl.DataFrame,
        parts: pl.DataFrame,
        usual_share: float | None = None,
        judged: int = 1,
        is_open: bool = False,
    ) -> Judged:
        """Returns *results* with the *parts* of owners that can move the measure, and with the settings of the file.

        The arguments are the fields of `Judged` with these names.
        """
        movers = [name for name in OWNERS if can_move(name, self.spec.measure)]
        return Judged(
            results=results,
            parts=parts.filter(pl.col("owner").is_in(movers)),
            batch_records=self.known.facts.plans.group_by("stream", "batch_id").agg(records=pl.sum("n")),
            volume_of=source_of_volume(self.topology),
            configured=configured_lengths(self.topology),
            usual_share=usual_share,
            judged=judged,
            is_open=is_open,
        )

    # The oldest result that is not visible yet

    def of_open_result(self) -> Explanation | None:
        """Returns why the oldest result is not visible yet; None if no result on its way is late."""
        ahead = self.ahead()
        if ahead is not None:
            return ahead
        age_ms = self._newest_age_ms
        if age_ms <= self.kept_ms(age_ms):
            return Explanation(answer=Answer.KEPT)
        found = self.open_result()
        is_late = found is not None and found.age_ms > self.kept_ms(age_ms)
        return explain(self.judged_open(found)) if found is not None and is_late else None

    def of_silence(self) -> Explanation:
        """Returns what became of the records from which results should be on their way.

        Most often they were not produced, or an operator has not sent them on.
        """
        tables, at_ms = self.known.tables, self.known.at_ms
        if self.spec.measure is STALENESS:
            return shares_of_records(tables, self.spec, at_ms=at_ms)
        main_source = source_of_volume(self.topology)[f"{self.topology.name}/{self.sub_topology.name}"]
        is_of_source = any(source.name == self.spec.subject for source in self.topology.outside_sources)
        source = self.spec.subject if is_of_source else main_source
        shares = shares_since_newest_row(tables, [source], at_ms=at_ms)
        return shares if shares.leaves else _of_one(self._why_time_stands(source))

    def _why_time_stands(self, source: str) -> Leaf:
        """Returns why the time of *source* stands still, of which no record is known to be missing.

        No new one has come, as far as the stream has looked. If it no longer looks, nobody knows whether some came.
        """
        sub, now = self.topology.sub_topology_of(source), self.now
        if not now.nobody_looks(sub):
            return Leaf(owner=TOPIC, detail=source, became=Became.NOT_PRODUCED)
        owner, stream = now.owner(sub)[0], now.name(sub)
        return Leaf(owner=owner, detail=stream, stream=stream, became=Became.UNREAD, is_estimate=True)

    def ahead(self) -> Explanation | None:
        """Returns whose clock is ahead, if the event times of some records lie in the future; None otherwise."""
        reads = self.known.facts.reads.filter(pl.col("writer").is_null())
        early = reads.filter(pl.col("event_ms") > self.known.at_ms + LEAST_CLOCK_ERROR_MS).sort("event_ms")
        if early.is_empty():
            return None
        read = early.row(-1, named=True)
        partition = partition_name(read["input"], read["partition"])
        seen_ms = self.known.at_ms if read["arrived_ms"] is None else read["arrived_ms"]
        early_ms = seen_ms - read["event_ms"]
        return _of_one(
            Leaf(owner=PRODUCER, detail=partition, amount_ms=early_ms, largest_ms=early_ms, touched=read["n"])
        )

    @property
    def newest_ms(self) -> int | None:
        """The event time of the newest record of the table, or the watermark, epoch ms; None without one."""
        if self.spec.measure is STALENESS:
            rows = self.known.recorded.operator_batches.filter(pl.col("operator").is_in(self.operators))
            # A topic has no table: its newest record is known by the results that were sent to it.
            sent = self.known.facts.results.filter(pl.col("place").is_in(self.operators))
            newest_ms = rows["newest_ms"].max() or sent["event_ms"].max()
        else:
            newest_ms = self.watermarks.select(pl.max("watermark_ms")).item()
        return newest_ms if isinstance(newest_ms, int) else None

    @property
    def _newest_age_ms(self) -> float:
        """The age of the newest record, or of the watermark, ms; infinite without one."""
        newest_ms = self.newest_ms
        return math.inf if newest_ms is None else self.known.at_ms - newest_ms

    @property
    def watermarks(self) -> pl.DataFrame:
        """The watermarks of the stream, or of the source that is the subject: `batch_id`, `watermark_ms`."""
        source = None if self.spec.subject == self.sub_topology.name else self.spec.subject
        rows = self.known.recorded.partition_batches.filter(
            pl.col("sub_topology") == self.sub_topology.name,
            pl.col("source").eq_missing(source),
            pl.col("partition").is_null(),
        )
        return rows.select("batch_id", watermark_ms=pl.col("watermark").dt.epoch("ms")).drop_nulls()

    @property
    def now(self) -> StreamsNow:
        """What the streams do at the instant, and have done since the newest record of the table, or the watermark."""
        return self.known.now(self.newest_ms)

    def open_result(self) -> OpenResult | None:
        """Returns the oldest result that is not visible yet; None if none is on its way."""
        now = self.now
        if self.spec.measure is WATERMARK_LAG:
            return OpenTime(now).where_it_stands(self.sub_topology)
        for operator in self.operators:
            found = OpenRecords(now).held_by_setting(operator)
            if found is None:
                windowed = self._windowed_before(operator)
                found = OpenRecords(now).before(operator) if windowed is None else OpenTime(now).next_window(windowed)
            if found is not None:
                return found
        return None

    def _windowed_before(self, name: str) -> Operator | None:
        """Returns the operator on the way to *name* whose windows wait for time; None without one."""
        return next((operator for operator in self.topology.path_into(name) if waits_for_time(operator)), None)

    @property
    def _is_of_time(self) -> bool:
        """Whether the results become visible when the watermark has passed them."""
        return self.spec.measure is WATERMARK_LAG or any(map(self._windowed_before, self.operators))

    def of_open_interval(self) -> Explanation | None:
        """Returns why the first interval that is not complete is late.

        None if its deadline is still to come, or if the stream is not known to have looked for records.
        """
        end_ms = self._open_end_ms
        now = self.known.now(end_ms)
        if end_ms is None or self.known.at_ms < self._deadline.at_ms(end_ms):
            return None
        found = OpenTime(now).not_passed(self.sub_topology, end_ms)
        if found is None:
            has_looked = now.last_look_ms(now.name(self.sub_topology)) is not None
            return self.of_silence() if has_looked else None
        return explain(self._beside(found, self._complete, self._deadline.at_ms(end_ms) - end_ms, window_parts))

    @property
    def _open_end_ms(self) -> int | None:
        """The end of the first interval that is not complete, epoch ms; None if no record was read."""
        newest_ms = self._complete["end_ms"].max()
        if isinstance(newest_ms, int):
            return self._every.end_of(newest_ms)
        first_ms = self.known.facts.reads["event_ms"].min()
        return self._every.end_of(self._every.start_of(first_ms)) if isinstance(first_ms, int) else None

    @property
    def visible(self) -> pl.DataFrame:
        """The results that became visible, with `age_ms`; they are windows if results wait for time."""
        facts = self.known.facts
        if not self._is_of_time:
            return _with_ages(facts.results.filter(pl.col("place").is_in(self.operators)), "event_ms")
        of_stream = pl.col("stream") == f"{self.topology.name}/{self.sub_topology.name}"
        windows = facts.windows.filter(of_stream).unique(["batch_id", "end_ms"], keep="first", maintain_order=True)
        return _with_ages(windows, "end_ms")

    def judged_open(self, found: OpenResult) -> Judged:
        """Returns the open result *found* beside those that became visible before it and kept the promise."""
        limit_ms = self.kept_ms(self._newest_age_ms)
        parts_of_results = window_parts if self._is_of_time else record_parts
        return self._beside(found, self.visible.with_columns(limit_ms=pl.lit(limit_ms)), limit_ms, parts_of_results)

    def _beside(self, found: OpenResult, visible: pl.DataFrame, limit_ms: int, parts_of_results: PartsOf) -> Judged:
        """Returns the open result *found* beside those of *visible* that kept the promise.

        The open result may be *limit_ms* old, and each of *visible* as old as its own `limit_ms` says.
        *parts_of_results* makes the account of those.
        """
        is_before = pl.col("visible_ms") < self.known.at_ms - found.age_ms
        kept = (
            visible.filter(is_before, pl.col("age_ms") <= pl.col("limit_ms"))
            .sort("visible_ms")
            .tail(MOST_KEPT)
            .with_columns(over_ms=pl.col("age_ms") - pl.col("limit_ms"), is_broken=pl.lit(value=False))
        )
        parts = parts_of_results(self._ledger_of(kept), kept)
        columns = ["result", "n", "age_ms", "over_ms", "is_broken"]
        row = dict(zip(columns, (-1, 1, found.age_ms, found.age_ms - limit_ms, True), strict=True))
        known = numbered(kept).select(columns)
        return self._with_settings(
            results=pl.concat([known, pl.DataFrame([row], schema=known.schema)]),
            parts=pl.concat([parts, found.parts.with_columns(result=pl.lit(-1, pl.Int64()))]),
            is_open=True,
        )


def _of_one(leaf: Leaf) -> Explanation:
    """Returns the explanation of a single broken result by *leaf* alone."""
    cause = CausingOwner(owner=leaf.owner, detail=leaf.detail, explained=1.0)
    return Explanation(answer=Answer.EXPLAINED, causes=(cause,), leaves=(leaf,), explained=1.0, broken=1, results=1)


def _with_ages(results: pl.DataFrame, since: str) -> pl.DataFrame:
    """Returns *results* with `age_ms`, from the instant in the column *since* until they were visible.

    A row without `n` stands for one result.
    """
    counted = results if "n" in results.columns else results.with_columns(n=pl.lit(1, pl.Int64()))
    return counted.with_columns(age_ms=pl.col("visible_ms") - pl.col(since))


def _parts_of_work(ledger: Ledger, work: pl.DataFrame) -> pl.DataFrame:
    rows = numbered(work)
    steps = step(rows, 0, 1, "visible_ms", stream="stream", error_ms="clock_error_ms")
    return parts_of(rows.select(AGES.names()), in_order(steps), ledger.timeline)
