"""Explains promises about rows: contracts, outcomes that do not add up, and changes of fields.

The check that finds a broken row also names its culprit: the operator or source of the row, or else the stream or the
table. Such an explanation has no length of time, since nothing is late.
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
    """Returns whose fault it is that *spec* is broken: a contract, completeness, or a promise about fields.

    The answer is what the newest check up to *at_ms* (epoch ms) has found, and NOT_KNOWN before the first check.
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
    """Returns the owner to blame for a broken promise about rows, by the *culprit* that the check has named.

    Args:
        topology: the topology that makes the promise.
        measure: what the promise is about.
        culprit: an operator, a sub-topology or a table; None if the check could not name one.
        broken: how many rows break the promise, or how many fields have changed.
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
