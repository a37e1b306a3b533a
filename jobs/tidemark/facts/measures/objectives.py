"""Counts the latencies of objectives over their windows, in one query.

What rollups have counted is read from them, by minute and hour. Facts of later minutes are counted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidemark.facts.answers import Row, Tables
from tidemark.facts.measures.batches import DAY_MS, tables_of_batches
from tidemark.facts.measures.fact_kinds import Fact, FactKind, facts_in
from tidemark.model.settings.intervals import Grain, Interval, Scope, is_text, join_intervals
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology

MINUTE_MS, HOUR_MS = Grain.MINUTE.length_ms, Grain.HOUR.length_ms
LATER = f"""
    WITH began AS (
        SELECT sub_topology, batch_id, epoch_ms(coalesce(decided_at, started_at, finished_at)) AS ms,
               CASE sub_topology {{counted}} END AS counted
        FROM batches WHERE topology = $1 AND ({{where}})
    ),
    later AS (
        SELECT sub_topology, min(ms) AS first_ms,
               max(ms) FILTER (batch_id <= counted AND counted <= newest) // {MINUTE_MS} * {MINUTE_MS} AS marked_ms,
               coalesce(marked_ms, first_ms // {MINUTE_MS} * {MINUTE_MS}) AS since_ms
        FROM (SELECT *, max(batch_id) OVER (PARTITION BY sub_topology) AS newest FROM began) GROUP BY sub_topology
    )
    SELECT sub_topology, since_ms, coalesce(max(batch_id) FILTER (ms < since_ms), 0) - 1 AS after_batch,
           coalesce(first_ms < marked_ms, false) AS is_whole
    FROM later JOIN began USING (sub_topology) GROUP BY sub_topology, since_ms, marked_ms, first_ms
"""
"""Selects the fields of `LaterFacts` for each sub-topology with batches.

`is_whole` is true if no batch that `where` leaves out can change them. A rollup that died may have counted some batches
after its mark, but none that began before the marked one. A mark beyond all batches is from before the tables were
created anew.
"""


@dataclass(frozen=True)
class LaterFacts:
    """The facts of a sub-topology that rollups may not have counted.

    They finished at `since_ms` (epoch ms, a whole minute) or later, and are of batches after `after_batch`.
    """

    since_ms: int
    after_batch: int


def objective_facts(
    tables: Tables, topology: Topology, specs: Collection[SlaSpec], counted: Mapping[str, int], *, at_ms: int
) -> list[Fact]:
    """Returns the facts by which objectives are judged, one for each operator, length of time and bucket.

    Args:
        tables: the tables of the warehouse.
        topology: the topology that promises the objectives.
        specs: SLAs; those without an objective are skipped.
        counted: the newest batch that the rollups have counted, by sub-topology.
        at_ms: the instant of the check, epoch ms.
    """
    of_objectives = [spec for spec in specs if spec.compliance]
    if not of_objectives:
        return []
    later = _later(tables, topology, counted, at_ms=at_ms)
    query = objectives_sql(topology, of_objectives, later, at_ms=at_ms)
    return facts_in(tables.ask(query, [topology.name]).objects)


def _later(tables: Tables, topology: Topology, counted: Mapping[str, int], *, at_ms: int) -> dict[str, LaterFacts]:
    """Returns the facts that rollups may not have counted, for each sub-topology with batches.

    If rollups have counted a batch of the last day, only the batches of that day are read.
    """
    # A CASE needs at least one branch.
    cases = " ".join(f"WHEN '{name}' THEN {batch_id}" for name, batch_id in counted.items()) or "WHEN '' THEN 0"

    def read(where: str) -> list[Row]:
        return tables.ask(LATER.format(counted=cases, where=where), [topology.name]).objects

    of_day = read(f"finished_at >= make_timestamptz({(at_ms - DAY_MS) * 1000})") if counted else []
    rows = [row for row in of_day if row["is_whole"]]
    others = {path.parent.name for path in tables_of_batches(tables, topology.name)} - {
        row["sub_topology"] for row in rows
    }
    if others:
        rows += read(" OR ".join(is_text("sub_topology", sub) for sub in sorted(others)))
    return {row["sub_topology"]: LaterFacts(row["since_ms"], row["after_batch"]) for row in rows}


def objectives_sql(topology: Topology, specs: Sequence[SlaSpec], later: Mapping[str, LaterFacts], *, at_ms: int) -> str:
    """Returns the query of `objective_facts`, with the topology as $1.

    It reads the rollups and the facts of a sub-topology once, however many objectives and windows there are.

    Args:
        topology: the topology that promises the objectives.
        specs: the SLAs of the objectives.
        later: the facts to count one by one, by sub-topology.
        at_ms: the instant of the check, epoch ms.
    """
    lengths_ms = {length_ms for spec in specs for length_ms in spec.counted_ms(at_ms)}
    lengths_ms |= {spec.compliance.window_ms for spec in specs if spec.compliance}
    starts_ms = {length_ms: (at_ms - length_ms) // MINUTE_MS * MINUTE_MS for length_ms in sorted(lengths_ms)}
    first_ms = min(starts_ms.values())
    operators = sorted({spec.subject for spec in specs})
    names = ", ".join(f"'{name}'" for name in operators)
    rolled_up, one_by_one = [], []
    # A sub-topology without batches has no later facts.
    subs = sorted(later.keys() & {topology.sub_topology_of(name).name for name in operators})
    for sub in subs:
        of_sub, since_ms = is_text("sub_topology", sub), later[sub].since_ms
        if since_ms > first_ms:
            counted = Interval(first_ms, min(since_ms, at_ms))
            rolled_up.append(f"({of_sub} AND {counted.holds('interval_start')})")
        if since_ms < at_ms:
            # DuckDB opens no file of earlier batches if the first one is a constant.
            finished = Interval(max(since_ms, first_ms), at_ms).holds("finished_at")
            one_by_one.append(f"""
            UNION ALL
            SELECT operator, explode(buckets) AS b, epoch_ms(finished_at) AS ms FROM latency_minutes
            WHERE topology = $1 AND operator IN ({names}) AND {of_sub} AND batch_id > {later[sub].after_batch}
                  AND {finished}""")
    others = ", ".join(f"'{sub}'" for sub in subs) or "''"
    rolled_up.append(f"(sub_topology NOT IN ({others}) AND {Interval(first_ms, at_ms).holds('interval_start')})")
    ends_ms = [*starts_ms.values(), *(facts.since_ms for facts in later.values()), at_ms]
    windows = ", ".join(f"({length_ms}, {start_ms})" for length_ms, start_ms in starts_ms.items())
    return f"""
        WITH counted AS (
            SELECT operator, explode(buckets) AS b, epoch_ms(interval_start) AS ms FROM latency_rollup
            WHERE topology = $1 AND scope = '{Scope.OPERATOR}' AND operator IN ({names})
                  AND ({" OR ".join(rolled_up)}) AND {_grains(ends_ms)}
            {"".join(one_by_one)}
        )
        SELECT '{FactKind.OBJECTIVE}' AS what, operator AS subject, over_ms, b.bucket, sum(b.n)::bigint AS n,
               NULL AS at_ms, NULL AS idle
        FROM counted JOIN (VALUES {windows}) AS windows(over_ms, start_ms) ON ms >= start_ms
        GROUP BY operator, over_ms, b.bucket
    """


def _grains(ends_ms: Sequence[int]) -> str:
    """Returns the SQL condition that chooses rows of rollups: minutes in hours that are cut, and hours elsewhere.

    An hour is cut if one of *ends_ms* (epoch ms) lies in it.
    """
    cut = join_intervals((end_ms // HOUR_MS * HOUR_MS for end_ms in ends_ms), Grain.HOUR)
    in_cut = " OR ".join(hours.holds("interval_start") for hours in cut)
    minutes = f"{is_text('grain', Grain.MINUTE)} AND ({in_cut})"
    return f"(({minutes}) OR ({is_text('grain', Grain.HOUR)} AND NOT ({in_cut})))"
