"""Queries rolled up latencies for programs, as one object for each operator and interval.

The fields are columns of `latency_rollup`, which docs/tables.md explains. Lengths are ms, instants timestamps in UTC.
"""

from __future__ import annotations

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import Grain

MOST = 10_000
LATENCIES = f"""
    SELECT operator, kind, sub_topology, interval_start, interval_end, n, negative_n, min_ms, avg_ms, p50_ms, p90_ms,
           p99_ms, p999_ms, max_ms, sla_ms, over_sla_n, over_sla_share
    FROM latency_rollup
    WHERE topology = $1 AND scope = 'operator' AND grain = $2 AND coalesce(operator = $3, true)
          AND coalesce(interval_start >= make_timestamptz($4 * 1000), true)
          AND coalesce(interval_start < make_timestamptz($5 * 1000), true)
    ORDER BY interval_start, operator LIMIT {MOST + 1}
"""


def rollup_facts(
    tables: Tables,
    topology: str,
    grain: Grain,
    *,
    operator: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """Returns the latencies of intervals.

    Args:
        tables: the tables of the warehouse.
        topology: the name of the topology.
        grain: the length of the intervals.
        operator: the operator whose latencies are wanted; None takes all operators.
        start_ms: the intervals start then or later, epoch ms of the finish clock; None sets no limit.
        end_ms: the intervals start before that, epoch ms of the finish clock; None sets no limit.

    Raises:
        InvalidArgument: there are more than MOST latencies.
    """
    rows = tables.ask(LATENCIES, [topology, grain.value, operator, start_ms, end_ms]).objects
    # The query reads one row more than may be returned.
    if len(rows) > MOST:
        msg = f"more than {MOST:,} latencies; ask for a shorter interval, one operator or a coarser grain"
        raise InvalidArgument(msg)
    return {"topology": topology, "grain": grain.value, "latencies": rows}
