"""The kinds of operator in a topology file, by their word."""

from __future__ import annotations

from typing import TypeAlias

from tidemark.extensions import OpenList
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import DeclaredOperator
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.kinds.union import Union

Reading: TypeAlias = Source | HopSource
"""The operators with `is_source`, for exhaustive matches.

These end with `assert_never`.
"""
HandingOut: TypeAlias = Repartition | Sink
"""The operators with `hands_out`, for exhaustive matches.

These end with `assert_never`.
"""
KINDS: OpenList[type[DeclaredOperator]] = OpenList("operator kind", group="tidemark.operators")
"""The kinds by their word in a topology file."""


def register(kind: type[DeclaredOperator]) -> type[DeclaredOperator]:
    """Adds the class of a *kind* to the list, and returns it.

    The module of another package has its step (`stream.updates.step.OperatorStep`) beside it.

    Raises:
        ValueError: another kind has the word, or it reads or writes what lies outside of its sub-topology.
    """
    if kind.is_source or kind.hands_out:
        msg = f"the operator kind {kind.kind} reads or writes outside of its sub-topology, which no added kind can"
        raise ValueError(msg)
    return KINDS.register(kind.kind, kind)


for _kind in (Source, Map, KeyedTable, Join, Union, Repartition, Aggregate, Sink):
    KINDS.register(_kind.kind, _kind)
