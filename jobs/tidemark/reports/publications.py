"""Records which complete intervals were published; `facts.publications` reads that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import is_text
from tidemark.model.tables.catalog import PUBLISHED_INTERVALS
from tidemark.storage.delta.report_tables import replace_rows

_RECORDED = ("sub_topology", "table", "interval_start", "reopenings")


def record_publication(
    layout: Layout, topology: str, intervals: Sequence[Mapping[str, Any]], *, run_id: str, at_ms: int
) -> None:
    """Records that a run publishes *intervals*. Rows of an earlier try of the same run are replaced.

    Args:
        layout: where the tables of the topology are.
        topology: the name of the topology.
        intervals: rows of `due_intervals`; none if the run publishes nothing.
        run_id: the run of Airflow.
        at_ms: the clock of the caller, epoch ms.
    """
    of_run = {"topology": topology, "published_at": at_ms, "run_id": run_id}
    rows = [{name: interval[name] for name in _RECORDED} | of_run for interval in intervals]
    path = layout.report_table(topology, PUBLISHED_INTERVALS.name)
    replace_rows(rows, PUBLISHED_INTERVALS, path, where=is_text("run_id", run_id))
