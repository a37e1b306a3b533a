"""Provides one Spark for all tests, and a warehouse for tables.

Tests write the tables that a stream would have written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import critical_path
import maintain
import rollup
from support.flights_day import STARTED_AT_MS, TOPOLOGY, FlightsDay, play_day
from support.report_warehouse import TestWarehouse
from support.shared_spark import ignore_open_sockets, one_spark
from tidemark.model.project.files import CHECKOUT as PROJECT
from tidemark.model.project.layout import WATCH, Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import load as load_slas
from tidemark.model.tables.catalog import ALERTS, DELIVERIES, EXPECTATION_RESULTS, INCIDENTS, SLA_RESULTS, TABLE_AGES
from tidemark.model.topology import load
from tidemark.reports.outline import outline
from tidemark.storage.delta.report_tables import replace_rows

collect_ignore_glob = ["unchanged_jobs/*"]  # programs that need arguments


def pytest_configure(config: pytest.Config) -> None:
    ignore_open_sockets(config)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with one_spark() as spark:
        yield spark


@pytest.fixture
def warehouse(tmp_path: Path) -> TestWarehouse:
    return TestWarehouse(Layout(tmp_path))


@pytest.fixture(scope="module")
def shared_warehouse(tmp_path_factory: pytest.TempPathFactory) -> TestWarehouse:
    """Returns one warehouse for all tests of a module."""
    return TestWarehouse(Layout(tmp_path_factory.mktemp("warehouse")))


@pytest.fixture(scope="session")
def flights_day(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[FlightsDay, Layout]:
    """Returns a maintained day of flights with reports and checks.

    SLA checks are written by hand. No test may change any of it.
    """
    layout = Layout(tmp_path_factory.mktemp("flights_day"))
    day, topology = play_day(layout.warehouse), load(TOPOLOGY)
    slas = load_slas(PROJECT / "expectations" / "slas.toml", topology)
    rollup.run(layout, topology.name, topology_outline=outline(topology, slas))
    critical_path.run(layout, topology, slas, Interval(STARTED_AT_MS, day.ended_at_ms))
    kept = {
        SLA_RESULTS: SLA_CHECKS,
        EXPECTATION_RESULTS: EXPECTATIONS,
        INCIDENTS: [TOLD | OPENED],
        ALERTS: [
            OPENED | {"topology": "flights", "alert": "board_in_time-1", "change": "opened", "slas": ["board_in_time"]}
        ],
        DELIVERIES: [{"topology": "flights", "alert": "board_in_time-1", "change": "opened", "channel": "log"}],
    }
    for table, rows in kept.items():
        replace_rows(rows, table, layout.report_table(topology.name, table.name), where="true")
    replace_rows(OF_WATCHED, TABLE_AGES, layout.report_table(WATCH, TABLE_AGES.name), where="true")
    maintain.run(layout, topology, now_ms=day.ended_at_ms)
    return day, layout


MARCH_1 = 1_772_323_200_000  # 2026-03-01 00:00 UTC
MINUTE_MS = 60_000
ORDERS = {"topology": WATCH, "table": "/lake/orders", "table_id": "o", "clock": "writer", "event_column": "at"}
APPENDED = ORDERS | {"change": "appended", "operation": "WRITE", "query": "q", "engine": "Apache-Spark/4.1.3"}
OF_WATCHED = [
    APPENDED | {
        "version": 1, "committed_at": MARCH_1 + 600 * MINUTE_MS, "rows": 100, "bytes": 10_000, "batch": 0,
        "newest_low_at": MARCH_1 + 599 * MINUTE_MS, "newest_high_at": MARCH_1 + 599 * MINUTE_MS + 1,
        "latency_low_ms": 60_000, "latency_high_ms": 300_000,
    },
    APPENDED | {
        "version": 2, "committed_at": MARCH_1 + 690 * MINUTE_MS, "rows": 50, "bytes": 5_000, "batch": 1,
        "gap_ms": 5_400_000,
        "newest_low_at": MARCH_1 + 680 * MINUTE_MS, "newest_high_at": MARCH_1 + 680 * MINUTE_MS + 1,
        "latency_low_ms": 600_000, "latency_high_ms": 1_200_000, "peak_low_ms": 5_460_000, "peak_high_ms": 5_460_001,
    },
    ORDERS | {
        "version": 3, "committed_at": MARCH_1 + 1_450 * MINUTE_MS, "rows": 10, "bytes": 2_000, "change": "replaced",
        "operation": "MERGE", "airflow": "load.orders", "gap_ms": 45_600_000,
        "peak_low_ms": 46_200_000, "peak_high_ms": 46_200_001,
    },
    {
        "topology": WATCH, "table": "/lake/days", "table_id": "d", "version": 7,
        "committed_at": MARCH_1 + 540 * MINUTE_MS,
        "clock": "file", "change": "appended", "operation": "WRITE", "bytes": 9_000, "engine": "delta-rs:py-1.6.6",
    },
]  # fmt: skip
"""Commits of two tables that other programs write."""
BOARD_IN_TIME = {"topology": "flights", "sla": "board_in_time", "subject": "flight_board", "measure": "latency_p99"}
LIMITS = {"warn_after_ms": 30_000.0, "error_after_ms": 120_000.0, "owner": "flight desk", "over_ms": 600_000}
SLA_CHECKS = [
    {**BOARD_IN_TIME, **LIMITS, "run_id": f"run {place}", "verdict": verdict, "observed_ms": observed_ms}
    | {"checked_at": STARTED_AT_MS + place * 600_000, "culprit": "flight_board" if verdict == "error" else None}
    for place, (verdict, observed_ms) in enumerate([("pass", 1_000.0), ("error", 590_000.0), ("error", 595_000.0)])
]
"""Checks every ten minutes: one that held, and two that did not."""
TOLD = {"topology": "flights", "incident": "board_in_time-1", "change": "opened"}
OPENED = {
    "sla": "board_in_time",
    "changed_at": STARTED_AT_MS + 600_000,
    "opened_at": STARTED_AT_MS + 600_000,
    "verdict": "error",
}
"""The incident that follows, and its notification."""
EXPECTATIONS = [
    {"suite": "outcomes", "expectation": "expect_table_row_count_to_be_between", "topology": "flights", "success": True}
    | {
        "severity": "critical",
        "first_checked_at": STARTED_AT_MS,
        "last_checked_at": STARTED_AT_MS,
        "checks": 1,
        "run_id": "run 0",
    }
    | {"observed": "11"}
]
