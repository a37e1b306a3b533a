"""Keeps the tables of a topology small, beside its running streams; prints their files and sizes before and after.

Old rows go as `retention` in the topology's file says, small files that are closed are put together, and files that no
table names any more are removed. Running it twice, two at once or killing it does no harm. In an object store, where a
table has one writing process, streams that run are left as they are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from tidemark.cli.text_table import aligned
from tidemark.clock import wall_clock_ms
from tidemark.control import AlreadyRunning, Control
from tidemark.delta import append, create
from tidemark.inert import log_to_stderr
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.maintenance.sizes import Place, Size, sizes
from tidemark.maintenance.upkeep import CLOSED_AFTER_MS, maintain_reports, maintain_stream
from tidemark.report.batch_job import parser, writing
from tidemark.spec.layout import Layout
from tidemark.spec.stream import Stream
from tidemark.spec.tables import TABLE_FILES
from tidemark.spec.topology import Topology

log = logging.getLogger("tidemark.maintain")

COLUMNS = ("sub_topology", "table", "files", "bytes", "rows", "files_before", "bytes_before", "rows_before")


def main() -> None:
    """Run as the command line says."""
    log_to_stderr()
    given = parser(__doc__).parse_args()
    rows = run(given.warehouse, given.topology, now_ms=wall_clock_ms())
    sys.stdout.write(aligned(COLUMNS, [[row[column] for column in COLUMNS] for row in rows]) + "\n")


def run(
    layout: Layout, topology: Topology, *, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS
) -> list[dict[str, object]]:
    """Maintain all tables of *topology*; the rows that `table_files` got."""
    before = sizes(layout, topology)
    for sub in topology.sub_topologies:
        maintain_unless_held(Stream(topology, sub, layout), now_ms=now_ms, closed_after_ms=closed_after_ms)
    with writing(layout, topology.name):
        maintain_reports(layout, topology, now_ms=now_ms, closed_after_ms=closed_after_ms)
        return _told(layout, topology, before, now_ms)


def maintain_unless_held(stream: Stream, *, now_ms: int, closed_after_ms: int) -> None:
    """As `maintain_stream`; in an object store a stream whose driver lives is left as it is."""
    try:
        with Control(stream.control).held_alone():
            maintain_stream(stream, now_ms=now_ms, closed_after_ms=closed_after_ms)
    except AlreadyRunning as running:
        log.warning("%s/%s is left as it is: %s", stream.topology.name, stream.sub.name, running)


def _told(layout: Layout, topology: Topology, before: Mapping[Place, Size], now_ms: int) -> list[dict[str, object]]:
    """Append what the tables of *topology* take now, and took *before*, to `table_files`; the rows."""
    rows = [_row(place, size, before) for place, size in sizes(layout, topology).items()]
    path = layout.report_table(topology.name, TABLE_FILES.name)
    create(path, arrow_schema(TABLE_FILES), description=TABLE_FILES.row)
    append(path, rows_of(TABLE_FILES, rows, topology=topology.name, at=now_ms))
    return rows


def _row(place: Place, size: Size, before: Mapping[Place, Size]) -> dict[str, object]:
    was = before.get(place, Size(0, 0, 0, 0, 0))
    earlier = {"files_before": was.files, "bytes_before": was.bytes, "rows_before": was.rows}
    return {**place._asdict(), **size._asdict(), **earlier}


if __name__ == "__main__":
    main()
