"""Serves latency over HTTP, as JSON and as pages; see docs/airflow.md.

It also records decisions about alerts, in `decisions`. The JSON about latency is that of `tidemark topology`,
`path`, `why` and `whatif`. DuckDB and delta-rs read the Delta tables in few threads, and an answer is kept for a few
seconds: see `answers`. Only names from topology files are looked up in the warehouse.

A request without a login is answered 401; a browser that requests a page is sent to Airflow's login. A topology whose
DAG the user may not read is a 403, and so is a decision about one whose DAG the user may not edit, or from the form of
another site. An unknown name or address is a 404, an invalid argument a 400, a damaged table a 500. A request that
would wait too long behind others is answered 503. People get these answers as a page with a way back, programs as JSON
with `detail`; both have the remedy. All answers have HEADERS.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Annotated
from urllib.parse import parse_qsl, quote

from airflow.sdk import Variable
from fastapi import FastAPI, Query, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from prometheus_client.exposition import choose_encoder
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Message, Receive, Scope, Send

from tidemark.bounded_http import json_of
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, TidemarkError, UnreadableFile
from tidemark.facts.answers import Row, Tables, answers_over
from tidemark.facts.history import history
from tidemark.facts.latency_places import ChartSpan
from tidemark.facts.rollup_facts import rollup_facts
from tidemark.facts.versions import newest_version
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.layout import NAME, WATCH, Layout
from tidemark.model.settings.intervals import Grain, instant_ms, instants_ms, utc
from tidemark.model.settings.lengths import duration_ms
from tidemark.model.slas.sla_spec import known_watch
from tidemark.model.tables.catalog import ALERTS, INCIDENTS
from tidemark.model.topology import Topology
from tidemark.query.text_table import as_document
from tidemark.recorded_jobs.queries import load_each_recorded, recorded_topologies
from tidemark.reports.documents.bound import bound_document
from tidemark.reports.documents.path import path_document
from tidemark.reports.documents.status import page_document, page_line
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.documents.whatif import whatif_document
from tidemark.reports.documents.why import why_document
from tidemark.reports.pages.interval_page import NO_WAY_BACK, way_back
from tidemark.reports.pages.page_model import REPORT, subjects_of, unreadable
from tidemark.reports.pages.templates import POLICY
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_page import (
    history_page,
    operator_page,
    problem_page,
    start_page,
    topology_page,
)
from tidemark.reports.pages.topology_state import PageVerdict, TopologyState
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.parts import SETTINGS, PartChange, as_usual
from tidemark.safe_text import inert
from tidemark.selection import in_order_of, index_by_name, names_in, present
from tidemark.semantics.incidents import Decision
from tidemark.sla.incidents.decisions import (
    AlertDecision,
    DecisionFacts,
    decide,
    decision_facts,
    decisions_made,
    promised_slas,
)
from tidemark.sla.page import sla_page
from tidemark.storage.delta.format import OtherFormat, refuse_older
from tidemark.storage.object_path import ObjectPath
from tidemark_airflow.dags.settings import SLAS, TOPOLOGIES, broken, topologies
from tidemark_airflow.operators.store import warehouse_at
from tidemark_airflow.pages.answers import AGAIN_AFTER_S, ANSWERS, PagesBusy, shared_while
from tidemark_airflow.pages.decisions import FIELDS, FORM_POLICY, decision_of, decision_page
from tidemark_airflow.pages.login import (
    EDITOR,
    MAY_EDIT,
    MAY_READ,
    READABLE,
    SIGNED_IN,
    Editor,
    Readable,
    has_header_token,
    is_from_other_site,
    login_url,
)

log = logging.getLogger(__name__)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}
MOST_WINDOWS = 1_000
MOST_BYTES = 20_000
"""Longest body of a request."""
_NO_RIGHT = "you may not read this topology's DAG; ask an administrator of Airflow for the right to read it"
_NO_EDITOR = "you may not edit this topology's DAG, as decisions need; ask an administrator of Airflow for that right"
_FORGED = (
    "the form is from another site, of another user, or more than an hour old; open its page again and send it there"
)
DAG = re.compile(r"tidemark_(?P<topology>.+)_(?P<part>streams|reports|daily|sla_check|decisions|completeness)")
"""Matches the DAGs of topologies."""
NAMED = re.compile(r"""^name\s*=\s*["']([^"']+)["']""", re.MULTILINE)
"""Matches the topology name in a file, which may be invalid TOML."""
JSON_PATHS = ("/topologies/", "/metrics/")
"""Beginnings of the paths that programs ask."""
LINES_WITHIN_S = 0.6
"""The start page waits so long for fresh lines."""
WORK = ("scale", "less")
CHANGES = (*WORK, *SETTINGS, "cause")

At = Annotated[str | None, Query(description="ISO 8601, by default in UTC")]
From = Annotated[str | None, Query(alias="from", description="first instant, as at")]
To = Annotated[str | None, Query(alias="to", description="instant after the last, as at")]

app = FastAPI(title="Tidemark", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[SIGNED_IN, MAY_READ])


def _alert_versions(name: str) -> Sequence[int]:
    """Returns the newest versions of the tables with alerts of the topology *name*, whose changes pages show at once.

    In an object store, where each look is a request, there are none.
    """
    with suppress(*NO_WAREHOUSE):
        layout = Layout(_warehouse())
        if NAME.fullmatch(name) and not isinstance(layout.warehouse, ObjectPath):
            tables = (layout.report_table(name, table.name) for table in (INCIDENTS, ALERTS))
            return tuple(map(newest_version, tables))
    return ()


shared = partial(shared_while, state_of=_alert_versions)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers by `app`, and adds HEADERS to every answer, also to those of Starlette itself, such as 404 and 500."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    await app(scope, receive, send_with_headers)


class UnknownName(InvalidArgument):
    """Raised when a request names something that does not exist."""


class ForgedRequest(TidemarkError):
    """Raised when another site may have made a browser send a request."""


class NoWarehouse(TidemarkError):
    """Raised when Airflow's variables do not name the warehouse."""


