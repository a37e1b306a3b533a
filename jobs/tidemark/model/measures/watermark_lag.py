"""The lag of the watermark of a source or a stream."""

from __future__ import annotations

from tidemark.model.measures.limits import LENGTHS
from tidemark.model.measures.registry import ExplainedBy, Measure, Need, register
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.moved import Moved


def _sources_and_streams(topology: Topology) -> tuple[str, ...]:
    sources = (operator.name for operator in topology.operators.values() if operator.is_source)
    return (*sources, *names_in(topology.sub_topologies))


WATERMARK_LAG = register(
    Measure(
        name="watermark_lag",
        definition="age of its watermark",
        of="source or stream",
        subjects=_sources_and_streams,
        any_operator=True,
        limits=LENGTHS,
        # As of a table that stands still.
        moves=frozenset({Moved.AGE, Moved.NUMBER}),
        explained=ExplainedBy.OPEN_RESULT,
        needs=frozenset({Need.WATERMARKS, Need.CLOCKS, Need.START}),
        is_of_lateness=True,
        is_excusable=True,
        passes_when_idle=True,
    )
)
