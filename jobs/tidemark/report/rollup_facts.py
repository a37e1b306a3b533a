"""The latencies that were rolled up, one object per operator and interval, for programs (ring 2).

The fields are columns of `latency_rollup`; docs/airflow.md lists them. Lengths are ms, instants timestamps in UTC.
"""

from __future__ import annotations

from tidemark.errors import InvalidArgument
from tidemark.report.path_facts import Row, Tables
from tidemark.spec.intervals import Grain

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
    """The latencies of the intervals of *grain* that start in [*start_ms*, *end_ms*), epoch ms of the finish clock.

    Raises:
        InvalidArgument: there are more than MOST.
    """
    found = tables.ask(LATENCIES, [topology, grain.value, operator, start_ms, end_ms]).objects
    if len(found) > MOST:
        msg = f"an answer has at most {MOST:,} latencies; ask for a shorter interval, one operator or a coarser grain"
        raise InvalidArgument(msg)
    return {"topology": topology, "grain": grain.value, "latencies": found}
