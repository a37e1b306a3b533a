"""Names types of columns as Spark SQL does, and finds those that differ from what a table has."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Schema

from tidemark.errors import Contradiction
from tidemark.model.tables.catalog import DDL_TYPES
from tidemark.selection import within

_KEPT = re.compile(
    r"(?:column (?P<column>.*) of )?(?:operators\.(?P<operator>\w+)(?:\.(?P<part>.*))?|the table (?P<table>.*))"
)
"""The name of something that a stream keeps: an operator, one of its values, a table, or a column of these."""


def owner_of(kept: str) -> tuple[str | None, str | None]:
    """Returns the operator, or the table, that keeps what is named *kept*.

    >>> owner_of("operators.totals.aggregates.n"), owner_of("column n of the table sums")
    (('totals', None), (None, 'sums'))
    """
    found = _parsed(kept)
    return found["operator"], found["table"]


def _parsed(kept: str) -> re.Match[str]:
    found = _KEPT.fullmatch(kept)
    assert found is not None, kept
    return found


@dataclass(frozen=True)
class ChangedMeaning:
    """What a stream keeps as `name` meant `was` when it was kept, and means `now` in the topology file."""

    name: str
    was: str
    now: str

    @property
    def of_owner(self) -> str:
        """The change in the words that follow the name of what keeps it."""
        found = _parsed(self.name)
        of = f"column {found['column']}: " if found["column"] else f"{found['part']}: " if found["part"] else ""
        return f"{of}was {self.was}, is {self.now}"

    @property
    def operator(self) -> str | None:
        """The operator that keeps it, or None if a table does."""
        return owner_of(self.name)[0]

    @property
    def table(self) -> str | None:
        """The table that keeps it, or None if an operator does."""
        return owner_of(self.name)[1]

    def __str__(self) -> str:
        return f"{self.name}: was {self.was}, is {self.now}"


class TypesChanged(Contradiction):
    """Raised where columns have another type now than their stored values have, as *changes* say."""

    def __init__(self, changes: Sequence[ChangedMeaning]) -> None:
        remedy = "restore the previous file, or give the changed operator or table a new name in the file"
        super().__init__("; ".join((*map(str, changes), remedy)))


def type_text(kind: Any) -> str:
    """Returns a type of Delta (JSON) as Spark SQL has it."""
    if isinstance(kind, str):
        return DDL_TYPES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
        case _:
            fields = (f"{field['name']}:{type_text(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(fields)}>"


def type_changes(table: str, stored: str, declared: pa.Schema) -> list[ChangedMeaning]:
    """Returns the columns of *table* that are *declared* with another type than in its *stored* schema (JSON)."""
    was, now = _types(stored), _types(Schema.from_arrow(declared).to_json())
    changed = [name for name in within(now, was) if was[name] != now[name]]
    return [ChangedMeaning(f"column {name} of the table {table}", was[name], now[name]) for name in changed]


def refuse_type_changes(table: str, stored: str, declared: pa.Schema) -> None:
    """Raises TypesChanged if a column of *table* is declared with another type than the table has."""
    if changes := type_changes(table, stored, declared):
        raise TypesChanged(changes)


def _types(schema: str) -> dict[str, str]:
    return {field["name"]: type_text(field["type"]) for field in json.loads(schema)["fields"]}
