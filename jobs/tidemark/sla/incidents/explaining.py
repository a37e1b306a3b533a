"""Explains broken promises: the one place from which checks, incidents and alerts have their causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tidemark.account.explanation import Explanation
from tidemark.facts.answers import Tables
from tidemark.model.project.layout import Layout
from tidemark.model.sla_events import AlertCause
from tidemark.model.topology import Topology
from tidemark.sla.incidents.culprits import with_culprits
from tidemark.sla.incidents.roots import with_roots
from tidemark.sla.measures.status import RootCause, Status


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Why a promise is broken.

    Attributes:
        causes: the causes, that which explains most results first; empty: none is known.
        culprit: the operator, input or cause to look at; None: none is known.
        blocked_by: the first finding of `tidemark why`; None: there is none.
        age_ms: the age of the oldest window that broke the promise; None: it is about no windows.
    """

    causes: tuple[AlertCause, ...] = ()
    culprit: str | None = None
    blocked_by: str | None = None
    age_ms: int | None = None


Explain: TypeAlias = Callable[[Status], Explained]
"""Explains a promise that is broken according to its status."""


def causes_of(explanation: Explanation, topology: str) -> tuple[AlertCause, ...]:
    """Returns the causes in an *explanation* of a promise of *topology*: its leaves, in their order.

    The account calls each stream TOPOLOGY/STREAM, and a cause only those of another topology.
    """
    return tuple(
        AlertCause(
            owner=leaf.owner,
            detail=leaf.detail or None,
            stream=None if leaf.stream is None else leaf.stream.removeprefix(f"{topology}/"),
            amount_ms=leaf.amount_ms,
            records=leaf.records,
            share=leaf.share,
            results=leaf.touched,
            broken=explanation.broken,
            since_ms=leaf.since_ms,
        )
        for leaf in explanation.leaves
    )


def explainer(judged: Sequence[Status], topology: Topology, layout: Layout, tables: Tables, *, at_ms: int) -> Explain:
    """Returns what explains the broken promises of one check.

    Args:
        judged: the statuses of all promises at *at_ms*: what is unexplained has the cause of another one upstream.
        topology: that promises them.
        layout: of the warehouse.
        tables: of the warehouse.
        at_ms: the instant of the check, epoch ms.
    """

    @cache
    def guessed() -> dict[str, Status]:
        blamed = with_culprits(judged, topology, layout, tables, at_ms=at_ms)
        return {status.spec.name: status for status in with_roots(blamed, topology)}

    def explain(status: Status) -> Explained:
        found = guessed()[status.spec.name]
        return Explained(
            causes=() if found.root is None else (_cause_of(found.root),),
            culprit=found.culprit,
            blocked_by=found.blocked_by,
            age_ms=found.age_ms,
        )

    return explain


def _cause_of(root: RootCause) -> AlertCause:
    detail = root.operator if root.partition is None else f"{root.operator}/{root.partition}"
    return AlertCause(owner=root.cause, detail=detail, stream=root.sub_topology, since_ms=root.since_ms)
