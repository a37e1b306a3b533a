"""Pages name the SLA by which something was judged, with its limit and what was measured.

Two SLAs with different limits are broken with different values: no page shows a limit of one with the name or the value
of the other.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import critical_path
from support.play import NOON, Play, ms
from support.topologies import NEWEST
from tidemark.cli.explain import path as path_command
from tidemark.facts.history import ChartSpan, history
from tidemark.facts.interval_facts import page_facts
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import parse
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.path import path_document
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.pages.interval_page import page
from tidemark.reports.pages.page_model import page_model, subjects_of
from tidemark.reports.pages.topology_page import history_page, operator_page, problem_page, start_page, topology_page
from tidemark.reports.promises import promises
from tidemark.sla.incidents.decisions import decision_facts
from tidemark.sla.page import sla_page
from tidemark.stream.decide import decision
from tidemark_airflow.pages.decisions import decision_page

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

PACKAGE = Path(__file__).parents[2] / "jobs" / "tidemark"
PARTS_OF_PAGES = {"reports/pages/base.html.j2", "reports/pages/parts.html.j2"}
WITHOUT_SLAS = {"watch/page.html.j2"}
"""Pages that tell of no SLA."""
SLAS = {
    "quick_work": {"subject": "newest", "measure": "operator_latency_p50", "error_after": "440 ms"},
    "board_in_time": {"subject": "board", "measure": "latency_p99", "error_after": "880 ms"},
}
TOLD = {
    "quick_work": ("440 ms", ("1.3 s", "1.31 s", "1,300 ms"), "operator latency p50 of newest"),
    "board_in_time": ("880 ms", ("1.5 s", "1,500 ms", "1.51 s", "1,506 ms"), "latency p99 of board"),
}
"""By SLA its limit, the value of a window or of a check, and how a measurement names it.

