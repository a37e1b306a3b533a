"""Starts the machine's Chromium with Playwright, which sees every request."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Starts Chromium for one file of tests.

    While Playwright runs, no test of another file can run an event loop of its own.

    Where there is none the tests are skipped, unless TIDEMARK_BROWSER=required (`make test` says so).
    """
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if os.environ.get("TIDEMARK_BROWSER") == "required":
            pytest.fail("no chromium was found; `make browser` installs it")
        pytest.skip("no chromium was found; `make browser` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
