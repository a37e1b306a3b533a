"""One Spark for all tests, and a warehouse in which they lay down the tables that a stream would have written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flights_day import STARTED_AT_MS, TOPOLOGY, FlightsDay, play_day
from planted import TestWarehouse
from pyspark.sql import SparkSession

import critical_path
import maintain
import rollup
from tidemark.report.outline import outline
from tidemark.report.report_tables import replace_rows
from tidemark.spark import PROJECT, session
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import load as load_slas
from tidemark.spec.tables import DELIVERIES, DQ_RESULTS, INCIDENTS, SLA_RESULTS
from tidemark.spec.topology import load


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves sockets to the garbage collector, which may come in any test that runs afterwards."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    spark = session("tests")
    yield spark
    spark.stop()


@pytest.fixture
def warehouse(tmp_path: Path) -> TestWarehouse:
    return TestWarehouse(Layout(tmp_path))


@pytest.fixture(scope="module")
def shared_warehouse(tmp_path_factory: pytest.TempPathFactory) -> TestWarehouse:
    """One for all tests of a module."""
    return TestWarehouse(Layout(tmp_path_factory.mktemp("warehouse")))


@pytest.fixture(scope="session")
def flights_day(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[FlightsDay, Layout]:
    """A day of flights, reports on it, SLA checks written by hand, all maintained; none of it is to be changed."""
    layout = Layout(tmp_path_factory.mktemp("flights_day"))
    day, topology = play_day(layout.warehouse), load(TOPOLOGY)
    slas = load_slas(PROJECT / "expectations" / "slas.toml", topology)
    rollup.run(layout, topology.name, known=outline(topology, slas))
    critical_path.run(layout, topology, slas, Interval(STARTED_AT_MS, day.ended_at_ms))
    kept = {
        SLA_RESULTS: SLA_CHECKS,
        DQ_RESULTS: DQ_CHECKS,
        INCIDENTS: [TOLD | OPENED],
        DELIVERIES: [TOLD | {"channel": "log"}],
    }
    for table, rows in kept.items():
        replace_rows(rows, table, layout.report_table(topology.name, table.name), where="true")
    maintain.run(layout, topology, now_ms=day.ended_at_ms)
    return day, layout


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
    "at": STARTED_AT_MS + 600_000,
    "opened_at": STARTED_AT_MS + 600_000,
    "verdict": "error",
}
"""The incident that follows, and that it was told."""
DQ_CHECKS = [
    {"suite": "outcomes", "expectation": "expect_table_row_count_to_be_between", "topology": "flights", "success": True}
    | {"severity": "critical", "checked_at": STARTED_AT_MS, "run_id": "run 0", "observed": "11"}
]
