"""Compares the critical paths of windows with and without a change of an operator's work.

Pages, commands and programs read the result: the names of its fields are promised in docs/reports.md. Lengths are whole
ms, instants timestamps in UTC.
"""

from __future__ import annotations

from dataclasses import asdict

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row, Tables
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import Topology
from tidemark.query.sql import QueryResult
from tidemark.reports.what_if.estimates import ComparedWindow, WorkChange, distances_of, what_if
from tidemark.semantics.quantiles import MEDIAN, quantile_of

IN_INTERVAL = """
    topology = $1 AND coalesce(window_end >= make_timestamptz($2 * 1000), true)
    AND coalesce(window_end < make_timestamptz($3 * 1000), true)
"""
WINDOWS = f"SELECT * FROM operator_windows WHERE {IN_INTERVAL}"
BATCHES = """
    SELECT sub_topology, started_at, finished_at FROM batches
    WHERE topology = $1 AND started_at BETWEEN $2::TIMESTAMPTZ - INTERVAL 1 MINUTE AND $3
"""


def what_if_facts(
    tables: Tables, topology: Topology, change: WorkChange, *, start_ms: int | None = None, end_ms: int | None = None
) -> Row:
    """Compares the closed windows of a topology with and without a change of an operator's work.

    In the result, `windows` has each window. `before` and `after` are the median and the 90th percentile of their
    latencies.

    Args:
        tables: the tables of the warehouse.
        topology: the topology.
        change: the change of an operator's work.
        start_ms: windows end then or later, record time, epoch ms; None sets no limit.
        end_ms: windows end before that; None sets no limit.

    Raises:
        InvalidArgument: there is no such window, or no such operator; the message says what to do.
    """
    operator_windows = _frame(tables.ask(WINDOWS, [topology.name, start_ms, end_ms]))
    began = operator_windows["batch_started_at"]
    batches = _frame(tables.ask(BATCHES, [topology.name, began.min(), began.max()]))
    windows = what_if(operator_windows, batches, topology.upstreams, [change], distances_ms=distances_of(topology))
    start = None if start_ms is None else iso(start_ms)
    end = None if end_ms is None else iso(end_ms)
    if not windows:
        interval = (f" from {start}" if start else "") + (f" to {end}" if end else "")
        msg = (
            f"what-if compares closed streaming windows, but {topology.name} has none{interval}; "
            f"ask for another interval, or see with `tidemark why {topology.name}` what each operator waits for"
        )
        raise InvalidArgument(msg)
    rows = [_row(window) for window in windows]
    return {
        "topology": topology.name,
        **asdict(change),
        "from": start,
        "to": end,
        "compared": len(windows),
        "before": spread([row["latency_ms"] for row in rows]),
        "after": spread([row["then_latency_ms"] for row in rows]),
        "other_path": sum(row["path"] != row["then_path"] for row in rows),
        "windows": rows,
    }


def _frame(answer: QueryResult) -> pl.DataFrame:
    return pl.DataFrame(answer.rows, schema=list(answer.columns), orient="row", infer_schema_length=None)


def spread(lengths_ms: list[int]) -> Row:
    """Returns the median and the 90th percentile of *lengths_ms*."""
    return {"median_ms": quantile_of(lengths_ms, MEDIAN), "p90_ms": quantile_of(lengths_ms, 0.9)}


def _row(window: ComparedWindow) -> Row:
    return {
        "window_start": iso(window.start_ms),
        "window_end": iso(window.end_ms),
        "latency_ms": window.was.latency_ms,
        "path": window.was.operators,
        "then_latency_ms": window.then.latency_ms,
        "then_path": window.then.operators,
    }
