"""What the things that a stream keeps mean: its checkpoint by position, its memory and its tables by name.

Purpose: a topology file may change between two drivers, and the next one goes on from what the last one kept. Under one
name that must mean one thing: the sum of a column is no part of its maximum.

How it works: the driver notes the meanings in its control folder once it was found sound (`Control.keep_meanings`);
those of operators that are gone stay noted, for so do their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.spec.connections import DEFAULT
from tidemark.spec.operators import Aggregate, HopSource, KeyedTable, Map, NewestBy, Operator, Repartition, Sink, Source
from tidemark.spec.topology import SubTopology

SOURCES = "its sources"


def meanings(sub: SubTopology) -> dict[str, str]:
    """For each thing that *sub* keeps, by name, what it means, in words that differ when the meaning does."""
    sources = [f"{o.name} ({_where(o)})" for o in sub.sources]
    found = {SOURCES: ", ".join(sources)}
    for operator in sub.operators:
        found |= _of(operator)
    return found


def changed(kept: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What means something else *now* than what was *kept*, a line each."""
    return [f"{name}: was {kept[name]}, is {now[name]}" for name in kept if name in now and kept[name] != now[name]]


def shares_sources(kept: Mapping[str, str], sub: SubTopology) -> bool:
    """Return whether the stream of the *kept* meanings reads a topic, folder or hop that *sub* reads."""
    sources = sub.sources
    return any(f"({_where(source)})" in kept.get(SOURCES, "") for source in sources)


def _where(source: Source | HopSource) -> str:
    if isinstance(source, HopSource):
        return f"hop of {source.repartition}"
    cluster = "" if source.kafka == DEFAULT else f" of cluster {source.kafka}"
    return f"topic {source.topic}{cluster}" if source.topic else f"folder {source.delta or source.files}"


def _of(operator: Operator) -> dict[str, str]:
    at = f"operators.{operator.name}"
    match operator:
        case KeyedTable():
            newest = ", the newest by event time" if operator.newest_by is NewestBy.EVENT_TIME else ""
            return {at: f"a table by {_listed(operator.key)}{newest}"}
        case Map() if operator.emission is not None:
            return {
                at: f"a map that judges by {_listed(operator.key)} whether {operator.identity or 'its columns'} changed"
            }
        case Repartition():
            id_, key = _listed(operator.id) if operator.id else "no id", _listed(operator.key)
            return {at: f"a repartition of {id_} by {key} into {operator.partitions}"}
        case Aggregate():
            windows = operator.windows
            over = f"{windows.shape} of {windows.size_ms}/{windows.hop_ms}+{windows.offset_ms} ms" if windows else "no"
            over += f" in {windows.timezone}" if windows and windows.timezone else ""
            values = {
                f"{at}.aggregates.{name}": f"{function}({column})"
                for name, (function, column) in operator.aggregates.items()
            }
            return {at: f"an aggregate by {_listed(operator.key)} over {over} windows", **values}
        case Sink(table=str() as table):
            by = f"the current row of {_listed(operator.key)}" if operator.key else "every row"
            return {f"the table {table}": by}
        case _:
            return {}


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "no column"
