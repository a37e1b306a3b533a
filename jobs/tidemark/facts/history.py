"""Collects latencies, staleness and error budgets of the recent past, for charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.facts.answers import Row, Tables
from tidemark.facts.latency_places import ChartSpan, latencies_in_places
from tidemark.facts.topology_changes import RecordedChange, topology_changes
from tidemark.model.measures.registry import MEASURES
from tidemark.model.settings.intervals import Interval

STALENESS = """
    SELECT sla AS name, epoch_ms(checked_at) // $4 * $4 AS at_ms, max(observed_ms) AS "value",
           arg_max(coalesce(error_after_ms, warn_after_ms), checked_at) AS limit_ms
    FROM sla_results
    WHERE topology = $1 AND checked_at >= make_timestamptz($2 * 1000) AND checked_at < make_timestamptz($3 * 1000)
          AND measure = 'staleness' AND observed_ms IS NOT NULL
          AND coalesce(list_contains($5::VARCHAR[], subject), true)
    GROUP BY ALL ORDER BY name, at_ms
"""
BUDGETS = """
    SELECT objective AS name, epoch_ms(checked_at) // $4 * $4 AS at_ms, arg_max(budget_left, checked_at) AS "value"
    FROM error_budgets
    WHERE topology = $1 AND checked_at >= make_timestamptz($2 * 1000) AND checked_at < make_timestamptz($3 * 1000)
          AND coalesce(list_contains($5::VARCHAR[], subject), true)
    GROUP BY ALL ORDER BY name, at_ms
"""
WITHOUT_CHART = """
    SELECT DISTINCT sla, replace(measure, '_', ' ') AS measure, subject FROM sla_results
    WHERE topology = $1 AND checked_at >= make_timestamptz($2 * 1000) AND checked_at < make_timestamptz($3 * 1000)
          AND measure <> 'staleness' AND objective IS NULL AND NOT list_contains($4::VARCHAR[], measure)
          AND coalesce(list_contains($5::VARCHAR[], subject), true)
    ORDER BY sla
"""
"""Selects the SLAs whose measure no chart shows; $4 has the measures of end-to-end latency, which have one."""


@dataclass(frozen=True, kw_only=True)
class PastMeasurements:
    """Measurements of a *span* until now, for charts.

    Attributes:
        span: the length of the time that they cover.
        interval: that time, epoch ms.
        latencies: rows of `latencies_in_places`.
        staleness: the greatest staleness in each cell of the axis, as rows with `name` of the SLA, `at_ms`, `value`
            (ms) and `limit_ms`.
        budgets: the last unused share in each cell of the axis, as rows with `name` of the objective, `at_ms` and
            `value`.
        without_chart: SLAs with other measures, as rows with `sla`, `measure` and `subject`.
        changes: changes of the topology after which numbers mean something else.
    """

    span: ChartSpan
    interval: Interval
    latencies: Sequence[Row]
    staleness: Sequence[Row]
    budgets: Sequence[Row]
    without_chart: Sequence[Row]
    changes: Sequence[RecordedChange]


def history(
    tables: Tables,
    topology: str,
    operators: Sequence[str],
    span: ChartSpan,
    *,
    at_ms: int,
    subjects: Sequence[str] | None = None,
) -> PastMeasurements:
    """Returns the measurements of the past *span*: the last hour from facts of batches, a longer time from rollups.

    Args:
        tables: the tables of the warehouse.
        topology: the name of the topology.
        operators: the operators whose latencies are wanted.
        span: the length of the time.
        at_ms: the end of that time, epoch ms.
        subjects: staleness and budgets are those of SLAs about these subjects; None stands for all SLAs.
    """
    # The axis ends with a whole cell, so that the newest cell is not cut.
    end_ms = -(-at_ms // span.place_ms) * span.place_ms
    interval = Interval(end_ms - span.length_ms, end_ms)
    latencies = [name for name, measure in MEASURES.items() if measure.is_latency]
    of_interval, of_subjects = [topology, interval.start_ms, interval.end_ms], None if subjects is None else [*subjects]
    where = [*of_interval, span.place_ms, of_subjects]
    return PastMeasurements(
        span=span,
        interval=interval,
        latencies=latencies_in_places(
            tables, topology, operators, interval, span.place_ms, is_rolled_up=span is not ChartSpan.HOUR
        ),
        staleness=tables.ask(STALENESS, where).objects,
        budgets=tables.ask(BUDGETS, where).objects,
        without_chart=tables.ask(WITHOUT_CHART, [*of_interval, latencies, of_subjects]).objects,
        changes=topology_changes(tables, topology, Interval(interval.start_ms, at_ms + 1)),
    )
