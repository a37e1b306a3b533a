"""Explains promises about rows: contracts, outcomes that do not add up, changes of fields. They have no amount.

A check finds a row that breaks such a promise, and its culprit: the operator or source of the row, or without one the
stream or the table.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.explanation import Answer, Explanation, Leaf
from tidemark.account.moves import can_move
from tidemark.account.owners.driver import DRIVER
from tidemark.account.owners.operator import OPERATOR
from tidemark.account.owners.target import TARGET
from tidemark.account.owners.topic import TOPIC
from tidemark.account.warehouse import AccountTables
from tidemark.facts.checks import newest_check
from tidemark.model.measures.registry import Measure
from tidemark.model.settings.intervals import utc
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.moved import Moved


def owner_of_contract(tables: AccountTables, spec: SlaSpec, *, at_ms: int) -> Explanation:
    """Returns whose fault it is that *spec*, a contract, completeness or changes of fields, is broken at *at_ms*.

    It is what the newest check until then (epoch ms) found. It is not known before the first check.
    """
    is_asked = (pl.col("sla") == spec.name) & (pl.col("checked_at") <= utc(at_ms))
    columns = ("verdict", "culprit", "records")
    check = newest_check(tables.stored, tables.layout, tables.topology.name, is_asked, columns=columns)
    if check is None:
        return Explanation(answer=Answer.NOT_KNOWN)
    (result,) = check.rows
    if result["verdict"] not in BROKEN:
        return Explanation(answer=Answer.KEPT)
    return owner_of_culprit(tables.topology, spec.measure, result["culprit"], broken=result["records"] or 0)


def owner_of_culprit(topology: Topology, measure: Measure, culprit: str | None, *, broken: int = 0) -> Explanation:
    """Returns the owner of a broken promise about rows, with the *culprit* that its check found; None: it found none.

    So many rows are *broken*, or fields changed.
    """
    if culprit is None:
        return Explanation(answer=Answer.NOT_KNOWN, broken=broken)
    operator = topology.operators.get(culprit)
    if Moved.FIELDS in measure.moves:
        leaf = Leaf(owner=TOPIC, detail=culprit)
    elif operator is not None:
        stream = f"{topology.name}/{topology.sub_topology_of(culprit).name}"
        leaf = Leaf(owner=OPERATOR, detail=culprit, stream=stream)
    elif culprit in {sub.name for sub in topology.sub_topologies}:
        leaf = Leaf(owner=DRIVER, detail=f"{topology.name}/{culprit}", stream=f"{topology.name}/{culprit}")
    else:
        leaf = Leaf(owner=TARGET, detail=culprit)
    assert can_move(leaf.owner, measure)
    return Explanation(answer=Answer.EXPLAINED, leaves=(leaf,), explained=1, broken=broken, results=broken)
