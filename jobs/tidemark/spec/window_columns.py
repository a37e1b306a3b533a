"""Which columns of an operator's records are bounds of windows, and of which aggregate's windows its records tell.

The engine and SQL have bounds in epoch ms; sinks write them as timestamps, and say of each row whether it is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import (
    Aggregate,
    Join,
    KeyedTable,
    Map,
    Operator,
    Repartition,
    Shape,
    SinkWindow,
    Union,
)

START, END = "window_start", "window_end"
TAKES_ONE = frozenset({"min", "max", "first", "last"})
"""Functions whose result is one of the values that they read."""


@dataclass(frozen=True)
class WindowColumns:
    """By column START or END, and the aggregate of whose windows the records tell, one record per result."""

    bounds: Mapping[str, str] = field(default_factory=dict)
    aggregate: Aggregate | None = None


def window_columns(operator: Operator, operators: Mapping[str, Operator]) -> WindowColumns:
    """The bounds in the records of *operator*, one of *operators*."""
    read = [window_columns(operators[name], operators) for name in operator.inputs]
    match operator:
        case Aggregate():
            return WindowColumns(_of_results(operator, read[0].bounds), operator if operator.windows else None)
        case Map() if operator.select:
            return WindowColumns(_selected(operator.select, read[0].bounds), read[0].aggregate)
        case KeyedTable():
            kept = _among((*operator.key, *operator.columns), read[0].bounds) if operator.columns else read[0].bounds
            is_per_window = any(kept.get(column) == START for column in operator.key)
            return WindowColumns(kept, read[0].aggregate if is_per_window else None)
        case Repartition():
            kept = _among((*operator.key, *operator.columns, *operator.id), read[0].bounds)
            return WindowColumns(kept, None if operator.id else read[0].aggregate)
        case Join() if operator.table is not None:
            joined = window_columns(operators[operator.table], operators).bounds
            return WindowColumns({**joined, **read[0].bounds}, read[0].aggregate)
        case Union():
            return _common(read)
    return read[0] if read else WindowColumns()


def sink_window(columns: WindowColumns) -> SinkWindow | None:
    """What a sink that reads records with *columns* knows of the windows of its rows; None: they are of none."""
    aggregate = columns.aggregate
    if aggregate is None or aggregate.windows is None:
        return None
    named = {kind: column for column, kind in columns.bounds.items()}
    windows, is_closed = aggregate.windows, aggregate.emission.strategy is Strategy.ON_WINDOW_CLOSE
    column, before_ms = named.get(END), 0
    if column is None and windows.shape is not Shape.SESSION and windows.timezone is None:
        column, before_ms = named.get(START), windows.size_ms
    return SinkWindow(windows=windows, is_closed=is_closed, column=column, before_ms=before_ms)


def _of_results(aggregate: Aggregate, read: Mapping[str, str]) -> dict[str, str]:
    own = {START: START, END: END} if aggregate.windows else {}
    kept = _among(aggregate.key, read)
    taken = {
        name: read[of] for name, (function, of) in aggregate.aggregates.items() if function in TAKES_ONE and of in read
    }
    shown = {START: START} if aggregate.windows else {}
    return kept | shown | _selected(aggregate.select, kept | taken | own)


def _selected(select: Mapping[str, str], read: Mapping[str, str]) -> dict[str, str]:
    return {column: read[sql.strip()] for column, sql in select.items() if sql.strip() in read}


def _among(columns: tuple[str, ...], read: Mapping[str, str]) -> dict[str, str]:
    return {column: kind for column, kind in read.items() if column in columns}


def _common(read: list[WindowColumns]) -> WindowColumns:
    first, *others = read
    bounds = {c: kind for c, kind in first.bounds.items() if all(o.bounds.get(c) == kind for o in others)}
    aggregates = [each.aggregate for each in read]
    of_one = len({(a.windows, a.emission.strategy) if a else None for a in aggregates}) == 1
    return WindowColumns(bounds, aggregates[0] if of_one else None)
