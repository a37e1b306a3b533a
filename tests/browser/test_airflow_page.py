"""Airflow's page shows the path in a browser only after a login."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from support.reported_window import ON_PATH, reported
from tidemark.control import process
from tidemark.embedded import airflow
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.model.project.files import CHECKOUT

BROKEN_WORDS = """
[...document.querySelectorAll("th, td, dt, dd, p, a, li, .badge")].filter(element =>
    [...element.childNodes].filter(node => node.nodeType == 3).some(node =>
        [...node.data.matchAll(/[A-Za-z]+/g)].some(word => {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
        }))).map(element => element.textContent)
"""
"""The texts of elements in which a word is on two lines."""
WITHIN_MS = 60_000
"""A browser's first look at Airflow takes long on a busy machine."""


@pytest.fixture(scope="module")
def api(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowApi]:
    """Airflow's API server alone, with a warehouse that has a critical path."""
    home, warehouse = tmp_path_factory.mktemp("airflow"), reported(tmp_path_factory.mktemp("warehouse"))
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
    expect(page.locator("h1")).to_contain_text("flights not running", timeout=WITHIN_MS)
    context.close()


def test_the_page_is_in_the_navigation_and_highlights_the_path(signed_in: Page) -> None:
    asked: list[str] = []
    signed_in.on("request", lambda request: asked.append(request.url))
    signed_in.get_by_role("button", name="Browse").click()
    signed_in.get_by_role("menuitem", name="Tidemark").click()
    page = signed_in.frame_locator("iframe")
    expect(page.locator("h1")).to_have_text("Tidemark", timeout=WITHIN_MS)
    page.get_by_role("link", name="flights", exact=True).click()
    expect(page.locator("h1")).to_contain_text("flights not running", timeout=WITHIN_MS)
    boxes = page.locator("svg.topology g")
    assert boxes.count() == 11
    assert {box.get_attribute("data-operator") for box in page.locator("svg.topology g.on-path").all()} == set(ON_PATH)
    assert page.locator("svg.topology path.on-path").count() == len(ON_PATH) - 1
    width = "element => parseFloat(getComputedStyle(element).strokeWidth)"
    thick, thin = (page.locator(f"svg.topology path.{which}").first for which in ("on-path", "off-path"))
    assert thick.evaluate(width) >= 3 * thin.evaluate(width)
    assert [row.inner_text() for row in page.locator("#steps tbody th").all()] == [*ON_PATH]
    assert page.locator("script, img, [onload], [onerror]").count() == 0
    assert [url for url in asked if not url.startswith((signed_in.url.partition("/plugin")[0], "data:"))] == []


def test_links_lead_to_the_slas_and_back(signed_in: Page, api: AirflowApi) -> None:
    signed_in.goto(f"{api.url}/tidemark/")
    assert signed_in.locator("meta[http-equiv=refresh]").count() == 1
    signed_in.get_by_role("link", name="flights", exact=True).click()
    signed_in.get_by_role("link", name="SLAs, incidents and contracts").click()
    expect(signed_in.locator("h1")).to_contain_text("flights: SLAs and contracts")
    signed_in.get_by_role("link", name="flights", exact=True).click()
    expect(signed_in.locator("h1")).to_contain_text("flights not running")
    signed_in.get_by_role("link", name="All topologies").click()
    expect(signed_in.locator("h1")).to_have_text("Tidemark")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(signed_in: Page, api: AirflowApi, width: int) -> None:
    signed_in.set_viewport_size({"width": width, "height": 800})
    for place in ("", "pages/flights", "pages/flights/slas", "pages/unknown"):
        signed_in.goto(f"{api.url}/tidemark/{place}")
        assert signed_in.evaluate("document.documentElement.scrollWidth") == width, place
        assert signed_in.evaluate(BROKEN_WORDS) == [], place
