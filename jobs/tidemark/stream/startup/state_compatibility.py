"""Describes the meaning of the things that a stream keeps.

They are its checkpoint (sources are known by position), and its memory and tables (by name).

Purpose: a topology file may change between two drivers, and the next one continues from what the last one kept. A name
must keep its meaning for that: the sum of a column is no part of its maximum.

How it works: the driver notes the meanings in its control folder once it was found sound (`Control.keep_meanings`);
those of removed operators stay noted, because their rows stay too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from tidemark.kernels.columns.schemas import type_word
from tidemark.model.kinds.registry import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import DEFAULT
from tidemark.model.topology import SubTopology
from tidemark.storage.delta.types import TypesChanged
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps

SOURCES = "its sources"


def meanings(sub: SubTopology) -> dict[str, str]:
    """Returns the meaning of each thing that *sub* keeps, by name.

    The words differ when the meaning does.
    """
    # Spark's checkpoint knows sources by their position alone, so their order is a part of the meaning.
    sources = [f"{o.name} ({_where(o)})" for o in sub.sources]
    meaning_of_names = {SOURCES: ", ".join(sources)}
    for operator in sub.operators:
        meaning_of_names |= step_of(operator).meaning(operator)
    return meaning_of_names


def types(sub: SubTopology, steps: Steps) -> dict[str, str]:
    """Returns the type of each column that *sub* keeps, by the name of column and operator.

    A kept value of another type is compared by another text, and retracted under another key.
    """
    kinds: dict[str, str] = {}
    for operator in sub.operators:
        for column, kind in steps.kept_columns(operator).items():
            kinds[f"column {column} of operators.{operator.name}"] = type_word(kind)
    return kinds


def refuse_other_types(kept: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises TypesChanged if a column has another type *now* than it was *kept* with."""
    if changes := changed(kept, now):
        raise TypesChanged(changes)


def changed(kept: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns a line for each meaning that *now* differs from *kept*."""
    return [f"{name}: was {kept[name]}, is {now[name]}" for name in kept if name in now and kept[name] != now[name]]


@dataclass(frozen=True)
class OtherSources:
    """The sources that a stream `was` started with, what they are `now`, and the `new` places among these."""

    was: str
    now: str
    new: tuple[str, ...]

    @property
    def line(self) -> str:
        """The change, as a line of `changed`."""
        return f"{SOURCES}: was {self.was}, is {self.now}"


def other_sources(kept: Mapping[str, str], sub: SubTopology) -> OtherSources | None:
    """Returns how the sources of *sub* differ from those that were *kept*; None: they are the same, or none were."""
    was, now = kept.get(SOURCES), meanings(sub)[SOURCES]
    if was is None or was == now:
        return None
    places = map(_where, sub.sources)
    return OtherSources(was, now, tuple(place for place in places if f"({place})" not in was))


def shares_sources(kept: Mapping[str, str], sub: SubTopology) -> bool:
    """Returns whether a stream reads a source that *sub* reads.

    *kept* are the meanings of the stream. A source is a topic, folder or hop.
    """
    sources = sub.sources
    return any(f"({_where(source)})" in kept.get(SOURCES, "") for source in sources)


def _where(source: Reading) -> str:
    match source:
        case HopSource():
            return f"hop of {source.repartition}"
        case Source():
            cluster = "" if source.kafka == DEFAULT else f" of cluster {source.kafka}"
            if source.reads_several:
                # The order of a list changes nothing.
                return f"topics {', '.join(sorted(source.topics)) or source.topic}{cluster}"
            return f"topic {source.topic}{cluster}" if source.topic else f"folder {source.delta or source.files}"
        case _:
            assert_never(source)
