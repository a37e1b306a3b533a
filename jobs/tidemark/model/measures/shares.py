"""Shares of the records that an operator read: those that it could not use, and those that were late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.model.kinds.operator import Operator
from tidemark.model.measures.limits import SHARES_AT_MOST
from tidemark.model.measures.records import READ
from tidemark.model.measures.registry import OUTCOMES, Count, ExplainedBy, Measure, every_operator, register
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved


def _share(outcome: str, of: str, subjects: Callable[[Topology], tuple[str, ...]], **more: Any) -> Measure:
    return Measure(
        name=f"{outcome}_share",
        definition=f"{outcome} part of the records that it read",
        of=of,
        subjects=subjects,
        any_operator=True,
        limits=SHARES_AT_MOST,
        moves=frozenset({Moved.REFUSAL}),
        explained=ExplainedBy.NUMBERS,
        counts=(READ, Count(what=outcome, rows=OUTCOMES, at="batch_finished_at", n=f"sum({outcome})")),
        outcome=outcome,
        **more,
    )


def _with_late_records(topology: Topology) -> tuple[str, ...]:
    if topology.jobs:
        return every_operator(topology)
    return tuple(operator.name for operator in topology.operators.values() if _finds_late(operator, topology))


def _finds_late(operator: Operator, topology: Topology) -> bool:
    """Returns True if records may be late for *operator*: an aggregate, or a strict source or join."""
    joined = topology.operators.get(operator.joined_table or "")
    return operator.allowed_lateness_ms is not None or (joined is not None and joined.is_strict)


QUARANTINED_SHARE = register(_share("quarantined", "operator", every_operator))
LATE_SHARE = register(
    _share(
        "late",
        "aggregate, or strict join or source",
        _with_late_records,
        without_subjects=(
            "no operator finds records late",
            'write allowed_lateness = "1 min" at a source, or measure quarantined_share',
        ),
    )
)
