"""Why an operator gives no results, without any promise about it: what is usual takes the place of a limit.

A result on its way is late if it is older, by more than a trigger, than 99 of 100 results in the day before were when
they became visible. If no result is on its way, the table is late if its newest row is older, by more than a trigger,
than rows of that day usually were when the next one came. If that day had fewer than 20 results, these lengths are at
least as long as the settings on the way to the operator. A table that has never had a row is always explained, since
its reader waits for the first one. An operator that has sent results to others is not explained: those results are
in the accounts of the operators at the end of their way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from tidemark.account.cause import JudgedPromise, Known
from tidemark.account.configured import configured_lengths
from tidemark.account.excess import ENOUGH, explain
from tidemark.account.explanation import Answer, Explanation
from tidemark.account.numbers import shares_since_newest_row
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.warehouse import AccountTables
from tidemark.facts.fact_tables import Stored
from tidemark.kernels.columns.quantiles import quantile_of
from tidemark.model.measures.registry import Measure
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.skew import LEAST_CLOCK_ERROR_MS
from tidemark.semantics.sla import Sla

USUALLY = 0.99
"""This share of results was at most as old as the usual age."""


def cause_of_silence(
    topology: Topology, layout: Layout, operator: str, *, at_ms: int, stored: Stored | None = None
) -> Explanation:
    """Returns why an operator gives no results; the answer is KEPT if they come as usual.

    A source has no results: its watermark is judged instead.

    Args:
        topology: the topology that has the operator.
        layout: where its tables are.
        operator: the name of the operator.
        at_ms: the instant, epoch ms.
        stored: tables that were opened already, so that several answers come from the same versions.
    """
    return causes_of_silence(topology, layout, (operator,), at_ms=at_ms, stored=stored)[operator]


def causes_of_silence(
    topology: Topology, layout: Layout, operators: tuple[str, ...], *, at_ms: int, stored: Stored | None = None
) -> Mapping[str, Explanation]:
    """Returns `cause_of_silence` of each of *operators*, by name; tables are read once for all."""
    known = Known(AccountTables(layout, topology, stored or Stored()), at_ms)
    return {name: _Silence(known, name).explanation for name in operators}


@dataclass(frozen=True)
class _Silence:
    """An operator whose results may be missing, with what is `known` of its topology."""

    known: Known
    operator: str

    @property
    def explanation(self) -> Explanation:
        newest_ms = self._promise(0).newest_ms
        if newest_ms is None:
            is_asked = self._has_run and not self._is_on_the_way
            return self._explain_first_result() if is_asked else Explanation(answer=Answer.NOT_KNOWN)
        promise = self._promise(self._usual_age_ms)
        silent_ms = self.known.at_ms - newest_ms
        if silent_ms < -LEAST_CLOCK_ERROR_MS:
            return promise.ahead() or Explanation(answer=Answer.KEPT)
        if silent_ms <= promise.kept_ms(0):
            return Explanation(answer=Answer.KEPT)
        found = promise.open_result()
        if found is not None and found.age_ms > promise.kept_ms(0):
            return explain(promise.judged_open(found))
        is_usual = found is not None or silent_ms <= self._usual_silence_ms
        return Explanation(answer=Answer.KEPT) if is_usual else self._explain_by_records()

    @property
    def _has_run(self) -> bool:
        """Whether a stream on the way to the operator has finished a batch."""
        return not self.known.recorded.batches.filter(pl.col("sub_topology").is_in(self._streams)).is_empty()

    @property
    def _is_on_the_way(self) -> bool:
        """Whether the operator is in the middle of its topology and has given results to the operators after it.

        Such an operator has no table, so no row tells how new these results were. A source is never in the middle here,
        since its watermark is judged.
        """
        if self._measure is WATERMARK_LAG or self.operator in self.known.tables.topology.terminals:
            return False
        rows = self.known.recorded.operator_batches.filter(pl.col("operator") == self.operator)
        return not rows.filter(pl.any_horizontal(pl.col("emitted", "passed", "repeated") > 0)).is_empty()

    @property
    def _streams(self) -> set[str]:
        """The sub-topologies on the way to the operator."""
        topology = self.known.tables.topology
        return {topology.sub_topology_of(each.name).name for each in topology.path_into(self.operator)}

    def _explain_first_result(self) -> Explanation:
        """Returns what the first result of the operator waits for."""
        promise = self._promise(self._configured_ms)
        found = promise.open_result()
        if found is None:
            return self._explain_by_records()
        if found.age_ms > promise.kept_ms(0):
            return explain(promise.judged_open(found))
        # As long as the settings allow, nobody is late. But one of them may be what the result waits for.
        waits = explain(self._promise(0).judged_open(found))
        longest_ms = found.parts.group_by("owner", "detail", "stream").agg(pl.sum("ms"))["ms"].max()
        is_of_setting = waits.answer is Answer.CANNOT_BE_KEPT and waits.leaves[0].amount_ms == longest_ms
        return waits if is_of_setting else Explanation(answer=Answer.KEPT)

    def _explain_by_records(self) -> Explanation:
        """Returns what became of the records from which results should have come."""
        promise = self._promise(0)
        now = promise.now
        # If nobody has ever looked, records may wait unread that nobody knows of.
        subs = [sub for sub in now.topology.sub_topologies if sub.name in self._streams]
        if any(now.nobody_looks(sub) and now.last_look_ms(now.name(sub)) is None for sub in subs):
            return Explanation(answer=Answer.NOT_KNOWN)
        if self._measure is WATERMARK_LAG:
            return promise.of_silence()
        return shares_since_newest_row(self.known.tables, [self.operator], at_ms=self.known.at_ms)

    @property
    def _measure(self) -> Measure:
        is_source = self.known.tables.topology.operators[self.operator].reads_outside
        return WATERMARK_LAG if is_source else STALENESS

    def _promise(self, limit_ms: float) -> JudgedPromise:
        """Returns a made-up promise that results of the operator are at most *limit_ms* old."""
        spec = SlaSpec(
            name=self.operator,
            subject=self.operator,
            measure=self._measure,
            # A length that is equal to the limit of an SLA breaks it.
            limits=Sla(error_after_ms=limit_ms + 1),
            owner="",
            over_ms=0,
            ignore_when_idle=False,
        )
        return JudgedPromise(self.known, spec)

    # What is usual

    @property
    def _usual_age_ms(self) -> int:
        """How old results usually are at most when they become visible, or how far the watermark of a source lags,
        ms.
        """
        if self._measure is WATERMARK_LAG:
            return self._usual_silence_ms
        visible = self._promise(0).visible
        return self._usual_ms(visible.get_column("age_ms"), known=int(visible["n"].sum()))

    @cached_property
    def _usual_silence_ms(self) -> int:
        """How old the newest record, or the watermark, usually was at most when the next one came, ms."""
        promise, recorded = self._promise(0), self.known.recorded
        if self._measure is WATERMARK_LAG:
            finished = recorded.batches.filter(pl.col("sub_topology") == promise.sub_topology.name)
            came = promise.watermarks.join(finished, on="batch_id").select(
                "batch_id", at_ms=pl.col("finished_at").dt.epoch("ms"), newest_ms="watermark_ms"
            )
        else:
            came = (
                self.known.facts.results.filter(pl.col("place") == self.operator)
                .group_by("batch_id")
                .agg(at_ms=pl.min("visible_ms"), newest_ms=pl.max("event_ms"))
            )
        silent_ms = pl.col("at_ms") - pl.col("newest_ms").cum_max().shift()
        before_ms = came.sort("batch_id").select(silent_ms.alias("silent_ms")).drop_nulls()["silent_ms"]
        return self._usual_ms(before_ms, known=before_ms.len())

    def _usual_ms(self, lengths_ms: pl.Series, *, known: int) -> int:
        """Returns the usual length plus a trigger, ms. *known* is the number of results that *lengths_ms* come from."""
        usual_ms = int(lengths_ms.to_frame("ms").select(quantile_of(pl.col("ms"), USUALLY)).item() or 0)
        usual_ms = usual_ms if known >= ENOUGH else max(usual_ms, self._configured_ms)
        return usual_ms + self.known.tables.topology.trigger_ms

    @property
    def _configured_ms(self) -> int:
        """The sum of the settings that hold results on the way to the operator, and of a trigger of each stream, ms."""
        topology = self.known.tables.topology
        path = {operator.name: operator for operator in topology.path_into(self.operator)}
        lengths = configured_lengths(topology).items()
        settings_ms = sum(ms for (owner, detail), ms in lengths if owner != TRIGGER and detail in path)
        windows_ms = sum(operator.windows.longest_ms for operator in path.values() if operator.windows is not None)
        return settings_ms + windows_ms + topology.trigger_ms * len(self._streams)
