"""The cost of each bound of a source, from the disorder in which the source's records arrived."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, answers_over
from tidemark.model.topology import Topology
from tidemark.selection import index_by_name
from tidemark.semantics.bounds import BoundCost, bound_costs

COLUMNS = ("source", *BoundCost.__dataclass_fields__)
"""The fields of each of `bounds`, in their order."""
DISORDER = """
    SELECT counted.bucket, sum(counted.n)::BIGINT
    FROM (
        SELECT unnest(disorder) AS counted FROM operator_batches
        WHERE topology = $1 AND operator = $2 AND coalesce(epoch_ms(decided_at) >= $3, true)
              AND coalesce(epoch_ms(decided_at) < $4, true)
    ) GROUP BY 1 ORDER BY 1
"""


def bound_document(
    warehouse: Path,
    topology: Topology,
    *,
    source: str | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Row:
    """Returns the cost of each bound of *topology*'s sources: `bounds` has a row with COLUMNS for each.

    Args:
        warehouse: the warehouse.
        topology: the topology.
        source: one of the sources of the topology; None takes all of them.
        start_ms: batches decided then or later are counted, epoch ms; None sets no limit.
        end_ms: batches decided before that are counted, epoch ms; None sets no limit.

    Raises:
        InvalidArgument: there is no such source, or no table to query.
    """
    sources = index_by_name(topology.outside_sources)
    if source is not None and source not in sources:
        msg = f"{topology.name} has no source {source!r}; known: {', '.join(sources)}"
        raise InvalidArgument(msg)
    tables = answers_over(warehouse, topology.name)
    rows: list[Row] = []
    for name in [source] if source else sources:
        counts = tables.ask(DISORDER, [topology.name, name, start_ms, end_ms]).rows
        costs = bound_costs([(bucket, n) for bucket, n in counts], bound_ms=sources[name].bound_ms)
        rows += [{"source": name, **asdict(cost)} for cost in costs]
    return {"topology": topology.name, "bounds": rows}
