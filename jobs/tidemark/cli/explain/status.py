"""`tidemark status`: shows the streams of a project.

The output has their progress, and the causes of missing results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import tidemark.cli.shared.one_thread  # noqa: F401 - first, before others import polars
from tidemark.cli.shared.local import Home, airflow
from tidemark.cli.shared.options import add_format, place
from tidemark.cli.shared.output import say, say_inert
from tidemark.cli.shared.streams import valid_topologies
from tidemark.clock import wall_clock_ms
from tidemark.collecting import names_in, omit, outside
from tidemark.errors import InvalidArgument, UnreadableFile
from tidemark.escaping import one_line
from tidemark.facts.answers import Row
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import for_people
from tidemark.model.sla_spec import known_slas
from tidemark.model.topology import Topology, load_each, name_in
from tidemark.query.text_table import as_document, format_table
from tidemark.recorded.queries import FILE, load_each_recorded, read_query
from tidemark.reports.pages.topology_state import PageVerdict, TopologyState, broken_slas, told_cause
from tidemark.semantics.liveness import Liveness
from tidemark.storage.delta.data_files import naming_damage
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
    told = page_model if options.format == "json" else TopologyState.summary
    models = documents(Home(options.home.resolve()), place(options), chosen.values(), told)
    broken = {label: str(each) for label, each in chosen.items() if not isinstance(each, Topology)}
    if options.format == "json":
        say_inert(as_document({"topologies": models, "broken": broken}))
    else:
        say_inert("\n".join([as_text(models), *broken.values()]))
    has_damage = any("error" in model for model in models)
    streams = [stream for model in models for stream in _list(model["streams"])]
    has_run = any(stream["state"] != Liveness.NEVER_STARTED for stream in streams)
    if has_damage or has_run or (broken and not models):
        return 0
    # Most often the streams write elsewhere.
    found = "there is no such folder" if is_missing(layout.warehouse) else "no stream has run there"
    say(f"looked into the warehouse {layout.warehouse}: {found}; --warehouse names another one", sys.stderr)
    return 1


def page_model(state: TopologyState) -> Row:
    """Returns the whole page model of *state*."""
    # The text needs none of these, and to import them takes as long as to tell of two topologies.
    from tidemark.facts.answers import answers_over
    from tidemark.reports.pages.page_model import document
    from tidemark.reports.promises import promises

    tables = answers_over(state.layout.warehouse, state.topology.name, stored=state.stored)
    return document(tables, state, promises(known_slas(state.topology).specs))


def documents(
    home: Home,
    warehouse: Path,
    topologies: Iterable[object],
    told: Callable[[TopologyState], Row] = TopologyState.summary,
) -> list[Row]:
    """Returns what is *told* of valid *topologies*, each with `page` and `first_latency_ms`."""
    url = airflow.api(home.airflow).url if airflow.runs(home.airflow) else None
    return [document(warehouse, each, url, told=told) for each in topologies if isinstance(each, Topology)]


def document(
    warehouse: Path,
    topology: Topology,
    url: str | None = None,
    *,
    told: Callable[[TopologyState], Row] = page_model,
) -> Row:
    """Returns what is *told* of *topology*, with the address of its `page` below *url*.

    If one of its tables is damaged, the model has the `error` and no streams.
    """
    page = None if url is None else f"{url}{PAGES}{topology.name}"
    try:
        return {**_model(warehouse, topology, told), "page": page}
    except UnreadableFile as error:
        verdict, state = PageVerdict.UNREADABLE.value, Liveness.UNKNOWN.value
        return {
            "topology": topology.name,
            "verdict": verdict,
            "state": state,
            "error": str(error),
            "streams": [],
            "page": page,
        }


def _model(warehouse: Path, topology: Topology, told: Callable[[TopologyState], Row]) -> Row:
    """Returns what is *told* of *topology*.

    Each stream has its first latency, `first_latency_ms`, that of a query of a job of its present checkpoint, and how
    many keys have several rows in the Delta tables that it joins, `ambiguous_keys`; None where it joins none.
    """
    state = TopologyState(Stored(), Layout(warehouse), topology, at_ms=wall_clock_ms())
    model = told(state)
    with naming_damage(state.scene.tables):
        return {**model, "streams": [*_streams(state, model["streams"])]}


def _streams(state: TopologyState, streams: Sequence[Row]) -> Iterator[Row]:
    topology = state.topology
    for sub, stream in zip(topology.sub_topologies, streams, strict=True):
        facts = state.scene.facts[sub.name]
        # What a repartition sends on is no result, unless the stream has no other.
        results = [name for name in sub.terminals() if not topology.operators[name].hop_table]
        query = read_query(facts.control / FILE) if topology.jobs else None
        first_ms = facts.first_latency_ms(results or sub.terminals(), since=query.first_batch if query else 0)
        yield {**stream, "first_latency_ms": first_ms, "ambiguous_keys": facts.driver.ambiguous_keys}


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
                    f"{name}: {keys:,} key{'s' * (keys != 1)} with several rows in Delta tables that it joins; the "
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
        dag = f"tidemark_{model['topology']}_sla_check"
        when = "yet" if model["slas"]["checked_at"] is None else "lately"
        if model["slas"]["is_overdue"]:
            reasons += [f"its SLAs were not checked {when}: the DAG {dag} does so, unless it is paused"]
        else:
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
