"""Counts the latencies of objectives over their windows, in one query.

Rollups have what they have counted, by minute and hour. Facts of later batches are counted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidemark.model.settings.intervals import Grain, Interval, Scope, is_text, join_intervals
from tidemark.model.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.paths.path_facts import Row, Tables
from tidemark.sla.measures.status import FactKind

NEWEST = "SELECT sub_topology, max(batch_id) AS batch_id FROM batches WHERE topology = $1 GROUP BY sub_topology"


def objective_facts(
    tables: Tables, topology: Topology, specs: Collection[SlaSpec], counted: Mapping[str, int], *, at_ms: int
) -> list[Row]:
    """Returns the facts by which the objectives among *specs* are judged.

    There is one per operator, length and bucket.

    Args:
        tables: of the warehouse.
        topology: that promises the objectives.
        specs: the SLAs.
        counted: the newest batch that the rollups have counted, by sub-topology.
        at_ms: the instant of the check, epoch ms.
    """
    of_objectives = [spec for spec in specs if spec.compliance]
    if not of_objectives:
        return []
    newest = {row["sub_topology"]: row["batch_id"] for row in tables.ask(NEWEST, [topology.name]).objects}
    # A batch after the newest is of tables that were begun anew since: no rollup has counted them.
    still = {sub: batch_id for sub, batch_id in counted.items() if batch_id <= newest.get(sub, -1)}
    return tables.ask(objectives_sql(topology, of_objectives, still, at_ms=at_ms), [topology.name]).objects


def objectives_sql(topology: Topology, specs: Sequence[SlaSpec], counted: Mapping[str, int], *, at_ms: int) -> str:
    """Returns the query of `objective_facts`, with the topology as $1.

    It reads each table once, however many objectives and windows there are.
    """
    lengths_ms = set[int]()
    for spec in specs:
        lengths_ms.update((*spec.lengths_ms, spec.compliance.window_ms if spec.compliance else 0))
    minute_ms = Grain.MINUTE.length_ms
    starts_ms = {length_ms: (at_ms - length_ms) // minute_ms * minute_ms for length_ms in sorted(lengths_ms - {0})}
    whole = Interval(min(starts_ms.values()), at_ms)
    operators = {spec.subject for spec in specs}
    names = ", ".join(f"'{name}'" for name in sorted(operators))
    later = []
    for sub in sorted({topology.sub_topology_of(name).name for name in operators}):
        # DuckDB opens no file of earlier batches if the first one is a constant.
        of_sub = (
            f"{is_text('sub_topology', sub)} AND batch_id > {counted.get(sub, -1)} AND {whole.holds('finished_at')}"
        )
        later.append(f"({of_sub})")
    windows = ", ".join(f"({length_ms}, {start_ms})" for length_ms, start_ms in starts_ms.items())
    return f"""
        WITH counted AS (
            SELECT operator, bucket, n, epoch_ms(interval_start) AS ms FROM latency_bucket_rollup
            WHERE topology = $1 AND scope = '{Scope.OPERATOR}' AND operator IN ({names})
                  AND {whole.holds("interval_start")} AND {_grains([*starts_ms.values(), at_ms])}
            UNION ALL
            SELECT operator, bucket, n, epoch_ms(finished_at) AS ms FROM latency_buckets
            WHERE topology = $1 AND operator IN ({names}) AND ({" OR ".join(later)})
        )
        SELECT '{FactKind.OBJECTIVE}' AS what, operator AS subject, over_ms, bucket, sum(n)::bigint AS n,
               NULL AS at_ms, NULL AS idle
        FROM counted JOIN (VALUES {windows}) AS windows(over_ms, start_ms) ON ms >= start_ms
        GROUP BY operator, over_ms, bucket
    """


def _grains(ends_ms: Sequence[int]) -> str:
    """Returns a condition of rows of the rollups: minutes or hours.

    Minutes are read in the hours in which a window begins or ends.
    """
    hour_ms = Grain.HOUR.length_ms
    parted = join_intervals((end_ms // hour_ms * hour_ms for end_ms in ends_ms), Grain.HOUR)
    in_parted = " OR ".join(hours.holds("interval_start") for hours in parted)
    minutes = f"{is_text('grain', Grain.MINUTE)} AND ({in_parted})"
    return f"(({minutes}) OR ({is_text('grain', Grain.HOUR)} AND NOT ({in_parted})))"
