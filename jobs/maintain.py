"""Keeps the tables of a topology small, beside its running streams.

Removes old rows by `[retention]` of the topology file, merges small files that no driver writes any more, and removes
files that no table refers to. Prints the files and sizes of the tables before and after. It is safe to run it twice, to
run two at once, and to kill it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import itemgetter

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.clock import wall_clock_ms
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.maintenance.sizes import Size, WrittenTable, sizes
from tidemark.maintenance.upkeep import CLOSED_AFTER_MS, maintain_reports, maintain_stream
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import MAINTENANCE
from tidemark.model.topology import Topology
from tidemark.query.text_table import format_table
from tidemark.reports.batch_job import parse, parser, report_lock
from tidemark.safe_text import log_to_stderr
from tidemark.storage.delta.format import refuse_other
from tidemark.storage.delta.tables import append, create

COLUMNS = ("sub_topology", "table", "files", "bytes", "rows", "files_before", "bytes_before", "rows_before")


def main() -> None:
    """Maintains the tables that the command line names, and prints their sizes."""
    log_to_stderr()
    arguments = parse(parser(__doc__))
    rows = run(arguments.warehouse, arguments.topology, now_ms=wall_clock_ms())
    sys.stdout.write(format_table(COLUMNS, list(map(itemgetter(*COLUMNS), rows))) + "\n")


def run(
    layout: Layout, topology: Topology, *, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS
) -> list[dict[str, object]]:
    """Maintains all tables of *topology*; returns the new rows of `maintenance`.

    Args:
        layout: the warehouse.
        topology: the topology, with all its sub-topologies.
        now_ms: the clock, epoch ms UTC.
        closed_after_ms: age from which a file is closed and may be merged.
    """
    refuse_other(layout.warehouse)
    before = sizes(layout, topology)
    for sub in topology.sub_topologies:
        maintain_stream(Stream(topology, sub, layout), now_ms=now_ms, closed_after_ms=closed_after_ms)
    with report_lock(layout, topology.name):
        maintain_reports(layout, topology, now_ms=now_ms, closed_after_ms=closed_after_ms)
        return _record_sizes(layout, topology, before, now_ms)


def _record_sizes(
    layout: Layout, topology: Topology, before: Mapping[WrittenTable, Size], now_ms: int
) -> list[dict[str, object]]:
    """Appends sizes, now and *before*, to `maintenance`; returns the rows."""
    rows = [_row(table, size, before) for table, size in sizes(layout, topology).items()]
    path = layout.report_table(topology.name, MAINTENANCE.name)
    create(path, arrow_schema(MAINTENANCE), description=MAINTENANCE.row)
    append(path, rows_of(MAINTENANCE, rows, topology=topology.name, started_at=now_ms))
    return rows


def _row(table: WrittenTable, size: Size, before: Mapping[WrittenTable, Size]) -> dict[str, object]:
    was = before.get(table, Size(0, 0, 0, 0, 0))
    earlier = {"files_before": was.files, "bytes_before": was.bytes, "rows_before": was.rows}
    return {**table._asdict(), **size._asdict(), **earlier}


if __name__ == "__main__":
    main()
