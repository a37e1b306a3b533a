"""The page lists results of the newest check, broken SLAs first.

It has SLAs, incidents and contracts.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import EXPECTATION_RESULTS, INCIDENTS, SLA_RESULTS
from tidemark.sla.page import sla_page, write_sla_page
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.report_tables import replace_rows

NOON = 1_767_268_800_000
CHECK = {"topology": "flights", "run_id": "newest", "checked_at": NOON}
HELD = {**CHECK, "sla": "board_is_fresh", "verdict": "pass", "message": "staleness of board is 900 ms"}
BROKEN = {
    **CHECK,
    "sla": "quick",
    "verdict": "error",
    "message": "too slow",
    "culprit": "carrier_state",
    "owner": "desk",
}
BROKEN |= {"budget_left": -0.5}
EARLIER = {**BROKEN, "run_id": "earlier", "checked_at": NOON - 600_000, "message": "slower still"}
OPENED = {
    "topology": "flights",
    "sla": "quick",
    "change": "opened",
    "verdict": "error",
    "changed_at": NOON,
    "opened_at": NOON,
}
OPENED |= {"incident": "quick-20260101T120000", "broken_since": NOON, "message": "too slow"}
PERIOD = {"topology": "flights", "run_id": "newest", "first_checked_at": NOON, "last_checked_at": NOON, "checks": 1}
KEPT = {**PERIOD, "suite": "contract", "expectation": "e", "severity": "critical", "success": True, "observed": "0"}
KEPT |= {"table": "batches", "sub_topology": "status", "table_version": 19, "batch_id": 18, "rows": 1_234}
DOUBLED = {**KEPT, "table": "operator_batches", "column": "duplicate_keys", "success": False, "observed": "2"}
DOUBLED |= {"culprit": "carrier_state", "example": '{"batch_id":7}'}
OWN = {**PERIOD, "suite": "sla_status", "expectation": "expect_less", "severity": "warning", "success": False}
OWN |= {"column": "error_after_ms, observed_ms", "observed": "[[300000.0, 458910.0], [90000.0, 118000.0]]"}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    tables = {SLA_RESULTS: [HELD, BROKEN, EARLIER], INCIDENTS: [OPENED], EXPECTATION_RESULTS: [KEPT, DOUBLED, OWN]}
    for table, rows in tables.items():
        replace_rows(rows, table, layout.report_table("flights", table.name), where="true")
    for place in (layout.stream_table("flights", "status", "board"), layout.report_table("others", SLA_RESULTS.name)):
        commit = commit_file(place, 0)  # unreadable, and not needed by the page
        commit.parent.mkdir(parents=True)
        commit.write_text("torn")
    return layout


def cells(page: str, table: str) -> list[list[str]]:
    """The texts of the rows of a table of the page."""
    (body,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', page, flags=re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", body, flags=re.DOTALL)
    return [[re.sub("<.*?>|\n", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def text_of(page: str) -> str:
    return " ".join(re.sub("<.*?>", "", page).split())


def test_the_page_has_the_newest_check_with_what_is_broken_first(layout: Layout) -> None:
    page = sla_page(layout.warehouse, "flights")

    assert "<strong>1 of 2 broken.</strong>" in page
    assert cells(page, "slas") == [
        ["quick", "error", "Too slow; error budget left: none", "carrier_state", "–", "desk", "–"],
        ["board_is_fresh", "pass", "Staleness of board is 900 ms", "–", "–", "–", "–"],
    ]
    assert cells(page, "contracts") == [
        ["operator_batches", "status", "19", "18", "1,234", "duplicate keys: 2 by carrier_state, such as batch id 7"],
        ["batches", "status", "19", "18", "1,234", "1 of 1 holds"],
    ]
    # The SLA that is broken breaks an expectation, and nothing is wrong with the check.
    told = "0 of 1 expectation holds by the check of 2026-01-01 12:00:00 UTC. Those of sla_status are about its SLAs"
    assert f"{told}: one that is broken" in text_of(page)
    observed = "error after 5 min, observed 7 min 38 s; error after 1 min 30 s, observed 1 min 58 s"
    assert cells(page, "expectations") == [
        ["sla_status", "expect less", "error_after_ms, observed_ms", "warning", "no", observed]
    ]


def test_the_page_tells_the_instant_of_the_check_from_that_of_the_state(layout: Layout) -> None:
    seen = {"cause": "drained", "operator": "board", "input": None, "partition": None, "seen": "it was drained"}
    model = {"at": utc(NOON + 95_000), "verdict": "not_running", "state": "drained", "cause": seen}
    page = text_of(sla_page(layout.warehouse, "flights", model))
    assert "Badges and cause are of 2026-01-01 12:01:35 UTC." in page
    assert "The SLAs were checked at 2026-01-01 12:00:00 UTC, by run newest." in page
    assert "It was drained." in page


def test_the_page_is_about_one_instant(layout: Layout) -> None:
    """A check that is made while the page is read is not on it, nor the incident that it has opened."""
    model = {"at": utc(NOON - 1), "verdict": "broken", "state": "running", "cause": None}
    page = sla_page(layout.warehouse, "flights", model)
    ((sla, verdict, measured, *_),) = cells(page, "slas")
    assert (sla, verdict, measured) == ("quick silence", "error", "Slower still; error budget left: none")
    assert "No incidents." in page


def test_what_suites_have_found_stands_until_they_judge_again(layout: Layout) -> None:
    """Suites judge what several checks have found, and contracts for the instant at which they judge."""
    before, place = NOON - 300_000, layout.report_table("flights", EXPECTATION_RESULTS.name)
    of_checks = {**OWN, "run_id": "before", "first_checked_at": before, "last_checked_at": before}
    # What was judged of a table that is no more stands no longer.
    gone = {**KEPT, "table": "gone", "first_checked_at": before, "last_checked_at": before}
    later = {"run_id": "suites", "first_checked_at": before, "last_checked_at": NOON - 240_000}
    replace_rows([of_checks, gone, {**KEPT, **later}], EXPECTATION_RESULTS, place, where="true")
    page = sla_page(layout.warehouse, "flights")
    assert [row[0] for row in cells(page, "contracts")] == ["batches"]
    assert "the newest one was for 2026-01-01 11:56:00 UTC." in text_of(page)
    assert [row[0] for row in cells(page, "expectations")] == ["sla_status"]
    assert "0 of 1 expectation holds by the check of 2026-01-01 11:55:00 UTC." in text_of(page)


def folds(page: str) -> list[str]:
    """Returns the parts of the page that a reader opens or closes, in order, with the names of their tables."""
    return re.findall(r'<details( open)?><summary>.*?<table id="(.+?)"', page, flags=re.DOTALL)


def test_contracts_are_folded_behind_the_slas_unless_one_is_broken(layout: Layout) -> None:
    page = sla_page(layout.warehouse, "flights")
    assert folds(page) == [(" open", "contracts"), ("", "expectations")]
    assert page.index('id="slas"') < page.index('id="incidents"') < page.index('id="contracts"')
    replace_rows([KEPT], EXPECTATION_RESULTS, layout.report_table("flights", EXPECTATION_RESULTS.name), where="true")
    page = sla_page(layout.warehouse, "flights")
    assert folds(page) == [("", "contracts")]
    judged = (
        "Each check looks at the rows of batches of the last hour, or since the check before if that is longer ago; "
        "the newest one was for 2026-01-01 12:00:00 UTC."
    )
    assert f"1 of 1 table keeps its contract. {judged}" in text_of(page)
    assert "No expectation was checked yet." in page


def test_a_warning_is_counted_apart(layout: Layout) -> None:
    rows = [BROKEN, HELD | {"verdict": "warn"}]
    replace_rows(rows, SLA_RESULTS, layout.report_table("flights", SLA_RESULTS.name), where="true")
    assert "<strong>1 of 2 broken, 1 with a warning.</strong>" in sla_page(layout.warehouse, "flights")


def test_an_incident_is_found_by_its_name(layout: Layout) -> None:
    page = sla_page(layout.warehouse, "flights")

    assert page.count('<tr id="quick-20260101T120000">') == 1
    (incident,) = cells(page, "incidents")
    noon = "2026-01-01 12:00:00"
    assert incident == [
        "quick-20260101T120000",
        "open",
        "error",
        f"found at {noon}",
        "error",
        "Too slow",
        "carrier_state",  # which the newest check found, and the opening one did not
        "–",
        "–",
    ]


def test_the_page_says_when_an_incident_will_be_resolved(layout: Layout) -> None:
    of_sla = {"sla": "quick", "message": "too slow", "measure": "latency_p99", "resolve_after_ms": 600_000}
    rows = []
    for n, verdict in enumerate(["error", "pass", "error", "pass", "pass"]):
        check = {"topology": "flights", "run_id": str(n), "checked_at": NOON + n * 60_000}
        rows.append({**check, **of_sla, "verdict": verdict, "observed_ms": 90_000 - n})
    replace_rows(rows, SLA_RESULTS, layout.report_table("flights", SLA_RESULTS.name), where="true")
    opened = {**OPENED, "unit": "ms"}
    replace_rows([opened], INCIDENTS, layout.report_table("flights", INCIDENTS.name), where="true")
    (incident,) = cells(sla_page(layout.warehouse, "flights"), "incidents")
    assert incident[2] == "passes since 12:03, resolves at 12:13 if it holds; broke again 1×"
    assert incident[4] == "error: 1 min 30 s"
    # The verdict alone would let a reader think that the alert is over.
    ((_, verdict, measured, *_),) = cells(sla_page(layout.warehouse, "flights"), "slas")
    assert (verdict, measured) == (
        "pass", "Too slow. Its incident is open: passes since 12:03, resolves at 12:13 if it holds"
    )  # fmt: skip


def test_the_page_of_an_unchecked_topology_says_so(tmp_path: Path) -> None:
    page = sla_page(tmp_path, "flights")

    assert "Not checked yet. The DAG <code>tidemark_flights_sla_check</code> checks them." in page
    assert cells(page, "slas") == []
    assert "No contract was checked yet." in page


def test_the_page_lists_no_folder_of_another_topology(layout: Layout) -> None:
    listed: list[str] | None = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.scandir" and listed is not None:
            listed.append(str(arguments[0]))

    sys.addaudithook(hook)  # cannot be removed
    sla_page(layout.warehouse, "flights")
    folders, listed = listed, None
    assert any("/flights" in folder for folder in folders)
    assert not [folder for folder in folders if "/others" in folder]


def test_the_page_is_written_among_the_reports(layout: Layout) -> None:
    write_sla_page(layout, "flights")

    (file,) = layout.report_pages("flights").iterdir()
    assert (file.name, file.read_text(encoding="utf-8")) == ("slas.html", sla_page(layout.warehouse, "flights"))


DAY_MS = 86_400_000
OBJECTIVE = {
    **HELD,
    "objective": "budget",
    "subject": "sums",
    "target": 0.999,
    "threshold_ms": 30_000,
    "window_ms": 10 * DAY_MS,
}
OBJECTIVE |= {"window_records": 50_000, "window_slow": 25, "budget_left": 0.5, "measure": "burn_rate"}


def of_objective(days_ago: float, budget_left: float | None, run_id: str = "newest") -> list[dict[str, Any]]:
    """The rows of a check that found so much budget left."""
    check = {"run_id": run_id, "checked_at": NOON - round(days_ago * DAY_MS), "budget_left": budget_left}
    windows = {"1h": (3_600_000, 0.25), "6h": (21_600_000, 3.0), "3d": (3 * DAY_MS, None)}
    return [
        {**OBJECTIVE, **check, "sla": f"budget_{name}", "over_ms": over_ms, "burn_rate": rate}
        for name, (over_ms, rate) in windows.items()
    ]


def test_the_page_has_the_budget_of_an_objective_and_its_course(layout: Layout) -> None:
    checks = [
        (0, 0.5, "newest"),
        (0.02, 0.6, "the hour before"),
        (2, None, "unknown"),
        (5, 0.8, "e"),
        (6, 1.0, "f"),
        (11, 0.1, "g"),
    ]
    rows = [row for days_ago, left, run_id in checks for row in of_objective(days_ago, left, run_id)]
    replace_rows([*rows, HELD], SLA_RESULTS, layout.report_table("flights", SLA_RESULTS.name), where="true")

    page = sla_page(layout.warehouse, "flights")

    assert cells(page, "budgets") == [
        ["budget", "99.9 % of sums within 30 s, in 10 d", "25", "50", "50,000", "50 %", "0.25, 3, –"]
    ]
    # In 10 days that are 1,000 wide: 6, 5 and 0 days ago. From 100 % to 0 %: 1, 0.8, 0.6 and 0.5.
    assert re.findall(r'<polyline points="([^"]+)"', page) == ["400,0 500,20", "998,40 1000,50"]
    assert "<strong>budget</strong>: 50 % of the error budget is left" in page


def test_a_page_without_objectives_has_no_budgets(layout: Layout) -> None:
    assert "Error budgets" not in sla_page(layout.warehouse, "flights")
