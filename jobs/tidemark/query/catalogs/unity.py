"""Registers a warehouse in Unity Catalog.

Purpose: a Spark session, or another client of Unity Catalog, reads each table and view by its name.
How it works: a definition has a digest in its properties, so that a second call changes only what differs. Unity
Catalog cannot change a table, so a table that differs is dropped and created: its files stay, and grants on it are
lost.
What it does not do: drop tables and views of a schema that it did not create.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.query.catalogs.unity_client import Json, UnityClient
from tidemark.query.spark_views import external_names, identifier, place_of, type_text, union_of
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.snapshots import columns_of
from tidemark.storage.warehouse import delta_tables, views

WAREHOUSE, DIGEST = "tidemark.warehouse", "tidemark.digest"
"""Properties: the warehouse, and the hash of a definition."""
UTC_VIEW = {"view.sqlConfig.spark.sql.session.timeZone": "UTC"}
"""Spark reads a view with these settings."""
NAME = re.compile(r"[a-z0-9_@-]{1,255}")
"""Valid names of tables, which are in lower case.

The open server distinguishes upper and lower case, and Databricks keeps all names in lower case.
"""
TYPE_NAMES = {"bigint": "LONG", "smallint": "SHORT", "tinyint": "BYTE"}
"""Unity Catalog's words for some types of Spark SQL."""
OF_DUCKDB = {
    "BIGINT": "long",
    "HUGEINT": "long",
    "INTEGER": "integer",
    "VARCHAR": "string",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}
"""Delta's words for some types of DuckDB.

There a sum of `bigint` is a `hugeint`.
"""


class Changes(NamedTuple):
    """All names, and the numbers of created and dropped ones."""

    names: list[str]
    created: int
    dropped: int


def register_in_unity(client: UnityClient, layout: Layout, catalog: str, schema: str) -> Changes:
    """Registers tables and views of a warehouse in *schema* of *catalog*.

    They have the names of `spark_views` in lower case, with comments. Those that this warehouse registered before and
    that are gone are dropped. One name at a time is dropped and created, so that a refusal loses no other.

    Raises:
        InvalidArgument: the warehouse has no tables, two that would have one name, or a name or path that the catalog
            does not accept; there is no such catalog; or another table has one of the names.
    """
    place = place_of(layout.warehouse)
    # The server wants a valid URI, and Spark's connector does not decode one.
    if place != quote(place, safe="/:!$&'()*+,;=@~"):
        msg = f"{place} has characters that Unity Catalog does not accept in a location; move the warehouse"
        raise InvalidArgument(msg)
    wanted = _by_name([*_definitions(layout)])
    if client.catalog(catalog) is None:
        msg = f"{client.url} has no catalog {catalog!r}; create it there, or name another one with --catalog"
        raise InvalidArgument(msg)
    if client.schema(catalog, schema) is None:
        client.create_schema({"name": schema, "catalog_name": catalog, "comment": "tables and views of Tidemark"})
    existing = {each["name"]: each.get("properties") or {} for each in client.tables(catalog, schema)}
    ours = {name: properties for name, properties in existing.items() if properties.get(WAREHOUSE) == place}
    if others := sorted(existing.keys() & wanted.keys() - ours.keys()):
        problem = f"has a table {others[0]!r} that is not of {place}"
        msg = f"{catalog}.{schema} {problem}; choose another schema with --database"
        raise InvalidArgument(msg)
    kept = {name for name, properties in ours.items() if properties.get(DIGEST) == _digest(wanted.get(name))}
    new = [each for name, each in wanted.items() if name not in kept]
    for each in new:
        if each["name"] in ours:
            client.drop_table(f"{catalog}.{schema}.{each['name']}")
        properties = {**each.get("properties", {}), WAREHOUSE: place, DIGEST: _digest(each)}
        client.create_table({**each, "catalog_name": catalog, "schema_name": schema, "properties": properties})
    for name in ours.keys() - wanted.keys():
        client.drop_table(f"{catalog}.{schema}.{name}")
    return Changes(sorted(wanted), len(new), len(ours) - len(kept))


def _by_name(definitions: Sequence[Json]) -> dict[str, Json]:
    """Returns definitions by name; InvalidArgument names an invalid one."""
    for name, count in Counter(each["name"] for each in definitions).items():
        if not NAME.fullmatch(name):
            allowed = "1 to 255 of the letters a to z, digits, _, @ and -"
            msg = f"{name} is not a valid name in Unity Catalog, which allows {allowed}; rename the topology or query"
            raise InvalidArgument(msg)
        if count > 1:
            msg = f"two tables or views would have the name {name} in Unity Catalog; rename one in its topology"
            raise InvalidArgument(msg)
    return {each["name"]: each for each in definitions}


def _digest(definition: Json | None) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def _definitions(layout: Layout) -> Iterator[Json]:
    """Yields tables, and views after those that they read."""
    paths_by_name = delta_tables(layout.warehouse)
    named = external_names(layout, [path for paths in paths_by_name.values() for path in paths])
    external = {path: name.lower() for path, name in named.items()}
    for path, name in external.items():
        comments = _comments(path.name)
        columns = [_column(column, kind, comments) for column, kind in columns_of(path).items()]
        place = place_of(path) if "://" in str(path) else f"file://{place_of(path)}"
        yield {
            "name": name, "table_type": "EXTERNAL", "data_source_format": "DELTA", "storage_location": place,
            "comment": _meaning(path.name), "columns": _placed(columns),
        }  # fmt: skip
    for name in sorted({*TABLES, *paths_by_name}):
        types, select = union_of(name, paths_by_name.get(name, ()), lambda path: identifier(external[path]))
        yield _view(name, _meaning(name), types, select, _comments(name))
    warehouse = Warehouse(layout.warehouse)
    for view in views():
        if view.name not in paths_by_name:  # a table of a sink hides a view
            described = warehouse.ask(f"DESCRIBE SELECT * FROM {view.name}").rows
            types = {name: OF_DUCKDB.get(kind, kind.lower()) for name, kind, *_ in described}
            yield _view(view.name, f"One row per {view.row}", types, view.select, {})


def _view(name: str, comment: str, types: Mapping[str, Any], select: str, comments: Mapping[str, str]) -> Json:
    columns = [_column(column, kind, comments) for column, kind in types.items()]
    return {
        "name": name.lower(), "table_type": "VIEW", "comment": comment, "columns": _placed(columns),
        "view_definition": select, "properties": UTC_VIEW,
    }  # fmt: skip


def _column(name: str, kind: Any, comments: Mapping[str, str]) -> Json:
    """Returns a column whose type in Delta (JSON) is *kind*."""
    text = type_text(kind)
    word = text.partition("<")[0].partition("(")[0]
    field = {"name": name, "type": kind, "nullable": True, "metadata": {}}
    column: Json = {
        "name": name, "type_text": text, "type_json": json.dumps(field),
        "type_name": TYPE_NAMES.get(word, word.upper()), "nullable": True,
    }  # fmt: skip
    if word == "decimal":
        digits = text.removeprefix("decimal(").removesuffix(")").split(",")
        column |= dict(zip(("type_precision", "type_scale"), map(int, digits), strict=True))
    return column | ({"comment": comments[name]} if comments.get(name) else {})


def _placed(columns: list[Json]) -> list[Json]:
    return [{**column, "position": position} for position, column in enumerate(columns)]


def _meaning(name: str) -> str:
    return f"One row per {TABLES[name].row}" if name in TABLES else ""


def _comments(name: str) -> dict[str, str]:
    return {column.name: column.comment for column in TABLES[name].columns} if name in TABLES else {}
