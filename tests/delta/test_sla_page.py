"""The page lists results of the newest check, broken SLAs first.

It has SLAs, incidents and contracts.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import DQ_RESULTS, INCIDENTS, SLA_RESULTS
from tidemark.reports.report_tables import replace_rows
from tidemark.sla.page import sla_page, write_sla_page

NOON = 1_767_268_800_000
CHECK = {"topology": "flights", "run_id": "newest", "checked_at": NOON}
HELD = {**CHECK, "sla": "board_is_fresh", "verdict": "pass", "said": "staleness of board is 900 ms"}
BROKEN = {**CHECK, "sla": "quick", "verdict": "error", "said": "too slow", "culprit": "carrier_state", "owner": "desk"}
BROKEN |= {"budget_left": -0.5}
EARLIER = {**BROKEN, "run_id": "earlier", "checked_at": NOON - 600_000, "said": "slower still"}
OPENED = {"topology": "flights", "sla": "quick", "change": "opened", "verdict": "error", "at": NOON, "opened_at": NOON}
OPENED |= {"incident": "quick-20260101T120000", "broken_since": NOON, "said": "too slow"}
KEPT = {**CHECK, "suite": "contract", "expectation": "e", "severity": "critical", "success": True, "observed": "0"}
KEPT |= {"table": "batches", "sub_topology": "status", "table_version": 19, "batch_id": 18, "rows": 1_234}
DOUBLED = {**KEPT, "table": "outcomes", "column": "duplicate_keys", "success": False, "observed": "2"}
DOUBLED |= {"culprit": "carrier_state", "example": '{"batch_id":7}'}
OWN = {**CHECK, "suite": "sla_status", "expectation": "e", "column": "verdict", "severity": "warning", "success": False}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    tables = {SLA_RESULTS: [HELD, BROKEN, EARLIER], INCIDENTS: [OPENED], DQ_RESULTS: [KEPT, DOUBLED, OWN]}
    for table, rows in tables.items():
        replace_rows(rows, table, layout.report_table("flights", table.name), where="true")
    for place in (layout.stream_table("flights", "status", "board"), layout.report_table("others", SLA_RESULTS.name)):
        (place / "_delta_log").mkdir(parents=True)  # unreadable, and not needed by the page
    return layout


def cells(page: str, table: str) -> list[list[str]]:
    """The texts of the rows of a table of the page."""
    (body,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, flags=re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", body, flags=re.DOTALL)
    return [[re.sub("<.*?>|\n", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def test_the_page_has_the_newest_check_with_what_is_broken_first(layout: Layout) -> None:
    page = sla_page(layout.warehouse, "flights")

    assert "<strong>1 of 2 broken.</strong>" in page
    assert cells(page, "slas") == [
        ["quick", "error", "too slow; error budget left: none", "carrier_state", "–", "desk", "–"],
        ["board_is_fresh", "pass", "staleness of board is 900 ms", "–", "–", "–", "–"],
    ]
    assert cells(page, "contracts") == [
        ["outcomes", "status", "19", "18", "1,234", "duplicate_keys: 2 carrier_state {&#34;batch_id&#34;:7}"],
        ["batches", "status", "19", "18", "1,234", "1 of 1 hold"],
    ]
    assert cells(page, "expectations") == [["sla_status", "e", "verdict", "no, warning", "–"]]


def test_an_incident_is_found_by_its_name(layout: Layout) -> None:
    page = sla_page(layout.warehouse, "flights")

    assert page.count('<tr id="quick-20260101T120000">') == 1
    (incident,) = cells(page, "incidents")
    noon = "2026-01-01 12:00:00"
    assert incident == ["quick-20260101T120000", "open", noon, "–", "error", "too slow", "–", "–", "–"]


def test_the_page_of_an_unchecked_topology_says_so(tmp_path: Path) -> None:
    page = sla_page(tmp_path, "flights")

    assert "Not checked yet. The DAG <code>tidemark_flights_sla_check</code> checks them." in page
    assert [cells(page, table) for table in ("slas", "contracts", "expectations")] == [[], [], []]


def test_the_page_is_written_among_the_reports(layout: Layout) -> None:
    write_sla_page(layout, "flights")

    (file,) = layout.report_pages("flights").iterdir()
    assert (file.name, file.read_text(encoding="utf-8")) == ("slas.html", sla_page(layout.warehouse, "flights"))
