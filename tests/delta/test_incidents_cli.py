"""`tidemark incidents` shows broken SLAs, acknowledges once and keeps history."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.explain.incidents import incidents
from tidemark.errors import InvalidArgument
from tidemark.model.channel_spec import parse
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import ALERTS, DELIVERIES, INCIDENTS
from tidemark.reports.report_tables import replace_rows
from tidemark.sla.incidents.tables import pending_changes, record_delivery

NOON = 1_767_268_800_000
OPENED = {"topology": "flights", "sla": "board", "change": "opened", "verdict": "error", "severity": "critical"}
OPENED |= {"incident": "board-1", "at": NOON, "opened_at": NOON, "broken_since": NOON, "said": "late", "owner": "desk"}
ASKED = {"all": False, "history": None, "acknowledge": None, "by": None, "note": "", "format": "json"}


def asked(home: Path, **options: Any) -> Any:
    said = incidents(Namespace(**ASKED | options), home, "flights", lambda: NOON + 60_000)
    return json.loads(said) if said.startswith("[") else said


@pytest.fixture
def home(tmp_path: Path) -> Path:
    layout = Layout(tmp_path)
    replace_rows([OPENED], INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    told = {name: OPENED[name] for name in ("topology", "incident", "change")}
    rows = [{**told, "channel": channel} for channel in ("log", "desk")]
    replace_rows(rows, DELIVERIES, layout.report_table("flights", DELIVERIES.name), where="true")
    return tmp_path


def test_open_incidents_are_listed_with_their_acknowledgement(home: Path) -> None:
    (row,) = asked(home)
    assert (row["incident"], row["state"], row["verdict"], row["acknowledged_by"]) == ("board-1", "open", "error", None)
    assert asked(home, acknowledge="board-1", by="Ann", note="on it") == "board-1 is acknowledged by Ann"
    assert asked(home, acknowledge="board-1", by="Bob") == "already acknowledged"
    (row,) = asked(home)
    assert (row["state"], row["acknowledged_by"]) == ("acknowledged", "Ann")


def test_the_history_of_an_incident_has_changes_and_recipients(home: Path) -> None:
    asked(home, acknowledge="board-1", by="Ann", note="on it")
    found = [(row["change"], row["said"], row["by"], row["told"]) for row in asked(home, history="board-1")]
    assert found == [("opened", "late", None, ["desk", "log"]), ("acknowledged", "on it", "Ann", None)]


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
    lists = {name: ["board-1"] for name in ("incidents", "slas", "tables", "owners")}
    same = {name: value for name, value in OPENED.items() if name != "incident"} | {"alert": "board-1", **lists}
    rows = []
    # Changes of ended alerts that are two days old are given up, unless the receiver has the alert.
    for day, (change, word) in enumerate(story.items()):
        rows.append({**same, "change": change, "severity": word, "at": NOON + day * 86_400_000})
    told = []
    for row in rows:
        replace_rows(rows[: rows.index(row) + 1], ALERTS, layout.report_table("flights", ALERTS.name), where="true")
        for pending in pending_changes(layout, "flights", channel, now_ms=row["at"]):
            told.append(pending["change"])
            record_delivery(layout, pending, channel, at_ms=row["at"], run_id="r")
    assert told == expected
