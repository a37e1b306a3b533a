"""Finds the complete intervals that are still to be published as events of Airflow's assets.

An interval is published when it is complete, and again each time it was reopened since. The table `published_intervals`
has one row for each publication, with the run that made it. Rows of the newest run count only if its task has
succeeded, because Airflow creates the events of a task in the transaction that makes it succeed. Instants are those of
`completeness`; `published_at` is the clock of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tidemark.facts.answers import answers_over
from tidemark.facts.report_rows import report_rows
from tidemark.facts.versions import newest_version
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import COMPLETENESS, PUBLISHED_INTERVALS

MOST = 24
"""One task publishes at most this many intervals of a table.

All events of an asset in one task carry the same extra, with all of these intervals: the size of all events together
grows with the square of this number.
"""
DUE = """
    SELECT sub_topology, "table", interval_start, interval_end, complete_at, records, by_idleness, reopenings, cause
    FROM complete_intervals AS c
    ANTI JOIN published_intervals AS p USING (topology, sub_topology, "table", interval_start, reopenings)
    WHERE topology = ?
    QUALIFY row_number() OVER (PARTITION BY sub_topology, "table" ORDER BY interval_start) <= ?
    ORDER BY interval_start, sub_topology, "table"
"""
PUBLISHED = """
    SELECT interval_start, max(published_at) FROM published_intervals WHERE topology = ? AND "table" = ?
    GROUP BY interval_start ORDER BY interval_start
"""


def completeness_versions(layout: Layout, topology: str, streams: Iterable[str]) -> dict[str, int]:
    """Returns the version of the table `completeness` of each of *streams*; -1 for a stream without that table."""
    return {stream: newest_version(layout.stream_table(topology, stream, COMPLETENESS.name)) for stream in streams}


def due_intervals(layout: Layout, topology: str, *, most: int = MOST) -> list[dict[str, Any]]:
    """Returns the intervals of *topology* to publish, oldest first: rows of DUE, at most *most* of each table."""
    return answers_over(layout.warehouse, topology).ask(DUE, [topology, most]).objects


def published_at(layout: Layout, topology: str, table: str) -> dict[datetime, datetime]:
    """Returns when each interval of *table* was published last, by the start of the interval."""
    return dict(answers_over(layout.warehouse, topology).ask(PUBLISHED, [topology, table]).rows)


def publishing_runs(layout: Layout, topology: str) -> list[str]:
    """Returns the runs that have published, the newest last."""
    rows = report_rows(layout, topology, PUBLISHED_INTERVALS, columns=["published_at", "run_id"])
    return list(rows.sort("published_at")["run_id"].unique(maintain_order=True))
