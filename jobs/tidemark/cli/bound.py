"""What each bound of a source would cost, from the disorder that its records came in (ring 2)."""

from __future__ import annotations

import argparse
from dataclasses import astuple
from pathlib import Path

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import FORMATS
from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import topology
from tidemark.semantics.bounds import BoundCost, bound_costs
from tidemark.spec.intervals import instant_ms
from tidemark.spec.operators import Source
from tidemark.spec.topology import Topology

COLUMNS = ("source", *BoundCost.__dataclass_fields__)
DISORDER = """
    SELECT bucket, sum(n)::BIGINT FROM disorder_buckets
    WHERE topology = $1 AND source = $2 AND coalesce(epoch_ms(decided_at) >= $3, true)
          AND coalesce(epoch_ms(decided_at) < $4, true)
    GROUP BY bucket ORDER BY bucket
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_topology(parser)
    parser.add_argument("--source", help="one source (all)")
    parser.add_argument("--from", dest="start", metavar="INSTANT", help="first instant of decision, ISO 8601 (all)")
    parser.add_argument("--to", dest="end", metavar="INSTANT", help="the instant before which to end (none)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(asked: argparse.Namespace) -> int:
    """Show what each bound would cost."""
    start_ms, end_ms = (instant_ms(text) if text else None for text in (asked.start, asked.end))
    of = topology(asked.topology)
    rows = bound_rows(options.warehouse(asked), of, source=asked.source, start_ms=start_ms, end_ms=end_ms)
    say_inert(FORMATS[asked.format](COLUMNS, rows))
    return 0


def bound_rows(
    home: Path, topology: Topology, *, source: str | None = None, start_ms: int | None = None, end_ms: int | None = None
) -> list[tuple[object, ...]]:
    """Rows of COLUMNS for each source of *topology*, or one, over batches decided in [*start_ms*, *end_ms*), epoch ms.

    Raises:
        InvalidArgument: there is no such source, or no table to ask.
    """
    sources = {o.name: o for o in topology.operators.values() if isinstance(o, Source)}
    if source is not None and source not in sources:
        msg = f"{topology.name} has no source {source!r}; known: {', '.join(sources)}"
        raise InvalidArgument(msg)
    warehouse = Warehouse(home)
    found: list[tuple[object, ...]] = []
    for name in [source] if source else sources:
        counts = warehouse.ask(DISORDER, [topology.name, name, start_ms, end_ms]).rows
        costs = bound_costs([(bucket, n) for bucket, n in counts], bound_ms=sources[name].bound_ms)
        found += [(name, *astuple(cost)) for cost in costs]
    return found
