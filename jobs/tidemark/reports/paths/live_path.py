"""Finds the critical path of the window that matters now: the oldest unfinished one, or else the newest finished one.

The rules are those of the reports, and the rows have the same fields. Instants are epoch ms.
"""

from __future__ import annotations

from contextlib import suppress

import polars as pl

from tidemark.account.now import StreamsNow
from tidemark.account.warehouse import AccountTables
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import FINISHED, Row, Tables
from tidemark.facts.path_facts import described_window, windows_with_paths
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    LATENCY_MINUTES,
    OPERATOR_WINDOWS,
)
from tidemark.model.topology import Topology
from tidemark.reports.paths.window_ages import (
    AGED,
    LOOKS_BACK_MS,
    kept_before,
    unfinished_age,
    window_ages,
    with_usual,
)
from tidemark.reports.paths.window_paths import DriverFacts, Paths, window_paths
from tidemark.reports.paths.window_verdicts import RecordVerdicts, judge_records, with_window_verdicts
from tidemark.reports.paths.windows import PassedWindows
from tidemark.reports.promises import Promises
from tidemark.selection import names_in
from tidemark.semantics.critical_path import STANDS_STILL

WINDOWS_READ = 10
"""Newest windows whose paths are computed."""
OF_PARTS = ("owner", "detail", "stream", "ms", "usual_ms")
"""The columns of window_parts that a window has, as in PARTS of `path_facts`."""
LEAST_READ_MS = 60_000
"""At least this much record time is read, ms: twice the time after which an operator that is behind counts as stuck."""
KNOWN = f"""(
    SELECT o.* FROM operator_windows AS o
    JOIN (SELECT sub_topology, max(batch_id) AS newest_id FROM {FINISHED} GROUP BY sub_topology) USING (sub_topology)
    WHERE topology = $1 AND o.batch_id <= newest_id
)"""
"""SQL: the rows of `operator_windows` of batches that had finished, in which all operators of a driver have theirs."""
ENDS = f"""
    SELECT operator, epoch_ms(min(window_end)) AS first_ms, epoch_ms(max(window_end)) AS newest_ms
    FROM {KNOWN} GROUP BY operator
"""
UNFINISHED = f"""
    WITH passed AS (
        SELECT sub_topology, max(epoch_ms(watermark)) AS watermark_ms FROM {FINISHED} GROUP BY sub_topology
    )
    SELECT epoch_ms(min(window_end)) AS end_ms
    FROM (SELECT unnest($3::VARCHAR[]) AS reader, unnest($4::VARCHAR[]) AS operator)
    JOIN {KNOWN} USING (operator) LEFT JOIN passed ON passed.sub_topology = reader
    WHERE epoch_ms(window_end) - 1 > coalesce(watermark_ms, 0)
    GROUP BY reader ORDER BY end_ms
"""
"""Selects for each sub-topology the oldest window that its upstream operators have finished and it has not.

$3 and $4 are lists of the same length: a sub-topology, and an operator upstream of it.
"""
ROWS = f"""
    FROM {KNOWN}
    WHERE window_end >= make_timestamptz($3 * 1000) OR epoch_ms(window_end) IN (SELECT unnest($4::BIGINT[]))
"""
PASSED = f"""
    SELECT sub_topology, batch_id, watermark, started_at, finished_at FROM {FINISHED}
    WHERE batch_id = 0 OR watermark >= make_timestamptz($3 * 1000)
"""

MINUTES = """
    SELECT * FROM latency_minutes
    WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000) AND finished_at >= make_timestamptz($3 * 1000)
          AND window_start = make_timestamptz($3 * 1000) AND list_contains($4::VARCHAR[], operator)
"""
"""Selects the latencies of the records of the window that starts at $3."""


