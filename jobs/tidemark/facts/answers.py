"""What asks SQL of a warehouse, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidemark.facts.stored_tables import StoredTables

Row = dict[str, Any]


class Rows(Protocol):
    """The answer to a query."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""

    @property
    def rows(self) -> Sequence[Sequence[Any]]:
        """Its rows."""

    @property
    def objects(self) -> list[Row]:
        """Each row by column name."""


class Tables(Protocol):
    """Answers SQL over a warehouse."""

    @property
    def tables(self) -> Mapping[str, Any]:
        """The Delta tables that have been written, by name."""

    @property
    def stored(self) -> StoredTables:
        """The same versions of the tables as frames."""

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        """Returns the answer to *text*, one statement that reads."""
