"""Merges latencies into quantiles for the places of a chart's time axis, which are cells of equal length.

A quantile of several minutes is computed from their buckets, and is as exact as that of one minute. Lengths are ms,
instants epoch ms of the finish clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from tidemark.facts.answers import Row, Tables
from tidemark.kernels.reports.rollups import QUANTILES
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.semantics.buckets import quantile

ROLLED_UP = """
    SELECT operator, at_ms, list((b.bucket, b.n)) AS counts, min(min_ms) AS min_ms, max(max_ms) AS max_ms
    FROM (
        SELECT operator, epoch_ms(interval_start) // $4 * $4 AS at_ms, min_ms, max_ms, explode(buckets) AS b
        FROM latency_rollup
        WHERE topology = $1 AND interval_start >= make_timestamptz($2 * 1000)
              AND interval_start < make_timestamptz($3 * 1000) AND list_contains($5::VARCHAR[], operator)
              AND grain = $6 AND scope = 'operator'
    )
    GROUP BY ALL ORDER BY operator, at_ms
"""
LATEST = """
    SELECT operator, at_ms, list((b.bucket, b.n)) AS counts, min(min_ms) AS min_ms, max(max_ms) AS max_ms
    FROM (
        SELECT operator, epoch_ms(finished_at) // $4 * $4 AS at_ms, min_ms, max_ms, explode(buckets) AS b
        FROM latency_minutes
        WHERE topology = $1 AND finished_at >= make_timestamptz($2 * 1000)
              AND finished_at < make_timestamptz($3 * 1000) AND list_contains($5::VARCHAR[], operator)
    )
    GROUP BY ALL ORDER BY operator, at_ms
"""
PROMISED = """
    SELECT operator, arg_max(sla_ms, interval_start) AS sla_ms FROM latency_rollup
    WHERE topology = $1 AND interval_start < make_timestamptz($2 * 1000) AND scope = 'operator' AND grain = 'minute'
    GROUP BY operator
"""


class ChartSpan(StrEnum):
    """How much time before now charts cover."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"

    @property
    def length_ms(self) -> int:
        """The length of the time, ms; a month has 30 days."""
        days_ms = Grain.DAY.length_ms
        return {ChartSpan.HOUR: Grain.HOUR.length_ms, ChartSpan.DAY: days_ms, ChartSpan.MONTH: 30 * days_ms}[self]

    @property
    def read_from(self) -> str:
        """Where the latencies are read from, as people read it.

        >>> [span.read_from for span in ChartSpan]
        ['facts of batches', 'minutes that reports have rolled up', 'hours that reports have rolled up']
        """
        if self is ChartSpan.HOUR:
            return "facts of batches"
        return f"{rolled_up_grain(self.length_ms).value}s that reports have rolled up"

    @property
    def place_ms(self) -> int:
        """The length of a place of the time axis, ms."""
        return {ChartSpan.HOUR: 60_000, ChartSpan.DAY: 900_000, ChartSpan.MONTH: 21_600_000}[self]


def rolled_up_grain(length_ms: int) -> Grain:
    """Returns which rollups are merged for a time of *length_ms*: minutes up to two days, and hours beyond that."""
    return Grain.MINUTE if length_ms <= 2 * Grain.DAY.length_ms else Grain.HOUR


def latencies_in_places(
    tables: Tables, topology: str, operators: Sequence[str], interval: Interval, place_ms: int, *, is_rolled_up: bool
) -> list[Row]:
    """Returns quantiles of the end-to-end latency for each place of the time axis.

    Args:
        tables: the tables of the warehouse.
        topology: the name of the topology.
        operators: the operators whose latencies are wanted.
        interval: the time, by the finish clock. Minutes or hours of rollups count if they overlap it.
        place_ms: the length of a place, a multiple of a minute, and beyond two days of an hour.
        is_rolled_up: whether to read rollups; otherwise the facts of batches are read.

    Returns:
        Rows with `operator`, `at_ms`, `n`, the quantiles and the promised latency, sorted by operator and time.
    """
    where = [interval.end_ms, place_ms, list(operators)]
    if is_rolled_up:
        grain = rolled_up_grain(interval.length_ms)
        first_ms = interval.widened(grain).start_ms
        measured = tables.ask(ROLLED_UP, [topology, first_ms, *where, grain.value]).objects
    else:
        measured = tables.ask(LATEST, [topology, interval.start_ms, *where]).objects
    promises = tables.ask(PROMISED, [topology, interval.end_ms]).objects if measured else []
    promised_ms = {row["operator"]: row["sla_ms"] for row in promises}
    rows = []
    for row in measured:
        extremes = {"min_ms": row["min_ms"], "max_ms": row["max_ms"]}
        quantiles = {name: quantile(row["counts"], q, **extremes) for name, q in QUANTILES.items()}
        n, sla_ms = sum(n for _, n in row["counts"]), promised_ms.get(row["operator"])
        rows.append({"operator": row["operator"], "at_ms": row["at_ms"], "n": n, **quantiles, "sla_ms": sla_ms})
    return rows
