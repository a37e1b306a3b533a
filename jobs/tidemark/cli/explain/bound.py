"""Shows the cost of each bound of a source.

It is computed from the disorder in which the source's records arrived.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple
from pathlib import Path

from tidemark.cli.shared.options import add_format, add_topology, existing_warehouse, span_ms
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.collecting import index_by_name
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import answers_over
from tidemark.model.topology import Topology
from tidemark.query.text_table import FORMATS
from tidemark.semantics.bounds import COUNTED_AS_LATE, BoundCost, bound_costs

COLUMNS = ("source", *BoundCost.__dataclass_fields__)
DISORDER = """
    SELECT counted.bucket, sum(counted.n)::BIGINT
    FROM (
        SELECT unnest(disorder) AS counted FROM operator_batches
        WHERE topology = $1 AND operator = $2 AND coalesce(epoch_ms(decided_at) >= $3, true)
              AND coalesce(epoch_ms(decided_at) < $4, true)
    ) GROUP BY 1 ORDER BY 1
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("--source", help="only this source (default: all)")
    parser.add_argument(
        "--from", dest="start", metavar="INSTANT", help="only batches with this decision time or a later one, ISO 8601"
    )
    parser.add_argument(
        "--to", dest="end", metavar="INSTANT", help="only batches with an earlier decision time, ISO 8601"
    )
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Prints the cost of each bound."""
    start_ms, end_ms = span_ms(options)
    of = topology_with_file(options)
    rows = bound_rows(existing_warehouse(options), of, source=options.source, start_ms=start_ms, end_ms=end_ms)
    say_inert(FORMATS[options.format](COLUMNS, rows))
    if options.format == "table":
        say_inert(COUNTED_AS_LATE)
    return 0


def bound_rows(
    home: Path, topology: Topology, *, source: str | None = None, start_ms: int | None = None, end_ms: int | None = None
) -> list[tuple[object, ...]]:
    """Returns rows of COLUMNS for the sources of *topology*.

    Args:
        home: the warehouse.
        topology: the topology.
        source: one of its sources; None: all.
        start_ms: decision time (epoch ms) of the first batches; None: the oldest.
        end_ms: decision time (epoch ms) before which batches are counted; None: all.

    Raises:
        InvalidArgument: there is no such source, or no table to query.
    """
    sources = index_by_name(topology.outside_sources)
    if source is not None and source not in sources:
        msg = f"{topology.name} has no source {source!r}; known: {', '.join(sources)}"
        raise InvalidArgument(msg)
    warehouse = answers_over(home, topology.name)
    rows: list[tuple[object, ...]] = []
    for name in [source] if source else sources:
        counts = warehouse.ask(DISORDER, [topology.name, name, start_ms, end_ms]).rows
        costs = bound_costs([(bucket, n) for bucket, n in counts], bound_ms=sources[name].bound_ms)
        rows += [(name, *astuple(cost)) for cost in costs]
    return rows