def current_path(
    tables: Tables, of: AccountTables, at_ms: int, promised: Promises, *, has_parts: bool = True
) -> Row | None:
    """Returns the oldest window that an operator has not finished, or else the newest finished one.

    None if no window is closed. The window has the fields of `windows_with_paths`, and `is_live`, which is True if no
    report has described it as it is.

    Args:
        tables: the tables of the warehouse.
        of: the tables of the topology, for the account of time.
        at_ms: the instant, epoch ms.
        promised: the promises by which the window is judged.
        has_parts: whether its age is divided into parts, which takes most of the time.
    """
    window = live_path(tables, of, at_ms, promised, has_parts=has_parts)
    if window is not None and window["state"] in STANDS_STILL:
        return {**window, "is_live": True}
    with suppress(InvalidArgument):
        (reported,) = windows_with_paths(tables, of.topology.name, finished_by_ms=at_ms)
        # Of one window the report knows more.
        if window is None or reported["window_end"] >= window["window_end"]:
            return {**reported, "is_live": False}
    return None if window is None else {**window, "is_live": True}


def live_path(tables: Tables, of: AccountTables, at_ms: int, promised: Promises, *, has_parts: bool) -> Row | None:
    """Returns the oldest window on whose path an operator stands still, or else the newest one that is closed.

    The window is judged by what is *promised*. If an operator has not finished it, its age is that at *at_ms*. None if
    no window is closed.
    """
    found = _newest_paths(tables, of.topology, at_ms, promised)
    if found is None:
        return None
    all_closed = found.tables[CRITICAL_PATHS].filter(pl.col("latency_ms").is_not_null()).sort("window_end")
    stand_still = all_closed.filter(pl.col("state").is_in([*STANDS_STILL]))
    closed = all_closed.tail(1) if stand_still.is_empty() else stand_still.head(1)
    if closed.is_empty():
        return None
    steps = found.tables[CRITICAL_PATH_STEPS].filter(pl.col("window_end") == closed["window_end"].item())
    finished = found.finished.filter(pl.col("window_end") == closed["window_end"].dt.epoch("ms").item())
    judged = _judged(tables, of.topology, promised, closed["window_start"].dt.epoch("ms").item(), at_ms)
    path = with_window_verdicts(closed, steps, judged, promised)
    aged = path.with_columns(age_ms=pl.col("before_source_ms") + pl.col("latency_ms")).select(AGED)
    parts = _parts(of, aged, steps, finished, at_ms) if has_parts else []
    return _described(path, steps, parts, at_ms)


def _newest_paths(tables: Tables, topology: Topology, at_ms: int, promised: Promises) -> Paths | None:
    """Returns the paths of the newest windows, and of the oldest window that each driver has not finished.

    None if no operator has finished a window.
    """
    ends = tables.ask(ENDS, [topology.name, at_ms]).objects
    if not ends:
        return None
    first_ms, newest_ms = ({row["operator"]: row[each] for row in ends} for each in ("first_ms", "newest_ms"))
    last_ms = max(newest_ms.values())
    newest_from_ms = last_ms - max(WINDOWS_READ * topology.window_ms, LEAST_READ_MS)
    unfinished_ms = _unfinished_ms(tables, topology, at_ms)
    rows = tables.ask(ROWS, [topology.name, at_ms, newest_from_ms, unfinished_ms]).objects
    since_ms = min([newest_from_ms, *unfinished_ms])
    batches = tables.ask(PASSED, [topology.name, at_ms, since_ms])
    passed = PassedWindows(pl.DataFrame(batches.objects, infer_schema_length=None) if batches.rows else None)
    drivers = DriverFacts(passed, first_ms, newest_ms, at_ms)
    windows = pl.DataFrame(rows_of(OPERATOR_WINDOWS, rows))
    return window_paths(windows, topology, promised, Interval(since_ms, last_ms + 1), drivers)


