"""`table_ages` has each commit of a watched table that changed its data once, however often runs look at it."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from support.command_line import tidemark
from tidemark.metrics.exporter import Exporter
from tidemark.metrics.otlp import otlp_metrics
from tidemark.model.kinds.operator import Level
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.topology import Topology
from tidemark.watch.ages import record_ages
from tidemark.watch.commits import History
from tidemark.watch.reading import watched
from tidemark.watch.statistics import TimeColumnRequest

TEN = datetime(2014, 11, 30, 10, tzinfo=UTC)
TEN_MS, MINUTE = 1_417_341_600_000, 60_000
NOW = TEN_MS + 600 * MINUTE
FIELDS = [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]
Action = dict[str, Any]


def commit(table: Path, version: int, minute: int, *actions: Action, operation: str = "WRITE", **info: object) -> None:
    """Writes a commit of a table, of so many minutes after ten."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    about = {"timestamp": TEN_MS + minute * MINUTE, "operation": operation, "engineInfo": "Apache-Spark/4.1.3", **info}
    lines = [{"commitInfo": about}, *actions]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def new_table(table_id: str) -> list[Action]:
    metadata = {"id": table_id, "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    metadata |= {"schemaString": json.dumps({"type": "struct", "fields": FIELDS}), "configuration": {}}
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]


def add(path: str, oldest: int, newest: int, *, n: int = 5, is_new: bool = True) -> Action:
    low, high = ((TEN + timedelta(minutes=minute)).isoformat() for minute in (oldest, newest))
    stats = {"numRecords": n, "minValues": {"at": low}, "maxValues": {"at": high}, "nullCount": {"at": 0}}
    content = {"path": path, "partitionValues": {}, "size": 700 + n, "modificationTime": TEN_MS, "dataChange": is_new}
    return {"add": content | {"stats": json.dumps(stats)}}


