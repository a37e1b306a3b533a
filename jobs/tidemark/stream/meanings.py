"""What the things that a stream keeps mean: its checkpoint by position, its memory and its tables by name.

Purpose: a topology file may change between two drivers, and the next one goes on from what the last one kept. Under one
name that must mean one thing: the sum of a column is no part of its maximum.

How it works: the driver notes the meanings in its control folder once it was found sound (`Control.keep_meanings`);
those of operators that are gone stay noted, for so do their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.spec.connections import DEFAULT
from tidemark.spec.operators import HopSource, Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.operate.registry import step_of

SOURCES = "its sources"


def meanings(sub: SubTopology) -> dict[str, str]:
    """For each thing that *sub* keeps, by name, what it means, in words that differ when the meaning does."""
    sources = [f"{o.name} ({_where(o)})" for o in sub.sources]
    found = {SOURCES: ", ".join(sources)}
    for operator in sub.operators:
        found |= step_of(operator).meaning(operator)
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
