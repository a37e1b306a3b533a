"""`tidemark status`: shows the streams of a project.

The output has their progress, and the causes of missing results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import tidemark.cli.shared.one_thread  # noqa: F401 - first, before others import polars
from tidemark.cli.shared.local import Home, airflow
from tidemark.cli.shared.options import add_format, place
from tidemark.cli.shared.output import say, say_inert, say_with_commands
from tidemark.cli.shared.streams import valid_topologies
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.facts.answers import Row
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import counted, for_people
from tidemark.model.topology import Topology, load_each, name_in
from tidemark.query.text_table import as_document, format_table
from tidemark.recorded_jobs.queries import load_each_recorded
from tidemark.reports.documents.status import status_document, summary, whole
from tidemark.reports.pages.topology_state import (
    TO_START,
    PageVerdict,
    TopologyState,
    broken_slas,
    told_cause,
    unchecked_text,
)
from tidemark.safe_text import one_line
from tidemark.selection import names_in, omit, outside
from tidemark.semantics.liveness import Liveness
from tidemark.storage.delta.format import refuse_older
from tidemark.storage.location import is_missing
from tidemark.why.walk import OF_DRIVERS

NO_TOPOLOGY = (
    "there is no valid topology; `tidemark init --from-topic TOPIC` proposes one, docs/topologies.md has the keys"
)
COLUMNS = ("stream", "state", "records", "first_latency", "page")
FORMATS = ("table", "json")
PAGES = "/tidemark/pages/"
"""Path below the address of Airflow, see airflow/pages/http.py."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "topologies", nargs="*", metavar="TOPOLOGY", help="names of topologies (default: all of the project)"
    )
    add_format(parser, FORMATS)


def command(options: argparse.Namespace) -> int:
    """Show them, whether anything runs or not."""
    layout = Layout(place(options))
    refuse_older(layout.warehouse)
    files = load_each(Project.here().topologies)
    written = {path: each.name if isinstance(each, Topology) else name_in(path) for path, each in files.items()}
    recorded = omit(load_each_recorded(layout), {*written.values()})
    loaded: dict[str, object] = {**{path.name: each for path, each in files.items()}, **recorded}
    # A file that cannot be read is asked for by its own name.
    names = {path.name: {path.stem, name} for path, name in written.items()} | {name: {name} for name in recorded}
    asked = {*options.topologies}
    chosen = {label: each for label, each in loaded.items() if not asked or asked & names[label]}
    if unknown := outside(options.topologies, {name for label in chosen for name in names[label]}):
        listed = ", ".join(names_in(valid_topologies(layout))) or "none"
        msg = f"there is no topology {', '.join(unknown)}; known: {listed}"
        raise InvalidArgument(msg)
    told = whole if options.format == "json" else summary
    models = documents(Home(options.home.resolve()), place(options), chosen.values(), told)
    broken = {label: str(each) for label, each in chosen.items() if not isinstance(each, Topology)}
    if options.format == "json":
        say_inert(as_document({"topologies": models, "broken": broken}))
    else:
        say_with_commands("\n".join([as_text(models), *broken.values()]), options)
    has_damage = any("error" in model for model in models)
    streams = [stream for model in models for stream in _list(model["streams"])]
    has_run = any(stream["state"] != Liveness.NEVER_STARTED for stream in streams)
    if has_damage or has_run or (broken and not models):
        return 0
    # Most often the streams write elsewhere.
    found = "there is no such folder" if is_missing(layout.warehouse) else "no stream has run there"
    say(f"looked into the warehouse {layout.warehouse}: {found}; --warehouse names another one", sys.stderr)
    return 1


def documents(
    home: Home,
    warehouse: Path,
    topologies: Iterable[object],
    told: Callable[[TopologyState], Row] = summary,
) -> list[Row]:
    """Returns what is *told* of valid *topologies*, each with the address of its `page`, if Airflow runs in *home*."""
    url = airflow.api(home.airflow).url if airflow.runs(home.airflow) else None
    models = []
    for each in topologies:
        if isinstance(each, Topology):
            model = status_document(warehouse, each, at_ms=wall_clock_ms(), told=told)
            models.append({**model, "page": None if url is None else f"{url}{PAGES}{each.name}"})
    return models


def as_text(models: Iterable[Row]) -> str:
    """Formats a line per stream, then each topology's verdict with its reason, and what else is to be known."""
    rows, lines = [], []
    for model in models:
        page = model["page"] or "-"
        rows += [_cells(model["topology"], stream, page) for stream in _list(model["streams"])]
        lines.append(one_line(f"{model['topology']}: {_condition_text(model)}"))
        for stream in _list(model["streams"]):
            if keys := stream["ambiguous_keys"]:
                name = f"{model['topology']}/{stream['sub_topology']}"
                lines.append(
                    f"{name}: {counted(keys, 'key')} with several rows in Delta tables that it joins; the "
                    "smallest row is used, and the driver's log names the tables"
                )
    return "\n".join([format_table(COLUMNS, rows), *lines]) if lines else NO_TOPOLOGY


def _cells(topology: object, stream: Row, page: object) -> tuple[object, ...]:
    first = stream["first_latency_ms"]
    name = f"{topology}/{stream['sub_topology']}"
    return name, stream["state"], stream["records_in"], "-" if first is None else for_people(first), page


def _condition_text(model: Row) -> str:
    """Returns the verdict with its reason: broken SLAs, a finding, or both; or a damaged table."""
    if "error" in model:
        return f"{model['verdict']}: {model['error']}"
    broken, cause = broken_slas(model), told_cause(model)
    reasons = [] if broken is None else [broken]
    reasons += [f"{_place(cause)}{cause['seen']}", cause["remedy"]] if cause else []
    if model["verdict"] == PageVerdict.NOT_CHECKED:
        if unchecked := unchecked_text(model):
            reasons.append(unchecked)
        elif model["state"] not in TO_START:
            reasons += ["the newest check measured no SLA about the age of results"]
    return f"{model['verdict']}: {'; '.join(reasons)}" if reasons else str(model["verdict"])


def _place(cause: Row) -> str:
    """Returns what a finding is about: an input, or a partition of it, or an operator; empty for a driver.

    A sentence of the account names the owner itself; it is about the operator whose results are missing.
    """
    if cause["cause"] in OF_DRIVERS:
        return ""
    if cause["owner"] is not None:
        return f"{cause['operator']}: "
    place = cause["input"] or cause["operator"]
    return f"{place}: " if cause["partition"] is None else f"{place} partition {cause['partition']}: "


def _list(value: object) -> list[Row]:
    return value if isinstance(value, list) else []
