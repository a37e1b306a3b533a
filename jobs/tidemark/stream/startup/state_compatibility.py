"""Describes what the names mean under which a stream keeps states and rows.

Purpose: a topology file may change between two drivers, and the next one continues from what the last one kept. For
that a name must keep its meaning: a maximum cannot continue from the sum of a column.

How it works: the driver notes the meanings in its control folder once the stream was found sound
(`Control.keep_meanings`). Those of removed operators stay, because their rows stay, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.kernels.columns.schemas import type_word
from tidemark.model.topology import SubTopology
from tidemark.selection import within
from tidemark.storage.delta.types import ChangedMeaning, TypesChanged
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps


def meanings(sub: SubTopology) -> dict[str, str]:
    """Returns the meaning of what *sub* keeps, by name: a text that differs when the meaning does."""
    meaning_of_names: dict[str, str] = {}
    for operator in sub.operators:
        meaning_of_names |= step_of(operator).meaning(operator)
    return meaning_of_names


def types(sub: SubTopology, steps: Steps) -> dict[str, str]:
    """Returns the type of each column that *sub* keeps, by the name of column and operator.

    A kept value of another type would be compared by another text, and retracted under another key.
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


def changed(kept: Mapping[str, str], now: Mapping[str, str]) -> list[ChangedMeaning]:
    """Returns the meanings that *now* differ from those *kept*."""
    return [ChangedMeaning(name, kept[name], now[name]) for name in within(kept, now) if kept[name] != now[name]]