`newest` works for 1.3 s, and its records are 0.2 s old before; values of a check are those of buckets, to 1 %. Those of
a window are not above its slowest record.
"""
BLOCKS = {"p", "li", "tr", "title", "figcaption", "h1", "h2", "h3", "div", "section", "dl", "small", "desc", "text"}


class Sentences(HTMLParser):
    """The sentences of a page: texts of its blocks. A row of a table is one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.said = [""]
        self.feed(text)
        self.said = [" ".join(said.split()) for said in self.said if said.strip()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end(tag)

    def handle_endtag(self, tag: str) -> None:
        self._end(tag)

    def handle_data(self, data: str) -> None:
        self.said[-1] += data

    def _end(self, tag: str) -> None:
        if tag in BLOCKS:
            self.said.append("")
        else:
            self.said[-1] += " "


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The page of each template, and the answer of `tidemark path`, where every window has broken both SLAs."""
    play = Play(NEWEST, tmp_path_factory.mktemp("play"))
    layout, topology = Layout(play.home), play.topology

    def sleep(seconds: float) -> None:
        play.now_ms += round(seconds * 1_000)

    play.slow_ms = {"newest": 1_300}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=sleep))
        for second in range(1, 40, 2):
            play.batch([play.row("events", ms(second - 0.2), key="a", id="a", v=second)], at_ms=ms(second))
    specs = parse({"play": {name: {**sla, "owner": "o"} for name, sla in SLAS.items()}}, topology, file="slas.toml")
    interval, at_ms = Interval(NOON, NOON + 3_600_000), ms(42)
    promised, tables = promises(specs), Warehouse(play.home)
    live = page_model(tables, layout, topology, promised, at_ms=at_ms)
    critical_path.run(layout, topology, specs, interval)
    run_check(layout, topology, specs, at_ms=at_ms, run_id="r1")
    tables = Warehouse(play.home)
    reported = page_model(tables, layout, topology, promised, at_ms=at_ms)
    assert (live["path"]["is_live"], reported["path"]["is_live"]) == (True, False)
    of_board = page_model(tables, layout, topology, promised, at_ms=at_ms, operator="board")
    document = topology_document(play.home, topology, at_ms=at_ms)
    past = history(tables, "play", ["board"], ChartSpan.HOUR, at_ms=at_ms, subjects=subjects_of(topology, "board"))
    of_all = history(tables, "play", ["board"], ChartSpan.HOUR, at_ms=at_ms)
    decided = decision_facts(tables, layout, "play", "quick_work", slas=[*SLAS], at_ms=at_ms)
    assert decided is not None
    return {
        "reports/pages/start_page.html.j2": start_page([reported], folder=play.home),
        "reports/pages/topology_page.html.j2": topology_page(live, document, topology)
        + topology_page(reported, document, topology),
        "reports/pages/operator_page.html.j2": operator_page(of_board, document, topology, "board", past, []),
        "reports/pages/history_page.html.j2": history_page(topology, of_all, at_ms=at_ms),
        "reports/pages/problem_page.html.j2": problem_page("d", status=404, start="."),
        "reports/pages/page.html.j2": page(page_facts(tables, topology, interval)),
        "sla/page.html.j2": sla_page(play.home, "play", reported),
        "sla/decision_page.html.j2": decision_page("play", "quick_work", decided, token="t"),
        "tidemark path": path_command.as_text(
            "play", path_document(play.home, play.topology, last=1, now_ms=0)["windows"][0]
        ),
    }


def test_a_history_names_the_slas_that_no_chart_is_about(pages: Mapping[str, str]) -> None:
    told = "No chart shows what this SLA limits: quick_work (operator latency p50 of newest). "
    assert any(told in " ".join(said.split()) for said in Sentences(pages["reports/pages/history_page.html.j2"]).said)
    assert "No chart shows" not in pages["reports/pages/operator_page.html.j2"]


def test_every_template_of_a_page_is_looked_at(pages: Mapping[str, str]) -> None:
    templates = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.j2")}
    assert templates - PARTS_OF_PAGES - WITHOUT_SLAS == set(pages) - {"tidemark path"}


def is_said(text: str, sentence: str) -> bool:
    """True if *sentence* has *text* as a whole word or length."""
    return re.search(rf"(?<![\w.,]){re.escape(text)}(?!\w)", sentence) is not None


def test_a_sentence_with_a_limit_has_the_limit_and_the_value_of_the_sla_that_it_names(pages: Mapping[str, str]) -> None:
    told: dict[str, set[str]] = {name: set() for name in pages}
    for name, text in pages.items():
        # The lines of a command that are indented further go on with the sentence before.
        sentences = re.split(r"\n  (?=\S)", text) if name == "tidemark path" else Sentences(text).said
        for sentence in sentences:
            # Of the other broken SLAs only the names are told.
            said = re.sub(r"; also broken: [\w, ]+", "", " ".join(sentence.split()))
            if said.startswith("sla_status "):
                continue  # an expectation of the check itself lists each limit with the value that was beyond it
            for sla, (limit, values, measured) in TOLD.items():
                if is_said(limit, said):
                    told[name].add(sla)
                    # An expectation about all SLAs has limits and values in pairs, and names none.
                    is_paired = any(f"error after {limit}, observed {value}" in said for value in values)
                    assert is_said(sla, said) or measured in said or is_paired, said
                    assert any(is_said(value, said) for value in values), said
                elif is_said(sla, said):
                    # It names this SLA, so it has no limit of another one.
                    assert not re.search(r"\blimit is\b|error from", said), said
    both = set(SLAS)
    assert told == {
        "reports/pages/start_page.html.j2": {"board_in_time"},
        "reports/pages/topology_page.html.j2": both,
        "reports/pages/operator_page.html.j2": {"board_in_time"},
        "reports/pages/history_page.html.j2": set(),
        "reports/pages/problem_page.html.j2": set(),
        "reports/pages/page.html.j2": both,
        "sla/page.html.j2": both,
        "sla/decision_page.html.j2": {"quick_work"},
        "tidemark path": both,
    }
