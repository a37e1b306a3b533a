"""Latency over HTTP, and a page: what `tidemark topology`, `path` and `whatif` say. docs/airflow.md has it all.

Delta tables are read by DuckDB and delta-rs, in few threads, and what was answered is the answer for a few seconds: see
`tidemark_answers`. Nothing but a name that a topology file gives is
looked for in the warehouse.

Who has no login is answered 401, and a browser that asks for a page is sent to Airflow's login. A name that nobody
knows is a 404, an argument that cannot be used a 400, and `detail` says what to do. A request that would wait too long
behind others is answered 503.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

from airflow.sdk import Variable
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from tidemark.cli import path, whatif
from tidemark.cli import topology as topology_command
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import as_document
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.inert import inert
from tidemark.place import location
from tidemark.report.page_model import READS, REPORT, Standing, page_model, unreadable
from tidemark.report.path_facts import Row
from tidemark.report.rollup_facts import rollup_facts
from tidemark.report.templates import POLICY
from tidemark.report.topology_page import problem_page, start_page, topology_page
from tidemark.report.what_if import Change
from tidemark.report.what_if_parts import Setting
from tidemark.semantics.blame import AgeCause
from tidemark.sla.page import sla_page
from tidemark.spec.intervals import Grain, instant_ms, utc
from tidemark.spec.layout import NAME, Layout
from tidemark.spec.toml_keys import duration_ms
from tidemark.spec.topology import Topology
from tidemark_answers import AGAIN_AFTER_S, ANSWERS, Busy, shared
from tidemark_dags import TOPOLOGIES, broken, topologies
from tidemark_login import SIGNED_IN, login_url

log = logging.getLogger(__name__)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}
MOST_WINDOWS = 1_000
NAMED = re.compile(r"""^name\s*=\s*["']([^"']+)["']""", re.MULTILINE)
LINES_WITHIN_S = 0.6
"""The start page shows what is known by then."""
WORK = ("scale", "less")
CHANGES = (*WORK, AgeCause.BOUND.value, AgeCause.TRIGGER.value)
YEAR_10_000_MS = 253_402_300_800_000

At = Annotated[str | None, Query(description="ISO 8601, UTC unless it says otherwise")]
From = Annotated[str | None, Query(alias="from", description="first instant, as at")]
To = Annotated[str | None, Query(alias="to", description="instant after the last, as at")]

app = FastAPI(title="Tidemark", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[SIGNED_IN])


class Unknown(InvalidArgument):
    """Raised when a request names what is not there."""


class NoWarehouse(TidemarkError):
    """Raised when Airflow has not been told where the warehouse is."""


@app.exception_handler(TidemarkError)
def problem(request: Request, error: TidemarkError) -> Response:
    """What is wrong with a request, and what to do; for a page, as a page that refreshes itself."""
    status = {Unknown: 404, NoWarehouse: 503, Busy: 503}.get(type(error), 400)
    again = {"Retry-After": str(AGAIN_AFTER_S)} if isinstance(error, Busy) else {}
    place, detail = _place(request), inert(str(error))
    if _is_page(place):
        start = "../" * (place.count("/") - 1) or "./"
        return HTMLResponse(
            problem_page("This page cannot be shown", detail, start=start), status, headers=HEADERS | again
        )
    return JSONResponse({"detail": detail}, status, headers=HEADERS | again)


@app.exception_handler(HTTPException)
async def refused(request: Request, error: HTTPException) -> Response:
    """Who has no login gets to one and back, if it is a browser that asks for a page."""
    wants_page = _is_page(_place(request)) and "text/html" in request.headers.get("accept", "")
    if error.status_code == 401 and wants_page:
        return RedirectResponse(login_url(request), headers=HEADERS)
    return await http_exception_handler(request, error)


def _place(request: Request) -> str:
    """The path of *request* within this app."""
    return request.url.path.removeprefix(request.scope.get("root_path", ""))


def _is_page(place: str) -> bool:
    return place == "/" or place.startswith("/pages/")


@app.get("/topologies")
def list_topologies() -> Response:
    """The names of all topologies."""
    return _json({"topologies": [*_known()]})


@app.get("/topologies/{name}")
@shared
def show_topology(name: str, at: At = None) -> Response:
    """What `tidemark topology` says."""
    return _json(_told(_named(name), at))


@app.get("/topologies/{name}/status")
@shared
def show_status(name: str) -> Response:
    """The page model."""
    return _json(_model(name))


@app.get("/topologies/{name}/operators")
@shared
def list_operators(name: str, at: At = None) -> Response:
    """What it says of operators."""
    told = _told(_named(name), at)
    return _json({field: told[field] for field in ("topology", "at", "operators")})


@app.get("/topologies/{name}/operators/{operator}")
@shared
def show_operator(name: str, operator: str, at: At = None) -> Response:
    """What it says of one of them."""
    told = _told(_having(_named(name), operator), at)
    return _json(next(row for row in told["operators"] if row["operator"] == operator))


@app.get("/topologies/{name}/latency")
@shared
def show_latency(
    name: str, grain: Grain = Grain.HOUR, operator: str | None = None, start: From = None, end: To = None
) -> Response:
    """The latencies of operators, or of one, as they were rolled up."""
    topology = _named(name) if operator is None else _having(_named(name), operator)
    tables = Warehouse(_warehouse(), {"latency_rollup"})
    start_ms, end_ms = _instant_ms(start), _instant_ms(end)
    return _json(rollup_facts(tables, topology.name, grain, operator=operator, start_ms=start_ms, end_ms=end_ms))


@app.get("/topologies/{name}/path")
@shared
def show_path(name: str, at: At = None, last: int = 1) -> Response:
    """What `tidemark path` says."""
    if not 1 <= last <= MOST_WINDOWS:
        msg = f"last is a number of windows from 1 to {MOST_WINDOWS}, got {last}"
        raise InvalidArgument(msg)
    topology, at_ms = _named(name), _instant_ms(at)
    with _not_there():
        return _json(path.document(_warehouse(), topology.name, at_ms=at_ms, last=last))


@app.get("/topologies/{name}/whatif")
@shared
def show_what_if(
    name: str,
    operator: str | None = None,
    scale: float | None = None,
    less: str | None = None,
    bound: str | None = None,
    trigger: str | None = None,
    start: From = None,
    end: To = None,
) -> Response:
    """What `tidemark whatif` says."""
    topology = _named(name)
    values = zip(CHANGES, (scale, less, bound, trigger), strict=True)
    given = {what: value for what, value in values if value is not None}
    change = _change(topology, operator, given)
    start_ms, end_ms = _instant_ms(start), _instant_ms(end)
    with _not_there():
        return _json(whatif.document(_warehouse(), topology, change, start_ms=start_ms, end_ms=end_ms))


@app.get("/")
async def first_page() -> Response:
    """The page with a line per topology, for people; it shows at once what is known."""
    names = await asyncio.to_thread(lambda: sorted({*_known(), *_broken()}))
    await asyncio.to_thread(_warehouse)
    lines = await asyncio.gather(
        *(ANSWERS.soon(("line", name), partial(_line, name), within_s=LINES_WITHIN_S) for name in names)
    )
    known = [line or {"topology": name} for name, line in zip(names, lines, strict=True)]
    return HTMLResponse(start_page(known, at=utc(wall_clock_ms()), folder=TOPOLOGIES), headers=HEADERS)


@app.get("/pages/{name}")
@shared
def show_page(name: str) -> Response:
    """The page of a topology, for people."""
    model, topology = _model(name), _known().get(name)
    told = None if topology is None else _told(topology, None)
    return HTMLResponse(topology_page(model, told, topology), headers=HEADERS)


@app.get("/pages/{name}/reports/{interval}")
@shared
def show_report(name: str, interval: str) -> Response:
    """The page about an interval that the reports have written, for people."""
    file = Layout(_warehouse()).report_pages(_named(name).name) / f"{interval}.html"
    if not REPORT.fullmatch(interval) or not file.is_file():
        msg = f"there is no report {interval!r} of {name}; the DAG tidemark_{name}_reports writes one every hour"
        raise Unknown(msg)
    return HTMLResponse(file.read_text(encoding="utf-8"), headers=HEADERS)


@app.get("/pages/{name}/slas")
@shared
def show_slas(name: str) -> Response:
    """The page of its SLAs, incidents and contracts, for people."""
    known = name if name in _broken() else _named(name).name
    return HTMLResponse(sla_page(_warehouse(), known, _model(known)), headers=HEADERS)


def _known() -> dict[str, Topology]:
    return {topology.name: topology for topology in topologies().values()}


def _broken() -> dict[str, TidemarkError]:
    """Why topologies cannot be used, by the name that their file gives them, or else by that of the file."""
    known = _known()
    named = {_name_in(path): error for path, error in broken().items()}
    return {name: error for name, error in named.items() if NAME.fullmatch(name) and name not in known}


def _name_in(path: Path) -> str:
    """The name of the topology in the file at *path*, which may be not valid TOML."""
    found = NAMED.search(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    return found[1] if found else path.stem


def _model(name: str) -> Row:
    """The page model of the topology *name*, whose file may be not valid."""
    warehouse, at_ms = _warehouse(), wall_clock_ms()
    errors = _broken()
    if name in errors:
        return unreadable(Layout(warehouse), name, str(errors[name]), at_ms=at_ms)
    return page_model(Warehouse(warehouse, READS), Layout(warehouse), _named(name), at_ms=at_ms)


def _line(name: str) -> Row:
    """The page model of *name*, also where it cannot be made."""
    try:
        return _model(name)
    except Exception as error:  # one topology that cannot be read must not hide the others
        log.exception("the state of %s cannot be read", name)
        return {"topology": name, "verdict": Standing.UNREADABLE.value, "state": "unknown", "error": str(error)}


def _named(name: str) -> Topology:
    known = _known()
    if name not in known:
        msg = f"there is no topology {name!r} that can be used; known: {', '.join(known)}"
        raise Unknown(msg)
    return known[name]


def _having(topology: Topology, operator: str) -> Topology:
    if operator not in topology.operators:
        msg = f"{topology.name} has no operator {operator!r}; known: {', '.join(topology.operators)}"
        raise Unknown(msg)
    return topology


def _change(topology: Topology, operator: str | None, given: Mapping[str, float | str]) -> Change | Setting:
    """The one change that is *given*: of an operator's work, which has to be named then, or else of a setting."""
    how = next(iter(given), None)
    length_ms = 0 if how in (None, "scale") else duration_ms(str(given[how]))
    if len(given) != 1 or length_ms is None or (how in WORK) != (operator is not None):
        msg = (
            f"got operator={operator} and {', '.join(given) or 'no change'}; give an operator and either scale, such "
            'as 0.5, or a length less, such as "400 ms"; or no operator, and bound or trigger'
        )
        raise InvalidArgument(msg)
    if operator is None:
        return Setting(cause=AgeCause(str(how)), length_ms=length_ms)
    _having(topology, operator)
    return Change(operator=operator, scale=float(given.get("scale", 1.0)), less_ms=length_ms)


@contextmanager
def _not_there() -> Iterator[None]:
    """Around what is asked with arguments that can be used: what it refuses for is then that there is nothing."""
    try:
        yield
    except InvalidArgument as error:
        raise Unknown(str(error)) from error


def _told(topology: Topology, at: str | None) -> Row:
    at_ms = _instant_ms(at)
    return topology_command.document(_warehouse(), topology, at_ms=wall_clock_ms() if at_ms is None else at_ms)


def _instant_ms(text: str | None) -> int | None:
    if text is None:
        return None
    at_ms = instant_ms(text)
    if not 0 <= at_ms < YEAR_10_000_MS:
        msg = f"an instant lies after 1970 and before the year 10000, got {text!r}"
        raise InvalidArgument(msg)
    return at_ms


def _warehouse() -> Path:
    found = Variable.get("tidemark_warehouse", default=None)
    if not found:
        msg = "Airflow's variable tidemark_warehouse must name the warehouse, and there is none"
        raise NoWarehouse(msg)
    return location(found)


def _json(document: Row) -> Response:
    return Response(as_document(document), media_type="application/json", headers=HEADERS)
