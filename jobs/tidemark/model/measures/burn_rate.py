"""How fast slow records use up an error budget."""

from __future__ import annotations

from tidemark.model.measures.latency import LATENCIES
from tidemark.model.measures.limits import BURN_RATES
from tidemark.model.measures.registry import ExplainedBy, Measure, every_operator, register
from tidemark.semantics.moved import Moved

BURN_RATE = register(
    Measure(
        name="burn_rate",
        # The rate over a twelfth of the time must also reach a limit, so that an ended problem does not break the SLA.
        definition="how fast records over the threshold use up the error budget; at 1 it is used up exactly at its end",
        of="operator",
        subjects=every_operator,
        any_operator=True,
        limits=BURN_RATES,
        moves=frozenset({Moved.AGE}),
        explained=ExplainedBy.RECORDS,
        counts=(LATENCIES,),
        is_of_lateness=True,
        is_excusable=True,
        of_watched="tidemark.watch.measures:row_latencies",
    )
)
