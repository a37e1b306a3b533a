"""How a topology is, and why: the page model, or those of its fields that a reader shows.

docs/reports.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tidemark.errors import UnreadableFile
from tidemark.facts.answers import Row, Tables, answers_over
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.topology import Topology
from tidemark.recorded_jobs.queries import FILE, read_query
from tidemark.reports.pages.topology_state import PageVerdict, TopologyState
from tidemark.semantics.liveness import Liveness
from tidemark.storage.delta.data_files import naming_damage


def page_document(tables: Tables, state: TopologyState, operator: str | None = None) -> Row:
    """Returns the page model of a *state* of the same *tables*, with the silences of its alerts.

    Each stream has its first latency, `first_latency_ms`, that of a query of a job of its present checkpoint, and how
    many keys have several rows in the Delta tables that it joins, `ambiguous_keys`; None where it joins none. With an
    *operator*, `why` has the findings about it.
    """
    return _silenced(_with_streams(_page_model(tables, state, operator), state), tables, state)


def page_line(tables: Tables, state: TopologyState) -> Row:
    """Returns the fields of `page_document` that a line of the start page shows."""
    from tidemark.reports.pages.page_model import line_of

    return _silenced(line_of(tables, state), tables, state)


def whole(state: TopologyState) -> Row:
    """Returns `page_document` of *state*."""
    return page_document(answers_over(state.layout.warehouse, state.topology.name, stored=state.stored), state)


def summary(state: TopologyState) -> Row:
    """Returns the fields of `page_document` that the text of `tidemark status` shows."""
    return _with_streams(state.summary(), state)


def status_document(
    warehouse: Path, topology: Topology, *, at_ms: int, told: Callable[[TopologyState], Row] = whole
) -> Row:
    """Returns what is *told* of *topology* at *at_ms*, epoch ms.

    If one of its tables is damaged, the document has the `error` and no streams.
    """
    try:
        state = TopologyState(Stored(), Layout(warehouse), topology, at_ms=at_ms)
        return told(state)
    except UnreadableFile as error:
        verdict, word = PageVerdict.UNREADABLE.value, Liveness.UNKNOWN.value
        return {"topology": topology.name, "verdict": verdict, "state": word, "error": str(error), "streams": []}


def _with_streams(model: Row, state: TopologyState) -> Row:
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


def _page_model(tables: Tables, state: TopologyState, operator: str | None = None) -> Row:
    # The text of `tidemark status` needs neither, and to import them takes as long as to tell of two topologies.
    from tidemark.reports.pages.page_model import document
    from tidemark.reports.promises import promises

    return document(tables, state, promises(known_slas(state.topology).specs), operator)


def _silenced(model: Row, tables: Tables, state: TopologyState) -> Row:
    from tidemark.sla.incidents.decisions import with_silences

    return {**model, "alerts": with_silences(model["alerts"], tables, state.topology.name, at_ms=state.at_ms)}
