"""Spark's own watermark rule, for comparing with it: Tidemark's is in `watermark`.

One watermark per `withWatermark` node, from the highest event time over all its partitions, without the 1 ms; a fast
partition makes the others late, and nothing is ever idle. Source: Spark 4.1, WatermarkTracker, WatermarkSupport and
PropagateWatermarkSimulator. Epoch milliseconds of record time; `dataclasses.asdict` of a state is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Policy(StrEnum):
    """`spark.sql.streaming.multipleWatermarkPolicy`: which node decides."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, kw_only=True)
class SparkWatermark:
    """What a query knows after a batch; `watermark_ms` is the one the next batch uses, 0 before any data."""

    delays_ms: Mapping[str, int]
    policy: Policy = Policy.MIN
    nodes_ms: Mapping[str, int] = field(default_factory=dict)
    watermark_ms: int = 0


def after_batch(state: SparkWatermark, max_timestamps_ms: Mapping[str, int]) -> SparkWatermark:
    """The state after a batch whose highest event time per node is *max_timestamps_ms*.

    A node without data in the batch is left out, and counts as 0 if it never had any. Neither a node's watermark
    nor the query's ever goes back.
    """
    nodes_ms = {}
    for node, delay_ms in state.delays_ms.items():
        known = [state.nodes_ms[node]] if node in state.nodes_ms else []
        seen = [max_timestamps_ms[node] - delay_ms] if node in max_timestamps_ms else []
        nodes_ms[node] = max(known + seen, default=0)
    choose = min if state.policy is Policy.MIN else max
    watermark_ms = max(state.watermark_ms, choose(nodes_ms.values()))
    return replace(state, nodes_ms=nodes_ms, watermark_ms=watermark_ms)


def restarted(state: SparkWatermark) -> SparkWatermark:
    """The state after a restart: the query's watermark is recovered, those of the nodes are forgotten."""
    return replace(state, nodes_ms={})


def is_passed(time_ms: int, watermark_ms: int) -> bool:
    """Whether a row's event time, or its window's end, is at or behind *watermark_ms*.

    With the watermark of the previous batch: the row is dropped as late. With this batch's: its state is evicted.
    """
    return time_ms <= watermark_ms
