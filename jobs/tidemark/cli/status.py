"""`tidemark status`: the streams of a project, how far they are, and what keeps them from giving results."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidemark.cli.local import Home, airflow
from tidemark.cli.options import place
from tidemark.cli.output import say_inert
from tidemark.cli.sql import Warehouse
from tidemark.cli.text_table import aligned, as_document
from tidemark.clock import wall_clock_ms
from tidemark.inert import one_line
from tidemark.report.page_model import READS, page_model
from tidemark.report.path_facts import Row
from tidemark.spec.layout import Layout
from tidemark.spec.lengths import for_people
from tidemark.spec.project import Project
from tidemark.spec.topology import Topology, load_each

COLUMNS = ("stream", "state", "records", "first_latency", "page")
FORMATS = ("table", "json")
PAGES = "/tidemark/pages/"
"""Below the address of Airflow, see plugins/tidemark_http.py."""
FIRST_LATENCY = """
    SELECT sub_topology, arg_min(sum_ms / n, finished_at)::BIGINT FROM operator_latency
    WHERE topology = $1 AND operator IN (SELECT unnest($2::VARCHAR[])) AND n > 0 GROUP BY 1
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help="their names (all of the project)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="(%(default)s)")


def command(options: argparse.Namespace) -> int:
    """Show them, whether anything runs or not."""
    project = Project.here()
    found = {path: each for path, each in load_each(project.topologies).items() if _is_asked(options, path, each)}
    models = documents(Home(options.home.resolve()), place(options), found.values())
    broken = {path.name: str(each) for path, each in found.items() if not isinstance(each, Topology)}
    if options.format == "json":
        say_inert(as_document({"topologies": models, "broken": broken}))
        return 0
    say_inert(as_text(models))
    for problem in broken.values():
        say_inert(problem)
    return 0


def _is_asked(options: argparse.Namespace, path: Path, found: object) -> bool:
    names = {path.stem, found.name if isinstance(found, Topology) else path.stem}
    return not options.topologies or bool(names & {*options.topologies})


def documents(home: Home, warehouse: Path, topologies: Iterable[object]) -> list[Row]:
    """The page model of each of *topologies* that can be used; its streams have `first_latency_ms` and it a `page`."""
    url = airflow.api(home.airflow).url if airflow.runs(home.airflow) else None
    return [document(warehouse, each, url) for each in topologies if isinstance(each, Topology)]


def document(warehouse: Path, topology: Topology, url: str | None = None) -> Row:
    """The page model of *topology*, with the first latency of each stream and the address of its page below *url*."""
    tables = Warehouse(warehouse, READS | {"operator_latency"})
    model = page_model(tables, Layout(warehouse), topology, at_ms=wall_clock_ms())
    ends = [name for sub in topology.sub_topologies for name in sub.terminals()]
    first = dict(tables.ask(FIRST_LATENCY, [topology.name, ends]).rows)
    streams = [{**stream, "first_latency_ms": first.get(stream["sub_topology"])} for stream in model["streams"]]
    return {**model, "streams": streams, "page": None if url is None else f"{url}{PAGES}{topology.name}"}


def as_text(models: Iterable[Mapping[str, object]]) -> str:
    """A line per stream, then one per topology that says how it is doing, and why."""
    rows, lines = [], []
    for model in models:
        page = model["page"] or "-"
        rows += [_cells(model["topology"], stream, page) for stream in _list(model["streams"])]
        lines.append(one_line(f"{model['topology']}: {_standing(model)}"))
    return "\n".join([aligned(COLUMNS, rows), *lines]) if rows else "there is no topology that can be used"


def _cells(topology: object, stream: Row, page: object) -> tuple[object, ...]:
    first = stream["first_latency_ms"]
    name = f"{topology}/{stream['sub_topology']}"
    return name, stream["state"], stream["records_in"], "-" if first is None else for_people(first), page


def _standing(model: Mapping[str, object]) -> str:
    cause = model["cause"]
    if not isinstance(cause, Mapping):
        return str(model["verdict"])
    return f"{model['verdict']}: {cause['seen']}; {cause['remedy']}"


def _list(value: object) -> list[Row]:
    return value if isinstance(value, list) else []
