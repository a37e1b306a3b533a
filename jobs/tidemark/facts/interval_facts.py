"""Queries the facts of the page about an interval.

Which rows belong to the interval depends on their kind. Windows count if they were open at some time in the interval;
a chart shows those that end in it (record time). Outcomes and watermarks count by the finish clock of their batch.
Latencies come by the minute, and count if their minute overlaps the interval. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tidemark.facts.answers import Row, Tables
from tidemark.facts.latency_places import latencies_in_places
from tidemark.facts.path_facts import UNFINISHED
from tidemark.facts.topology_changes import RecordedChange, topology_changes, with_compared
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.topology import Topology
from tidemark.safe_text import inert
from tidemark.semantics.critical_path import FINISHED_MS
from tidemark.semantics.quantiles import MEDIAN, median_sql, quantile_sql, rank_sql

PLACES = 150
"""The time axis of a chart has at most this many cells, the places, since readers can distinguish no more."""
LISTED = 20
"""At most this many windows are listed, the slowest ones."""
SPANS_SHOWN = 1_000
"""At most this many spans in which a partition was not active are shown, the longest ones."""


def _holds(column: str) -> str:
    """Returns the SQL condition that the timestamp *column* is in [$2, $3), epoch ms."""
    return f"{column} >= make_timestamptz($2 * 1000) AND {column} < make_timestamptz($3 * 1000)"


def _was_open(window_end: str = "window_end") -> str:
    """Returns the SQL condition that a window with a path was open at some time in [$2, $3), epoch ms.

    Such a window ended in that time. Or it ended before, and an operator finished it in that time or has still not
    finished it. Unfinished windows go back one day, since reports do not look at older ones again.
    """
    return f"""{window_end} IN (
        SELECT window_end FROM critical_paths
        WHERE topology = $1 AND latency_ms IS NOT NULL AND window_end < make_timestamptz($3 * 1000) AND (
            window_end >= make_timestamptz($2 * 1000)
            OR {UNFINISHED} AND window_end >= make_timestamptz(($2 - {Grain.DAY.length_ms}) * 1000)
            OR NOT {UNFINISHED} AND {FINISHED_MS} > $2
        )
    )"""


OPEN = _was_open()
SUMMARY = f"""
    SELECT count(*) AS windows, coalesce(count(*) FILTER (over_sla), 0) AS over_sla, count(over_sla) AS promised,
           {median_sql("before_source_ms + latency_ms")} AS median_ms,
           {quantile_sql("before_source_ms + latency_ms", 0.9)} AS p90_ms,
           max(before_source_ms + latency_ms) AS max_ms, {median_sql("before_source_ms")} AS before_source_ms,
           CASE WHEN count(skew_error_ms) = count(*) THEN max(skew_error_ms) END AS skew_error_ms
    FROM critical_paths WHERE topology = $1 AND {OPEN}
"""
"""Selects the numbers that the page shows about all windows together."""
_WINDOW = """
    epoch_ms(window_end) AS end_ms, latency_ms, coalesce(waited_ms, 0) AS waited_ms,
    coalesce(queued_ms, 0) AS queued_ms, latency_ms - coalesce(waited_ms, 0) - coalesce(queued_ms, 0) AS worked_ms,
    before_source_ms, before_source_ms + latency_ms AS age_ms,
    coalesce(over_sla, false) AS over_sla, path, state
"""
JUDGED = f"""
    SELECT sla, operator, quantile, limit_ms, count(*) AS windows, count(*) FILTER (broken) AS broken,
           max(value_ms) AS worst_ms,
           (SELECT count(latency_ms) FROM critical_paths WHERE topology = $1 AND {OPEN})
           - sum(count(*)) OVER (PARTITION BY sla, operator, quantile)::BIGINT AS unjudged
    FROM (SELECT unnest(verdicts, recursive := true) FROM critical_paths WHERE topology = $1 AND {OPEN})
    GROUP BY sla, operator, quantile, limit_ms
    ORDER BY count(*) FILTER (broken) DESC, max(value_ms) / limit_ms DESC, sla
"""
"""Selects the SLAs by which windows were judged, with the longest measured length of each.

`unjudged` is the number of closed windows that the SLA did not judge.
"""
SLOWEST = f"""
    SELECT {_WINDOW}, verdicts, (
        SELECT arg_max({{owner: owner, detail: detail, stream: stream, ms: ms}}, (ms, owner, detail))
        FROM window_parts AS p WHERE p.topology = w.topology AND p.window_end = w.window_end
    ) AS longest_part
    FROM critical_paths AS w WHERE topology = $1 AND {OPEN}
    ORDER BY latency_ms + before_source_ms DESC, window_end LIMIT {LISTED}
