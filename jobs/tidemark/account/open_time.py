"""Says what a watermark, or a window, waits for: the account of an instant that the watermark has not passed.

The watermark waits for the slowest partition of the sources. If a stream reads a hop whose writer has passed the
instant already, the watermark waits for that stream itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tidemark.account.configured import hop_into
from tidemark.account.now import StreamsNow
from tidemark.account.open_records import OpenResult, first_end_ms
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.topology import SubTopology
from tidemark.semantics.strategy import Strategy


@dataclass(frozen=True)
class OpenTime:
    """Instants of record time that the watermarks of streams have not passed `now`."""

    now: StreamsNow

    def where_it_stands(self, sub: SubTopology) -> OpenResult | None:
        """Returns the account of the instant after the watermark of *sub*; None if nothing holds the watermark back."""
        stands_ms = self._watermark_ms(sub)
        return None if stands_ms is None else self.not_passed(sub, stands_ms + 1)

    def next_window(self, operator: Operator) -> OpenResult | None:
        """Returns the account of the first open window of *operator*; None if nothing holds the watermark back."""
        windows, sub = operator.windows, self.now.topology.sub_topology_of(operator.name)
        assert windows is not None
        stands_ms = self._watermark_ms(sub)
        if stands_ms is None:
            reads = self.now.facts.reads.filter(pl.col("stream") == self.now.name(sub))
            stands_ms = reads.select(pl.min("event_ms")).item()
        return None if stands_ms is None else self.not_passed(sub, first_end_ms(windows, stands_ms))

    def not_passed(self, sub: SubTopology, at_ms: int) -> OpenResult | None:
        """Returns the account of an instant of record time, *at_ms*, that the watermark of *sub* has not passed.

        None if nothing holds the watermark back.
        """
        hop = hop_into(sub)
        if hop is None:
            return self._slowest_partition(sub, at_ms)
        writer = self.now.topology.sub_topology(hop.upstream)
        passed = self._mark_beyond(writer, hop, at_ms)
        if passed is None:
            return self.not_passed(writer, at_ms)
        # The writer has passed the instant, and its reader knows. Since then the reader is late.
        waited = {"input": hop.repartition, "waited_until_ms": passed["visible_ms"], "bound_ms": 0}
        return self._account(self.now.name(sub), at_ms, waited)

    def _mark_beyond(self, writer: SubTopology, hop: HopSource, at_ms: int) -> dict[str, Any] | None:
        """Returns the first row of MARKS with which the *writer* of *hop* had passed *at_ms*; None if it has not
        passed.
        """
        marks = self.now.facts.marks.filter(
            pl.col("stream") == self.now.name(writer),
            pl.col("place") == hop.repartition,
            pl.col("watermark_ms") >= at_ms,
        )
        return None if marks.is_empty() else marks.sort("batch_id").row(0, named=True)

    def _slowest_partition(self, sub: SubTopology, at_ms: int) -> OpenResult | None:
        """Returns the account of *at_ms*, which the slowest partition of *sub* has not reached.

        None if all partitions are silent, and alike, so that none of them holds the others back.
        """
        stream, slow = self.now.name(sub), self.now.slowest(sub)
        if slow is None:
            return None
        # The watermark may wait for records that nobody has read yet.
        has_unread = slow["left_by"] is not None or self.now.running_look_ms(stream) is not None
        if slow["is_alike"] and not has_unread and not self.now.nobody_looks(sub):
            return None
        return self._account(stream, at_ms, slow)

    def _watermark_ms(self, sub: SubTopology) -> int | None:
        rows = self.now.recorded.batches.filter(pl.col("sub_topology") == sub.name)
        watermark_ms = rows.select(pl.col("watermark").dt.epoch("ms").max()).item()
        return None if watermark_ms is None else int(watermark_ms)

    def _account(self, stream: str, at_ms: int, waited: Mapping[str, Any]) -> OpenResult | None:
        parts = self.now.parts_since(stream, at_ms, waited)
        return None if parts is None else OpenResult(parts, self.now.at_ms - at_ms)


def waits_for_time(operator: Operator) -> bool:
    """Returns True if *operator* sends the result of a window only when the watermark has passed its end."""
    return operator.emission is not None and operator.emission.strategy is Strategy.ON_WINDOW_CLOSE