def _described(path: pl.DataFrame, steps: pl.DataFrame, parts: list[Row], at_ms: int) -> Row:
    """Returns the window of *path*, a row of critical_paths, as `windows_with_paths` does.

    *steps* are those of its operators, and *parts* those of its age.
    """
    (window,) = path.with_columns(
        age_ms=pl.col("before_source_ms") + pl.col("latency_ms"),
        worked_ms=pl.col("latency_ms") - pl.col("waited_ms") - pl.col("queued_ms"),
    ).to_dicts()
    del window["topology"]
    window["path_text"] = window.pop("path")
    if window["state"] in STANDS_STILL:
        window["age_ms"] = at_ms - round(window["window_end"].timestamp() * 1000)
    return described_window(window, _objects(steps.sort("step", "operator", nulls_last=True)), parts)


def _unfinished_ms(tables: Tables, topology: Topology, at_ms: int) -> list[int]:
    """Returns the ends of the oldest window of each driver that its writers have finished, and it has not."""
    reads: list[tuple[str, str]] = []
    for sub in topology.sub_topologies:
        own = {*names_in(sub.operators)}
        reads += [(sub.name, each) for name in own for each in topology.waited_for[name] if each not in own]
    subs, operators = ([*each] for each in zip(*reads, strict=True)) if reads else ([], [])
    return [row["end_ms"] for row in tables.ask(UNFINISHED, [topology.name, at_ms, subs, operators]).objects]


def known_ms(window: Row) -> int:
    """Returns when the leaf of *window* had finished it; where an operator stands still, when its source had."""
    end_ms: int = round(window["window_end"].timestamp() * 1000)
    # An operator that is stuck has not finished it.
    known_age_ms: int = window["before_source_ms"] if window["state"] in STANDS_STILL else window["age_ms"]
    return end_ms + known_age_ms


def _parts(
    of: AccountTables, window: pl.DataFrame, steps: pl.DataFrame, finished: pl.DataFrame, at_ms: int
) -> list[Row]:
    """Returns the parts of the age of a *window*, a row with AGED, the longest first.

    Where an operator stands still they are the parts until the operator before it had finished the window, and the
    time of its driver since then. *steps* and *finished* are about this window.
    """
    on_path = steps.drop_nulls("step").sort("step")
    is_known = pl.col("operator").is_in(finished["operator"].implode()) & pl.col("worked_ms").is_not_null()
    measured = on_path.filter(is_known.cum_min())
    behind = on_path.filter(~is_known.cum_min()).filter(pl.col("state").is_in([*STANDS_STILL])).head(1)
    if measured.is_empty():
        return []
    reached = window.with_columns(leaf=pl.lit(measured["operator"][-1]))
    end_ms = window["window_end"].dt.epoch("ms").item()
    recorded = of.recorded(since_ms=end_ms - LOOKS_BACK_MS, at_ms=at_ms)
    ledger = recorded.ledger(of.topology)
    if behind.is_empty():
        parts = window_ages(ledger, reached)
    else:
        sub = of.topology.sub_topology(behind["sub_topology"].item())
        parts = unfinished_age(StreamsNow(of, recorded, ledger, at_ms), reached, sub)
    compared = with_usual(parts, kept_before(of, end_ms))
    return compared.select(OF_PARTS).sort(-pl.col("ms"), "owner", "detail").to_dicts()


def _judged(tables: Tables, topology: Topology, promised: Promises, start_ms: int, at_ms: int) -> RecordVerdicts:
    """Returns the verdicts on the records of a window.

    Args:
        tables: of the warehouse.
        topology: whose window it is.
        promised: about its windows.
        start_ms: start of the window.
        at_ms: of what was finished later nothing is known.
    """
    if not promised.records:
        return {}
    minutes = tables.ask(MINUTES, [topology.name, at_ms, start_ms, [*promised.records]]).objects
    return judge_records(pl.DataFrame(rows_of(LATENCY_MINUTES, minutes)), promised)


def _objects(rows: pl.DataFrame) -> list[Row]:
    """Returns *rows* without the columns of their window."""
    return rows.drop("topology", "window_start", "window_end").to_dicts()
