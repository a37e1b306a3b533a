"""Warns where an aggregate sends on a result for every record and a sink appends them all.

That is right for a log of results. Most readers expect one row per window, or per key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import Aggregate, Decide, HopSource, Join, Map, Operator, Repartition, Sink, Union
from tidemark.spec.topology import Topology

CHANGING = frozenset({"count", "sum", "avg"})
"""Functions whose result changes with nearly every record."""
_COARSER = re.compile(r"\b(case|if|floor|ceil|round|trunc|least|greatest)\b|[<>=%]|//", re.IGNORECASE)
"""Of SQL whose result may stay the same while what it reads changes."""


def row_per_record(topology: Topology) -> Iterator[tuple[str, str]]:
    """Each aggregate of which an appending sink gets a row per record, and the usual choices, with their keys."""
    operators = topology.operators
    for sink in operators.values():
        if not isinstance(sink, Sink) or sink.key:
            continue
        for aggregate, names in _appended(operators, sink.inputs[0]):
            if why := _why(aggregate):
                rows = f"the sink {sink.name} appends a row each time"
                yield aggregate.name, f"{why}, and {rows}; {_remedy(aggregate, sink, names)}"


def _appended(operators: Mapping[str, Operator], name: str) -> Iterator[tuple[Aggregate, dict[str, str]]]:
    """The aggregates whose results *name* hands on one by one, each with the name there of each of its columns."""
    operator = operators[name]
    match operator:
        case Aggregate():
            windows = {"window_start": "window_start"} if operator.windows else {}
            yield operator, {column: column for column in (*operator.key, *operator.select)} | windows
        case Map(emission=None):
            for aggregate, names in _appended(operators, operator.inputs[0]):
                passed = {sql.strip(): column for column, sql in operator.select.items()} if operator.select else None
                yield aggregate, names if passed is None else {c: passed[n] for c, n in names.items() if n in passed}
        case HopSource():
            yield from _appended(operators, operator.repartition)
        case Join() | Union() | Repartition(id=()):
            for read in operator.flows:
                yield from _appended(operators, read)


def _why(aggregate: Aggregate) -> str | None:
    """Why *aggregate* sends on a result for every record; None: it does not."""
    emission = aggregate.emission
    if emission.holds or emission.decide is Decide.BATCH:
        return None
    if emission.strategy is Strategy.ON_UPDATE:
        return 'strategy = "on_update" sends on a result for every record'
    for sql in aggregate.select.values():
        for name in re.findall(r"\w+", sql):
            function, of = aggregate.aggregates.get(name, ("", ""))
            if function in CHANGING and not _COARSER.search(sql):
                how = "every" if of == "*" else "nearly every"
                return f'{name} = "{function}({of})" changes with {how} record, and "on_change" sends on each change'
    return None


def _remedy(aggregate: Aggregate, sink: Sink, names: Mapping[str, str]) -> str:
    rarely = (
        'strategy = "on_window_close" (one row per window)'
        if aggregate.windows
        else 'strategy = "periodic" and interval = "1 min" (one row per key and minute)'
    )
    first = f"if that is not meant, set in [operators.{aggregate.name}] {rarely}"
    if sink.table is None:
        return first
    own = (*aggregate.key, *(("window_start",) if aggregate.windows else ()))
    key = ", ".join(f'"{names.get(column, column)}"' for column in own)
    return f'{first}, or in [operators.{sink.name}] mode = "current" and key = [{key}] (the newest row of each key)'