NO_WAREHOUSE = (NoWarehouse, OtherFormat)
"""Errors of a warehouse that cannot be read: none is named, or it has an older format."""


@app.exception_handler(TidemarkError)
def problem(request: Request, error: TidemarkError) -> Response:
    """Answers an invalid request with the problem and the remedy."""
    statuses = {UnknownName: 404, ForgedRequest: 403, PagesBusy: 503, UnreadableFile: 500}
    status = 503 if isinstance(error, NO_WAREHOUSE) else statuses.get(type(error), 400)
    again = {"Retry-After": str(AGAIN_AFTER_S)} if isinstance(error, PagesBusy) else {}
    detail = inert(str(error))
    if _is_for_people(request):
        return _problem_page(request, detail, status, again)
    return JSONResponse({"detail": detail}, status, headers=HEADERS | again)


def _problem_page(
    request: Request, detail: str, status: int, more: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """Returns the page with the problem of *request*, and the way back; it has *more* headers."""
    start = "../" * (_path_in_app(request).count("/") - 1) or "./"
    topology = request.path_params.get("name")
    # In all other cases rights were checked before, so the user may know that there is such a topology.
    may_know = status not in {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED}
    has_page = topology is not None and may_know and topology in {*_known(), *_broken()}
    page = problem_page(detail, status=status, start=start, topology=topology if has_page else None)
    return HTMLResponse(page, status, headers={**HEADERS, **more})


@app.exception_handler(StarletteHTTPException)
async def refused(request: Request, error: StarletteHTTPException) -> Response:
    """Sends a browser without a login to the login page, and back.

    An address that does not exist, or that the user may not see, is answered with a page.
    """
    path = _path_in_app(request)
    is_browser = _wants_page(request)
    if error.status_code == 401 and _is_page(path) and is_browser:
        # With 307 a browser would send its form to the login page.
        return RedirectResponse(login_url(request), 303 if request.method == "POST" else 307, headers=HEADERS)
    if error.status_code == 403 and is_browser:
        detail = _NO_EDITOR if path.split("/")[3:] == ["decisions"] else _NO_RIGHT
        return _problem_page(request, detail, 403)
    if error.status_code in {404, 405} and _is_for_people(request):
        found = "there is no page at" if error.status_code == 404 else f"{request.method} is not possible at"
        detail = f"{found} {inert(request.url.path)}; the list of all topologies leads to every page"
        return _problem_page(request, detail, error.status_code, error.headers or {})
    return await http_exception_handler(request, error)


@app.exception_handler(RequestValidationError)
def invalid(request: Request, error: RequestValidationError) -> Response:
    """Answers an argument of the wrong type as any other invalid argument."""
    mistakes = []
    for mistake in error.errors():
        if mistake["type"] == "missing":
            name = mistake["loc"][-1]
            mistakes.append(f"the address has no {name}; add {name}=… to it, or come from a link of a page")
            continue
        mistakes.append(f"{mistake['loc'][-1]}: {mistake['msg']}, got {mistake.get('input')!r}; correct it")
    return problem(request, InvalidArgument(" and ".join(mistakes)))


def _path_in_app(request: Request) -> str:
    """Returns the path of *request* within this app."""
    return request.url.path.removeprefix(request.scope.get("root_path", ""))


def _is_page(path: str) -> bool:
    """Returns True for the path of a page, also of one that does not exist, and False for a path of JSON."""
    return not f"{path}/".startswith(JSON_PATHS)


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _is_for_people(request: Request) -> bool:
    """Returns True if the answer to *request* is read by a person, and not by a program."""
    return _is_page(_path_in_app(request)) or _wants_page(request)


@app.get("/topologies")
def list_topologies(readable: Readable = READABLE) -> Response:
    """Returns the names of all topologies that the user may read."""
    return _json({"topologies": readable.of(_known())})


@app.get("/topologies/{name}")
@shared
def show_topology(name: str, at: At = None) -> Response:
    """Returns the document of `tidemark topology`."""
    return _json(_document(_named(name), at))


@app.get("/topologies/{name}/status")
@shared
def show_status(name: str) -> Response:
    """Returns the page model."""
    return _json(_model(name))


@app.get("/topologies/{name}/operators")
@shared
def list_operators(name: str, at: At = None) -> Response:
    """Returns the operators of the document of `tidemark topology`."""
    document = _document(_named(name), at)
    return _json(in_order_of(("topology", "at", "operators"), document))


@app.get("/topologies/{name}/operators/{operator}")
@shared
def show_operator(name: str, operator: str, at: At = None) -> Response:
    """Returns one operator of the document of `tidemark topology`."""
    document = _document(_having(_named(name), operator), at)
    return _json(next(row for row in document["operators"] if row["operator"] == operator))


@app.get("/topologies/{name}/latency")
@shared
def show_latency(
    name: str, grain: Grain = Grain.HOUR, operator: str | None = None, start: From = None, end: To = None
) -> Response:
    """Returns rolled-up latencies of all operators, or of one.

    Args:
        name: the topology.
        grain: minute, hour or day.
        operator: the operator, or None for all.
        start: first instant, inclusive.
        end: last instant, exclusive.
    """
    topology = _named(name) if operator is None else _having(_named(name), operator)
    tables = answers_over(_warehouse(), topology.name)
    start_ms, end_ms = instants_ms(start, end)
    return _json(rollup_facts(tables, topology.name, grain, operator=operator, start_ms=start_ms, end_ms=end_ms))


@app.get("/topologies/{name}/path")
@shared
def show_path(name: str, at: At = None, last: int | None = None) -> Response:
    """Returns the document of `tidemark path`."""
    if last is not None and not 1 <= last <= MOST_WINDOWS:
        msg = f"last must be a number of windows from 1 to {MOST_WINDOWS}, got {last}"
        raise InvalidArgument(msg)
    topology, at_ms = _named(name), None if at is None else instant_ms(at)
    with _as_unknown_name():
        return _json(path_document(_warehouse(), topology, now_ms=wall_clock_ms(), at_ms=at_ms, last=last))


@app.get("/topologies/{name}/bound")
@shared
def show_bounds(name: str, source: str | None = None, start: From = None, end: To = None) -> Response:
    """Returns the price of each bound of all sources, or of one.

    Args:
        name: the topology.
        source: the source, or None for all.
        start: decision time of the first batches, inclusive.
        end: decision time of the last, exclusive.
    """
    start_ms, end_ms = instants_ms(start, end)
    topology = _named(name)
    with _as_unknown_name():
        return _json(bound_document(_warehouse(), topology, source=source, start_ms=start_ms, end_ms=end_ms))


@app.get("/topologies/{name}/whatif")
@shared
def show_what_if(
    name: str,
    operator: str | None = None,
    scale: float | None = None,
    less: str | None = None,
    bound: str | None = None,
    trigger: str | None = None,
    cause: str | None = None,
    start: From = None,
    end: To = None,
) -> Response:
    """Returns the document of `tidemark whatif`.

    Exactly one change is given.

    Args:
        name: the topology.
        operator: the operator whose work changes, for `scale` and `less`.
        scale: share of its work that is left.
        less: length of time that its work is shorter.
        bound: another bound.
        trigger: another trigger interval.
        cause: owner of time, or OWNER:DETAIL, that takes as long as it usually does.
        start: first instant, inclusive.
        end: last instant, exclusive.
    """
    topology = _named(name)
    values = zip(CHANGES, (scale, less, bound, trigger, cause), strict=True)
    parameters = {what: value for what, value in values if value is not None}
    change = _change(topology, operator, parameters)
    start_ms, end_ms = instants_ms(start, end)
    with _as_unknown_name():
        return _json(whatif_document(_warehouse(), topology, change, start_ms=start_ms, end_ms=end_ms))


@app.get("/topologies/{name}/why")
@shared
def show_why(name: str, operator: str | None = None, at: At = None) -> Response:
    """Returns the findings of `tidemark why`, the best explanation first."""
    topology = _named(name) if operator is None else _having(_named(name), operator)
    at_ms = wall_clock_ms() if at is None else instant_ms(at)
    return _json(why_document(_warehouse(), topology, at_ms=at_ms, operator=operator).row)


@app.get("/topologies/{name}/decisions")
@shared
def list_decisions(name: str) -> Response:
    """Returns the decisions of people about alerts, newest first."""
    topology = _named(name).name
    tables = answers_over(_warehouse(), topology)
    return _json({"topology": topology, "decisions": decisions_made(tables, topology).objects})


@app.post("/topologies/{name}/decisions", dependencies=[MAY_EDIT])
async def add_decision(name: str, request: Request, editor: Editor = EDITOR) -> Response:
    """Records the decision in the JSON of *request*, once.

    The login must be a header: the cookie of a browser is refused.
    """
    if not has_header_token(request) or is_from_other_site(request):
        msg = "send the token of POST /auth/token as Authorization: Bearer; cookies are not enough"
        raise ForgedRequest(msg)
    fields = await _json_of(request)
    made = decision_of(fields, by=editor.name, now_ms=(now_ms := wall_clock_ms()))
    is_new = await asyncio.to_thread(_decide, name, made, now_ms)
    return _json({"topology": name, "decision": made.decision, "subject": made.subject, "is_new": is_new})


@app.get("/pages/{name}/decisions", dependencies=[MAY_EDIT])
async def show_decision_form(name: str, subject: str, editor: Editor = EDITOR) -> Response:
    """Returns the page on which a user decides about alerts of *subject*."""
    now_ms = wall_clock_ms()
    facts = await ANSWERS.to(("decision", name, subject), partial(_decision_facts, name, subject, now_ms))
    page = decision_page(name, subject, facts, token=editor.form_token(now_ms // 1_000))
    # Not one of the shared answers: each user has another token.
    return HTMLResponse(page, headers={**HEADERS, "Content-Security-Policy": f"{FORM_POLICY}; frame-ancestors 'self'"})


def _decision_facts(name: str, subject: str, now_ms: int) -> DecisionFacts:
    topology, tables, layout = _named(name), answers_over(_warehouse(), name), Layout(_warehouse())
    facts = decision_facts(tables, layout, name, subject, slas=promised_slas(topology), at_ms=now_ms)
    if facts is None:
        msg = f"there is no open incident, SLA or topology {subject!r}; the page of SLAs of {name} lists them"
        raise UnknownName(msg)
    return facts


@app.post("/pages/{name}/decisions", dependencies=[MAY_EDIT])
async def decide_on_page(name: str, request: Request, editor: Editor = EDITOR) -> Response:
    """Records the decision of the form, and leads back to the SLAs."""
    now_ms = wall_clock_ms()
    fields = dict(parse_qsl((await _body_of(request)).decode("utf-8", "replace")))
    token = fields.pop("token", "")
    if is_from_other_site(request) or not editor.has_sent(token, now_ms // 1_000):
        raise ForgedRequest(_FORGED)
    if fields.get("decision") in {Decision.ACKNOWLEDGE, Decision.UNSILENCE}:
        fields.pop("for", None)
    made = decision_of(fields, by=editor.name, now_ms=now_ms)
    await asyncio.to_thread(_decide, name, made, now_ms)
    return RedirectResponse(f"slas#{quote(made.subject, safe='')}", 303, headers=HEADERS)


async def _json_of(request: Request) -> dict[str, object]:
    body = await _body_of(request)
    try:
        fields = json_of(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        msg = f"the body is not a JSON object; send one with {', '.join(FIELDS)}"
        raise InvalidArgument(msg)
    return fields


async def _body_of(request: Request) -> bytes:
    """Returns the body of *request*, of a limited length."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            msg = f"the request has more than {MOST_BYTES:,} bytes; shorten the note"
            raise InvalidArgument(msg)
    return body


def _decide(name: str, made: AlertDecision, now_ms: int) -> bool:
    """Records a decision; pages show it at once."""
    topology, layout = _named(name), Layout(_warehouse())
    result = decide(layout, topology.name, made, slas=promised_slas(topology), at_ms=now_ms)
    ANSWERS.forget()
    return result.is_new


@app.get("/metrics")
async def show_metrics(request: Request, readable: Readable = READABLE) -> Response:
    """Returns the metrics of all topologies that the user may read."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    names = tuple(await asyncio.to_thread(lambda: readable.of(sorted(_known()))))
    text = await ANSWERS.to(("metrics", names, content_type), lambda: encode(_exporter(_warehouse()).of(names)))
    return Response(text, headers=HEADERS | {"Content-Type": content_type})


@app.get("/")
async def first_page(readable: Readable = READABLE) -> Response:
    """Returns the start page, which shows at once what is known of each topology that the user may read."""
    names = await asyncio.to_thread(lambda: readable.of(sorted({*_known(), *_broken()})))
    # Without a warehouse the page is refused; its lines would only lack their contents.
    await asyncio.to_thread(_warehouse)
    versions = await asyncio.to_thread(lambda: [*map(_alert_versions, names)])
    lines = await asyncio.gather(
        *(
            ANSWERS.soon(("line", name), partial(_line, name), within_s=LINES_WITHIN_S, state=state)
            for name, state in zip(names, versions, strict=True)
        )
    )
    models = [line or {"topology": name} for name, line in zip(names, lines, strict=True)]
    return HTMLResponse(start_page(models, folder=TOPOLOGIES), headers=HEADERS)


@app.get("/pages/{name}")
@shared
def show_page(name: str) -> Response:
    """Returns the page of a topology."""
    if (invalid := _invalid(name)) is not None:
        return HTMLResponse(topology_page(invalid, None, None), headers=HEADERS)
    topology, tables = _named(name), answers_over(_warehouse(), name)
    if topology.is_watch:  # it has no streams, and nothing to show but its SLAs
        return RedirectResponse(f"{WATCH}/slas", 307, headers=HEADERS)
    state = _state(topology, tables)
    model = page_document(tables, state)
    return HTMLResponse(topology_page(model, topology_facts(tables, state.scene), topology), headers=HEADERS)


@app.get("/pages/{name}/operators/{operator}")
@shared
def show_operator_page(name: str, operator: str, over: ChartSpan = ChartSpan.HOUR) -> Response:
    """Returns the page of an operator: causes, partitions, history."""
    topology, tables = _having(_named(name), operator), answers_over(_warehouse(), name)
    state = _state(topology, tables)
    model = page_document(tables, state, operator)
    subjects = subjects_of(topology, operator)
    past = history(tables, name, [operator], over, at_ms=state.at_ms, subjects=subjects)
    is_source = operator in names_in(topology.outside_sources)
    has_bounds = is_source and "operator_batches" in tables.tables
    bounds = bound_document(_warehouse(), topology, source=operator)["bounds"] if has_bounds else []
    facts = topology_facts(tables, state.scene)
    return HTMLResponse(operator_page(model, facts, topology, operator, past, bounds), headers=HEADERS)


@app.get("/pages/{name}/history")
@shared
def show_history(name: str, over: ChartSpan = ChartSpan.HOUR) -> Response:
    """Returns the page with charts of the last hour, day or month."""
    topology, at_ms = _named(name), wall_clock_ms()
    tables = answers_over(_warehouse(), name)
    past = history(tables, name, list(topology.terminals), over, at_ms=at_ms)
    return HTMLResponse(history_page(topology, past, at_ms=at_ms), headers=HEADERS)


@app.get("/pages/{name}/streams/{stream}")
@shared
def find_fault(name: str, stream: str) -> Response:
    """Redirects to the operator to blame for a fault of *stream*, or to the stream's row on the topology's page."""
    culprits = {row["sub_topology"]: row["culprit"] for row in _model(name)["streams"]}
    if stream not in culprits:
        msg = f"there is no stream {stream!r} of {name}; known: {', '.join(culprits)}"
        raise UnknownName(msg)
    operator = culprits.get(stream)
    page = f"../operators/{quote(operator, safe='')}" if operator else f"../../{name}#stream-{quote(stream, safe='')}"
    return RedirectResponse(page, 307, headers=HEADERS)


@app.get("/dags/{dag}")
def show_dag(dag: str, task: str | None = None) -> Response:
    """Redirects from a DAG of Airflow, or its task, to a page; tabs on the pages of every DAG lead here."""
    match = DAG.fullmatch(dag)
    if match is None:
        msg = f"the DAG {dag!r} is not one of a topology; those are named tidemark_TOPOLOGY_PART"
        raise UnknownName(msg)
    name, part = match["topology"], match["part"]
    known = _known()
    streams = names_in(known[name].sub_topologies) if name in known and part == "streams" else ()
    page = "/slas" if part == "sla_check" else f"/streams/{quote(task, safe='')}" if task and task in streams else ""
    return RedirectResponse(f"../pages/{name}{page}", 307, headers=HEADERS)


@app.get("/pages/{name}/reports/{interval}")
@shared
def show_report(name: str, interval: str) -> Response:
    """Returns the page of a reported interval."""
    file = Layout(_warehouse()).report_pages(_named(name).name) / f"{interval}.html"
    if not REPORT.fullmatch(interval) or not file.is_file():
        msg = f"there is no report {interval!r} of {name}; the DAG tidemark_{name}_reports writes one every hour"
        raise UnknownName(msg)
    # The page is a file without links to other pages.
    text = file.read_text(encoding="utf-8").replace(NO_WAY_BACK, way_back(name), 1)
    return HTMLResponse(text, headers=HEADERS)


@app.get("/pages/{name}/slas")
@shared
def show_slas(name: str) -> Response:
    """Returns the page of SLAs, incidents and contracts."""
    if (invalid := _invalid(name)) is not None:
        return HTMLResponse(sla_page(_warehouse(), name, invalid), headers=HEADERS)
    topology, tables = _named(name), answers_over(_warehouse(), name)
    model = page_document(tables, _state(topology, tables))
    return HTMLResponse(sla_page(_warehouse(), topology.name, model, stored=tables.stored), headers=HEADERS)


@lru_cache(maxsize=1)
def _exporter(warehouse: Path) -> Exporter:
    """Returns the exporter of this process, which keeps rows between scrapes."""
    return Exporter(Layout(warehouse), lambda: _known().values())


def _known() -> dict[str, Topology]:
    """Returns the topologies of files, of watched tables, and of recorded queries."""
    of_files = index_by_name([*topologies().values(), *present((known_watch(SLAS),))])
    with suppress(*NO_WAREHOUSE):
        return {**index_by_name(recorded_topologies(Layout(_warehouse()))), **of_files}
    return of_files


def _broken() -> dict[str, TidemarkError]:
    """Returns the errors of topologies that cannot be used, by the name in their file, or else that of the file.

    Topologies of jobs, which have no file, are among them.
    """
    recorded: dict[str, Topology | TidemarkError] = {}
    with suppress(*NO_WAREHOUSE):
        recorded = load_each_recorded(Layout(_warehouse()))
    usable = {*names_in(each for each in (*topologies().values(), *recorded.values()) if isinstance(each, Topology))}
    named = {name: each for name, each in recorded.items() if isinstance(each, TidemarkError)}
    named |= {_name_in(path): error for path, error in broken().items()}
    return {name: error for name, error in named.items() if NAME.fullmatch(name) and name not in usable}


def _name_in(path: Path) -> str:
    """Returns the topology name in the file at *path*."""
    match = NAMED.search(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    return match[1] if match else path.stem


def _model(name: str) -> Row:
    """Returns the page model of *name*, whose file may be invalid."""
    if (invalid := _invalid(name)) is not None:
        return invalid
    tables = answers_over(_warehouse(), name)
    return page_document(tables, _state(_named(name), tables))


def _invalid(name: str) -> Row | None:
    """Returns the state of the topology *name* if its file is not valid."""
    error = _broken().get(name)
    return None if error is None else unreadable(Layout(_warehouse()), name, str(error), at_ms=wall_clock_ms())


def _state(topology: Topology, tables: Tables) -> TopologyState:
    """Returns the state of *topology* at the instant at which the reading begins."""
    return TopologyState(tables.stored, Layout(_warehouse()), topology, at_ms=wall_clock_ms())


def _line(name: str) -> Row:
    """Returns what the start page says of *name*, or the error that prevents it."""
    try:
        if (invalid := _invalid(name)) is not None:
            return invalid
        topology, tables = _named(name), answers_over(_warehouse(), name)
        return page_line(tables, _state(topology, tables))
    except Exception as error:  # one topology that cannot be read must not hide the others
        log.exception("the state of %s cannot be read", name)
        at, verdict = utc(wall_clock_ms()), PageVerdict.UNREADABLE.value
        return {"topology": name, "at": at, "verdict": verdict, "state": "unknown", "error": str(error)}


def _named(name: str) -> Topology:
    usable = _known()
    if name not in usable:
        msg = f"there is no topology {name!r} with a valid file; known: {', '.join(usable)}"
        raise UnknownName(msg)
    return usable[name]


def _having(topology: Topology, operator: str) -> Topology:
    if operator not in topology.operators:
        msg = f"there is no operator {operator!r} in {topology.name}; known: {', '.join(topology.operators)}"
        raise UnknownName(msg)
    return topology


def _change(topology: Topology, operator: str | None, parameters: Mapping[str, float | str]) -> WorkChange | PartChange:
    """Returns the one change in *parameters*, of the work of *operator* if it names one, or else of a setting."""
    how = next(iter(parameters), None)
    length_ms = 0 if how in (None, "scale", "cause") else duration_ms(str(parameters[how]))
    if len(parameters) != 1 or length_ms is None or (how in WORK) != (operator is not None):
        msg = (
            f"got operator={operator} and {', '.join(parameters) or 'no change'}; give an operator and either scale, "
            'such as 0.5, or a length less, such as "400 ms"; or no operator, and bound, trigger or cause'
        )
        raise InvalidArgument(msg)
    if how == "cause":
        return as_usual(str(parameters[how]))
    if operator is None:
        return PartChange(owner=str(how), length_ms=length_ms)
    _having(topology, operator)
    return WorkChange(operator=operator, scale=float(parameters.get("scale", 1.0)), less_ms=length_ms)


@contextmanager
def _as_unknown_name() -> Iterator[None]:
    """Turns InvalidArgument into UnknownName."""
    try:
        yield
    except InvalidArgument as error:
        # The arguments are valid, so calls are refused only because nothing has that name.
        raise UnknownName(str(error)) from error


def _document(topology: Topology, at: str | None) -> Row:
    at_ms = wall_clock_ms() if at is None else instant_ms(at)
    return topology_document(_warehouse(), topology, at_ms=at_ms)


def _warehouse() -> Path:
    """Returns the warehouse.

    Raises:
        NoWarehouse: no variable names it.
        OtherFormat: it has an older format.
    """
    warehouse = Variable.get("tidemark_warehouse", default=None)
    if not warehouse:
        msg = "Airflow's variable tidemark_warehouse must name the warehouse, but is not set"
        raise NoWarehouse(msg)
    folder = warehouse_at(warehouse)
    refuse_older(folder)
    return folder


def _json(document: Row) -> Response:
    return Response(as_document(document), media_type="application/json", headers=HEADERS)
