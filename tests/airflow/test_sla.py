"""Incident changes reach a real mail server and webhook once each.

The server is down and the webhook fails at times.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowSkipException
from deltalake import write_deltalake

from support.hostile_strings import HOSTILE
from support.mail_and_webhook import Inbox, Receiver
from tidemark.clock import wall_clock_ms
from tidemark.model import topology
from tidemark.model.project.layout import Layout
from tidemark.model.sla_event_rows import event_of
from tidemark.model.sla_events import IncidentChange
from tidemark.model.slas.channel_spec import Channel, parse
from tidemark.model.tables.catalog import INCIDENTS
from tidemark.sla.incidents.changes import alert_of
from tidemark.sla.incidents.due import DueAlert
from tidemark.sla.incidents.tables import channel_lock, follow_alerts, record_delivery
from tidemark.storage.delta.report_tables import replace_rows
from tidemark_airflow.operators import sla as sla_tasks
from tidemark_airflow.operators.sla import (
    DeliverChanges,
    PublishChanges,
    _tell_at_once,
    channels,
    sla_asset,
    tell_of_missed_checks,
)

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = topology.load(ROOT / "jobs" / "topologies" / "flights.toml")
MAIL = {"kind": "mail", "to": ["desk@example.org", "ops@example.org"], "from": "tidemark@example.org"}
NOW = wall_clock_ms() // 1_000 * 1_000
OPENED = {
    "incident": "delays_in_time-20260101T120000", "topology": "flights", "sla": "delays_in_time", "change": "opened",
    "changed_at": NOW - 60_000, "opened_at": NOW - 60_000, "broken_since": NOW - 180_000, "crossed_at": NOW - 180_000,
    "run_id": "run 1",
    "verdict": "error",
    "severity": "critical", "subject": "carrier_delays", "measure": "latency_p99", "owner": "carrier relations",
    "message": "latency p99 of carrier_delays is 5 min 12 s; error from 5 min on", "culprit": "carrier_state",
    "blocked_by": "backlog: status ← flight_events: 500 records wait unread", "runbook": "https://wiki.example.org/delays",
}  # fmt: skip
RESOLVED = {
    **OPENED,
    "change": "resolved",
    "changed_at": NOW - 1_000,
    "run_id": "run 2",
    "verdict": "pass",
    "culprit": None,
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is NOW, however long the tests before take."""
    monkeypatch.setattr(sla_tasks, "wall_clock_ms", lambda: NOW)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    found = Inbox()
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", found.connection())
    found.up()
    yield found
    found.down()


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = Receiver([])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = {"conn_type": "slackwebhook", "password": server.url}
    monkeypatch.setenv("AIRFLOW_CONN_SLACK_DEFAULT", json.dumps(place))
    yield server
    server.shutdown()
    server.server_close()


