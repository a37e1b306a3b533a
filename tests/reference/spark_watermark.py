"""Computes watermarks as Spark does.

Tidemark's rule is in `tidemark.semantics.watermark`. Spark has one watermark per `withWatermark` node: the highest
event time over all its partitions less the delay, without Tidemark's 1 ms. A fast partition makes the others late, and
no partition is ever idle. Source: Spark 4.1, WatermarkTracker, WatermarkSupport and PropagateWatermarkSimulator.
Instants are epoch milliseconds of record time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Policy(StrEnum):
    """Selects the node that decides: `spark.sql.streaming.multipleWatermarkPolicy`."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, kw_only=True)
class SparkWatermark:
    """State of a query after a batch.

    The next batch uses `watermark_ms`, which is 0 before any data.
    """

    delays_ms: Mapping[str, int]
    policy: Policy = Policy.MIN
    nodes_ms: Mapping[str, int] = field(default_factory=dict)
    watermark_ms: int = 0


def after_batch(state: SparkWatermark, max_timestamps_ms: Mapping[str, int]) -> SparkWatermark:
    """Returns the state after a batch.

    *max_timestamps_ms* has the highest event time of each node. A node without data in the batch is left out, and
    counts as 0 if it never had any. Neither a node's watermark nor the query's ever goes back.
    """
    nodes_ms = {}
    for node, delay_ms in state.delays_ms.items():
        earlier = [state.nodes_ms[node]] if node in state.nodes_ms else []
        seen = [max_timestamps_ms[node] - delay_ms] if node in max_timestamps_ms else []
        nodes_ms[node] = max(earlier + seen, default=0)
    choose = min if state.policy is Policy.MIN else max
    watermark_ms = max(state.watermark_ms, choose(nodes_ms.values()))
    return replace(state, nodes_ms=nodes_ms, watermark_ms=watermark_ms)


def restarted(state: SparkWatermark) -> SparkWatermark:
    """Returns the state after a restart.

    The query's watermark is recovered, those of the nodes are forgotten.
    """
    return replace(state, nodes_ms={})


def is_passed(time_ms: int, watermark_ms: int) -> bool:
    """Returns True if *time_ms* is at or behind *watermark_ms*.

    *time_ms* is a row's event time, or the end of its window. By the watermark of the previous batch the row is dropped
    as late; by that of this batch its state is evicted.
    """
    return time_ms <= watermark_ms
