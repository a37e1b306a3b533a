"""SLAs that nothing checks send one notification from Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.airflow_checkout import PROJECT, own_checkout
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.local import airflow
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import DELIVERIES, INCIDENTS, SLA_RESULTS
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.delta.tables import scan

REPORTS = "tidemark_flights_reports"
HOUR_MS = 3_600_000
WITHIN_S = 180.0


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A warehouse whose SLAs were checked an hour ago."""
    found = Layout(tmp_path / "warehouse")
    row = {"sla": "board", "topology": "flights", "checked_at": wall_clock_ms() - HOUR_MS, "run_id": "an old run"}
    path = found.report_table("flights", SLA_RESULTS.name)
    replace_rows([{**row, "verdict": "pass"}], SLA_RESULTS, path, where="true")
    return found


@pytest.fixture
def api(tmp_path: Path, layout: Layout) -> Iterator[AirflowApi]:
    """An Airflow with SLAs due every 5 s, but without a checker, whose DAG is paused.

    The suites of an hour would check the SLAs, and fail without jobs.
    """
    root, home = tmp_path / "root", tmp_path / "airflow"
    toml = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()
    own_checkout(root, f'check_every = "5 s"\n{toml}')
    variables = {"tidemark_warehouse": str(layout.warehouse), "tidemark_bootstrap": ""}
    found = airflow.wait_until_healthy(home, airflow.start(home, root=root, project=Project(root), variables=variables))
    process.wait_until(lambda: found.has_dag(REPORTS), "the DAGs", 60)
    yield found
    airflow.stop(home)


@pytest.mark.long  # tests/airflow/test_sla.py has the rule without the minutes that a real Airflow takes
def test_missed_checks_are_an_incident_that_is_alerted_once(api: AirflowApi, layout: Layout) -> None:
    told = layout.report_table("flights", DELIVERIES.name)
    api.unpause(REPORTS)
    api.trigger(REPORTS, {})  # its schedule begins with the next hour
    process.wait_until(lambda: (told / "_delta_log").exists() and scan(told).collect().height > 0, "a word", WITHIN_S)
    process.wait_until(lambda: "failed" in api.runs(REPORTS).values(), "failed suites", WITHIN_S)
    (incident,) = scan(layout.report_table("flights", INCIDENTS.name)).collect().to_dicts()
    assert (incident["sla"], incident["change"], incident["severity"]) == ("checks_are_made", "opened", "critical")
    assert scan(told).select("alert", "change", "channel").collect().rows() == [(incident["incident"], "opened", "log")]
