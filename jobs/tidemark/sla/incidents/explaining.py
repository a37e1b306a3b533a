"""Explains broken promises from the account of time, for checks, incidents and alerts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from tidemark.account.cause import Known, cause_in
from tidemark.account.contract import owner_of_culprit
from tidemark.account.excess import path_of
from tidemark.account.explanation import Answer, CausingOwner, Explanation, Leaf
from tidemark.account.text import told
from tidemark.account.warehouse import AccountTables
from tidemark.facts.fact_tables import Stored
from tidemark.model.measures.registry import ExplainedBy
from tidemark.model.project.layout import Layout
from tidemark.model.sla_events import AlertCause
from tidemark.model.topology import Topology
from tidemark.sla.measures.status import Status

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Why a promise is broken.

    Attributes:
        causes: the causes, that which explains most results first, and then the leaves of the account of time; empty if
            none is known.
        culprit: what to look at: what the check itself has found, else the detail of the first cause, its stream or its
            owner; None if no cause is known.
        blocked_by: why, in a sentence; None if no cause is known.
    """

    causes: tuple[AlertCause, ...] = ()
    culprit: str | None = None
    blocked_by: str | None = None


Explain: TypeAlias = Callable[[Status], Explained]
"""Explains a promise that is broken according to its status."""


def explainer(topology: Topology, layout: Layout, stored: Stored, *, at_ms: int) -> Explain:
    """Returns what explains the broken promises of one check.

    Args:
        topology: the topology that promises them.
        layout: paths of the warehouse.
        stored: the tables of the warehouse, as the check has opened them.
        at_ms: the instant of the check, epoch ms.
    """

    @cache
    def known(over_ms: int) -> Known:
        return Known(AccountTables(layout, topology, stored), at_ms, over_ms)

    def explain(status: Status) -> Explained:
        spec = status.spec
        try:
            if spec.measure.explained is ExplainedBy.CULPRIT:
                found = owner_of_culprit(topology, spec.measure, status.culprit, broken=status.records or 0)
            else:
                # What came before the end of exempt days was not judged.
                judged = replace(spec, over_ms=spec.counted_ms(at_ms)[0])
                found = cause_in(known(judged.over_ms), judged)
            # The check itself may have found a row, which group is stale, or which operator worked for too long.
            why = explained(found)
            return why if status.culprit is None else replace(why, culprit=status.culprit)
        except Exception:
            # The verdict is known without an explanation, and its alert must not wait for one.
            log.warning("%s of %s is broken, and could not be explained", spec.name, topology.name, exc_info=True)
            return Explained(culprit=status.culprit)

    return explain


def explained(found: Explanation) -> Explained:
    """Returns what checks and alerts show of an explanation."""
    if found.answer in {Answer.KEPT, Answer.NOT_KNOWN}:
        return Explained()
    causes = causes_of(found)
    culprit = next((cause.detail or cause.stream or cause.owner for cause in causes), None)
    return Explained(causes=causes, culprit=culprit, blocked_by=told(found))


def causes_of(found: Explanation) -> tuple[AlertCause, ...]:
    """Returns the causes of an explanation, and then the leaves that are no cause themselves."""
    causes = [_of_node(cause, found) for cause in found.causes]
    named = {(cause.owner, cause.detail) for cause in causes}
    leaves = [_of_leaf(leaf, found) for leaf in found.leaves if (leaf.owner, leaf.detail or None) not in named]
    return (*causes, *leaves)


def _of_node(cause: CausingOwner, found: Explanation) -> AlertCause:
    """Returns a cause with the sums of the leaves below it."""
    below = [
        leaf for leaf in found.leaves if (cause.owner, cause.detail) in path_of((leaf.owner, leaf.detail, leaf.stream))
    ]
    times = [leaf.amount_ms for leaf in below if leaf.amount_ms is not None]
    records = [leaf.records for leaf in below if leaf.records is not None]
    begun = [leaf.since_ms for leaf in below if leaf.since_ms is not None]
    streams = {leaf.stream for leaf in below}
    return AlertCause(
        owner=cause.owner,
        detail=cause.detail or None,
        stream=streams.pop() if len(streams) == 1 else None,
        amount_ms=sum(times) if times else None,
        records=sum(records) if records else None,
        share=sum(leaf.share for leaf in below) if below else None,
        results=round(cause.explained * found.broken),
        broken=found.broken,
        since_ms=min(begun) if begun else None,
    )


def _of_leaf(leaf: Leaf, found: Explanation) -> AlertCause:
    return AlertCause(
        owner=leaf.owner,
        detail=leaf.detail or None,
        stream=leaf.stream,
        amount_ms=leaf.amount_ms,
        records=leaf.records,
        share=leaf.share,
        results=leaf.touched,
        broken=found.broken,
        since_ms=leaf.since_ms,
    )