def happened(home: Path, *changes: dict[str, Any]) -> None:
    layout = Layout(home)
    replace_rows(list(changes), INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    follow_alerts(layout, FLIGHTS, at_ms=NOW)


def channel(**table: Any) -> Channel:
    (found,) = parse({"desk": table}, file="channels.toml")
    return found


def tell(home: Path, to: Channel) -> None:
    DeliverChanges(channel=to, topology="flights", warehouse=str(home)).execute({"run_id": "telling"})


def test_a_change_is_told_once_with_all_that_there_is_to_say(tmp_path: Path, inbox: Inbox) -> None:
    happened(tmp_path, OPENED)
    tell(tmp_path, channel(**MAIL))
    (mail,) = inbox.mails
    assert mail["Subject"] == "[critical] flights: delays_in_time is broken (error)"
    assert (mail["From"], mail["To"]) == ("tidemark@example.org", "desk@example.org, ops@example.org")
    assert mail["Message-ID"] == "<flights.delays_in_time-20260101T120000.opened@tidemark>"
    assert [part.get_content_type() for part in mail.walk()] == ["multipart/alternative", "text/plain", "text/html"]
    body, text = mail.get_body().get_content(), mail.get_body(("plain",)).get_content()
    for said in (
        OPENED["message"],
        "2 min",
        "carrier_state",
        OPENED["blocked_by"],
        "carrier relations",
        OPENED["runbook"],
    ):
        assert said in body
        assert said in text
    assert "<" not in text
    assert "/tidemark/pages/flights/slas#delays_in_time-20260101T120000</a></p>" in body
    assert "Delayed alert" not in body
    with pytest.raises(AirflowSkipException):
        tell(tmp_path, channel(**MAIL))
    assert len(inbox.mails) == 1


def test_a_mail_server_that_was_down_gets_each_message_in_order(tmp_path: Path, inbox: Inbox) -> None:
    inbox.down()
    happened(tmp_path, OPENED)
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            tell(tmp_path, channel(**MAIL))
    happened(tmp_path, OPENED, RESOLVED)
    inbox.up()
    tell(tmp_path, channel(**MAIL))
    with pytest.raises(AirflowSkipException):
        tell(tmp_path, channel(**MAIL))
    assert [mail["Subject"].partition(": ")[2] for mail in inbox.mails] == [
        "delays_in_time is broken (error)", "delays_in_time is met again",
    ]  # fmt: skip


def test_no_channel_waits_for_one_that_hangs_or_fails(tmp_path: Path, inbox: Inbox, webhook: Receiver) -> None:
    happened(tmp_path, OPENED)
    inbox.opens = webhook.took
    slack = {"kind": "slack", "connection": "slack_gone"}
    told = parse({"desk": MAIL, "gone": slack, "room": {"kind": "slack"}}, file="channels.toml")
    channels = {f"tell_{channel.name}": channel for channel in told}
    assert _tell_at_once(channels, Layout(tmp_path), "flights", {"run_id": "telling"}) == {"tell_gone"}
    assert (len(inbox.mails), len(webhook.taken)) == (1, 1)


def test_a_reminder_is_a_mail_of_its_own(tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    happened(tmp_path, OPENED)
    desk = channel(**MAIL, renotify_after="30 min")
    tell(tmp_path, desk)
    for minutes in (29, 30):
        monkeypatch.setattr(sla_tasks, "wall_clock_ms", lambda minutes=minutes: NOW + minutes * 60_000)
        with nullcontext() if minutes == 30 else pytest.raises(AirflowSkipException):
            tell(tmp_path, desk)
    _, mail = inbox.mails
    assert mail["Subject"] == "[critical] flights: delays_in_time is still broken (error), reminder 1"
    assert mail["Message-ID"] == "<flights.delays_in_time-20260101T120000.opened.1@tidemark>"
    assert "Delayed alert" not in mail.get_body().get_content()


def test_a_webhook_that_fails_gets_the_second_message_later(tmp_path: Path, webhook: Receiver) -> None:
    webhook.answers = [200, 503]
    happened(tmp_path, OPENED, RESOLVED)
    with pytest.raises(Exception, match="Status Code: 503"):
        tell(tmp_path, channel(kind="slack"))
    tell(tmp_path, channel(kind="slack"))
    heads = [text.partition("\n")[0] for text in webhook.taken]
    assert heads == [
        "*[critical] flights: delays_in_time is broken (error)*", "*[critical] flights: delays_in_time is met again*",
    ]  # fmt: skip


def test_a_delivery_on_one_channel_leaves_the_others_pending(tmp_path: Path, inbox: Inbox, webhook: Receiver) -> None:
    happened(tmp_path, OPENED)
    tell(tmp_path, channel(**MAIL))
    (other,) = parse({"other": {"kind": "slack"}}, file="channels.toml")
    tell(tmp_path, other)
    assert (len(inbox.mails), len(webhook.taken)) == (1, 1)


ALL_AT_ONCE = "".join(HOSTILE[name] for name in ("Jinja", "script", "Slack mention", "ANSI colour", "mail header"))


def test_nothing_in_a_message_is_obeyed(tmp_path: Path, inbox: Inbox, webhook: Receiver) -> None:
    names = ("sla", "message", "culprit", "blocked_by", "owner", "runbook", "incident", "severity", "verdict")
    happened(tmp_path, {**OPENED, **dict.fromkeys(names[:-2], ALL_AT_ONCE)})
    tell(tmp_path, channel(**MAIL))
    (mail,) = inbox.mails
    assert mail["Bcc"] is None
    body = mail.get_body().get_content()
    assert "{{ 1234 * 5678 }}" in mail["Subject"]
    assert "{{ 1234 * 5678 }}" in body
    assert "7006652" not in body
    assert "<script>" not in body
    assert "&lt;script&gt;" in body
    assert "\x1b" not in body
    (other,) = parse({"other": {"kind": "slack"}}, file="channels.toml")
    tell(tmp_path, other)
    (text,) = webhook.taken
    assert "{{ 1234 * 5678 }}" in text
    assert "<" not in text
    assert "\x1b" not in text
    assert len(text.splitlines()) <= 9


def test_a_channel_is_told_what_it_is_for(tmp_path: Path, webhook: Receiver) -> None:
    other = {**OPENED, "incident": "other", "severity": "info", "owner": "ops"}
    happened(tmp_path, OPENED, RESOLVED, other)
    with pytest.raises(AirflowSkipException):
        tell(tmp_path, channel(kind="slack", owners=["nobody"]))
    tell(tmp_path, channel(kind="slack", severities=["critical"], changes=["opened"]))
    assert [text.partition("\n")[0] for text in webhook.taken] == [
        "*[critical] flights: delays_in_time is broken (error)*"
    ]


def test_late_alerts_say_so_and_day_old_ones_are_dropped(tmp_path: Path, webhook: Receiver) -> None:
    days_ago = {**OPENED, "incident": "open for days", "changed_at": NOW - 180_000_000}
    over = [{**row, "incident": "over", "changed_at": NOW - 90_000_000} for row in (OPENED, RESOLVED)]
    happened(tmp_path, {**OPENED, "changed_at": NOW - 3_600_000}, days_ago, *over)
    tell(tmp_path, channel(kind="slack"))
    of_days, of_an_hour = webhook.taken
    assert "Incident: open for days" in of_days
    assert "Delayed alert: the change happened 1 h ago" in of_an_hour


def test_a_channel_is_told_by_one_at_a_time(tmp_path: Path, webhook: Receiver) -> None:
    happened(tmp_path, OPENED)
    to, layout = channel(kind="slack"), Layout(tmp_path)
    with ThreadPoolExecutor() as pool:
        with channel_lock(layout, "flights", to):
            other = pool.submit(tell, tmp_path, to)
            with pytest.raises(TimeoutError):  # it waits, and sees then that there is nothing left to tell
                other.result(0.5)
            due = DueAlert(alert=alert_of(event_of(IncidentChange, OPENED)))
            record_delivery(layout, due, to, at_ms=NOW, run_id="this one")
        with pytest.raises(AirflowSkipException):
            other.result(60)
    assert webhook.taken == []


def test_channels_that_cannot_be_read_leave_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "fax"\n')
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "channels.toml")
    assert [channel.name for channel in channels("flights")] == ["log"]


def test_missed_checks_reach_every_channel_without_a_warehouse(
    tmp_path: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "slack"\nowners = ["somebody else"]\n')
    (tmp_path / "warehouse").write_text("no folder")
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "channels.toml")
    monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    tell_of_missed_checks(str(ROOT / "jobs" / "topologies" / "flights.toml"))
    (text,) = webhook.taken
    assert text.startswith("*[critical] flights: checks_are_made is broken (error)*\nno check of the SLAs of flights")
    assert "checks could not be read: " in text


def test_alerts_make_no_warehouse_under_a_mistyped_name(
    tmp_path: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistyped = tmp_path / "mistyped"
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "slack"\n')
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "channels.toml")
    monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_WAREHOUSE", str(mistyped))
    with pytest.raises(AirflowSkipException):
        tell(mistyped, channel(kind="slack"))
    tell_of_missed_checks("shop")
    (text,) = webhook.taken
    assert f"checks could not be read: {mistyped}: no such folder; give the right folder" in text
    assert not mistyped.exists()


def test_that_nobody_checks_is_told_once_until_somebody_does(
    tmp_path: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "slack"\n')
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "channels.toml")
    monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_WAREHOUSE", str(tmp_path))
    for _ in range(2):
        tell_of_missed_checks(str(ROOT / "jobs" / "topologies" / "flights.toml"), {"dag_run": {}})
    assert [text.partition("\n")[0] for text in webhook.taken] == [
        "*[critical] flights: checks_are_made is broken (error)*"
    ]


def test_any_notifier_of_airflow_is_a_channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    happened(tmp_path, OPENED)
    arguments = {"text": "{{ alert.subject }}!"}
    with caplog.at_level(logging.WARNING, logger="tidemark_airflow.operators.sla"):
        tell(
            tmp_path,
            channel(kind="notifier", arguments=arguments, **{"class": "tidemark_airflow.operators.sla.LogNotifier"}),
        )
    assert [r.message for r in caplog.records] == ["[critical] flights: delays_in_time is broken (error)!"]


def test_an_alert_is_sent_if_waiting_dags_are_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Only a task that Airflow runs can ask for the events of an asset.
    write_deltalake(Layout(tmp_path).stream_table("flights", "carriers", "carrier_delays"), pa.table({"n": [1]}))
    happened(tmp_path, OPENED)
    own = {"class": "tidemark_airflow.operators.sla.LogNotifier", "arguments": {"text": "{{ alert.subject }}"}}
    with caplog.at_level(logging.WARNING, logger="tidemark_airflow.operators.sla"):
        tell(tmp_path, channel(kind="notifier", **own))
    assert [r.message for r in caplog.records] == [
        "the DAGs that wait for flights are not known", "[critical] flights: delays_in_time is broken (error)",
    ]  # fmt: skip


def test_the_log_is_always_a_channel_beside_the_topologys_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "channels.toml"
    file.write_text('[desk]\nkind = "slack"\n[trains_desk]\nkind = "slack"\ntopologies = ["trains"]\n')
    monkeypatch.setattr(sla_tasks, "CHANNELS", file)
    assert [channel.name for channel in channels("flights")] == ["log", "desk"]
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "none.toml")
    assert [channel.name for channel in channels("flights")] == ["log"]


def test_the_changes_that_a_run_made_are_an_event_of_its_asset(tmp_path: Path) -> None:
    happened(tmp_path, OPENED, RESOLVED)
    event = SimpleNamespace(extra={})
    publish = PublishChanges(task_id="publish_changes", topology="flights", warehouse=str(tmp_path))
    publish.execute({"run_id": "run 1", "outlet_events": {sla_asset("flights"): event}})
    (change,) = json.loads(json.dumps(event.extra["changes"]))
    assert (change["incident"], change["change"]) == (OPENED["incident"], "opened")
    with pytest.raises(AirflowSkipException):
        publish.execute({"run_id": "another", "outlet_events": {}})
