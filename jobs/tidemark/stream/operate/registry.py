"""The kinds of operator that the engine knows, by the class that the topology file is read into."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tidemark.spec.operators import (
    Aggregate,
    HopSource,
    Join,
    KeyedTable,
    Map,
    Operator,
    Repartition,
    Sink,
    Source,
    Union,
)
from tidemark.stream.operate.aggregate import AggregateStep
from tidemark.stream.operate.join import JoinStep
from tidemark.stream.operate.map import MapStep
from tidemark.stream.operate.repartition import RepartitionStep
from tidemark.stream.operate.sink import SinkStep
from tidemark.stream.operate.source import HopSourceStep, SourceStep
from tidemark.stream.operate.step import Step
from tidemark.stream.operate.table import TableStep
from tidemark.stream.operate.union import UnionStep

STEPS: Mapping[type[Operator], type[Step[Any]]] = MappingProxyType(
    {
        Source: SourceStep,
        HopSource: HopSourceStep,
        Map: MapStep,
        KeyedTable: TableStep,
        Join: JoinStep,
        Union: UnionStep,
        Repartition: RepartitionStep,
        Aggregate: AggregateStep,
        Sink: SinkStep,
    }
)


def step_of(operator: Operator) -> type[Step[Any]]:
    """Return the step of the kind of *operator*."""
    return STEPS[type(operator)]
