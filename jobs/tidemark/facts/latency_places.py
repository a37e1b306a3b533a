"""Merges latencies into quantiles for the places of a chart's time axis.

A quantile of several minutes comes from their buckets, and is as exact as that of one. Lengths are ms, instants epoch
ms of the finish clock.
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
    """The time before now that charts cover."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"

    @property
    def length_ms(self) -> int:
        """Its length; a month has 30 days."""
        days_ms = Grain.DAY.length_ms
        return {ChartSpan.HOUR: Grain.HOUR.length_ms, ChartSpan.DAY: days_ms, ChartSpan.MONTH: 30 * days_ms}[self]

    @property
    def read_from(self) -> str:
        """What its latencies are read from, for people.

        >>> [span.read_from for span in ChartSpan]
        ['facts of batches', 'minutes that reports have rolled up', 'hours that reports have rolled up']
        """
        if self is ChartSpan.HOUR:
            return "facts of batches"
        return f"{rolled_up_grain(self.length_ms).value}s that reports have rolled up"

    @property
    def place_ms(self) -> int:
        """Length of a place of the axis, ms."""
        return {ChartSpan.HOUR: 60_000, ChartSpan.DAY: 900_000, ChartSpan.MONTH: 21_600_000}[self]


def rolled_up_grain(length_ms: int) -> Grain:
    """Returns the grain of the rollups from which latencies of a time of *length_ms* are merged."""
    return Grain.MINUTE if length_ms <= 2 * Grain.DAY.length_ms else Grain.HOUR


def latencies_in_places(
    tables: Tables, topology: str, operators: Sequence[str], interval: Interval, place_ms: int, *, is_rolled_up: bool
) -> list[Row]:
    """Returns quantiles of the end-to-end latency for each place.

    Args:
        tables: of the warehouse.
        topology: its name.
        operators: the operators that are wanted.
        interval: of the finish clock; of rollups, the minutes or hours that overlap it.
        place_ms: length of a place: a multiple of a minute, and of an hour for more than two days.
        is_rolled_up: whether the minutes are in rollups; otherwise the facts of batches are read.

    Returns:
        Rows with `operator`, `at_ms`, `n`, the quantiles and the promised latency, by operator and time.
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
