"""Selects entries of mappings and values of sequences."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Named(Protocol):
    """A value with a name: an operator, a table, a column."""

    @property
    def name(self) -> str:
        """The name."""


N = TypeVar("N", bound=Named)


def names_in(values: Iterable[Named]) -> list[str]:
    """Returns the names of *values*, in their order."""
    return [value.name for value in values]


def index_by_name(values: Iterable[N]) -> dict[str, N]:
    """Returns *values* by their names."""
    return {value.name: value for value in values}


def pick(entries: Mapping[K, V], keys: Container[K]) -> dict[K, V]:
    """Returns the *entries* with one of *keys*, in their order."""
    return {key: value for key, value in entries.items() if key in keys}


def omit(entries: Mapping[K, V], keys: Container[K]) -> dict[K, V]:
    """Returns the *entries* without *keys*, in their order."""
    return {key: value for key, value in entries.items() if key not in keys}


def present(values: Iterable[V | None]) -> list[V]:
    """Returns the *values* that are not None."""
    return [value for value in values if value is not None]


def within(values: Iterable[V], chosen: Container[V]) -> list[V]:
    """Returns those *values* that are *chosen*, in their order."""
    return [value for value in values if value in chosen]


def outside(values: Iterable[V], excluded: Container[V]) -> list[V]:
    """Returns those *values* that are not *excluded*, in their order."""
    return [value for value in values if value not in excluded]


def in_order_of(keys: Iterable[K], entries: Mapping[K, V]) -> dict[K, V]:
    """Returns the *entries* of *keys*, in the order of *keys*.

    Raises:
        KeyError: a key has no entry.
    """
    return {key: entries[key] for key in keys}
