"""Receivers get one key per incident, and its end.

The services on loopback check each request by the documented interface.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import polars as pl
import pytest
from airflow.sdk.exceptions import AirflowSkipException

from support.alert_services import (
    DROPPED,
    KEY,
    SERVICES,
    AlertmanagerService,
    AlertService,
    PagerDutyService,
    WebhookService,
)
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.model import topology
from tidemark.model.project.layout import Layout
from tidemark.model.slas.channel_spec import Channel, parse
from tidemark.model.tables.catalog import INCIDENTS, Table
from tidemark.sla.incidents import tables
from tidemark.sla.incidents.tables import follow_alerts
from tidemark.storage.delta.report_tables import replace_rows
from tidemark_airflow.notifiers import receivers
from tidemark_airflow.notifiers.receivers import ReceiverDown, ReceiverRefused
from tidemark_airflow.operators import sla as sla_tasks
from tidemark_airflow.operators.sla import DeliverChanges

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
FLIGHTS = topology.load(Path(__file__).resolve().parents[2] / "jobs" / "topologies" / "flights.toml")
NOON, MINUTE, DAY = 1_767_268_800_000, 60_000, 86_400_000  # 2026-01-01T12:00Z
OPENED = {
    "topology": "flights", "change": "opened", "broken_since": NOON - MINUTE, "crossed_at": NOON - MINUTE,
    "run_id": "r", "verdict": "error",
    "severity": "critical", "subject": "carrier_delays", "measure": "latency_p99", "owner": "carrier relations",
    "observed": 312_000.0, "threshold": 300_000.0, "unit": "ms", "culprit": "carrier_state",
    "message": "latency p99 of carrier_delays is 5 min 12 s; error from 5 min on", "opened_at": NOON,
    "changed_at": NOON,
    "blocked_by": "backlog: status ← flight_events: 500 records wait unread", "runbook": "https://wiki.example.org/delays",
}  # fmt: skip


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = NOON

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (sla_tasks, receivers):
        monkeypatch.setattr(module, "wall_clock_ms", found)
    return found


@pytest.fixture(params=SERVICES, ids=lambda made: made.kind)
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertService]:
    yield from running(request.param(), monkeypatch)


@pytest.fixture(
    params=[made if made is PagerDutyService else pytest.param(made, marks=pytest.mark.long) for made in SERVICES],
    ids=lambda made: made.kind,
)
def long_service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertService]:
    yield from running(request.param(), monkeypatch)


@pytest.fixture
def pager(monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertService]:
    yield from running(PagerDutyService(), monkeypatch)


@pytest.fixture
def alertmanager(monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertService]:
    yield from running(AlertmanagerService(), monkeypatch)


def running(found: AlertService, monkeypatch: pytest.MonkeyPatch) -> Iterator[AlertService]:
    monkeypatch.setenv("AIRFLOW_CONN_DESK", found.connection)
    found.up()
    yield found
    found.down()


def channel(kind: str, **table: Any) -> Channel:
    (found,) = parse({"desk": {"kind": kind, "connection": "desk", **table}}, file="channels.toml")
    return found


def change(n: int, what: str = "opened", at_ms: int = NOON) -> dict[str, Any]:
    by = {"decided_by": "Ann", "message": "on it"} if what == "acknowledged" else {}
    verdict = {"verdict": "pass"} if what == "resolved" else {}
    named = {"incident": f"sla_{n}-20260101T120000", "sla": f"sla_{n}", "change": what, "changed_at": at_ms}
    return {**OPENED, **named, **by, **verdict}


def happened(home: Path, changes: list[dict[str, Any]], at_ms: int = NOON) -> None:
    layout = Layout(home)
    replace_rows(changes, INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    follow_alerts(layout, FLIGHTS, at_ms=at_ms)


def tell(home: Path, to: Channel) -> None:
    DeliverChanges(channel=to, topology="flights", warehouse=str(home)).execute({"run_id": "telling"})


def test_fifty_incidents_have_one_key_each_and_are_resolved(
    tmp_path: Path, long_service: AlertService, clock: Clock
) -> None:
    service = long_service
    to, changes = channel(service.kind), [change(n) for n in range(20)]

    def goes_on(at_ms: int, *new: dict[str, Any]) -> None:
        clock.now_ms = at_ms
        if isinstance(service, AlertmanagerService):
            service.now = datetime.fromtimestamp(at_ms / 1_000, UTC)
        changes.extend(new)
        happened(tmp_path, changes, at_ms)

    goes_on(NOON)
    tell(tmp_path, to)
    service.down()
    at_ms = NOON + 10 * MINUTE
    goes_on(at_ms, *(change(n, at_ms=at_ms) for n in range(20, 40)))
    goes_on(at_ms, *(change(n, "resolved", at_ms) for n in range(5)))
    with pytest.raises(ReceiverDown, match=r"^127\.0\.0\.1:\d+ does not answer"):
        tell(tmp_path, to)
    service.up()
    # It is busy, has accepted a request when the task dies, and fails.
    service.answers = [429, *[DROPPED] * 2, 503, 429, 500]
    at_ms += 10 * MINUTE
    goes_on(at_ms, *(change(n, at_ms=at_ms) for n in range(40, 50)))
    goes_on(at_ms, *(change(n, what, at_ms) for n in range(5, 10) for what in ("escalated", "acknowledged")))
    for _ in range(3):
        with pytest.raises(ReceiverDown):
            tell(tmp_path, to)
    tell(tmp_path, to)
    assert len(service.opened) == len({*service.opened}) == 50
    assert sum(state == "closed" for state in service.states.values()) == 5
    service.down()
    ended_ms = at_ms + 10 * MINUTE
    goes_on(ended_ms, *(change(n, "resolved", ended_ms) for n in range(5, 50)))
    goes_on(ended_ms + 2 * DAY)
    with pytest.raises(ReceiverDown):
        tell(tmp_path, to)
    service.up()
    tell(tmp_path, to)
    assert service.states == dict.fromkeys(service.opened, "closed")
    assert len(service.opened) == 50
    assert service.refusals == []
    if service.kind != "alertmanager":
        assert {*service.states} == {f"tidemark/flights/sla_{n}-20260101T120000" for n in range(50)}
    with pytest.raises(AirflowSkipException):
        tell(tmp_path, to)


def test_an_alert_has_the_values_of_its_incident(tmp_path: Path, service: AlertService, clock: Clock) -> None:
    if isinstance(service, AlertmanagerService):
        service.now = datetime.fromtimestamp(NOON / 1_000, UTC)
    happened(tmp_path, [change(1)])
    tell(tmp_path, channel(service.kind))
    ((key, state),) = service.states.items()
    assert state == "open"
    (body,) = service.bodies
    link = "/tidemark/pages/flights/slas#sla_1-20260101T120000"
    match service.kind:
        case "pagerduty":
            assert body["payload"]["summary"] == "[critical] flights: sla_1 is broken (error)"
            assert body["payload"]["timestamp"] == "2026-01-01T12:00:00.000Z"
            assert body["links"][-1] == {"href": OPENED["runbook"], "text": "Runbook"}
            sent = body["payload"]["custom_details"]
        case "alertmanager":
            assert body[0]["labels"]["severity"] == "critical"
            assert (body[0]["startsAt"], body[0]["endsAt"]) == ("2026-01-01T11:59:00.000Z", "2026-01-01T13:00:00.000Z")
            assert body[0]["annotations"]["blocked_by"] == OPENED["blocked_by"]
            return
        case _:
            sent = body
    assert sent["link"].endswith(link)
    assert (sent["observed"], sent["threshold"], sent["unit"]) == (312_000, 300_000, "ms")
    assert (sent["culprit"], sent["blocked_by"]) == ("carrier_state", OPENED["blocked_by"])
    assert (sent["broken_since"], sent["changed_at"]) == ("2026-01-01T11:59:00.000Z", "2026-01-01T12:00:00.000Z")
    assert sent["dedup_key"] == key == "tidemark/flights/sla_1-20260101T120000"
    assert sent["impact"] == {
        "slas": ["sla_1"],
        "tables": [],
        "topics": [],
        "dags": [],
        "owners": ["carrier relations"],
    }


def test_long_names_and_texts_keep_the_interface(tmp_path: Path, service: AlertService, clock: Clock) -> None:
    long = dict.fromkeys(("message", "culprit", "blocked_by", "subject", "owner", "runbook"), "ü{{ 6 * 7 }}\n" * 3000)
    row = {**change(1), **long, "incident": "i" * 300}
    happened(
        tmp_path,
        [
            row,
            {**row, "change": "escalated", "changed_at": NOON + 1},
            {**row, "change": "resolved", "changed_at": NOON + 2},
        ],
    )
    tell(tmp_path, channel(service.kind))
    assert service.refusals == []
    assert len(service.states) == 1


def test_a_refused_alert_delays_no_other(tmp_path: Path, pager: AlertService, clock: Clock) -> None:
    pager.answers = [400]
    happened(tmp_path, [change(1), change(2), change(1, "resolved", NOON + 1)])
    with pytest.raises(ReceiverRefused, match=r"^127\.0\.0\.1:\d+ answered 400: "):
        tell(tmp_path, channel("pagerduty"))
    assert pager.states == {"tidemark/flights/sla_2-20260101T120000": "open"}
    tell(tmp_path, channel("pagerduty"))
    assert [*pager.states.values()] == ["open", "closed"]


def test_a_busy_receiver_gets_a_body_that_was_formatted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    bodies: list[bytes] = []
    of_body = receivers._as_json

    def counted(body: object) -> bytes:
        bodies.append(of_body(body))
        return bodies[-1]

    monkeypatch.setattr(receivers, "_as_json", counted)
    for service in running(WebhookService(), monkeypatch):
        service.answers = [503]
        happened(tmp_path, [change(1)])
        tell(tmp_path, channel("webhook"))
        assert [*service.states.values()] == ["open"]
    assert len(bodies) == 1


def test_open_alerts_are_sent_to_an_alertmanager_again(
    tmp_path: Path, alertmanager: AlertmanagerService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alertmanager.now = datetime.fromtimestamp(NOON / 1_000, UTC)
    to = channel("alertmanager", valid_for="20 min")
    happened(tmp_path, [change(1), change(2), change(2, "resolved")])
    tell(tmp_path, to)
    clock.now_ms += 10 * MINUTE
    opened: list[str] = []
    read = tables.report_rows

    def counted(layout: Layout, topology: str, table: Table, *where: pl.Expr, **columns: Any) -> pl.DataFrame:
        opened.append(table.name)
        return read(layout, topology, table, *where, **columns)

    monkeypatch.setattr(tables, "report_rows", counted)
    tell(tmp_path, to)
    # A delivery reads each table once.
    assert sorted(opened) == ["alerts", "decisions", "deliveries"]
    ends = [body[0]["endsAt"] for body in alertmanager.bodies]
    assert ends == [f"2026-01-01T12:{minute}:00.000Z" for minute in ("20", "20", "00", "30")]


@pytest.fixture
def real_alertmanager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a real Alertmanager that sends nothing on."""
    home, port = tmp_path / "alertmanager", process.free_port()
    home.mkdir()
    (home / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    flags = (f"--config.file={home}/alertmanager.yml", f"--storage.path={home}/data", "--cluster.listen-address=")
    process.launch("alertmanager", [PROGRAM or "", *flags, f"--web.listen-address=127.0.0.1:{port}"], home=home, env={})
    url = f"http://127.0.0.1:{port}"
    try:
        process.wait_until(lambda: is_ready(f"{url}/-/ready"), "Alertmanager", 30)
        monkeypatch.setenv("AIRFLOW_CONN_DESK", json.dumps({"conn_type": "http", "host": url}))
        yield url
    finally:
        process.stop(home, "alertmanager")


def is_ready(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="no Alertmanager; `make alertmanager` installs it")
def test_a_real_alertmanager_opens_and_resolves(tmp_path: Path, real_alertmanager: str) -> None:
    now_ms = wall_clock_ms()

    def states() -> dict[str, str]:
        with urlopen(f"{real_alertmanager}/api/v2/alerts", timeout=5) as answer:
            alerts = json.load(answer)
        return {alert["labels"]["alertname"]: alert["status"]["state"] for alert in alerts}

    opened = [change(n, at_ms=now_ms - MINUTE) | {"broken_since": now_ms - 2 * MINUTE} for n in range(3)]
    happened(tmp_path, opened, now_ms)
    tell(tmp_path, channel("alertmanager"))
    process.wait_until(lambda: {*states()} == {"sla_0", "sla_1", "sla_2"}, "three alerts", 30)
    happened(tmp_path, [*opened, {**opened[0], "change": "resolved", "changed_at": now_ms, "verdict": "pass"}], now_ms)
    tell(tmp_path, channel("alertmanager"))
    # The list has only alerts that are firing.
    process.wait_until(lambda: {*states()} == {"sla_1", "sla_2"}, "the end of one", 30)
    tell(tmp_path, channel("alertmanager"))
    assert {*states()} == {"sla_1", "sla_2"}


def test_no_log_or_error_has_a_secret(
    tmp_path: Path, pager: AlertService, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened(tmp_path, [change(1)])
    pager.answers = [401]
    with caplog.at_level(logging.DEBUG), pytest.raises(ReceiverRefused) as refused:
        tell(tmp_path, channel("pagerduty"))
    assert KEY not in caplog.text + str(refused.value)
    hook = '{"conn_type": "http", "host": "http://127.0.0.1:9/services/secret-path", "password": "secret-word"}'
    monkeypatch.setenv("AIRFLOW_CONN_DESK", hook)
    with caplog.at_level(logging.DEBUG), pytest.raises(ReceiverDown) as down:
        tell(tmp_path, channel("webhook"))
    assert "secret" not in caplog.text + str(down.value)