def remove(path: str, *, is_new: bool = True) -> Action:
    return {"remove": {"path": path, "deletionTimestamp": TEN_MS, "dataChange": is_new}}


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Two appends of a query at 10:05 and 10:20, an OPTIMIZE, and a MERGE of Airflow at 10:50 that leaves 10:15."""
    table = tmp_path / "lake" / "orders"
    batch: Action = {"txn": {"appId": "q1", "version": 3}}
    commit(table, 0, 5, *new_table("first"), add("a", 0, 4), batch)
    commit(table, 1, 20, add("b", 6, 15, n=7), batch)
    commit(table, 2, 30, add("c", 0, 15, n=12, is_new=False), remove("a", is_new=False), remove("b", is_new=False))
    run = json.dumps({"dag_id": "load", "task_id": "orders", "run_id": "manual__1"})
    commit(table, 3, 50, add("d", 2, 14, n=9), add("e", 0, 15, n=3), remove("c"), operation="MERGE", userMetadata=run)
    return table


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "warehouse")


def record(layout: Layout, *places: Path, now_ms: int = NOW) -> None:
    histories = watched(places, TimeColumnRequest(), 0)
    record_ages(layout, [each for each in histories if isinstance(each, History)], now_ms)


def rows(layout: Layout) -> list[dict[str, Any]]:
    stored = DeltaTable(str(layout.report_table(WATCH, "table_ages"))).to_pyarrow_table()
    return pl.DataFrame(stored).sort("table", "table_id", "version").to_dicts()


def at(minute: int, ms: int = 0) -> datetime:
    return TEN + timedelta(minutes=minute, milliseconds=ms)


def test_a_row_has_what_a_commit_did_and_what_readers_saw(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    first, second, merge = rows(layout)
    assert second == {
        "topology": "watch", "table": str(orders), "table_id": "first", "version": 1, "committed_at": at(20),
        "clock": "writer", "change": "appended", "operation": "WRITE", "rows": 7, "bytes": 707,
        "gap_ms": 15 * MINUTE, "event_column": "at", "newest_low_at": at(15), "newest_high_at": at(15, 1),
        # Its newest row is 5 min old, less a millisecond at most, and its oldest 14 min.
        "latency_low_ms": 5 * MINUTE - 1, "latency_high_ms": 14 * MINUTE,
        # Until then the newest was that of 10:04.
        "peak_low_ms": 16 * MINUTE - 1, "peak_high_ms": 16 * MINUTE,
        "engine": "Apache-Spark/4.1.3", "job": None, "query": "q1", "airflow": None, "run": None, "batch": 3,
        "read_at": at(600),
    }  # fmt: skip
    assert (first["gap_ms"], first["peak_low_ms"], first["newest_low_at"]) == (None, None, at(4))
    # The OPTIMIZE before it changed no data.
    assert (merge["version"], merge["change"], merge["rows"], merge["gap_ms"]) == (3, "replaced", 12, 30 * MINUTE)
    assert (merge["latency_low_ms"], merge["peak_high_ms"], merge["newest_low_at"]) == (None, 35 * MINUTE, at(15))
    assert (merge["airflow"], merge["run"], merge["query"]) == ("load.orders", "manual__1", None)


def test_a_second_run_adds_new_commits_alone(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    before = DeltaTable(str(layout.report_table(WATCH, "table_ages"))).version()
    record(layout, orders)
    assert DeltaTable(str(layout.report_table(WATCH, "table_ages"))).version() == before
    commit(orders, 4, 60, add("f", 50, 58))
    shutil.copytree(orders, orders.with_name("second"))
    record(layout, orders.parent, now_ms=NOW + 1)
    seen = [(Path(row["table"]).name, row["version"], row["read_at"]) for row in rows(layout)]
    assert seen == [
        *(("orders", version, at(600)) for version in (0, 1, 3)),
        ("orders", 4, at(600, 1)),
        *(("second", version, at(600, 1)) for version in (0, 1, 3, 4)),
    ]


def test_after_a_rollback_rows_are_those_of_the_table(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    (orders / "_delta_log" / f"{3:020d}.json").unlink()
    commit(orders, 3, 55, add("g", 30, 54))
    record(layout, orders)
    assert [(row["version"], row["committed_at"]) for row in rows(layout)] == [(0, at(5)), (1, at(20)), (3, at(55))]


def test_another_table_in_the_same_place_has_rows_of_its_own(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    shutil.rmtree(orders)
    commit(orders, 0, 70, *new_table("second"), add("h", 60, 69))
    record(layout, orders)
    assert [(row["table_id"], row["version"]) for row in rows(layout)] == [
        *(("first", version) for version in (0, 1, 3)),
        ("second", 0),
    ]


def test_runs_at_once_record_a_commit_once(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    commit(orders, 4, 60, add("f", 50, 58))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: record(layout, orders), range(4)))
    assert [row["version"] for row in rows(layout)] == [0, 1, 3, 4]


def test_without_a_column_only_commits_are_known(layout: Layout, tmp_path: Path) -> None:
    schema = json.dumps({"type": "struct", "fields": [{**FIELDS[0], "type": "long"}]})
    table = tmp_path / "plain"
    protocol, metadata = new_table("plain")
    commit(table, 0, 5, protocol, {"metaData": metadata["metaData"] | {"schemaString": schema}}, add("a", 0, 4))
    record(layout, table)
    (row,) = rows(layout)
    assert {name for name, value in row.items() if value is None} == {
        *("gap_ms", "event_column", "newest_low_at", "newest_high_at", "latency_low_ms", "latency_high_ms"),
        *("peak_low_ms", "peak_high_ms", "job", "query", "airflow", "run", "batch"),
    }


def test_the_command_records_with_a_warehouse_and_sql_reads_it(orders: Path, tmp_path: Path) -> None:
    words = ("watch", str(orders), "--kept", "none")
    assert tidemark(tmp_path, *words).returncode == 0
    assert not (tmp_path / "warehouse").exists()
    assert tidemark(tmp_path, "--warehouse", "warehouse", *words).returncode == 0
    query = 'SELECT version, "change" FROM table_ages ORDER BY version'
    said = tidemark(tmp_path, "--warehouse", "warehouse", "sql", query, "--format", "csv").stdout
    assert said.split() == ["version,change", "0,appended", "1,appended", "3,replaced"]
    metrics = tidemark(tmp_path, "--warehouse", "warehouse", "metrics", "text", "watch").stdout
    assert f'tidemark_table_peak_age_seconds{{table="{orders}",topology="watch"}} 2100.0' in metrics


def test_metrics_are_those_of_the_newest_commit_also_under_the_proposed_names(layout: Layout, orders: Path) -> None:
    record(layout, orders)
    commit(orders, 4, 60, add("f", 50, 58))
    record(layout, orders)
    watch = Topology(WATCH, Level.INFO, window_ms=1, trigger_ms=1, sub_topologies=())
    samples = Exporter(layout, lambda: [watch], clock=lambda: NOW).samples()
    values = {sample.metric: sample.value for sample in samples if sample.labels[1:] == (str(orders),)}
    # At 20:00 the row of 10:58 is 9 h 2 min old; before the commit of 11:00, that of 10:15 was the newest.
    expected = {
        "tidemark_table_age_seconds": 32_520,
        "tidemark_table_commit_timestamp_seconds": TEN_MS / 1_000 + 3_600,
        "tidemark_table_peak_age_seconds": 2_700,
        "tidemark_table_lag_seconds": 119.999,
    }
    assert values == expected
    pushed = {metric.name: [*metric.data.data_points] for metric in otlp_metrics(samples, NOW * 1_000_000)}
    method = {"data.source.system": "delta", "data.source.name": str(orders), "data.staleness.method": "max_timestamp"}
    for name, own in (("age", "age"), ("age.peak", "peak_age"), ("lag", "lag")):
        (point,) = pushed[f"data.staleness.{name}"]
        assert (point.value, point.attributes) == (expected[f"tidemark_table_{own}_seconds"], method)  # type: ignore[union-attr]
    (point,) = pushed["data.staleness.last_update.timestamp"]
    assert point.value == TEN_MS / 1_000 + 3_600  # type: ignore[union-attr]
    assert point.attributes == method | {"data.staleness.method": "snapshot"}
