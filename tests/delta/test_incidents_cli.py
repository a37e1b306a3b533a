"""`tidemark incidents` shows broken SLAs, acknowledges once and keeps history."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from tidemark.cli.explain.incidents import incidents
from tidemark.cli.main import _options
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import InvalidArgument, InvalidRow
from tidemark.facts.alerts import open_alerts
from tidemark.facts.answers import answers_over
from tidemark.facts.incidents import newest_incidents, open_incidents
from tidemark.facts.report_rows import report_rows, rows_in
from tidemark.model import topology
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.slas.channel_spec import parse
from tidemark.model.tables.catalog import ALERTS, DECISIONS, DELIVERIES, INCIDENTS, Table
from tidemark.reports.repairs import RepairDecision, record_repair
from tidemark.semantics.repairs import RepairOutcome
from tidemark.sla.incidents import tables
from tidemark.sla.incidents.tables import follow_alerts, pending_changes, record_delivery
from tidemark.sla.page import sla_page
from tidemark.storage.delta.report_tables import add_rows, open_report, replace_rows

NOON = 1_767_268_800_000
OPENED = {"topology": "flights", "sla": "board", "change": "opened", "verdict": "error", "severity": "critical"}
OPENED |= {
    "incident": "board-1",
    "changed_at": NOON,
    "opened_at": NOON,
    "broken_since": NOON,
    "message": "late",
    "owner": "desk",
}
ASKED = {"all": False, "history": None, "by": None, "note": "", "format": "json", "decisions": False}
ASKED |= dict.fromkeys(("acknowledge", "silence", "snooze", "unsilence", "length", "until"))
FLIGHTS = topology.load(CHECKOUT / "jobs" / "topologies" / "flights.toml")


def asked(home: Path, **options: Any) -> Any:
    said = incidents(Namespace(**ASKED | options), home, FLIGHTS, lambda: NOON + 60_000)
    return json.loads(said) if said.startswith("[") else said


@pytest.fixture
def home(tmp_path: Path) -> Path:
    layout = Layout(tmp_path)
    replace_rows([OPENED], INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    told = {"topology": "flights", "alert": "board-1", "change": "opened", "delivered_at": NOON}
    rows = [{**told, "channel": channel} for channel in ("log", "desk")]
    replace_rows(rows, DELIVERIES, layout.report_table("flights", DELIVERIES.name), where="true")
    return tmp_path


def test_open_incidents_are_listed_with_their_acknowledgement(home: Path) -> None:
    (row,) = asked(home)
    assert (row["incident"], row["state"], row["verdict"], row["acknowledged_by"]) == ("board-1", "open", "error", None)
    assert asked(home, acknowledge="board-1", by="Ann", note="on it") == "board-1 is acknowledged by Ann"
    assert asked(home, acknowledge="board-1", by="Bob") == (
        "board-1 is acknowledged already, by Ann at 2026-01-01T12:01:00.000Z"
    )
    (row,) = asked(home)
    assert (row["state"], row["acknowledged_by"]) == ("acknowledged", "Ann")


def test_what_is_known_of_an_incident_later_is_not_told_of_an_instant_before(home: Path) -> None:
    asked(home, acknowledge="board-1", by="Ann", note="on it")
    told = [open_incidents(answers_over(home, "flights"), "flights", at_ms=NOON + ms) for ms in (59_999, 60_000)]
    assert [(row["state"], row["acknowledged_by"], row["acknowledged_at"]) for (row,) in told] == [
        ("open", None, None), ("acknowledged", "Ann", utc(NOON + 60_000)),
    ]  # fmt: skip
    path = Layout(home).report_table("flights", INCIDENTS.name)
    later = [{"change": "escalated", "message": "later"}, {"change": "resolved", "message": "held"}]
    add_rows([{**OPENED, **row, "changed_at": NOON + 90_000} for row in later], INCIDENTS, path)

    def all_of(at_ms: int | None) -> list[tuple[Any, ...]]:
        rows = newest_incidents(answers_over(home, "flights"), "flights", 9, at_ms=at_ms)
        return [(row["state"], row["resolved_at"], row["escalated_at"], row["message"]) for row in rows]

    at = utc(NOON + 90_000)
    assert all_of(NOON + 89_999) == [("acknowledged", None, None, "late")]
    assert all_of(NOON + 90_000) == all_of(None) == [("resolved", at, at, "later")]
    assert all_of(NOON - 1) == []


@pytest.mark.parametrize(("crossed", "since"), [(None, None), (NOON - 1, "2026-01-01T11:59:59.999Z")])
def test_an_incident_is_broken_since_an_instant_only_where_that_is_known(
    home: Path, crossed: int | None, since: str | None
) -> None:
    """The check a millisecond before the one that opened it found it broken, too."""
    row = {**OPENED, "broken_since": NOON - 1, "crossed_at": crossed}
    replace_rows([row], INCIDENTS, Layout(home).report_table("flights", INCIDENTS.name), where="true")
    alert = {name: value for name, value in row.items() if name != "incident"} | {
        "alert": "a",
        "incidents": ["board-1"],
    }
    replace_rows([alert], ALERTS, Layout(home).report_table("flights", ALERTS.name), where="true")
    (row,) = asked(home)
    assert (row["broken_since"], row["opened_at"]) == (since, "2026-01-01T12:00:00.000Z")
    (alert,) = open_alerts(answers_over(home, "flights"), "flights")
    assert (alert["broken_since"], alert["opened_at"]) == (crossed and utc(crossed), utc(NOON))
    (known,) = open_incidents(answers_over(home, "flights"), "flights")
    assert known["since"] == alert["since"] == utc(NOON - 1)


@pytest.mark.parametrize("has_incident", [False, True])
def test_the_list_of_incidents_tells_of_drained_streams(home: Path, tmp_path: Path, *, has_incident: bool) -> None:
    warehouse = home if has_incident else tmp_path / "other"
    status, carriers = (Control(Layout(warehouse).control("flights", name)) for name in ("status", "carriers"))
    beat = Heartbeat(state=StreamState.DRAINED, epoch=1, launch_id="", at_ms=NOON + 30_000, pid=1, drained_by="ann")
    status.beat(beat)
    carriers.acquire()
    carriers.beat(replace(beat, state=StreamState.RUNNING, at_ms=NOON + 59_000))
    *listed, last = asked(warehouse, format="table").splitlines()
    assert last == (
        "flights/status: the driver of status was drained by ann at 2026-01-01T12:00:30.000Z; restart the driver of "
        "status: `tidemark restart flights/status` (in another Airflow `airflow tasks clear tidemark_flights_streams "
        "--task-regex '^status$'`)"
    )
    assert (listed == ["No open incidents."]) is not has_incident
    # For programs it is a list of incidents alone.
    rows = asked(warehouse, format="json")
    assert [row["incident"] for row in rows] == ["board-1"] * has_incident
    carriers.release()


def test_half_a_character_on_a_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["tidemark", "incidents", "flights", "--acknowledge", "board-1", "--note"]
    # The second one stands for a byte that is not UTF-8.
    for half in ("\ud83d", "\udcff"):
        with pytest.raises(SystemExit, match="2"):
            _options([*line, f"seen {half}"])
        shown = f"seen \\u{ord(half):x}: it has half a character, or bytes that are not UTF-8; correct it"
        assert capsys.readouterr().err.splitlines()[-1] == f"tidemark incidents: error: {shown}"
    assert _options([*line, "seen 🌊"]).note == "seen 🌊"


def test_the_history_of_an_incident_has_changes_and_recipients(home: Path) -> None:
    asked(home, acknowledge="board-1", by="Ann", note="on it")
    found = [
        (row["change"], row["message"], row["decided_by"], row["notified"]) for row in asked(home, history="board-1")
    ]
    assert found == [("opened", "late", None, ["desk", "log"]), ("acknowledged", "on it", "Ann", None)]


def test_an_incident_that_joined_an_alert_was_not_told(home: Path) -> None:
    """Its history names the alert, and when the first channel got that."""
    layout, joined = Layout(home), {**OPENED, "incident": "late-1", "sla": "late", "changed_at": NOON + 5_000}
    rows = [joined, {**joined, "change": "resolved", "changed_at": NOON + 20_000}]
    replace_rows(rows, INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="incident = 'late-1'")
    of_alert = {name: value for name, value in OPENED.items() if name != "incident"}
    opened = {**of_alert, "alert": "driver_dead-status-1", "incidents": ["board-1", "late-1"]}
    alerts = [opened, {**opened, "change": "resolved", "changed_at": NOON + 30_000}]
    replace_rows(alerts, ALERTS, layout.report_table("flights", ALERTS.name), where="true")
    sent = {"topology": "flights", "alert": "driver_dead-status-1", "channel": "log"}
    deliveries = [
        {**sent, "change": "opened", "delivered_at": NOON + 1_000},
        {**sent, "change": "resolved", "delivered_at": NOON + 31_000},
    ]
    replace_rows(deliveries, DELIVERIES, layout.report_table("flights", DELIVERIES.name), where="true")
    found = [
        tuple(row[k] for k in ("change", "notified", "alert", "alert_notified_at"))
        for row in asked(home, history="late-1")
    ]
    alert = ("driver_dead-status-1", "2026-01-01T12:00:01.000Z")
    assert found == [("opened", None, *alert), ("resolved", ["log"], *alert)]
    (first,) = asked(home, history="board-1")
    assert (first["notified"], first["alert"]) == (["log"], "driver_dead-status-1")


def test_an_empty_list_and_an_unknown_incident_print_a_message(home: Path, tmp_path: Path) -> None:
    for format_ in ("table", "json"):
        with pytest.raises(InvalidArgument, match="there is no incident 'another'; the newest of flights: board-1"):
            asked(home, history="another", format=format_)
    with pytest.raises(InvalidArgument, match="the newest of flights: none"):
        asked(tmp_path / "empty", history="another")
    assert asked(tmp_path / "empty", all=True, format="table") == "No incidents."
    assert asked(tmp_path / "empty", format="table") == "No open incidents."
    with pytest.raises(
        InvalidArgument, match="'another' is not open and cannot be acknowledged; open incidents: board-1"
    ):
        asked(home, acknowledge="another", by="Ann")


def test_decisions_are_rows_with_person_time_and_reason(home: Path) -> None:
    assert asked(home, silence="board_is_fresh", length="2 h", by="Ann", note="deploy") == (
        "board_is_fresh is silenced by Ann until 2026-01-01T14:01:00.000Z"
    )
    assert asked(home, snooze="board-1", until="2026-01-01T13:00Z", by="Bob") == (
        "board-1 is snoozed by Bob until 2026-01-01T13:00:00.000Z"
    )
    assert asked(home, silence="flights", length="1 min", by="Ann") == (
        "flights is silenced by Ann until 2026-01-01T12:02:00.000Z"
    )
    assert asked(home, acknowledge="board-1", by="Cid", note="on it") == "board-1 is acknowledged by Cid"
    flights = "flights is still silenced by Ann until 2026-01-01T12:02:00.000Z"
    assert asked(home, unsilence="board_is_fresh", by="Cid") == (
        f"board_is_fresh is no longer silenced; decided by Cid; {flights}"
    )
    assert asked(home, unsilence="board-1", by="Cid") == f"board-1 is no longer silenced; decided by Cid; {flights}"
    assert asked(home, unsilence="board-1", by="Cid") == (
        f"board-1 is not silenced: that of Bob ended at 2026-01-01T12:01:00.000Z; {flights}"
    )
    stored = rows_in(open_report(DECISIONS, Layout(home).report_table("flights", DECISIONS.name)))
    found = {
        (row["decision"], row["subject_kind"], row["subject"], row["decided_by"], row["note"])
        for row in stored.to_dicts()
    }
    assert found == {
        ("silence", "sla", "board_is_fresh", "Ann", "deploy"),
        ("snooze", "incident", "board-1", "Bob", None),
        ("silence", "topology", "flights", "Ann", None),
        ("acknowledge", "incident", "board-1", "Cid", "on it"),
        ("unsilence", "sla", "board_is_fresh", "Cid", None),
        ("unsilence", "incident", "board-1", "Cid", None),
    }
    assert {row["decision"] for row in asked(home, decisions=True)} == {word for word, *_ in found}


def test_a_repair_is_no_decision_about_alerts(home: Path) -> None:
    layout = Layout(home)
    made = RepairDecision(
        topology="flights", sub_topology="status", command="reshard", effect="4 shards",
        outcome=RepairOutcome.TIMED_OUT, by=None,
    )  # fmt: skip
    record_repair(layout, made, at_ms=NOON)
    asked(home, silence="flights", length="2 h", by="Ann")
    stored = rows_in(open_report(DECISIONS, layout.report_table("flights", DECISIONS.name)))
    columns = ("decision", "subject_kind", "subject", "decided_by", "outcome")
    assert {*stored.select(columns).rows()} == {
        ("reshard", "sub_topology", "status", None, "timed_out"),
        ("silence", "topology", "flights", "Ann", None),
    }
    assert [row["decision"] for row in asked(home, decisions=True)] == ["silence"]
    assert asked(home, unsilence="flights", by="Cid") == "flights is no longer silenced; decided by Cid"
    assert "reshard" not in sla_page(home, "flights")
    with pytest.raises(InvalidRow, match="repair_has_outcome"):
        replace_rows([{"decision": "reshard"}], DECISIONS, layout.report_table("flights", DECISIONS.name), where="true")


def test_the_end_of_a_silence_names_those_that_still_hold(home: Path) -> None:
    """The list has the longest silence of each incident's alert."""
    layout = Layout(home)
    opened = [{**OPENED, "incident": f"{sla}-1", "sla": sla} for sla in ("board_is_fresh", "delays_in_time")]
    replace_rows(opened, INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    follow_alerts(layout, FLIGHTS, at_ms=NOON)
    assert {row["silenced_until"] for row in asked(home)} == {None}
    asked(home, silence="board_is_fresh", length="2 h", by="Ann")
    asked(home, snooze="board_is_fresh-1", length="1 h", by="Bob")
    ends = {row["incident"]: row["silenced_until"] for row in asked(home)}
    assert ends == {"board_is_fresh-1": "2026-01-01T14:01:00.000Z", "delays_in_time-1": None}
    snoozed = "board_is_fresh-1 is still snoozed by Bob until 2026-01-01T13:01:00.000Z"
    assert asked(home, unsilence="board_is_fresh", by="Cid") == (
        f"board_is_fresh is no longer silenced; decided by Cid; {snoozed}"
    )
    assert asked(home, unsilence="flights", by="Cid") == f"flights is not silenced: no decision is about it; {snoozed}"
    assert {row["silenced_until"] for row in asked(home)} == {None, "2026-01-01T13:01:00.000Z"}
    asked(home, silence="flights", length="3 h", by="Ann")
    assert {row["silenced_until"] for row in asked(home)} == {"2026-01-01T15:01:00.000Z"}


@pytest.mark.parametrize(
    ("decision", "read"),
    [
        ({"acknowledge": "board-1"}, ["incidents"]),
        ({"snooze": "board-1", "length": "1 h"}, ["incidents"]),
        ({"unsilence": "flights"}, ["incidents", "decisions"]),
    ],
)
def test_a_decision_reads_each_table_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, decision: dict[str, str], read: list[str]
) -> None:
    opened: list[str] = []

    def replaced(table: Table, path: Path) -> DeltaTable:
        opened.append(table.name)
        return open_report(table, path)

    def looked_at(layout: Layout, topology: str, table: Table, *where: pl.Expr, **columns: Any) -> pl.DataFrame:
        opened.append(table.name)
        return report_rows(layout, topology, table, *where, **columns)

    monkeypatch.setattr(tables, "open_report", replaced)
    monkeypatch.setattr(tables, "report_rows", looked_at)
    asked(home, **decision)
    assert opened == read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"silence": "other", "length": "1 h"}, "cannot silence 'other'; use one of board-1, board_is_fresh"),
        (
            {"snooze": "board_is_fresh", "length": "1 h"},
            "cannot snooze 'board_is_fresh', which is not an open incident; use one of board-1$",
        ),
        ({"silence": "flights"}, "the silence has no end; write a length of time"),
        ({"snooze": "board-1", "until": "2026-01-01T12:01Z"}, "the snooze would have ended already"),
        ({"silence": "flights", "length": "91 d"}, "the silence would last longer than 90 days"),
        ({"snooze": "board-1", "length": "9999999999999999 d"}, "the snooze would last longer than 90 days"),
        ({"silence": "flights", "until": "9999-12-31"}, "the silence would last longer than 90 days"),
        ({"silence": "flights", "length": "soon"}, "the length of time is 'soon'"),
        ({"acknowledge": "board-1", "length": "1 h"}, "acknowledge has no end; leave the time out"),
        ({"length": "1 h"}, "a time belongs to a silence or snooze"),
    ],
)
def test_a_decision_that_cannot_be_made_is_refused(home: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        asked(home, **options)
    assert asked(home, decisions=True) == []


@pytest.mark.parametrize("text", [None, "[flights"])
def test_without_a_file_of_slas_a_topology_is_silenced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    project = Project(tmp_path / "project")
    project.slas.parent.mkdir(parents=True)
    if text is not None:
        project.slas.write_text(text)
    monkeypatch.setattr(Project, "here", lambda: project)
    assert asked(home, silence="flights", length="2 h", by="Ann").startswith("flights is silenced")
    assert asked(home, silence="board-1", length="2 h", by="Ann").startswith("board-1 is silenced")
    with pytest.raises(InvalidArgument, match="cannot silence 'board_is_fresh'; use one of board-1, flights"):
        asked(home, silence="board_is_fresh", length="2 h", by="Ann")


def test_a_silence_in_the_warehouse_delays_a_delivery(home: Path) -> None:
    layout, (channel,) = (
        Layout(home),
        parse({"desk": {"kind": "webhook", "renotify_after": "30 min"}}, file="channels.toml"),
    )
    lists = {name: ["board"] for name in ("incidents", "slas", "tables", "topics", "owners")}
    alert = {name: value for name, value in OPENED.items() if name != "incident"} | {"alert": "board-2", **lists}
    replace_rows([alert], ALERTS, layout.report_table("flights", ALERTS.name), where="true")
    asked(home, silence="flights", length="10 min", by="Ann")  # at 12:01

    def delivered(minute: int) -> list[tuple[str, int | None]]:
        now_ms, told = NOON + minute * 60_000, []
        for due in pending_changes(layout, "flights", channel, now_ms=now_ms):
            told.append((due.change.value, due.reminder))
            record_delivery(layout, due, channel, at_ms=now_ms, run_id="r")
        return told

    assert [delivered(minute) for minute in (2, 10, 11, 12)] == [[], [], [("opened", None)], []]
    assert [delivered(minute) for minute in (41, 70, 71)] == [[("opened", 1)], [], [("opened", 2)]]
    stored = rows_in(open_report(DELIVERIES, layout.report_table("flights", DELIVERIES.name)))
    assert sorted(stored.filter(alert="board-2")["reminder"].to_list(), key=str) == [1, 2, None]


@pytest.mark.parametrize(
    ("kind", "severity", "expected"),
    [
        ("pagerduty", "warning", ["opened", "resolved"]),
        ("pagerduty", "critical", ["escalated", "resolved"]),
        ("pagerduty", "info", []),
        ("slack", "warning", ["opened"]),
    ],
)
def test_a_receiver_gets_the_end_of_what_it_opened(
    tmp_path: Path, kind: str, severity: str, expected: list[str]
) -> None:
    layout, (channel,) = (
        Layout(tmp_path),
        parse({"desk": {"kind": kind, "severities": [severity]}}, file="channels.toml"),
    )
    story = {"opened": "warning", "escalated": "critical", "resolved": "critical"}
    lists = {name: ["board-1"] for name in ("incidents", "slas", "tables", "topics", "owners")}
    same = {name: value for name, value in OPENED.items() if name != "incident"} | {"alert": "board-1", **lists}
    rows = []
    # Changes of ended alerts that are two days old are given up, unless the receiver has the alert.
    for day, (change, word) in enumerate(story.items()):
        rows.append({**same, "change": change, "severity": word, "changed_at": NOON + day * 86_400_000})
    told = []
    for row in rows:
        replace_rows(rows[: rows.index(row) + 1], ALERTS, layout.report_table("flights", ALERTS.name), where="true")
        for pending in pending_changes(layout, "flights", channel, now_ms=row["changed_at"]):
            told.append(pending.change)
            record_delivery(layout, pending, channel, at_ms=row["changed_at"], run_id="r")
    assert told == expected
