"""Finds the critical path of the newest window, before a report does.

The rules are those of the reports, and the rows have the same fields. The parts of the window's age and the blame need
more facts, which only reports read. Instants are epoch ms.
"""

from __future__ import annotations

import polars as pl

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_LEAVES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    LATENCY_BUCKETS,
    OPERATOR_LATENCY,
    OPERATOR_WINDOWS,
)
from tidemark.model.topology import Topology
from tidemark.reports.paths.ages.window_parts import WindowVerdicts
from tidemark.reports.paths.path_facts import Row, Tables, described_window
from tidemark.reports.paths.window_paths import DriverFacts, window_paths
from tidemark.reports.paths.window_verdicts import judge_records
from tidemark.reports.paths.windows.passed_windows import PassedWindows
from tidemark.reports.promises import Promises

WINDOWS_READ = 10
"""Windows whose paths are computed; the newest one that is closed counts."""
LEAST_READ_MS = 60_000
"""Record time that is read at least.

It is twice the time after which an operator that is behind counts as stuck.
"""
ENDS = """
    SELECT operator, epoch_ms(min(window_end)) AS first_ms, epoch_ms(max(window_end)) AS newest_ms
    FROM operator_windows WHERE topology = $1 AND ewt_at <= make_timestamptz($2 * 1000) GROUP BY operator
"""
ROWS = """
    SELECT * FROM operator_windows
    WHERE topology = $1 AND ewt_at <= make_timestamptz($2 * 1000) AND window_end >= make_timestamptz($3 * 1000)
"""
BATCHES = """
    SELECT sub_topology, batch_id, watermark, started_at, finished_at FROM batches
    WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)
          AND (batch_id = 0 OR watermark >= make_timestamptz($3 * 1000))
"""

TASKS = """
    SELECT * FROM operator_latency
    WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000) AND finished_at >= make_timestamptz($3 * 1000)
          AND list_contains($5::VARCHAR[], operator)
          AND epoch_ms(finished_at) - max_ms < $4 AND epoch_ms(finished_at) - min_ms >= $3
"""
"""Selects the work on records from $3 to before $4."""
BUCKETS = f"""
    SELECT buckets.* FROM latency_buckets AS buckets SEMI JOIN ({TASKS}) AS tasks
        USING (sub_topology, batch_id, operator, task_id)
    WHERE buckets.topology = $1 AND buckets.finished_at >= make_timestamptz($3 * 1000)
"""


def live_path(tables: Tables, topology: Topology, promised: Promises, *, at_ms: int) -> Row | None:
    """Returns the newest closed window at *at_ms*, as `windows_with_paths` does.

    It is judged by what is *promised*. None: no window is closed.
    """
    ends = tables.ask(ENDS, [topology.name, at_ms]).objects
    if not ends:
        return None
    newest_ms = {row["operator"]: row["newest_ms"] for row in ends}
    last_ms = max(newest_ms.values())
    first_ms = last_ms - max(WINDOWS_READ * topology.window_ms, LEAST_READ_MS)
    since_ms = [topology.name, at_ms, first_ms]
    rows = pl.DataFrame(rows_of(OPERATOR_WINDOWS, tables.ask(ROWS, since_ms).objects))
    batches = tables.ask(BATCHES, since_ms)
    passed = PassedWindows(pl.DataFrame(batches.objects, infer_schema_length=None) if batches.rows else None)
    drivers = DriverFacts(passed, {row["operator"]: row["first_ms"] for row in ends}, newest_ms)
    paths = window_paths(rows, topology, promised, Interval(first_ms, last_ms + 1), drivers).tables
    closed = paths[CRITICAL_PATHS].filter(pl.col("latency_ms").is_not_null()).sort("window_end").tail(1)
    if closed.is_empty():
        return None
    in_window = pl.col("window_end") == closed["window_end"].item()
    steps = _objects(paths[CRITICAL_PATH_STEPS].filter(in_window).sort("step", "operator", nulls_last=True))
    leaves = _objects(paths[CRITICAL_PATH_LEAVES].filter(in_window).sort("behind_ms", "leaf"))
    start_ms = closed["window_start"].dt.epoch("ms").item()
    (window,) = closed.with_columns(
        age_ms=pl.col("before_source_ms") + pl.col("latency_ms"),
        worked_ms=pl.col("latency_ms") - pl.col("waited_ms") - pl.col("queued_ms"),
        over_sla=_is_over(tables, topology, promised, steps, start_ms, at_ms),
    ).to_dicts()
    del window["topology"]
    window["path_text"] = window.pop("path")
    return described_window(window, steps, leaves)


def _is_over(
    tables: Tables, topology: Topology, promised: Promises, steps: list[Row], start_ms: int, at_ms: int
) -> bool | None:
    """Returns True if a window broke a promise of *steps*' operators.

    Args:
        tables: of the warehouse.
        topology: whose window it is.
        promised: about its windows.
        steps: the operators, on the path and off it.
        start_ms: start of the window.
        at_ms: of what was finished later nothing is known.

    Returns:
        None if nothing is promised.
    """
    late: WindowVerdicts = {}
    if promised.records:
        where = [topology.name, at_ms, start_ms, start_ms + topology.window_ms, [*promised.records]]
        tasks = pl.DataFrame(rows_of(OPERATOR_LATENCY, tables.ask(TASKS, where).objects))
        buckets = pl.DataFrame(rows_of(LATENCY_BUCKETS, tables.ask(BUCKETS, where).objects))
        late = judge_records(buckets, tasks, promised, window_ms=topology.window_ms)
    verdicts: list[bool] = []
    for step in steps:
        name = step["operator"]
        is_late = late.get((name, start_ms), False)
        if (is_broken := promised.are_broken(name, is_late=is_late, worked_ms=step["worked_ms"])) is not None:
            verdicts.append(is_broken)
    return any(verdicts) if verdicts else None


def _objects(rows: pl.DataFrame) -> list[Row]:
    """Returns *rows* without the columns of their window."""
    return rows.drop("topology", "window_start", "window_end").to_dicts()
