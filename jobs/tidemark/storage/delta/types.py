"""Names types of columns as Spark SQL does, and finds those that differ from what a table has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import Schema

from tidemark.collecting import within
from tidemark.errors import Contradiction
from tidemark.model.tables.catalog import DDL_TYPES


class TypesChanged(Contradiction):
    """Raised where columns have another type than what is kept of them; *changes* has a line for each."""

    def __init__(self, changes: Sequence[str]) -> None:
        remedy = "restore the previous file, or give the changed operator or table a new name in the file"
        super().__init__("; ".join((*changes, remedy)))


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


def type_changes(table: str, stored: str, declared: pa.Schema) -> list[str]:
    """Returns a line for each column of *table* that is *declared* with another type than it has.

    *stored* is the schema of the table (Delta's JSON).
    """
    was, now = _types(stored), _types(Schema.from_arrow(declared).to_json())
    changed = [name for name in within(now, was) if was[name] != now[name]]
    return [f"column {name} of the table {table}: was {was[name]}, is {now[name]}" for name in changed]


def refuse_type_changes(table: str, stored: str, declared: pa.Schema) -> None:
    """Raises TypesChanged if there are `type_changes`."""
    if changes := type_changes(table, stored, declared):
        raise TypesChanged(changes)


def _types(schema: str) -> dict[str, str]:
    return {field["name"]: type_text(field["type"]) for field in json.loads(schema)["fields"]}
