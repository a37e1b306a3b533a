"""Warns where a sink appends an aggregate's result for every record.

That is right for a log of results. Most readers expect one row per window, or per key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.sink import Sink
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS
from tidemark.model.settings.emission import DecisionRate
from tidemark.model.topology import Topology
from tidemark.semantics.strategy import Strategy

_COARSER = re.compile(r"\b(case|if|floor|ceil|round|trunc|least|greatest)\b|[<>=%]|//", re.IGNORECASE)
"""SQL whose result may stay the same while its inputs change."""


def row_per_record(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yields each aggregate of which an appending sink gets a row per record, with a warning that says what to do."""
    operators = topology.operators
    for sink in topology.sinks:
        if sink.key:
            continue
        for aggregate, names in _appended(operators, sink.inputs[0]):
            if why := _why(aggregate):
                rows = f"the sink {sink.name} appends a row for each"
                yield aggregate.name, f"{why}, and {rows}; {_remedy(aggregate, sink, names)}"


def _appended(operators: Mapping[str, Operator], name: str) -> Iterator[tuple[Aggregate, dict[str, str]]]:
    """Yields the aggregates of whose results the operator *name* passes on each one.

    With the aggregate comes the name that each of its columns has at *name*.
    """
    operator = operators[name]
    if isinstance(operator, Aggregate):
        windows = {"window_start": "window_start"} if operator.windows else {}
        yield operator, {column: column for column in (*operator.key, *operator.select)} | windows
        return
    for read in operator.upstream_flows:
        for aggregate, names in _appended(operators, read):
            passed = operator.renamed(names)
            if passed is not None:
                yield aggregate, dict(passed)


def _why(aggregate: Aggregate) -> str | None:
    """Returns why *aggregate* sends on a result for every record, or None."""
    emission = aggregate.emission
    if emission.holds or emission.decide is DecisionRate.BATCH:
        return None
    if emission.strategy is Strategy.ON_UPDATE:
        return 'strategy = "on_update" emits a result for every record'
    for sql in aggregate.select.values():
        for name in re.findall(r"\w+", sql):
            if name not in aggregate.aggregates:
                continue
            function, of = aggregate.aggregates[name]
            if AGGREGATE_FUNCTIONS[function].changes_often and not _COARSER.search(sql):
                how = "every" if of == "*" else "nearly every"
                return f'{name} = "{function}({of})" changes with {how} record, and "on_change" emits each change'
    return None


def _remedy(aggregate: Aggregate, sink: Sink, names: Mapping[str, str]) -> str:
    rarely = (
        'strategy = "on_window_close" (one row per window)'
        if aggregate.windows
        else 'strategy = "periodic" and interval = "1 min" (one row per key and minute)'
    )
    first = f"to write fewer rows, set in [operators.{aggregate.name}] {rarely}"
    if sink.table is None:
        return first
    own = (*aggregate.key, *(("window_start",) if aggregate.windows else ()))
    key = ", ".join(f'"{names.get(column, column)}"' for column in own)
    return f'{first}, or in [operators.{sink.name}] mode = "current" and key = [{key}] (the newest row of each key)'
