"""A broken SLA becomes an event and an alert, and never a failure."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import write_deltalake

from tidemark.spec.layout import Layout
from tidemark_sla import DeliverAlerts, PublishBreaches, SlaNotifier, alert_line, alerts_file, breaches, sla_asset

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATE = {
    "sla": "carriers_in_time",
    "topology": "flights",
    "subject": "carrier_delays",
    "measure": "latency_p99",
    "checked_at": NOON,
    "run_id": "manual__1",
    "verdict": "error",
    "observed_ms": 5312.4,
    "error_after_ms": 4000.0,
    "culprit": "carrier_state",
    "owner": "airside",
}
FINE = {**LATE, "sla": "board_is_fresh", "verdict": "pass", "observed_ms": 12.0, "culprit": None}
SILENT = {**LATE, "sla": "never_seen", "verdict": "never_loaded", "observed_ms": None, "culprit": None}
OLDER = {**LATE, "run_id": "manual__0"}


def write(home: Path, *rows: dict[str, Any]) -> str:
    write_deltalake(Layout(home).report_table("flights", "sla_results"), pa.Table.from_pylist(list(rows)))
    return str(home)


def publish(warehouse: str, **params: Any) -> SimpleNamespace:
    event = SimpleNamespace(extra={})
    operator = PublishBreaches(task_id="publish_breaches", topology="flights", warehouse=warehouse)
    operator.execute({"run_id": "manual__1", "params": params, "outlet_events": {sla_asset("flights"): event}})
    return event


def test_what_did_not_pass_in_this_run_is_published(tmp_path: Path) -> None:
    published = publish(write(tmp_path, LATE, FINE, SILENT, OLDER)).extra["breaches"]
    assert [breach["sla"] for breach in published] == ["carriers_in_time", "never_seen"]
    assert json.loads(json.dumps(published)) == published


def test_nothing_is_published_where_every_sla_holds(tmp_path: Path) -> None:
    with pytest.raises(AirflowSkipException):
        publish(write(tmp_path, FINE, OLDER))


def test_breaches_of_a_check_that_alerts_nobody_are_in_its_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AirflowSkipException, match="alert is false"):
        publish(write(tmp_path, LATE, FINE), alert=False)
    assert [record.message for record in caplog.records] == [alert_line(LATE)]
    assert len(publish(str(tmp_path), alert=True).extra["breaches"]) == 1


def test_an_alert_says_what_by_how_much_whose_step_and_who_is_told() -> None:
    assert alert_line(LATE) == (
        "SLA carriers_in_time of flights: error: latency_p99 of carrier_delays is 5,312 ms, error after 4,000 ms, "
        "look at carrier_state (owner: airside)"
    )
    assert "is nothing measured" in alert_line(SILENT)


def test_every_breach_of_the_events_is_delivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = [SimpleNamespace(extra={"breaches": breaches(write(tmp_path, LATE, SILENT), "flights", "manual__1")})]
    notifier = SlaNotifier(topology="flights", warehouse=str(tmp_path))
    deliver = DeliverAlerts(task_id="deliver", notifiers=[notifier])
    with caplog.at_level(logging.WARNING, logger="tidemark_sla"):
        deliver.execute({"triggering_asset_events": {sla_asset("flights"): events}})
    assert [record.message for record in caplog.records] == [alert_line(LATE), alert_line(SILENT)]
    kept = [json.loads(line) for line in alerts_file(str(tmp_path), "flights").read_text().splitlines()]
    assert [alert["sla"] for alert in kept] == ["carriers_in_time", "never_seen"]
    assert kept[0]["alert"] == alert_line(LATE)
