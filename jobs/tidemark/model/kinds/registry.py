"""The kinds of operator in a topology file, by their word."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import DeclaredOperator
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.kinds.union import Union

_ALL: tuple[type[DeclaredOperator], ...] = (Source, Map, KeyedTable, Join, Union, Repartition, Aggregate, Sink)

Reading: TypeAlias = Source | HopSource
"""The operators with `is_source`, for exhaustive matches.

These end with `assert_never`.
"""
HandingOut: TypeAlias = Repartition | Sink
"""The operators with `hands_out`, for exhaustive matches.

These end with `assert_never`.
"""
KINDS: Mapping[str, type[DeclaredOperator]] = MappingProxyType({kind.kind: kind for kind in _ALL})
