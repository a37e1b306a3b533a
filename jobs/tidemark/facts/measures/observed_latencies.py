"""Counts the slow records of queries of jobs that are observed, which have no buckets of latencies."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.facts.answers import Tables
from tidemark.facts.measures.fact_kinds import Fact, FactKind, facts_in
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.sla import BurnRate

OVER_LIMITS = """
    WITH observed AS (
        SELECT operator, n AS of_n, explode(over_limits) AS counted, epoch_ms(finished_at) AS ms FROM operator_batches
        WHERE topology = $1 AND operator IN ({operators}) AND finished_at >= make_timestamptz({first_ms} * 1000)
              AND finished_at < make_timestamptz($2 * 1000)
    )
    SELECT '{what}' AS what, operator AS subject, over_ms, counted.limit_ms, sum(of_n)::bigint AS n,
           sum(counted.n)::bigint AS slow
    FROM observed JOIN (VALUES {lengths}) AS lengths(over_ms) ON ms >= $2 - over_ms
    GROUP BY operator, over_ms, counted.limit_ms
"""
"""Selects a fact for each operator, length of time before $2 (epoch ms) and limit. $1 is the topology."""


def observed_latencies(tables: Tables, topology: Topology, specs: Iterable[SlaSpec], *, at_ms: int) -> list[Fact]:
    """Returns the facts by which burn rates of observed queries of jobs are judged, also those of objectives.

    A limit counts the batches that had it: one that is declared later counts from the next start of the job.

    Args:
        tables: the tables of the warehouse.
        topology: the topology that promises the SLAs; only one of jobs has such facts.
        specs: SLAs; those without a burn rate are skipped.
        at_ms: the instant of the check, epoch ms.
    """
    judged = [spec for spec in specs if isinstance(spec.limits, BurnRate)] if topology.jobs else []
    if not judged:
        return []
    lengths_ms = {length_ms for spec in judged for length_ms in spec.counted_ms(at_ms)}
    lengths_ms |= {spec.compliance.window_ms for spec in judged if spec.compliance}
    query = OVER_LIMITS.format(
        what=FactKind.OVER_LIMIT,
        operators=", ".join(f"'{name}'" for name in sorted({spec.subject for spec in judged})),
        first_ms=at_ms - max(lengths_ms),
        lengths=", ".join(f"({length_ms})" for length_ms in sorted(lengths_ms)),
    )
    return facts_in(tables.ask(query, [topology.name, at_ms]).objects)
