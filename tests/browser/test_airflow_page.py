"""The page in Airflow's navigation, in a real browser: who has no login sees nothing, who has one sees the path."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from flights_reported import ON_PATH, reported
from playwright.sync_api import Browser, Page, expect

from tidemark.embedded import airflow, process
from tidemark.embedded.airflow_api import AirflowApi
from tidemark.spec.project import CHECKOUT

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


def test_the_anonymous_see_nothing_of_it(chromium: Browser, api: AirflowApi) -> None:
    page = chromium.new_page()
    answer = page.goto(f"{api.url}/tidemark/pages/flights")
    assert answer is not None
    assert answer.status == 401
    assert "carrier" not in page.content()
    page.close()


def test_it_is_found_in_the_navigation_and_shows_the_operators_with_the_path_highlighted(signed_in: Page) -> None:
    asked: list[str] = []
    signed_in.on("request", lambda request: asked.append(request.url))
    signed_in.get_by_role("button", name="Browse").click()
    signed_in.get_by_role("menuitem", name="Tidemark").click()
    page = signed_in.frame_locator("iframe")
    expect(page.locator("h1")).to_have_text("flights", timeout=WITHIN_MS)
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
