"""What an interval's windows would have been with one operator changed, for people, programs and pages (ring 2).

The names of the fields are a promise: docs/reports.md has them. Lengths are whole ms, instants timestamps in UTC.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.report.path_facts import Row, Rows, Tables
from tidemark.report.what_if import Change, Window, hints, tasks_of, what_if
from tidemark.semantics.critical_path import Path
from tidemark.spec.intervals import iso
from tidemark.spec.topology import Topology

IN_INTERVAL = """
    topology = $1 AND coalesce(window_end >= make_timestamptz($2 * 1000), true)
    AND coalesce(window_end < make_timestamptz($3 * 1000), true)
"""
WINDOWS = f"SELECT * FROM operator_windows WHERE {IN_INTERVAL}"
BATCHES = """
    SELECT sub_topology, started_at, finished_at FROM batches
    WHERE topology = $1 AND started_at BETWEEN $2::TIMESTAMPTZ - INTERVAL 1 MINUTE AND $3
"""
STEPS = f"SELECT operator, sub_topology, step, worked_ms FROM critical_path_steps WHERE {IN_INTERVAL}"
TASKS = "SELECT DISTINCT sub_topology, task_id FROM operator_latency WHERE topology = $1"


def what_if_facts(
    tables: Tables, topology: Topology, change: Change, *, start_ms: int | None = None, end_ms: int | None = None
) -> Row:
    """The closed windows of *topology* that end in [*start_ms*, *end_ms*), epoch ms, with and without *change*.

    `windows` has each of them, `before` and `after` the median and 90th percentile of their latencies, and `hints`
    which operators of their paths splitting would help.

    Raises:
        InvalidArgument: there is no such window, or no such operator; it says what to do.
    """
    rows = _frame(tables.ask(WINDOWS, [topology.name, start_ms, end_ms]))
    began = rows["batch_started_at"]
    batches = _frame(tables.ask(BATCHES, [topology.name, began.min(), began.max()]))
    windows = what_if(rows, batches, topology.upstreams, [change], trigger_ms=topology.trigger_ms)
    if not windows:
        bounds = [f"{word} {iso(at_ms)}" for word, at_ms in (("from", start_ms), ("to", end_ms)) if at_ms is not None]
        msg = (
            f"what-if compares closed streaming windows, and {topology.name} has {' '.join(['none', *bounds])}; "
            f"ask for another interval, or see with `tidemark why {topology.name}` who waits for what"
        )
        raise InvalidArgument(msg)
    steps = _frame(tables.ask(STEPS, [topology.name, start_ms, end_ms]))
    tasks = tasks_of(_frame(tables.ask(TASKS, [topology.name])))
    return {
        "topology": topology.name,
        **asdict(change),
        "from": None if start_ms is None else iso(start_ms),
        "to": None if end_ms is None else iso(end_ms),
        "compared": len(windows),
        "before": _spread([window.was for window in windows]),
        "after": _spread([window.then for window in windows]),
        "other_path": sum(_names(window.was) != _names(window.then) for window in windows),
        "hints": [asdict(hint) for hint in hints(steps, topology, tasks)] if len(steps) else [],
        "windows": [_told(window) for window in windows],
    }


def _frame(answer: Rows) -> pl.DataFrame:
    return pl.DataFrame(answer.rows, schema=list(answer.columns), orient="row", infer_schema_length=None)


def _spread(paths: list[Path]) -> Row:
    """Median and 90th percentile of their latencies: of two neighbours the lower, as in the rollups."""
    ordered = sorted(path.latency_ms for path in paths)
    median_ms, p90_ms = (ordered[math.floor(q * (len(ordered) - 1))] for q in (0.5, 0.9))
    return {"median_ms": median_ms, "p90_ms": p90_ms}


def _told(window: Window) -> Row:
    return {
        "window_start": iso(window.start_ms),
        "window_end": iso(window.end_ms),
        "latency_ms": window.was.latency_ms,
        "path": _names(window.was),
        "then_latency_ms": window.then.latency_ms,
        "then_path": _names(window.then),
    }


def _names(path: Path) -> list[Any]:
    return [step.operator for step in path.steps]
