"""Latency answers of the API server equal the CLI's, for authorised users."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
import pytest
from airflow.sdk import Variable
from deltalake import write_deltalake
from starlette.middleware.gzip import GZipMiddleware

from support.busy_warehouse import INCIDENT, RECOVERS, busy
from support.reported_window import ON_PATH, reported
from tidemark.cli.explain import path as path_command
from tidemark.cli.explain import topology as topology_command
from tidemark.cli.explain import why as why_command
from tidemark.cli.main import _parser
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.files import FILES
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.lengths import for_people
from tidemark.model.tables.catalog import ALERTS, INCIDENTS, OPERATOR_BATCHES
from tidemark.model.topology import load
from tidemark.query.sql import Warehouse
from tidemark.query.text_table import as_document
from tidemark.recorded_jobs.queries import RecordedQuery, write_query
from tidemark.reports.documents.status import status_document
from tidemark.reports.documents.why import why_document
from tidemark.selection import names_in
from tidemark.sla.incidents import decisions as sla_decisions
from tidemark.storage.delta.log import commit_file
from tidemark_airflow.dags.settings import TOPOLOGIES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Airflow imports a test client that its own dependency has deprecated
    from tidemark_airflow.dags import settings as dag_settings
    from tidemark_airflow.pages import answers as page_answers
    from tidemark_airflow.pages import api as page_api
    from tidemark_airflow.pages.answers import ANSWERS, PageAnswers
    from tidemark_airflow.pages.login import EDITOR, MAY_EDIT, MAY_READ, READABLE, SIGNED_IN, Editor

AT = "2026-01-01T12:00:10Z"
ROUTES = [
    "/",
    "/pages/flights",
    "/pages/flights/slas",
    "/pages/flights/operators/carrier_state",
    "/pages/flights/streams/carriers",
    "/pages/flights/history",
    "/pages/flights/reports/2026-01-01T12",
    "/dags/tidemark_flights_streams",
    "/metrics",
    "/topologies",
    "/topologies/flights",
    "/topologies/flights/status",
    "/topologies/flights/operators",
    "/topologies/flights/operators/carrier_state",
    "/topologies/flights/latency",
    "/topologies/flights/path",
    "/topologies/flights/why",
    "/topologies/flights/bound",
    "/topologies/flights/decisions",
    "/pages/flights/decisions?subject=flights",
    "/topologies/flights/whatif?operator=carrier_state&scale=0.5",
]


class All:
    """Reads all topologies; tests/airflow/test_rights.py has users with fewer rights."""

    def of(self, topologies: Iterable[str]) -> list[str]:
        return [*topologies]


class Ann:
    """A user of Airflow."""

    def get_id(self) -> str:
        return "7"

    def get_name(self) -> str:
        return "ann"


class Client:
    """Calls the app without a server, through Airflow's compression."""

    def get(self, url: str, **headers: str) -> httpx.Response:
        return self.request("GET", url, **headers)

    def request(self, method: str, url: str, body: str | None = None, **headers: str) -> httpx.Response:
        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(GZipMiddleware(page_api.application), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.request(method, url, content=body, headers=headers)

        return asyncio.run(answer())


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported(tmp_path_factory.mktemp("warehouse"))


@pytest.fixture
def anonymous(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    known = {"tidemark_warehouse": str(warehouse)}
    monkeypatch.setattr(Variable, "get", lambda name, default=None: known.get(name, default))
    return Client()


@pytest.fixture
def client(anonymous: Client) -> Iterator[Client]:
    overrides = page_api.app.dependency_overrides
    overrides |= {SIGNED_IN.dependency: lambda: None, MAY_READ.dependency: lambda: None, READABLE.dependency: All}
    overrides |= {MAY_EDIT.dependency: lambda: None, EDITOR.dependency: lambda: Editor(Ann())}
    yield anonymous
    page_api.app.dependency_overrides.clear()
    ANSWERS.forget()


def told(client: Client, url: str) -> Any:
    answer = client.get(url)
    assert answer.status_code == 200, answer.text
    return answer.json()


def known() -> list[str]:
    return sorted(path.stem for path in TOPOLOGIES.glob("*.toml"))


def command(name: str, *arguments: str) -> Any:
    return _parser().parse_args([name, "flights", "--format", "json", *arguments])


def test_every_route_is_known_here() -> None:
    templates = {
        url.partition("?")[0]
        .replace("tidemark_flights_streams", "{dag}")
        .replace("flights", "{name}")
        .replace("carriers", "{stream}")
        .replace("carrier_state", "{operator}")
        .replace("2026-01-01T12", "{interval}")
        for url in ROUTES
    }
    assert {route.path for route in page_api.app.routes} == templates


@pytest.mark.parametrize("url", ROUTES)
def test_the_anonymous_are_refused_everywhere(anonymous: Client, url: str) -> None:
    assert anonymous.get(url).status_code == 401


def test_only_pages_send_a_browser_to_the_login(anonymous: Client) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    answer = anonymous.get("/pages/flights", **browser)
    assert (answer.status_code, answer.text) == (307, "")
    place, _, query = answer.headers["Location"].partition("?")
    assert place == "/api/v2/auth/login"
    assert parse_qs(query)["next"][0].endswith("/pages/flights")
    assert anonymous.get("/topologies", **browser).status_code == 401
    # A form whose login has expired is not sent to the login page.
    answer = anonymous.request("POST", "/pages/flights/decisions", "decision=silence", **browser)
    place, _, query = answer.headers["Location"].partition("?")
    assert (answer.status_code, place) == (303, "/api/v2/auth/login")
    assert parse_qs(query)["next"] == ["http://airflow/pages/flights/slas"]


def test_metrics_come_in_the_format_that_is_asked_for(client: Client) -> None:
    for accept in ("application/openmetrics-text", "text/plain"):
        answer = client.get("/metrics", Accept=accept)
        assert answer.headers["Content-Type"].startswith(accept)
        assert 'tidemark_readable{topology="flights"} 1.0' in answer.text


def test_a_topology_and_its_operators_are_as_on_the_command_line(
    client: Client, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = load(TOPOLOGIES / "flights.toml")
    as_printed = json.loads(topology_command.topology(command("topology", "--at", AT), warehouse, flights))
    assert told(client, f"/topologies/flights?at={AT}") == as_printed
    assert as_printed["critical_path"] == [*ON_PATH]
    assert (as_printed["age_ms"], as_printed["latency_ms"]) == (1_400, 400)
    page = client.get("/pages/flights").text
    assert "1.4 s old when carrier_delays had finished it: 1 s before the path, 400 ms on it" in page
    now_ms = wall_clock_ms()
    monkeypatch.setattr(page_api, "wall_clock_ms", lambda: now_ms)
    status = told(client, "/topologies/flights/status")
    assert (status["topology"], status["path"]["age_ms"]) == ("flights", 1_400)
    assert status == json.loads(as_document(status_document(warehouse, flights, at_ms=now_ms)))
    operators = told(client, f"/topologies/flights/operators?at={AT}")
    assert operators == {"topology": "flights", "at": as_printed["at"], "operators": as_printed["operators"]}
    assert told(client, f"/topologies/flights/operators/carrier_state?at={AT}") in as_printed["operators"]


@pytest.mark.parametrize("url", ["/pages/flights", "/pages/flights/operators/carrier_state"])
def test_all_of_a_page_is_of_the_instant_that_it_names(
    client: Client, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    began_ms, asked_ms, state = wall_clock_ms(), list[int](), page_api.TopologyState

    def slow_clock() -> int:
        """Ten seconds pass between two looks at it."""
        asked_ms.append(began_ms + 10_000 * len(asked_ms))
        return asked_ms[-1]

    def noted(*arguments: Any, at_ms: int) -> Any:
        facts.append(at_ms)
        return state(*arguments, at_ms=at_ms)

    facts: list[int] = []
    monkeypatch.setattr(page_api, "wall_clock_ms", slow_clock)
    monkeypatch.setattr(page_api, "TopologyState", noted)
    (named,) = re.findall('At <time datetime="(.+?)">', client.get(url).text)
    assert facts == [instant_ms(named)]


def test_a_path_is_told_as_on_the_command_line(client: Client, warehouse: Path) -> None:
    assert told(client, "/topologies/flights/path") == json.loads(
        path_command.path(command("path"), warehouse, load(TOPOLOGIES / "flights.toml"))
    )
    (window,) = told(client, "/topologies/flights/path?at=2026-01-01T12:00:00Z")["windows"]
    assert (window["path"], window["latency_ms"]) == ([*ON_PATH], 400)


def test_findings_are_as_on_the_command_line(client: Client, warehouse: Path) -> None:
    flights = load(TOPOLOGIES / "flights.toml")
    found = why_document(warehouse, flights, at_ms=instant_ms(AT)).findings
    printed = json.loads(why_command.as_objects(found))
    assert told(client, f"/topologies/flights/why?at={AT}")["findings"] == printed
    assert printed


def test_the_price_of_bounds_is_that_of_the_command_line(client: Client, warehouse: Path) -> None:
    row = {"topology": "flights", "sub_topology": "status", "batch_id": 0, "operator": "weather", "decided_at": 1_000}
    path = Layout(warehouse).stream_table("flights", "status", OPERATOR_BATCHES.name)
    disorder = [{"bucket": 0, "n": 3}, {"bucket": 432, "n": 1}]
    write_deltalake(path, rows_of(OPERATOR_BATCHES, [{**row, "disorder": disorder}]))
    found = told(client, "/topologies/flights/bound?source=weather")["bounds"]
    assert {bound["choice"]: bound["late"] for bound in found} == {
        "none": 1, "50 % in time": 1, "90 % in time": 0, "99 % in time": 0, "99.9 % in time": 0, "99.99 % in time": 0,
        "100 % in time": 0, "current": 1,
    }  # fmt: skip
    page = client.get("/pages/flights/operators/weather").text
    assert '<th scope="row">none</th>' in page
    assert "The present bound is 3 s" in page


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("/dags/tidemark_flights_streams", "../pages/flights"),
        ("/dags/tidemark_flights_streams?task=carriers", "../pages/flights/streams/carriers"),
        ("/dags/tidemark_flights_sla_check?task=check_sla", "../pages/flights/slas"),
        ("/dags/tidemark_flights_daily?task=rollup", "../pages/flights"),
        ("/dags/tidemark_late_daily_reports", "../pages/late_daily"),
        ("/dags/tidemark_flights_decisions?task=decide", "../pages/flights"),
        ("/pages/flights/streams/carriers", "../operators/carrier_delays"),
        ("/dags/tidemark_flights_streams?task=first_report", "../pages/flights"),
    ],
)
def test_a_tab_leads_to_the_page_of_its_task(client: Client, url: str, place: str) -> None:
    answer = client.get(url)
    assert (answer.status_code, answer.headers["Location"]) == (307, place)


def test_the_tab_of_a_foreign_dag_says_so(client: Client) -> None:
    answer = client.get("/dags/somebody_elses")
    assert (answer.status_code, "not one of a topology" in answer.text) == (404, True)


def test_latencies_are_those_that_were_rolled_up_in_the_interval(client: Client) -> None:
    assert [row["n"] for row in told(client, "/topologies/flights/latency")["latencies"]] == [7, 9]
    found = told(client, "/topologies/flights/latency?from=2026-01-01T12:00:00Z&operator=carrier_delays")
    (row,) = found["latencies"]
    assert (found["topology"], found["grain"]) == ("flights", "hour")
    assert (row["operator"], row["n"], row["p50_ms"]) == ("carrier_delays", 9, 100.0)
    assert (row["interval_start"], row["interval_end"]) == ("2026-01-01T12:00:00.000Z", "2026-01-01T13:00:00.000Z")
    assert told(client, "/topologies/flights/latency?to=2026-01-01T11:00:00Z")["latencies"] == []
    assert told(client, "/topologies/flights/latency?grain=day")["latencies"] == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/topologies/nights", "no topology 'nights'.*known: flights"),
        ("/topologies/nights/path", "no topology"),
        ("/topologies/flights.toml", "no topology"),
        ("/topologies/..%2f..%2fetc", "Not Found"),
        ("/topologies/%2e%2e", "Not Found|no topology"),
        ("/topologies/flights/why?operator=nobody", "no operator 'nobody' in flights; known: .*carrier_state"),
        ("/topologies/flights/bound?source=nobody", "no source 'nobody'; known: flight_events, weather"),
        ("/topologies/flights/operators/nobody", "no operator 'nobody' in flights; known: .*carrier_state"),
        ("/topologies/flights/latency?operator=nobody", "no operator"),
        ("/topologies/flights/whatif?operator=nobody&scale=1", "no operator"),
        ("/topologies/flights/path?at=2020-01-01T00:00:00Z", "the closed ones lie between 2026-01-01T12:00:00.000Z"),
        ("/topologies/flights/whatif?operator=carrier_state&scale=0.5", "what-if compares closed"),
        ("/topologies/flights/whatif?trigger=500%20ms", "window_parts has none"),
    ],
)
def test_missing_things_are_not_found_with_the_existing_names(client: Client, url: str, said: str) -> None:
    answer = client.get(url)
    assert answer.status_code == 404
    assert re.search(said, answer.json()["detail"])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/topologies/flights?at=yesterday", "ISO 8601, got 'yesterday'"),
        ("/topologies/flights?at=0001-01-01T00:00:00Z", "after 1970"),
        ("/topologies/flights?at=2026-01-01T00:00:00%1b[31m", r"\\x1b"),
        ("/topologies/flights?at=2026-W01-1", "ISO 8601, got '2026-W01-1'; write, for example, 2026-01-31T12:00:00Z"),
        ("/topologies/flights?at=", "ISO 8601, got ''"),
        ("/topologies/flights/operators?at=20260101", "ISO 8601, got '20260101'"),
        ("/topologies/flights/path?at=2026-01-01T00:00:00+01:00", "write . as %2B"),
        ("/topologies/flights/latency?from=2026-01-02&to=2026-01-01", "from must be before to.*swap them"),
        ("/topologies/flights/whatif?bound=1%20s&from=2026-01-02&to=2026-01-02", "from must be before to"),
        ("/topologies/flights/path?last=0", "from 1 to 1000, got 0"),
        ("/topologies/flights/latency?from=tomorrow", "ISO 8601"),
        (
            "/topologies/flights/whatif?operator=carrier_state",
            "give an operator and either scale",
        ),
        ("/topologies/flights/whatif?operator=carrier_state&less=4", "a length less"),
        ("/topologies/flights/whatif?operator=carrier_state&scale=-1", "scale"),
        ("/topologies/flights/whatif?scale=0.5", "got operator=None and scale"),
        (
            "/topologies/flights/whatif?operator=carrier_state&bound=1%20s",
            "or no operator, and bound, trigger or cause",
        ),
        ("/topologies/flights/whatif?bound=1%20s&trigger=1%20s", "got operator=None and bound, trigger"),
        ("/topologies/flights/path?last=x", "last: Input should be a valid integer.*, got 'x'; correct it"),
        ("/topologies/flights/latency?grain=week", "grain: .*'minute', 'hour' or 'day', got 'week'; correct it"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(client: Client, url: str, said: str) -> None:
    answer = client.get(url)
    assert answer.status_code == 400
    assert re.search(said, answer.json()["detail"])


def test_without_a_warehouse_the_answer_names_the_variable(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variable, "get", lambda name, default=None: default)
    answer = client.get("/topologies/flights")
    assert (answer.status_code, "variable tidemark_warehouse" in answer.json()["detail"]) == (503, True)


@pytest.mark.parametrize("url", ["/topologies/flights", "/topologies/flights/why", "/pages/flights", "/", "/metrics"])
def test_a_warehouse_of_an_older_format_is_refused(
    client: Client, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidemark.json").write_text('{"format": 1, "tidemark": "0.0.9"}')
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(tmp_path))
    answer = client.get(url)
    assert (answer.status_code, f"{tmp_path} has format 1, but Tidemark" in answer.text) == (503, True)


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("GET", "/topologies", 200),
        ("GET", "/pages/flights", 200),
        ("GET", "/topologies/nights", 404),
        ("GET", "/pages/nights", 404),
        ("GET", "/pages/flights/streams/nope", 404),
        ("GET", "/no/such/place", 404),
        ("POST", "/topologies", 405),
        ("GET", "/topologies/", 307),
        ("GET", "/topologies/flights?at=x", 400),
        ("GET", "/topologies/flights/path?last=x", 400),
        ("GET", "/topologies/flights/status", 500),
    ],
)
def test_no_answer_may_run_anything_or_be_framed_by_others(
    client: Client, monkeypatch: pytest.MonkeyPatch, method: str, url: str, status: int
) -> None:
    if status == 500:
        monkeypatch.setattr(page_api, "_model", lambda _: 1 // 0)
    answer = client.request(method, url)
    assert answer.status_code == status
    check_headers(answer)


@pytest.mark.parametrize("url", ["/topologies", "/pages/flights"])
def test_the_anonymous_get_the_same_headers(anonymous: Client, url: str) -> None:
    check_headers(anonymous.get(url))


def check_headers(answer: httpx.Response) -> None:
    headers = answer.headers
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_the_first_page_has_a_line_for_each_topology(client: Client, warehouse: Path) -> None:
    assert client.get("/").status_code == 200  # a first line may still be read
    process.wait_until(lambda: 'class="badge gray">reading' not in client.get("/").text, "every line", 60)
    text = client.get("/").text
    assert sorted(re.findall(r'<(?:tr|section)[^>]* id="(\w+)">', text)) == [*known()]
    section = text[text.index('id="flights">') :].partition("</section>")[0].partition(">")[2]
    assert " ".join(re.sub("<.*?>", " ", section).split()).startswith(
        "flights not running Never started at flight_board : status has never run: there is no heartbeat and no batch."
    )
    assert 'href="pages/flights"' in text
    assert 'http-equiv="refresh"' in text


def test_a_line_that_takes_long_does_not_hold_up_the_first_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr(page_api, "_line", lambda name: free.wait(60))
    monkeypatch.setattr(page_api, "LINES_WITHIN_S", 0.05)
    try:
        text = client.get("/").text
    finally:
        free.set()
    assert "Its tables are being read" in text
    assert 'content="3"' in text


def test_answers_computed_while_forgotten_are_not_kept() -> None:
    answers, begun, free = PageAnswers(), threading.Event(), threading.Event()

    def compute() -> str:
        begun.set()
        free.wait(60)
        return "old"

    async def asked_and_forgotten() -> str | None:
        asked = asyncio.create_task(answers.soon("line", compute, within_s=60))
        await asyncio.to_thread(begun.wait, 60)
        answers.forget()
        free.set()
        return await asked

    assert asyncio.run(asked_and_forgotten()) == "old"
    assert answers._last == {}


def test_an_answer_that_is_too_old_is_not_shown_while_a_newer_one_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, free = PageAnswers(), threading.Event()

    def asked() -> str | None:
        return asyncio.run(answers.soon("line", lambda: str(free.wait(60)), within_s=0.01))

    free.set()
    assert asked() == "True"
    free.clear()
    monkeypatch.setattr(page_answers, "KEPT_S", 0)  # each request is computed anew
    try:
        assert asked() == "True"
        monkeypatch.setattr(page_answers, "LONGEST_S", 0)  # what was asked for before is old
        assert asked() is None
    finally:
        free.set()


def test_an_unreadable_topology_does_not_hide_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        msg = "disk gone"
        raise OSError(msg)

    monkeypatch.setattr(page_api, "TopologyState", refused)
    process.wait_until(lambda: client.get("/").text.count("disk gone") == len(known()), "every line", 60)
    assert client.get("/").text.count("not readable") == len(known())


def test_an_empty_project_says_how_to_begin(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag_settings, "TOPOLOGIES", tmp_path)
    assert "tidemark init DIR --from-topic TOPIC" in client.get("/").text


def test_an_invalid_file_shows_its_error_and_the_running_stream(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "other_name.toml").write_text('name = "night"\n[operators.events')
    layout, now_ms = Layout(tmp_path / "warehouse"), wall_clock_ms()
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="l", at_ms=now_ms, pid=1)
    Control(layout.control("night", "readings")).beat(beat)
    monkeypatch.setattr(dag_settings, "TOPOLOGIES", tmp_path / "topologies")
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(layout.warehouse))
    page = client.get("/pages/night")
    assert page.status_code == 200
    assert "other_name.toml" in page.text
    words = " ".join(re.sub("<.*?>", " ", page.text).split())
    assert "night not readable streams running" in words
    assert "readings running" in words
    line = client.get("/").text
    assert "not readable" in line
    assert "running</span>" in line
    assert client.get("/pages/night/slas").status_code == 200


