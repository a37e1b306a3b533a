"""Elements of an interval's page in a real browser, all inert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from support.hostile_strings import HOSTILE
from tidemark.facts.interval_facts import PageFacts
from tidemark.facts.topology_changes import RecordedChange
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import Interval
from tidemark.model.topology import SubTopology, Topology
from tidemark.reports.pages.interval_page import page

MEASURED = (Path(__file__).parent / "measure_page.js").read_text()
NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
MINUTE_MS = 60_000
OBEYED_BY_A_BROWSER = (
    "script", "HTML tag", "HTML attribute", "HTML attribute without a quote", "HTML entity", "SVG", "CDATA",
    "link with script", "markdown link", "markdown image", "CSV formula =", "Jinja", "percent",
)  # fmt: skip
"""Part of the corpus; tests/delta/test_hostile.py parses pages with all of it."""
EVENTS, SLOW, BOARD, OTHER = "events", "slow", "board", "other"


def facts(named: dict[str, str], **changes: Any) -> PageFacts:
    """Returns facts of three minutes with one window over its SLA.

    The flow is events → slow → board and events → other; names are those of *named*.
    """
    events, slow, board, other = (named.get(name, name) for name in (EVENTS, SLOW, BOARD, OTHER))
    source = Source(name=events, topic="t", fields={}, timestamp_range_ms=(0, 1), bound_ms=0)
    operators = (
        source,
        Map(name=slow, inputs=(events,), select={}),
        Sink(name=board, inputs=(slow,), table="b"),
        Sink(name=other, inputs=(events,), table="o"),
    )
    topology = Topology(named.get("topology", "play"), Level.INFO, 5_000, 1_000, (SubTopology("events", operators),))
    path, minutes = [events, slow, board], [NOON + k * MINUTE_MS for k in range(3)]
    window = {
        "end_ms": NOON + 5_000, "latency_ms": 500, "waited_ms": 60, "queued_ms": 10, "worked_ms": 430,
        "before_source_ms": 1_000, "age_ms": 1_500, "longest_ms": 1_500, "over_sla": True,
        "longest_part": {"owner": "bound", "detail": events, "stream": None, "ms": 900},
        "path": " → ".join(path), "state": "measured",
        "verdicts": [
            {"sla": "quick", "operator": slow, "quantile": None, "limit_ms": 400, "value_ms": 430.0, "broken": True}
        ],
    }  # fmt: skip
    told = {
        "topology": topology,
        "interval": Interval(NOON, NOON + 3 * MINUTE_MS),
        "place_ms": 1_000,
        "summary": {
            "windows": 2, "over_sla": 1, "promised": 2, "median_ms": 400, "p90_ms": 500, "max_ms": 500,
            "before_source_ms": 1_000, "skew_error_ms": None,
        },
        "judged": [
            {"sla": "quick", "operator": slow, "quantile": None, "limit_ms": 400, "windows": 2, "broken": 1,
             "worst_ms": 430.0, "unjudged": 0}
        ],
        "operators": {
            name: {"latency_ms": 250, "worked_ms": 215, "on_path": 2 if name in path else 0, "windows": 2}
            for name in topology.operators
        },
        "paths": [{"path": path, "windows": 2, "median_ms": 400, "p90_ms": 500, "max_ms": 500}],
        "slowest": [window],
        "spent": [
            window,
            window
            | {"end_ms": NOON + 10_000, "over_sla": False, "worked_ms": 330, "latency_ms": 400, "age_ms": 1_400},
        ],
        "causes": [
            {
                "sla": "quick", "cause": "operator", "checks": 3, "first_ms": NOON,
                "last_ms": NOON + 60_000, "explained": f"the operator `{slow}` worked for 430 ms, usually 400 ms",
            }
        ],
        "latencies": [
            {"operator": board, "at_ms": at, "n": 9, "p50_ms": 100.0, "p90_ms": 300.0, "p99_ms": 900.0, "max_ms": 950,
             "sla_ms": 800}
            for at in minutes
        ],
        "emission": [{"operator": slow, "at_ms": at, "emitted": 7, "suppressed": 3} for at in minutes],
        "lags": [{"source": events, "partition": p, "at_ms": at, "lag_ms": 5_000} for p in (0, 1) for at in minutes],
        "spans": [{"source": events, "partition": 1, "activity": "idle", "at_ms": NOON, "until_ms": minutes[1]}],
        "account": {"records_in": 30, "late": 2, "quarantined": 1, "emitted": 21, "suppressed": 9},
        "changes": [
            RecordedChange(at_ms=NOON + 30_000, sub_topology="main", operator=board, batch_id=3, told=f"{board} begins")
        ],
    }  # fmt: skip
    return PageFacts(**{**told, **changes})


class Opened:
    """A page in a browser that records requests, messages and dialogs."""

    def __init__(self, browser: Browser, file: Path, text: str, *, bypass_csp: bool = False) -> None:
        file.write_text(text, encoding="utf-8")
        self.requests: list[str] = []
        self.said: list[str] = []
        self.context = browser.new_context(bypass_csp=bypass_csp, viewport={"width": 1320, "height": 900})
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.goto(file.as_uri(), wait_until="networkidle")
        self.asked = [url for url in self.requests if url != file.as_uri() and not url.startswith("data:")]


@pytest.fixture
def opened(chromium: Browser, tmp_path: Path) -> Iterator[Opened]:
    found = Opened(chromium, tmp_path / "page.html", page(facts({})))
    yield found
    found.context.close()


def test_no_request_leaves_the_page_and_it_has_nothing_to_run(opened: Opened) -> None:
    assert opened.asked == []
    assert opened.said == []
    assert opened.page.locator("script, iframe, object, embed, link[rel=stylesheet], [onload], [onerror]").count() == 0


def test_the_policy_of_the_page_forbids_script_and_network(chromium: Browser, tmp_path: Path) -> None:
    tried = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/owned.png'></main>"
    found = Opened(chromium, tmp_path / "page.html", page(facts({})).replace("</main>", tried))
    assert found.page.title() != "owned"
    assert len([text for text in found.said if "Content Security Policy" in text]) == 2
    found.context.close()


def test_the_critical_path_is_highlighted_and_nothing_else_is(opened: Opened) -> None:
    on_path = opened.page.locator("svg.topology g.on-path")
    assert [box.get_attribute("data-operator") for box in on_path.all()] == ["events", "slow", "board"]
    assert opened.page.locator("svg.topology path.on-path").count() == 2
    width = "element => parseFloat(getComputedStyle(element).strokeWidth)"
    thick, thin = (opened.page.locator(f"svg.topology path.{which}").first for which in ("on-path", "off-path"))
    assert thick.evaluate(width) >= 3 * thin.evaluate(width)


def test_the_bands_of_latency_are_drawn_one_over_the_other(opened: Opened) -> None:
    # The axis goes from 0 to 900 ms or a little more: p90 of 300 ms is a third of the way up to p99.
    def box(band: str) -> dict[str, float]:
        found = opened.page.locator(f"#latencies svg polygon.{band}").bounding_box()
        assert found is not None
        return dict(found)

    band, pale_band = box("p90"), box("p99")
    assert band["width"] == pytest.approx(pale_band["width"], abs=2)
    assert band["y"] == pytest.approx(pale_band["y"] + pale_band["height"], abs=2)
    assert pale_band["height"] == pytest.approx(3 * band["height"], rel=0.1)  # 900 − 300 against 300 − 100


def test_charts_are_there_and_are_told_to_who_does_not_see_them(opened: Opened) -> None:
    for name, told in {
        "latencies": [
            "board: median 100 ms, highest p99 900 ms, promised 800 ms; "
            "since 2026-01-01T12:00:30.000Z, batch 3 of main: board begins"
        ],
        "spent": [
            "Age: 1 of the 2 places shown has a window that broke the limit of an SLA. "
            "From its end until its leaf had finished it, the slowest window shown took 1.5 s, "
            "and the slowest of all windows 1.5 s."
        ],
        "emission": ["slow: 21 emitted, 9 suppressed"],
        "lags": ["events 0: largest lag 5 s", "events 1: largest lag 5 s, longest idle time 1 min"],
    }.items():
        charts = opened.page.locator(f"#{name} svg[role=img]").all()
        assert [chart.get_attribute("aria-label") for chart in charts] == told
        for chart in charts:
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 800


def test_each_chart_has_its_numbers_as_a_table(opened: Opened) -> None:
    spent = opened.page.locator("#spent details")
    assert not spent.locator("table").is_visible()
    spent.locator("summary").click()
    assert [cell.inner_text() for cell in spent.locator("tbody tr").first.locator("th, td").all()] == [
        "2026-01-01 12:00:05", "1 s", "60 ms", "10 ms", "430 ms", "1.5 s", "over",
    ]  # fmt: skip
    assert opened.page.locator("figure").count() == opened.page.locator("figure details table").count() == 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_long_names_fit_a_telephone(chromium: Browser, tmp_path: Path, scheme: Any) -> None:
    named = {name: f"{name} of " + "many_long_words_" * 5 for name in (EVENTS, SLOW, BOARD, OTHER)}
    found = Opened(chromium, tmp_path / "page.html", page(facts(named)))
    found.page.emulate_media(color_scheme=scheme)
    found.page.set_viewport_size({"width": 390, "height": 900})
    measured = found.page.evaluate(MEASURED)
    # A name without a space is broken where its line ends.
    assert {what: of for what, of in measured.items() if of and what != "broken"} == {}
    found.context.close()


def test_what_is_over_and_why_is_said(opened: Opened) -> None:
    said = " ".join(opened.page.locator(".verdict").inner_text().split())
    assert said.startswith("1 of 2 windows broke the limit of an SLA.")
    assert (
        "SLA quick: 1 of 2 windows broke its limit; slow worked up to 430 ms on a window, and the limit is 400 ms."
        in said
    )
    causes = opened.page.locator("#causes").inner_text()
    assert "the operator slow worked for 430 ms, usually 400 ms" in causes


def test_without_a_breach_nobody_is_named(chromium: Browser, tmp_path: Path) -> None:
    kept = facts({}, causes=[], judged=[], summary=facts({}).summary | {"over_sla": 0})
    found = Opened(chromium, tmp_path / "page.html", page(kept))
    said = found.page.locator(".verdict").inner_text()
    assert (
        "None of 2 windows broke the limit of an SLA about latency or work. "
        "Other SLAs, such as staleness, are not judged here." in said
    )
    found.context.close()


def test_an_interval_without_facts_has_a_page_that_says_so(chromium: Browser, tmp_path: Path) -> None:
    lists: dict[str, Any] = {
        name: [] for name in ("judged", "paths", "slowest", "spent", "causes", "latencies", "emission", "lags", "spans")
    }
    nothing = facts({}, **lists, operators={}, summary=dict.fromkeys(facts({}).summary), account={})
    found = Opened(chromium, tmp_path / "page.html", page(nothing))
    assert "No streaming window that ends in this time" in found.page.locator(".verdict").inner_text()
    assert found.page.locator("svg.topology g").count() == 4
    found.context.close()


@pytest.mark.parametrize("name", OBEYED_BY_A_BROWSER)
def test_hostile_names_and_values_are_shown_as_text(chromium: Browser, tmp_path: Path, name: str) -> None:
    # Without the page's policy: escaping alone must suffice; the policy is a second line of defence.
    text = HOSTILE[name]
    named = {name: f"{name} {text}" for name in (EVENTS, SLOW, BOARD, OTHER, "topology")}
    found = Opened(chromium, tmp_path / "page.html", page(facts(named)), bypass_csp=True)
    assert (found.asked, found.said) == ([], [])
    assert found.page.title().startswith(named["topology"])
    assert found.page.locator("script, img, b, a, body > svg, [onload], [onerror]").count() == 0
    assert found.page.locator("h1").text_content() == named["topology"]
    for name in (EVENTS, SLOW, BOARD, OTHER):
        assert found.page.locator("svg.topology .name", has_text=named[name]).text_content() == named[name]
    charts = " ".join(chart.text_content() or "" for chart in found.page.locator("figure").all())
    assert all(named[name] in charts for name in (EVENTS, SLOW, BOARD))
    found.context.close()


def test_the_page_of_an_hour_that_goes_on_says_so() -> None:
    assert "So far, until 2026-01-01 12:01:00" in page(facts({}), now_ms=NOON + MINUTE_MS)
    assert "So far" not in page(facts({}), now_ms=NOON + 3 * MINUTE_MS)
