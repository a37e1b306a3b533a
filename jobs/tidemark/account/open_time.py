"""The account of an instant that time has not passed: whom a watermark, or a window, waits for.

It waits for the slowest partition of the source at the beginning; behind a hop for its reader, if the writer has passed
the instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from tidemark.account.configured import hop_into
from tidemark.account.ledger import Ledger
from tidemark.account.now import StreamsNow
from tidemark.account.open_records import OpenResult, first_end_ms
from tidemark.account.unfinished import OPEN, open_parts
from tidemark.kernels.columns.quantiles import median_of
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.topology import SubTopology
from tidemark.semantics.idleness import Activity
from tidemark.semantics.strategy import Strategy

OF_PARTITION = ["input", "partition"]


@dataclass(frozen=True)
class OpenTime:
    """The time that streams have not reached *now*."""

    now: StreamsNow

    def where_it_stands(self, sub: SubTopology) -> OpenResult | None:
        """Returns the account of the instant after the watermark of *sub*; None: nothing holds it back."""
        stands_ms = self._watermark_ms(sub)
        return None if stands_ms is None else self.not_passed(sub, stands_ms + 1)

    def next_window(self, holder: Operator) -> OpenResult | None:
        """Returns the account of the first window of *holder* whose end time has not passed; None: nothing holds it."""
        windows, sub = holder.windows, self.now.topology.sub_topology_of(holder.name)
        assert windows is not None
        stands_ms = self._watermark_ms(sub)
        if stands_ms is None:
            reads = self.now.facts.reads.filter(pl.col("stream") == self.now.name(sub))
            stands_ms = reads.select(pl.min("event_ms")).item()
        return None if stands_ms is None else self.not_passed(sub, first_end_ms(windows, stands_ms))

    def not_passed(self, sub: SubTopology, at_ms: int) -> OpenResult | None:
        """Returns the account of the instant *at_ms*, which the watermark of *sub* has not reached; None: nothing holds
        it back.
        """
        hop = hop_into(sub)
        if hop is None:
            return self._slowest_partition(sub, at_ms)
        writer = self.now.topology.sub_topology(hop.upstream)
        passed = self._mark_beyond(writer, hop, at_ms)
        if passed is None:
            return self.not_passed(writer, at_ms)
        # The writer has told that it passed; since then it is its reader's time.
        waited = {"input": hop.repartition, "waited_until_ms": passed["visible_ms"], "bound_ms": 0}
        return self._account(self.now.name(sub), at_ms, waited)

    def _mark_beyond(self, writer: SubTopology, hop: HopSource, at_ms: int) -> dict[str, Any] | None:
        """Returns the first mark of *hop* with which its *writer* had passed *at_ms*; None: it has not."""
        marks = self.now.facts.marks.filter(
            pl.col("stream") == self.now.name(writer),
            pl.col("place") == hop.repartition,
            pl.col("watermark_ms") >= at_ms,
        )
        return None if marks.is_empty() else marks.sort("batch_id").row(0, named=True)

    def _slowest_partition(self, sub: SubTopology, at_ms: int) -> OpenResult | None:
        """Returns the account of *at_ms*, which the slowest partition of *sub* has not reached.

        None: all its partitions are silent alike, so that none of them holds time back.
        """
        stream = self.now.name(sub)
        slow, found_ms = self._slowest(sub), self.now.running_look_ms(stream)
        if slow is None or (slow["is_alike"] and found_ms is None and not self.now.nobody_looks(sub)):
            return None
        waited_ms = self.now.last_look_ms(stream) if found_ms is None else found_ms
        return None if waited_ms is None else self._account(stream, at_ms, {**slow, "waited_until_ms": waited_ms})

    def _slowest(self, sub: SubTopology) -> dict[str, Any] | None:
        """Returns the partition of *sub* that holds time back: `input`, `partition`, `bound_ms`, and `late_ms`, how
        late its newest record arrived.

        `is_alike`: no other partition is ahead of it by more than its records usually are apart.
        """
        stream, facts = self.now.name(sub), self.now.facts
        plans = facts.plans.filter(pl.col("stream") == stream).drop_nulls("newest_ms").sort("batch_id")
        reached = (
            plans.group_by(OF_PARTITION, maintain_order=True)
            .last()
            .join(self._idle(sub), on=OF_PARTITION, how="anti", nulls_equal=True)
            .join(facts.bounds.filter(pl.col("stream") == stream), on="input")
            .with_columns(reached_ms=pl.col("newest_ms") - pl.col("bound_ms"))
            .sort("reached_ms", *OF_PARTITION)
        )
        if reached.is_empty():
            return None
        slow = reached.row(0, named=True)
        is_slow = pl.col("input").eq(slow["input"]) & pl.col("partition").eq_missing(slow["partition"])
        apart = plans.filter(is_slow, pl.col("n") > 0).select(median_of(pl.col("newest_ms").diff())).item() or 0
        newest = facts.reads.filter(pl.col("stream") == stream, is_slow).sort("batch_id", "event_ms").tail(1)
        late_ms = newest.select((pl.col("arrived_ms") - pl.col("event_ms")).sum()).item()
        ahead_ms = reached.select(pl.max("reached_ms")).item() - slow["reached_ms"]
        return {
            "input": slow["input"],
            "partition": slow["partition"],
            "bound_ms": slow["bound_ms"],
            "late_ms": late_ms,
            "is_alike": ahead_ms <= apart,
        }

    def _idle(self, sub: SubTopology) -> pl.DataFrame:
        """Returns the partitions for which time does not wait."""
        rows = self.now.recorded.partition_batches.filter(pl.col("sub_topology") == sub.name).sort("batch_id")
        newest = rows.drop_nulls(["partition", "activity"]).group_by("source", "partition", maintain_order=True).last()
        idle = newest.filter(pl.col("activity") == Activity.IDLE.value)
        return idle.select(input="source", partition=pl.col("partition").cast(pl.Int64))

    def _watermark_ms(self, sub: SubTopology) -> int | None:
        rows = self.now.recorded.batches.filter(pl.col("sub_topology") == sub.name)
        watermark_ms = rows.select(pl.col("watermark").dt.epoch("ms").max()).item()
        return None if watermark_ms is None else int(watermark_ms)

    def _account(self, stream: str, at_ms: int, waited: dict[str, Any]) -> OpenResult | None:
        driver = self.now.driver(stream)
        if driver is None:
            return None
        row = {
            "stream": stream,
            "driver": driver["driver"],
            "start_ms": at_ms,
            "visible_ms": self.now.at_ms,
            "visible_boot_ms": self.now.at_ms - driver["to_reference_ms"],
            **waited,
        }
        unfinished = pl.DataFrame([{name: row.get(name) for name in OPEN}], schema=OPEN)
        return OpenResult(open_parts(Ledger.of(self.now.facts), unfinished), self.now.at_ms - at_ms)


def waits_for_time(operator: Operator) -> bool:
    """Returns True if *operator* sends a window when time has passed its end."""
    return operator.emission is not None and operator.emission.strategy is Strategy.ON_WINDOW_CLOSE