"""
SPENT = f"""
    SELECT * REPLACE (bool_or(over_sla) OVER place AS over_sla), max(age_ms) OVER place AS longest_ms FROM (
        SELECT {_WINDOW} FROM critical_paths WHERE topology = $1 AND {_holds("window_end")} AND latency_ms IS NOT NULL
    )
    WINDOW place AS (PARTITION BY end_ms // $4)
    QUALIFY row_number() OVER (place ORDER BY age_ms, end_ms) = {rank_sql("count(*) OVER place", MEDIAN)}
    ORDER BY end_ms
"""
"""Selects for each place of the time axis the window of median age (as in `semantics.quantiles`).

`over_sla` is true if any window of the place broke the limit of an SLA. `longest_ms` is the longest age of its windows.
"""
MEASURED_STEPS = """(
    SELECT s.* REPLACE (
        CASE WHEN s.state != 'input' THEN s.worked_ms
             WHEN s.step IS NOT NULL AND p.is_known THEN coalesce(p.ms, 0)
             ELSE p.ms END AS worked_ms
    )
    FROM critical_path_steps AS s
    LEFT JOIN (
        SELECT topology, window_start, window_end, operator, bool_and(owner != 'unknown') AS is_known,
               sum(ms) FILTER (owner = 'operator' AND split_part(detail, ' ', 1) = operator)::BIGINT AS ms
        FROM window_parts, (SELECT DISTINCT operator FROM critical_path_steps WHERE state = 'input')
        GROUP BY ALL
    ) AS p USING (topology, window_start, window_end, operator)
)"""
"""SQL: the rows of critical_path_steps with the work of inputs, which `described_window` computes for one window."""
OPERATORS = f"""
    SELECT operator, {median_sql("latency_ms")} AS latency_ms, {median_sql("worked_ms")} AS worked_ms,
           count(step) AS on_path, count(*) AS windows, any_value(promised_ms) AS promised_ms
    FROM {MEASURED_STEPS} WHERE topology = $1 AND {OPEN} AND slack_ms IS NOT NULL GROUP BY operator
"""
PATHS = f"""
    WITH walks AS (
        SELECT window_end, list(operator ORDER BY step) AS path
        FROM critical_path_steps WHERE topology = $1 AND {OPEN} AND step IS NOT NULL GROUP BY window_end
    )
    SELECT walks.path, count(*) AS windows, {median_sql("latency_ms")} AS median_ms,
           {quantile_sql("latency_ms", 0.9)} AS p90_ms, max(latency_ms) AS max_ms
    FROM walks JOIN critical_paths AS p ON p.window_end = walks.window_end AND p.topology = $1
    GROUP BY walks.path ORDER BY windows DESC, max_ms DESC, walks.path
"""
CAUSES = f"""
    SELECT sla, cause, cause_operator, cause_partition, count(*) AS checks, min(epoch_ms(checked_at)) AS first_ms,
           max(epoch_ms(checked_at)) AS last_ms, arg_max(blocked_by, checked_at) AS explained
    FROM sla_results
    WHERE topology = $1 AND {_holds("checked_at")} AND verdict IN ('warn', 'error') AND cause IS NOT NULL
    GROUP BY sla, cause, cause_operator, cause_partition ORDER BY checks DESC, sla, cause
"""
"""Selects the causes that checks of the interval have found, each with the explanation of the newest check."""
EMISSION = f"""
    SELECT operator, epoch_ms(batches.finished_at) // $4 * $4 AS at_ms, sum(emitted)::BIGINT AS emitted,
           sum(suppressed)::BIGINT AS suppressed
    FROM operator_batches JOIN batches USING (topology, sub_topology, batch_id)
    WHERE topology = $1 AND {_holds("batches.finished_at")}
    GROUP BY ALL HAVING sum(emitted + suppressed) > 0 ORDER BY ALL
"""
ACCOUNT = f"""
    SELECT coalesce(sum(o.records_in) FILTER (list_contains($4::VARCHAR[], operator)), 0)::BIGINT AS records_in,
           coalesce(sum(late), 0)::BIGINT AS late, coalesce(sum(quarantined), 0)::BIGINT AS quarantined,
           coalesce(sum(emitted), 0)::BIGINT AS emitted, coalesce(sum(suppressed), 0)::BIGINT AS suppressed
    FROM operator_batches AS o JOIN batches USING (topology, sub_topology, batch_id)
    WHERE topology = $1 AND {_holds("batches.finished_at")}
"""
_MARKS = """
    SELECT source, partition, greatest(epoch_ms(decided_at), $2) AS at_ms, epoch_ms(watermark) AS watermark_ms,
           lead(epoch_ms(decided_at), 1, least($3, last_ms)) OVER (PARTITION BY source, partition ORDER BY batch_id)
           AS until_ms, activity
    FROM (
        FROM partition_batches
        WHERE topology = $1 AND source IS NOT NULL AND partition IS NOT NULL
              AND decided_at < make_timestamptz($3 * 1000)
        QUALIFY (watermark, newest_timestamp, activity) IS DISTINCT FROM lag((watermark, newest_timestamp, activity))
                OVER (PARTITION BY sub_topology, source, partition ORDER BY batch_id)
    ) LEFT JOIN (
        -- A driver that was drained, or has died, looks at no partition after its last fact.
        SELECT sub_topology, greatest(epoch_ms(max(beat_at)), epoch_ms(any_value(finished_at))) AS last_ms
        FROM heartbeats JOIN (
            SELECT sub_topology, max(finished_at) AS finished_at FROM batches WHERE topology = $1 GROUP BY ALL
        ) USING (sub_topology)
        WHERE topology = $1 GROUP BY sub_topology
    ) USING (sub_topology)
    QUALIFY until_ms > $2
"""
LAGS = f"""
    WITH marks AS ({_MARKS}), points AS (
        SELECT source, partition, at_ms, at_ms - watermark_ms AS lag_ms, 1 AS turn FROM marks
        UNION ALL SELECT source, partition, until_ms, until_ms - watermark_ms, 0 FROM marks
    )
    SELECT source, partition, unnest([
               max_by({{at_ms: at_ms, lag_ms: lag_ms}}, lag_ms), max_by({{at_ms: at_ms, lag_ms: lag_ms}}, (at_ms, turn))
           ], recursive := true)
    FROM points WHERE lag_ms IS NOT NULL GROUP BY source, partition, at_ms // $4
    ORDER BY source, partition, min(points.at_ms)
"""
SPANS = f"""
    WITH marks AS ({_MARKS}), turns AS (
        SELECT *, activity IS DISTINCT FROM lag(activity) OVER each AS turns FROM marks
        WINDOW each AS (PARTITION BY source, partition ORDER BY at_ms)
    ), runs AS (
        SELECT *, sum(turns::INT) OVER (PARTITION BY source, partition ORDER BY at_ms) AS run FROM turns
    )
    SELECT source, partition, activity, min(at_ms) AS at_ms, max(until_ms) AS until_ms
    FROM runs WHERE activity <> 'active' GROUP BY source, partition, activity, run
    ORDER BY max(until_ms) - min(at_ms) DESC, source, partition, min(at_ms) LIMIT {SPANS_SHOWN}
"""


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """The facts about `topology` in `interval`: rows of the queries of this file, under the names of the queries.

    The time axis of a chart has places of `place_ms`, with one measurement each. `changes` are changes of the topology
    in the interval, or in the week before it, with which its numbers are compared.
    """

    topology: Topology
    interval: Interval
    place_ms: int
    summary: Row
    judged: list[Row]
    operators: dict[str, Row]
    paths: list[Row]
    slowest: list[Row]
    spent: list[Row]
    causes: list[Row]
    latencies: list[Row]
    emission: list[Row]
    lags: list[Row]
    spans: list[Row]
    account: Row
    changes: list[RecordedChange]

    @property
    def latency_place_ms(self) -> int:
        """The length of a place in charts of latencies, in whole minutes as in rollups, ms."""
        return _whole_minutes(self.place_ms)


def _whole_minutes(length_ms: int) -> int:
    return Interval(0, length_ms).widened(Grain.MINUTE).end_ms


def page_facts(tables: Tables, topology: Topology, interval: Interval, *, now_ms: int | None = None) -> PageFacts:
    """Queries the facts of *interval*; texts in them are inert, so that a page shows no markup of others.

    Lags of partitions go to the end of the interval, or to *now_ms* (epoch ms) if the interval has not ended.
    """
    until_ms = interval.end_ms if now_ms is None else min(now_ms, interval.end_ms)

    def ask(text: str, *more: Any, end_ms: int = interval.end_ms) -> list[Row]:
        rows = tables.ask(text, [topology.name, interval.start_ms, end_ms, *more]).objects
        return list(map(_inert_row, rows))

    terminals = list(topology.terminals)
    sources = [name for name, names in topology.upstreams.items() if not names]
    # Whole seconds, rounded up, so that there are at most PLACES.
    place_ms = max(1_000, -(-interval.length_ms // PLACES // 1_000) * 1_000)
    return PageFacts(
        topology=topology,
        interval=interval,
        place_ms=place_ms,
        summary=ask(SUMMARY)[0],
        judged=ask(JUDGED),
        operators={row["operator"]: row for row in ask(OPERATORS)},
        paths=ask(PATHS),
        slowest=ask(SLOWEST),
        spent=ask(SPENT, place_ms),
        causes=ask(CAUSES),
        latencies=[
            _inert_row(row)
            for row in latencies_in_places(
                tables, topology.name, terminals, interval, _whole_minutes(place_ms), is_rolled_up=True
            )
        ],
        emission=ask(EMISSION, place_ms),
        lags=ask(LAGS, place_ms, end_ms=until_ms),
        spans=ask(SPANS, end_ms=until_ms),
        account=ask(ACCOUNT, sources)[0],
        changes=[
            replace(change, told=inert(change.told))
            for change in topology_changes(tables, topology.name, with_compared(interval))
        ],
    )


def _inert_row(row: Row) -> Row:
    return {name: _inert(value) for name, value in row.items()}


def _inert(value: Any) -> Any:
    if isinstance(value, list):
        return [_inert(item) for item in value]
    if isinstance(value, dict):
        return _inert_row(value)
    return inert(value) if isinstance(value, str) else value
