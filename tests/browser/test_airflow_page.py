"""Pages in Airflow, as a browser shows them after a login."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.busy_warehouse import INCIDENT, ON_PATH, busy
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.local import airflow
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import CHECKOUT
from tidemark_airflow.operators.sla import PAGE

MEASURED = (Path(__file__).parent / "measure_page.js").read_text()
"""Measures a page in the browser; a good one has no findings."""
PLACES = {
    "start": "",
    "topology": "pages/flights",
    "operator": "pages/flights/operators/flight_events",
    "sink": "pages/flights/operators/flight_board?over=day",
    "history": "pages/flights/history?over=day",
    "month": "pages/flights/history?over=month",
    "slas": "pages/flights/slas",
    "decision": f"pages/flights/decisions?subject={INCIDENT}",
    "report": "pages/flights/reports/{report}",
    "problem": "pages/unknown",
    "foreign": "dags/another_dag",
    "wrong": "pages/",
}
"""Pages by their name in docs/pages."""
DOCUMENTED = {
    ("start", 1280, "light"),
    ("topology", 1280, "light"),
    ("topology", 390, "dark"),
    ("slas", 1280, "light"),
    ("operator", 1280, "dark"),
    ("month", 1280, "light"),
    ("decision", 390, "light"),
}
"""Screenshots that pages of docs/ show; `make screenshots` replaces them."""
UPPER: Any = {"x": 0, "y": 0, "width": 1280, "height": 1280}
"""The part of a long page that a screenshot shows, px."""
DOCS = CHECKOUT / "docs" / "pages"
WITHIN_MS = 60_000
"""A browser's first look at Airflow takes long on a busy machine."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def api(chromium: Browser, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowApi]:
    """Airflow's API server alone, with a warehouse in which much happens."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    variables = {"tidemark_warehouse": str(warehouse)}
    parts = airflow.start(home, root=CHECKOUT, variables=variables, components=["api-server"])
    found = airflow.api(home)

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{found.url}/api/v2/version").close()
        except OSError:
            return False
        return True

    process.wait_until(answers, "Airflow's API server", 120, by=parts)
    # Last: the scene ends some minutes after it was written.
    busy(warehouse, wall_clock_ms())
    yield found
    airflow.stop(home)


@pytest.fixture(scope="module")
def signed_in(chromium: Browser, api: AirflowApi) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1320, "height": 900})
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    page.goto(api.url)
    page.get_by_label("Username").fill(api.user)
    page.locator("input[name=password]").fill(api.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{api.url}/")
    yield page
    context.close()


def test_who_is_not_signed_in_gets_to_the_page_by_the_login(chromium: Browser, api: AirflowApi) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{api.url}/tidemark/pages/flights")
    assert "carrier" not in page.content()
    page.get_by_label("Username").fill(api.user)
    page.locator("input[name=password]").fill(api.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{api.url}/tidemark/pages/flights")
    expect(page.locator("h1")).to_contain_text("flights SLA broken", timeout=WITHIN_MS)
    context.close()


def test_the_page_is_in_the_navigation_and_highlights_the_path(signed_in: Page) -> None:
    asked: list[str] = []
    signed_in.on("request", lambda request: asked.append(request.url))
    signed_in.get_by_role("button", name="Browse").click()
    signed_in.get_by_role("menuitem", name="Tidemark").click()
    page = signed_in.frame_locator("iframe")
    expect(page.locator("h1")).to_have_text("Tidemark", timeout=WITHIN_MS)
    page.get_by_role("link", name="flights", exact=True).click()
    expect(page.locator("h1")).to_contain_text("flights SLA broken", timeout=WITHIN_MS)
    boxes = page.locator("svg.topology g")
    assert boxes.count() == 11
    assert {box.get_attribute("data-operator") for box in page.locator("svg.topology g.on-path").all()} == set(ON_PATH)
    assert page.locator("svg.topology g", has_text="failed").count() == 2
    assert "by_carrier_source has not finished it" in page.locator("main").inner_text()
    assert page.locator("svg.topology path.on-path").count() == len(ON_PATH) - 1
    width = "element => parseFloat(getComputedStyle(element).strokeWidth)"
    thick, thin = (page.locator(f"svg.topology path.{which}").first for which in ("on-path", "off-path"))
    assert thick.evaluate(width) >= 3 * thin.evaluate(width)
    assert [row.inner_text() for row in page.locator("#steps tbody th").all()] == [*ON_PATH]
    silent = [row.inner_text() for row in page.locator("#silent-groups tbody th").all()]
    assert silent == ["EWR", "JFK", "LGA", "BOS", "PHL"]
    assert page.locator("script, img, [onload], [onerror]").count() == 0
    assert [url for url in asked if not url.startswith((signed_in.url.partition("/plugin")[0], "data:"))] == []


def test_links_lead_to_the_slas_and_back(signed_in: Page, api: AirflowApi) -> None:
    signed_in.goto(f"{api.url}/tidemark/")
    assert signed_in.locator("meta[http-equiv=refresh]").count() == 1
    signed_in.get_by_role("link", name="flights", exact=True).click()
    signed_in.get_by_role("link", name="SLAs, incidents and contracts").click()
    expect(signed_in.locator("h1")).to_contain_text("flights: SLAs and contracts")
    signed_in.get_by_role("link", name="flights", exact=True).click()
    expect(signed_in.locator("h1")).to_contain_text("flights SLA broken")
    signed_in.get_by_role("link", name="All topologies").click()
    expect(signed_in.locator("h1")).to_have_text("Tidemark")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.long),
        pytest.param(390, "light", marks=pytest.mark.long),
    ],
)
def test_nothing_is_cut_or_over_other_text_on_any_page(
    signed_in: Page, api: AirflowApi, width: int, scheme: Any, tmp_path: Path
) -> None:
    signed_in.set_viewport_size({"width": width, "height": 900})
    signed_in.emulate_media(color_scheme=scheme)
    report = signed_in.request.get(f"{api.url}/tidemark/topologies/flights/status").json()["report"]
    folder = DOCS if os.environ.get("TIDEMARK_SCREENSHOTS") else tmp_path
    problems: dict[str, dict[str, list[str]]] = {}
    for name, place in PLACES.items():
        signed_in.goto(f"{api.url}/tidemark/{place.format(report=report)}")
        # The first page is shown before all tables are read, and loads itself again.
        expect(signed_in.locator(".badge", has_text="reading")).to_have_count(0, timeout=WITHIN_MS)
        back = signed_in.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(246, 247, 249)", "dark": "rgb(20, 24, 29)"}[scheme], name
        problems[name] = {what: of for what, of in signed_in.evaluate(MEASURED).items() if of}
        if (name, width, scheme) in DOCUMENTED:
            path = folder / f"{name}-{width}-{scheme}.png"
            if name == "topology":
                signed_in.screenshot(path=path, full_page=True, clip=UPPER | {"width": width})
            else:
                # Unlike the screen, the body of a short page ends with its text.
                signed_in.locator("body").screenshot(path=path)
    assert problems == {name: {} for name in PLACES}


def test_who_decides_on_the_form_is_recorded_with_the_reason(signed_in: Page, api: AirflowApi) -> None:
    signed_in.set_viewport_size({"width": 390, "height": 900})
    signed_in.goto(f"{api.url}/tidemark/pages/flights/slas")
    signed_in.locator(f"#incidents tr[id='{INCIDENT}']").get_by_role("link", name="decide").click()
    signed_in.get_by_label("Reason").fill("disk is being cleared <b>now</b>")
    signed_in.get_by_role("button", name="Acknowledge").click()
    signed_in.wait_for_url(f"**/slas#{INCIDENT}")
    cells = signed_in.locator(f"#incidents tr[id='{INCIDENT}']").locator("td")
    assert (cells.first.inner_text(), cells.last.inner_text()) == ("acknowledged", "admin")
    signed_in.locator("#slas tr[id='board_is_fresh']").get_by_role("link", name="silence").click()
    expect(signed_in.locator("section").first).to_contain_text("passes since")
    expect(signed_in.locator("section").first).to_contain_text("There is none: channels get alerts of board_is_fresh.")
    signed_in.get_by_label("For").select_option("30 min")
    signed_in.get_by_role("button", name="Silence", exact=True).click()
    signed_in.wait_for_url("**/slas#board_is_fresh")
    decisions = []
    for row in signed_in.locator("#decisions tbody tr").all():
        subject, decision, _, _, by, reason = (cell.inner_text() for cell in row.locator("th, td").all())
        decisions.append((subject, decision, by, reason))
    assert decisions == [
        ("board_is_fresh", "silence", "admin", "–"),
        (INCIDENT, "acknowledge", "admin", "disk is being cleared <b>now</b>"),
    ]
    signed_in.goto(f"{api.url}/tidemark/pages/flights")
    expect(signed_in.locator("#alerts")).to_contain_text("Acknowledged by admin.")


def test_a_failed_task_leads_to_the_named_operator(signed_in: Page, api: AirflowApi) -> None:
    views = signed_in.request.get(f"{api.url}/api/v2/plugins?limit=100").json()["plugins"]
    (tidemark,) = [plugin["external_views"] for plugin in views if plugin["name"] == "tidemark"]
    href = next(view["href"] for view in tidemark if view["destination"] == "task_instance")
    place = href.replace("{DAG_ID}", "tidemark_flights_streams").replace("{TASK_ID}", "carriers")
    signed_in.goto(f"{api.url}{place}")
    assert signed_in.url == f"{api.url}/tidemark/pages/flights/operators/carrier_delays"
    assert "No space left on device" in signed_in.locator("#causes").inner_text()
    # A stream without a fault, and the tasks of other DAGs.
    for of_dag, leads_to in {
        "tidemark_flights_streams?task=status": "flights#stream-status",
        "tidemark_flights_sla_check?task=check_sla": "flights/slas",
        "tidemark_flights_daily": "flights",
    }.items():
        signed_in.goto(f"{api.url}/tidemark/dags/{of_dag}")
        assert signed_in.url == f"{api.url}/tidemark/pages/{leads_to}"


def test_an_alert_leads_to_the_named_operator(signed_in: Page, api: AirflowApi) -> None:
    # The link that every message of the alert has.
    signed_in.goto(api.url + PAGE.format(topology="flights", incident=INCIDENT))
    signed_in.locator(f"#incidents tr[id='{INCIDENT}']").get_by_role("link", name="carrier_state").click()
    assert signed_in.url == f"{api.url}/tidemark/pages/flights/operators/carrier_state"
    signed_in.get_by_role("link", name="last month").click()
    expect(signed_in.locator("strong", has_text="last month")).to_be_visible()


@pytest.mark.long("reads all DAGs into Airflow's database")
def test_dags_runs_and_tasks_have_a_tab(signed_in: Page, api: AirflowApi, home: Path) -> None:
    environment = airflow.environment(home, airflow._secrets(home), root=CHECKOUT, variables={})
    for command in (["reserialize"], ["trigger", "tidemark_flights_streams", "--run-id", "r"]):
        subprocess.run(["airflow", "dags", *command], env=environment, check=True, capture_output=True)
    signed_in.set_viewport_size({"width": 1280, "height": 900})
    dag = f"{api.url}/dags/tidemark_flights_streams"
    for place, heading in {
        dag: "flights SLA broken",
        f"{dag}/runs/r": "flights SLA broken",
        f"{dag}/tasks/carriers": "carrier_delays",
        f"{dag}/runs/r/tasks/carriers": "carrier_delays",
    }.items():
        signed_in.goto(place)
        # Airflow's links to the owner and the tag are "tidemark".
        signed_in.get_by_role("link", name="Tidemark", exact=True).click()
        signed_in.wait_for_url("**/plugin/tidemark-*")
        expect(signed_in.frame_locator("iframe").locator("h1")).to_contain_text(heading, timeout=WITHIN_MS)
