"""The summary reports the tables' content and finds errors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.latency_facts import listed, statistics
from tidemark.cli.local.summary import MAY_BE_EMPTY, problems, summary
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import HOP, TABLES, Table

AT_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
STREAM = {"topology": "flights", "sub_topology": "status", "batch_id": 3}
STATUS = {**STREAM, "operator": "flight_status", "kind": "table", "task_id": "status_0"}
ROW_OF_OUTCOMES = {
    **dict.fromkeys(
        ("held_before", "late", "duplicate", "filtered", "passed", "superseded", "dropped", "held_after"), 0
    ),
    **{**STREAM, "operator": "flight_status", "kind": "table"},
    **{"records_in": 10, "emitted": 7, "suppressed": 2, "quarantined": 1},
}
READ_BY_NEXT = {**ROW_OF_OUTCOMES, "operator": "by_carrier_source", "kind": "source", "records_in": 2, "emitted": 0}
SAID = "staleness of board is 1 min 24 s, while its sources have nothing to send; warning from 1 min on"
ROWS: Mapping[str, list[dict[str, Any]]] = {
    "operator_batches": [
        {**ROW_OF_OUTCOMES, "n": 100, "min_ms": -5, "max_ms": 2_399, "sum_ms": 235_107},
        {**READ_BY_NEXT, "suppressed": 0, "quarantined": 0, "passed": 2},
    ],
    "latency_minutes": [
        {**STATUS, **statistics(latencies), "buckets": listed(latencies)} for latencies in ([-5, 10], [2_399] * 98)
    ],
    "partition_batches": [
        {**STREAM, "source": "weather", "partition": 0, "watermark": AT_MS, "activity": "idle", "decided_at": AT_MS},
        {**STREAM, "source": "weather", "partition": 0, "batch_id": 2, "activity": "active", "decided_at": AT_MS},
    ],
    "critical_paths": [
        {"window_end": AT_MS, "path": "A (0 ms) → C (100 ms) = 100 ms", "state": "measured"}
        | {"latency_ms": 100, "before_source_ms": 74_459},
        {"window_end": AT_MS - 5_000, "path": "A (0 ms) → B (7 ms) = 7 ms", "state": "estimated"},
    ],
    "sla_results": [
        {"sla": "in_time", "subject": "board", "measure": "latency_p99", "verdict": "error", "checked_at": AT_MS}
        | {"observed_ms": 5_312.4, "error_after_ms": 5_000.0, "culprit": "flight_status"},
        {"sla": "in_time", "verdict": "pass", "checked_at": AT_MS - 1},
        {"sla": "board_is_fresh", "subject": "board", "measure": "staleness", "verdict": "pass", "checked_at": AT_MS}
        | {"observed_ms": 82_000.0, "warn_after_ms": 60_000.0, "error_after_ms": 120_000.0, "message": SAID},
    ],
    "dead_letters": [{**STREAM, "kind": "quarantined", "reason": "null_key"}],
    "hop_by_carrier": [{"idle": True}, {"id": "UA 1"}, {"id": "UA 2"}, {"watermark": AT_MS, "idle": False}],
}


def warehouse(home: Path, rows: Mapping[str, list[dict[str, Any]]]) -> Path:
    """Writes every table at *home* with *rows* or one null row."""
    layout = Layout(home)
    for name, table in {**TABLES, "hop_by_carrier": HOP}.items():
        report = table.written_by == "report"
        path = layout.report_table("flights", name) if report else layout.stream_table("flights", "status", name)
        write_deltalake(path, rows_of(table, rows[name]) if rows.get(name) else nulls(table, 1 - (name in rows)))
    return home


def nulls(table: Table, n: int) -> pa.Table:
    schema = arrow_schema(table)
    return pa.table([pa.nulls(n, field.type) for field in schema], schema=schema)


def lines(text: str, title: str) -> list[str]:
    return [line.strip() for line in text.split(f"{title}\n")[1].split("\n\n")[0].splitlines()]


def test_each_table_that_may_be_empty_exists():
    assert TABLES.keys() >= MAY_BE_EMPTY


def test_the_summary_is_read_from_the_tables(tmp_path: Path) -> None:
    told = summary(warehouse(tmp_path, ROWS), injected=1)
    (latency,) = lines(told, "End-to-end latency, ms (finish clock − record timestamp)")[1:]
    # 100 values: −5, 10 and 98 times 2,399, whose bucket stands for 2,421.8.
    assert latency.split() == ["status", "flight_status", "table", "100", "-5", "2,351", "2,399", "2,399", "2,399"]
    assert lines(told, "Emitted and suppressed")[1].split() == ["flight_status", "table", "10", "7", "2", "22.2"]
    assert lines(told, "Watermarks")[1].split() == ["weather", "0", "2026-01-01T12:00:00.000Z", "null", "idle", "null"]
    assert lines(told, "Critical path of the last closed windows, by the end of the window") == [
        "2026-01-01T12:00:00.000Z  74,559 ms old: 74,459 ms before the path, then A (0 ms) → C (100 ms) = 100 ms",
        "2026-01-01T11:59:55.000Z  A (0 ms) → B (7 ms) = 7 ms  (estimated)",
    ]
    fresh, sla, *excuse = lines(told, "SLAs")[1:]
    assert re.split("  +", fresh) == [
        "board_is_fresh",
        "board staleness",
        "pass",
        "null",
        "1 min 22 s",
        "1 min",
        "2 min",
    ]
    assert " ".join(line.strip() for line in excuse) == f"board_is_fresh passes: {SAID}"
    assert re.split("  +", sla) == ["in_time", "board latency_p99", "error", "flight_status", "5.31 s", "null", "5 s"]
    assert lines(told, "Quarantine")[-1] == "1 quarantined = 1 injected"
    assert lines(told, "Accounting")[-1] == "2 rows of operator_batches, one per batch and operator: all close"
    assert max(map(len, told.splitlines())) <= 120


def test_consistent_tables_give_no_errors(tmp_path: Path) -> None:
    assert list(problems(warehouse(tmp_path, ROWS), injected=1)) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            {"operator_batches": [{**ROW_OF_OUTCOMES, "emitted": 6}, ROWS["operator_batches"][1]]},
            "the accounting of 1 batches does not close, the first: ('status', 3, 'flight_status')",
        ),
        ({"changes": []}, "table changes has no rows"),
        ({"critical_paths": []}, "table critical_paths has no rows"),
        ({"dead_letters": ROWS["dead_letters"] * 2}, "1 bad records were injected, but 2 are in quarantine"),
        (
            {"hop_by_carrier": ROWS["hop_by_carrier"] * 2},
            "hop_by_carrier was handed 4 updates, but by_carrier_source has read 2",
        ),
    ],
)
def test_inconsistent_tables_give_errors(tmp_path: Path, rows: dict[str, list[dict[str, Any]]], problem: str) -> None:
    assert list(problems(warehouse(tmp_path, {**ROWS, **rows}), injected=1)) == [problem]


@pytest.mark.parametrize("table", ["decisions", "maintenance"])
def test_a_good_run_may_leave_a_table_empty(tmp_path: Path, table: str) -> None:
    # Topics may take all records, and alerts need no decisions.
    assert list(problems(warehouse(tmp_path, {**ROWS, table: []}), injected=1)) == []