def test_damaged_files_are_named_and_break_no_page(
    client: Client, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(shutil.copytree(warehouse, tmp_path / "warehouse"))
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(layout.warehouse))
    control = layout.control("flights", "carriers")
    for file in FILES:
        path = control / re.sub(r"\bN\b", f"{7:020d}", file.name).replace("ID", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{")
    pages = [route for route in ROUTES if route.startswith("/pages/flights") and "reports" not in route]
    pages += ["/topologies/flights/status", "/topologies/flights/why"]
    found = {route: client.get(route) for route in pages}
    assert {route: answer.status_code for route, answer in found.items() if answer.status_code not in {200, 307}} == {}
    for route in ("/pages/flights", "/topologies/flights/why"):
        assert f"no driver of carriers can start: {control / 'meanings.json'}: it is damaged" in found[route].text
    reported_paths = commit_file(layout.report_table("flights", "critical_paths"), 0)
    whole = reported_paths.read_bytes()
    reported_paths.write_bytes(whole[:99])
    ANSWERS.forget()
    for route in ("/pages/flights", "/topologies/flights/path"):
        answer = client.get(route)
        assert (answer.status_code, f"{reported_paths}: it is damaged (" in answer.text) == (500, True)
        assert "restore its table from a backup" in answer.text
    reported_paths.write_bytes(whole)
    commit = commit_file(layout.stream_table("flights", "carriers", "batches"), 0)
    commit.parent.mkdir(parents=True)
    commit.write_bytes(b"")
    ANSWERS.forget()
    for route, status in {
        "/pages/flights": 500,
        "/topologies/flights/status": 500,
        "/topologies/flights/why": 200,
    }.items():
        answer = client.get(route)
        assert (answer.status_code, f"{commit}: it is empty" in answer.text) == (status, True)


def test_a_report_is_shown_and_nothing_else_of_its_folder(client: Client, warehouse: Path) -> None:
    folder = Layout(warehouse).report_pages("flights")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("2026-01-01T12", "other"):
        (folder / f"{name}.html").write_text(f"<nav></nav><p>{name}</p>")
    nav, _, shown = client.get("/pages/flights/reports/2026-01-01T12").text.partition("</nav>")
    assert re.findall('href="(.+?)"', nav) == ["../../../", "../../flights", "../slas"]
    assert shown == "<p>2026-01-01T12</p>"
    assert 'href="flights/reports/2026-01-01T12"' in client.get("/pages/flights").text
    assert client.get("/pages/flights/reports/other").status_code == 404


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("url", "said", "back"),
    [
        ("/pages/", "There is no page at /pages/; the list of all topologies leads to every page.", ["../"]),
        ("/pages/nights", "There is no topology 'nights' with a valid file; known: ", ["../"]),
        ("/pages/nights/slas", "There is no topology 'nights'", ["../../"]),
        (
            "/pages/flights/operators/nobody",
            "There is no operator 'nobody' in flights; known: ",
            ["../../../", "../../../pages/flights"],
        ),
        (
            "/pages/flights/reports/2020-01-01",
            "There is no report '2020-01-01' of flights; the DAG tidemark_flights_reports writes one every hour.",
            ["../../../", "../../../pages/flights"],
        ),
        ("/pages/flights/no/such/page", "There is no page at /pages/flights/no/such/page;", ["../../../../"]),
        ("/dags/somebody_elses", "The DAG 'somebody_elses' is not one of a topology;", ["../"]),
        ("/dags", "There is no page at /dags;", ["./"]),
        ("/no/such/place", "There is no page at /no/such/place;", ["../../"]),
        ("/<b>%00", "There is no page at /<b>", ["./"]),
        ("/topologies/nights", "There is no topology 'nights'", ["../"]),
        ("/topologies/flights/nothing", "There is no page at /topologies/flights/nothing;", ["../../"]),
    ],
)
def test_a_wrong_address_is_a_page_with_a_way_back(client: Client, url: str, said: str, back: list[str]) -> None:
    answer = client.get(url, **BROWSER)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    check_headers(answer)
    assert re.findall('<a href="(.+?)">', answer.text) == back
    assert said in html.unescape(answer.text)
    assert 'http-equiv="refresh"' not in answer.text


def test_a_program_gets_a_wrong_address_of_json_as_json(client: Client) -> None:
    for url in ("/topologies/nights", "/topologies/flights/nothing", "/metrics/nothing"):
        answer = client.get(url, Accept="*/*")
        assert (answer.status_code, [*answer.json()]) == (404, ["detail"])


def test_an_address_that_takes_no_form_says_so_on_a_page(client: Client) -> None:
    for name in ("flights", "nights"):
        answer = client.request("POST", f"/pages/{name}", "x=1", **BROWSER)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
        assert f"POST is not possible at /pages/{name};" in answer.text
        # No right was checked yet, so the page does not say which topologies there are.
        assert re.findall('<a href="(.+?)">', answer.text) == ["../"]


@pytest.fixture(scope="module")
def busy_warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return busy(tmp_path_factory.mktemp("busy"), wall_clock_ms())


class Texts(HTMLParser):
    """The texts of a page by block, such as a paragraph or a cell.

    A badge is no part of the sentence after it, and code, which is no sentence, stands as CODE.
    """

    INLINE = ("a", "b", "i", "strong", "span", "time", "label", "br")
    CODE = ("code", "pre")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.blocks: list[str] = [""]
        self._in_code = self._in_badge = False
        self._paragraphs: set[int] = set()
        self.feed(page[page.index("<body>") :])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_code |= tag in self.CODE
        self._in_badge |= "badge" in (dict(attrs).get("class") or "")
        if tag not in (*self.INLINE, *self.CODE):
            self.blocks.append("")
            if tag in {"p", "small"}:
                self._paragraphs.add(len(self.blocks) - 1)

    def handle_endtag(self, tag: str) -> None:
        self._in_code &= tag not in self.CODE
        self._in_badge &= tag != "span"
        if tag not in (*self.INLINE, *self.CODE):
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self._in_badge:
            self.blocks[-1] += "CODE" if self._in_code else data

    @property
    def sentences(self) -> list[str]:
        """All that ends as a sentence does, and each paragraph; other cells and labels are none."""
        found = []
        for number, block in enumerate(self.blocks):
            *whole, rest = re.split(r"(?<=[.!?])\s+", f"{' '.join(block.split())} ")
            found += whole
            if number in self._paragraphs and rest.strip():
                found.append(rest)
        return found


LENGTH_TEXT = re.compile(r"(?<![\w.,:-])-?\d[\d,]*(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?")


def test_each_page_has_whole_sentences_and_lengths_of_one_style(
    client: Client, busy_warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(busy_warehouse))
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", "a key of this test")
    flights = load(TOPOLOGIES / "flights.toml")
    status = told(client, "/topologies/flights/status")
    pages = ["/", "/pages/flights", "/pages/flights/slas", "/pages/", "/dags/x"]
    pages.append(f"/pages/flights/reports/{status['report']}")
    pages += [f"/pages/flights/operators/{name}" for name in flights.operators]
    pages += [f"/pages/flights/history?over={span}" for span in ("hour", "day", "month")]
    pages += [f"{FORM}?subject={subject}" for subject in ("flights", INCIDENT, "board_is_fresh")]
    # Names are written as they are.
    names = {*flights.operators, *names_in(flights.sub_topologies), "flights"}
    names |= {row["sla"] for row in status["slas"]["rows"]}
    small: dict[str, list[str]] = {}
    others: dict[str, set[str]] = {}
    n_sentences, lengths = 0, set()
    for url in pages:
        texts = Texts(client.get(url, **BROWSER).text)
        small[url] = [text for text in texts.sentences if text[0].islower() and text.split()[0] not in names]
        found = {length for text in texts.blocks for length in LENGTH_TEXT.findall(text)}
        others[url] = {length for length in found if for_people(ms_of(length)) != length}
        n_sentences, lengths = n_sentences + len(texts.sentences), lengths | found
    assert {url: of for url, of in small.items() if of} == {}
    assert {url: of for url, of in others.items() if of} == {}
    # Both were found: 80 ms and 6 min 52 s are written in the scene.
    assert n_sentences > 10 * len(pages)
    assert {"80 ms", "6 min 52 s"} <= lengths


def ms_of(text: str) -> float:
    """Returns the length that *text* writes, in ms."""
    size_ms = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    words = text.lstrip("-").replace(",", "").split()
    ms = sum(float(n) * size_ms[unit] for n, unit in zip(words[::2], words[1::2], strict=True))
    return -ms if text.startswith("-") else ms


def test_a_topology_without_reports_has_a_page_that_says_so(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(tmp_path))
    text = client.get("/pages/flights").text
    assert "No window is closed yet" in text
    assert "streams never started" in text


FORM = "/pages/flights/decisions"
SAME = {"Origin": "http://airflow", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def decided(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of an empty warehouse, in which decisions are made."""
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(tmp_path))
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", "a key of this test")
    return client


def token_of(client: Client, subject: str) -> str:
    page = client.get(f"{FORM}?subject={subject}")
    assert "form-action 'self'; frame-ancestors 'self'" in page.headers["Content-Security-Policy"]
    (token,) = re.findall(r'name="token" value="(.+?)"', page.text)
    return str(token)


def decisions(client: Client) -> list[tuple[str, ...]]:
    rows = told(client, "/topologies/flights/decisions")["decisions"]
    return [(row["decision"], row["subject"], row["decided_by"], row["note"]) for row in rows]


def test_the_form_of_the_page_records_who_decided(decided: Client) -> None:
    form = urlencode({"token": token_of(decided, "flights"), "subject": "flights", "for": "2 h", "note": "deploy"})
    answer = decided.request("POST", FORM, f"{form}&decision=silence", **SAME)
    assert (answer.status_code, answer.headers["Location"]) == (303, "slas#flights")
    assert decided.request("POST", FORM, f"{form}&decision=unsilence", **SAME).status_code == 303
    assert decisions(decided) == [("unsilence", "flights", "ann", "deploy"), ("silence", "flights", "ann", "deploy")]
    page = decided.get("/pages/flights/slas").text
    assert '<td data-name="by">ann</td><td class="text" data-name="reason">deploy</td>' in page


TEN = timedelta(minutes=10)


def form_says(client: Client, subject: str) -> str:
    """Returns the text of the form for *subject* before its fields."""
    page = client.get(f"{FORM}?subject={subject}").text
    return " ".join(re.sub("<.*?>", " ", page[page.index("<h2>") : page.index("<form")]).split())


def test_the_form_says_what_is_broken_and_what_is_silenced_until_when(
    decided: Client, busy_warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(busy_warehouse, tmp_path / "busy")
    monkeypatch.setattr(Variable, "get", lambda name, default=None: str(tmp_path / "busy"))
    # The start page waits for its lines, however busy the machine is.
    monkeypatch.setattr(page_api, "LINES_WITHIN_S", 60)
    (row,) = Warehouse(tmp_path / "busy").ask(f"SELECT * FROM incidents WHERE incident = '{INCIDENT}'").objects
    began, checked = (f"{row[name]:%Y-%m-%d %H:%M:%S}" for name in ("broken_since", "changed_at"))
    of_incident = (
        f"delays_in_time is broken. Its incident is {INCIDENT}: it broke at {began} . Found at {checked} : "
        "latency p99 of carrier_delays is 6 min 52 s; warning from 1 min on, error from 5 min on. "
        "Culprit: carrier_state."
    )
    nothing = f"Open incidents {of_incident} Silences There is none: channels get alerts of {INCIDENT}."
    assert form_says(decided, INCIDENT) == nothing
    holds = form_says(decided, "changes_are_fresh")
    assert holds.startswith("Open incidents There is none about changes_are_fresh. By the check at ")
    assert "staleness of changes is 21 s; warning from 1 min on. Silences There is none: channels get" in holds
    (row,) = Warehouse(tmp_path / "busy").ask(f"SELECT * FROM incident_history WHERE sla = '{RECOVERS}'").objects
    recovers = f"passes since {row['passes_since']:%H:%M}, resolves at {row['resolves_at']:%H:%M} if it holds"
    # It was broken three checks ago, which are ten minutes apart, and has to hold for half an hour.
    assert (row["passes_since"] - row["opened_at"], row["resolves_at"] - row["passes_since"]) == (TEN, 3 * TEN)
    assert form_says(decided, RECOVERS).startswith(f"Open incidents {RECOVERS} {recovers}. Its incident is ")
    alerts = told(decided, "/topologies/flights/status")["alerts"]
    # It is critical and the oldest, but nothing is broken any more.
    assert [alert["cause"] for alert in alerts] == ["absence", "next_record", "topic_volume"]
    for url in ("/", "/pages/flights", "/pages/flights/slas", "/pages/flights/operators/flight_board"):
        assert recovers in decided.get(url, **BROWSER).text, url
    assert "End silence" not in decided.get(f"{FORM}?subject=flights").text
    until = {"flights": "2099-01-31T12:00:00Z", "board_is_fresh": "2099-01-31T13:00:00Z"}
    monkeypatch.setattr(sla_decisions, "LONGEST_SILENCE_MS", 10**15)
    for subject, at in until.items():
        silence = json.dumps({"decision": "silence", "subject": subject, "until": at})
        decided.request("POST", "/topologies/flights/decisions", silence, Authorization="Bearer x")
        # The first silence is the only one; the one of the topology keeps alerts of board_is_fresh back after its own.
        but = "" if subject == "flights" else ", except those that another silence above keeps back"
        assert f"Channels get alerts of {subject} again{but}.</p>" in decided.get(f"{FORM}?subject={subject}").text
    all_of_it = "All of flights until 2099-01-31 12:00:00 , silenced by ann."
    assert form_says(decided, INCIDENT) == f"Open incidents {of_incident} Silences {all_of_it}"
    of_fresh = f"board_is_fresh until 2099-01-31 13:00:00 , silenced by ann. {all_of_it}"
    assert form_says(decided, "board_is_fresh").endswith(f"Silences {of_fresh}")
    assert "End silence" in decided.get(f"{FORM}?subject=flights").text
    # Each open alert of the topology says that no channel gets it.
    for silenced in told(decided, "/topologies/flights/status")["alerts"]:
        end = until["board_is_fresh" if silenced["slas"] == ["board_is_fresh"] else "flights"]
        assert silenced["silenced_until"] == end.replace("Z", ".000Z")
    page = " ".join(re.sub("<.*?>", " ", decided.get("/pages/flights", **BROWSER).text).split())
    assert page.count("No channel gets it until 2099-01-31 1") == len(alerts)
    # The silence of the topology is not ended at an incident.
    assert "End silence" not in decided.get(f"{FORM}?subject={INCIDENT}").text
    unknown = decided.get(f"{FORM}?subject=nothing")
    assert (unknown.status_code, "no open incident, SLA or topology" in unknown.text) == (404, True)
    missing = decided.get(FORM)
    assert (missing.status_code, "The address has no subject; add subject=…" in missing.text) == (400, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://airflow.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(decided: Client, headers: dict[str, str]) -> None:
    form = urlencode({"token": token_of(decided, "flights"), "subject": "flights", "for": "2 h", "decision": "silence"})
    assert decided.request("POST", FORM, form, **headers).status_code == 403
    assert decisions(decided) == []


def test_a_form_without_a_token_of_its_user_is_refused(decided: Client) -> None:
    form = {"subject": "flights", "for": "2 h", "decision": "silence"}

    class Bob(Ann):
        def get_id(self) -> str:
            return "8"

    now_s = wall_clock_ms() // 1_000
    late, own = Editor(Ann()).form_token(now_s - 3_601), token_of(decided, "flights")
    until, _, signature = own.partition(".")
    longer = f"{int(until) + 1}.{signature}"
    for token in ("", "x", f"{until}.", "9" * 5_000 + ".x", late, longer, f"²{own}", Editor(Bob()).form_token(now_s)):
        answer = decided.request("POST", FORM, urlencode({**form, "token": token}), **SAME)
        assert (answer.status_code, "open its page again" in answer.text) == (403, True)
    assert decisions(decided) == []
    assert decided.request("POST", FORM, urlencode({**form, "token": own}), **SAME).status_code == 303


def test_json_needs_a_login_that_no_form_can_send(decided: Client) -> None:
    silence = json.dumps({"decision": "silence", "subject": "flights", "for": "2 h", "note": "move"})
    url = "/topologies/flights/decisions"
    for headers in (
        {},
        {"Cookie": "_token=x"},
        {"Authorization": "Basic x"},
        {"Authorization": "Bearer x", "Origin": "null"},
    ):
        assert decided.request("POST", url, silence, **headers).status_code == 403
    answer = decided.request("POST", url, silence, Authorization="Bearer x")
    assert answer.json() == {"topology": "flights", "decision": "silence", "subject": "flights", "is_new": True}
    assert decisions(decided) == [("silence", "flights", "ann", "move")]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[]", "the body is not a JSON object; send one with decision, subject, for, until, note"),
        ("{", "the body is not a JSON object"),
        ('{"decision": "hush"}', "decision is 'hush'; use one of acknowledge, silence, snooze, unsilence"),
        ('{"decision": "silence", "subject": "flights", "for": 2}', "for is not a text of at most 2000 characters"),
        (
            '{"decision": "silence", "subject": "x", "for": "2 h"}',
            "cannot silence 'x'; use one of .*board_is_fresh.*flights",
        ),
        ('{"decision": "silence", "by": "bob"}', "'by' is not a field"),
        ('{"decision": "silence", "subject": "flights"}', "the silence has no end"),
        (f'{{"note": "{"x" * 20_000}"}}', "more than 20,000 bytes; shorten the note"),
        ("[" * 19_000, "the body is not a JSON object"),
        ('{"decision": "silence", "subject": "flights", "for": "2 h", "note": "\\ud800"}', "note has half of a"),
        ('{"decision": "silence", "subject": "flights", "for": "99999999999 d"}', "would last longer than 90 days"),
        ('{"decision": "silence", "subject": "flights", "until": "0001-01-01"}', "an instant must be after 1970"),
    ],
)
def test_a_decision_that_cannot_be_read_is_refused(decided: Client, body: str, said: str) -> None:
    answer = decided.request("POST", "/topologies/flights/decisions", body, Authorization="Bearer x")
    assert answer.status_code == 400
    assert re.search(said, answer.json()["detail"])


def test_airflow_gets_the_app_without_importing_its_handlers() -> None:
    code = """
import sys
from tidemark_airflow.pages import http as page_http
(registered,) = page_http.TidemarkPlugin.fastapi_apps
assert (registered["url_prefix"], registered["app"]) == ("/tidemark", page_http.app)
print(sorted({"fastapi", "duckdb", "polars", "deltalake", "pyspark", "tidemark_airflow.pages.api"} & set(sys.modules)))
from tidemark_airflow.pages import api as page_api
print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"[]", "False"} <= set(done.stdout.splitlines())  # Airflow's log is among them


async def answers(urls: list[str]) -> list[httpx.Response]:
    transport = httpx.ASGITransport(GZipMiddleware(page_api.application), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as asking:
        return await asyncio.gather(*(asking.get(url) for url in urls))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers were being computed whenever one was begun."""
    running, seen, lock = 0, [], threading.Lock()

    def counted(compute: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
        try:
            return compute(*arguments, **more)
        finally:
            with lock:
                running -= 1

    # The first computes JSON, the second a page.
    for name in ("topology_document", "topology_facts"):
        monkeypatch.setattr(page_api, name, partial(counted, getattr(page_api, name)))
    return seen


def test_queries_of_jobs_have_pages(decided: Client, tmp_path: Path) -> None:
    query = RecordedQuery(name="clean", query_id="1", sources={"clean:orders": "topic:orders"})
    write_query(Layout(tmp_path), "shop", query)
    assert "shop" in told(decided, "/topologies")["topologies"]
    assert [row["operator"] for row in told(decided, "/topologies/shop/operators")["operators"]] == [
        "clean:orders", "clean"
    ]  # fmt: skip
    page = decided.get("/pages/shop")
    assert (page.status_code, "clean:orders" in page.text) == (200, True)
    write_query(Layout(tmp_path), "bakery", query)
    (Layout(tmp_path).control("bakery", "clean") / "query.json").write_text("[]")
    page = decided.get("/pages/bakery")
    assert (page.status_code, "query.json: it must be an object of JSON; remove the file" in page.text) == (200, True)


@pytest.mark.usefixtures("client")
def test_forty_tabs_of_a_page_cost_what_one_costs(opened: list[int]) -> None:
    told = asyncio.run(answers(["/pages/flights"] * 40))
    assert {(answer.status_code, answer.text) for answer in told} == {(200, told[0].text)}
    assert opened == [1]
    assert asyncio.run(answers(["/pages/flights"]))[0].text == told[0].text  # within a few seconds, from another loop
    assert len(opened) == 1


def test_a_new_version_of_incidents_or_alerts_ends_kept_answers(
    decided: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[str] = []
    state = page_api._state
    monkeypatch.setattr(page_api, "_state", lambda of, *tables: models.append(of.name) or state(of, *tables))
    monkeypatch.setattr(page_answers, "KEPT_S", math.inf)
    monkeypatch.setattr(page_api, "LINES_WITHIN_S", page_answers.WAITS_S)
    for table in (INCIDENTS, ALERTS):
        page_answers.ANSWERS.forget()
        for url in ("/pages/flights/slas", "/"):
            assert decided.get(url).status_code == 200
            asked = models.count("flights")
            decided.get(url)
            assert models.count("flights") == asked
            write_deltalake(
                Layout(tmp_path).report_table("flights", table.name),
                arrow_schema(table).empty_table(),
                mode="append",
            )
            decided.get(url)
            assert models.count("flights") == asked + 1


@pytest.mark.usefixtures("client")
def test_forty_different_requests_are_answered_few_at_once(opened: list[int]) -> None:
    urls = [f"/topologies/flights?at=2026-01-01T12:00:{second:02d}Z" for second in range(40)]
    told = asyncio.run(answers(urls))
    statuses = [answer.status_code for answer in told]
    assert (statuses.count(200), statuses.count(503)) == (page_answers.MOST_WAITING, 20)
    assert len(opened) == page_answers.MOST_WAITING
    assert max(opened) <= page_answers.AT_ONCE
    refused = next(answer for answer in told if answer.status_code == 503)
    assert (refused.headers["Retry-After"], "ask again in 5 s" in refused.json()["detail"]) == ("5", True)


@pytest.mark.usefixtures("client")
def test_who_waits_too_long_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(page_api, "topology_document", lambda *_, **__: free.wait(60))
    monkeypatch.setattr(page_answers, "WAITS_S", 0.05)
    try:
        (answer,) = asyncio.run(answers(["/topologies/flights"]))
    finally:
        free.set()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


def test_an_answer_for_others_is_none_for_the_anonymous(client: Client) -> None:
    assert client.get("/pages/flights").status_code == 200
    page_api.app.dependency_overrides.clear()
    assert client.get("/pages/flights").status_code == 401
