"""Answers SQL over a warehouse with DuckDB (ring 2).

There is a view per table name, over all Delta tables of that name, and those of `warehouse.views` and `kafka_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from tidemark.cli import kafka_metrics, read_only
from tidemark.datasets import dataset_of
from tidemark.delta import BIGINT
from tidemark.errors import InvalidArgument
from tidemark.object_path import ObjectPath
from tidemark.spec.tables import TABLES, Table
from tidemark.warehouse import delta_tables, views

SPARKS_WORDS = (
    "MACRO unix_millis(instant) AS epoch_ms(instant)",
    "MACRO get_json_object(text, path) AS json_extract_string(text, path)",
)
"""Functions of Spark SQL for which DuckDB has other names; with these, views and cookbook are one text for both."""


UTC = "SET TimeZone = 'UTC'"
INSTANT = PrimitiveType("timestamp")


@dataclass(frozen=True)
class Answer:
    """What a query gives: column names, and rows of Python values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The rows, each by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Warehouse:
    """Read access to the Delta tables under *home*, as they are when it is made.

    With *names*, or places *only*, the other tables look empty: one with many commits costs some 20 ms, and one that
    cannot be read raises.
    """

    def __init__(self, home: Path, names: Container[str] | None = None, *, only: Container[Path] | None = None) -> None:
        self.tables = {
            name: asked
            for name, paths in delta_tables(home).items()
            if (asked := [path for path in paths if only is None or path in only]) and (names is None or name in names)
        }
        self._connection = _connect(self.tables, home)

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Answer:
        """The answer to *text*, one statement that reads; InvalidArgument for any other, and for a mistake in it."""
        try:
            read_only.check(self._connection, text)
            result = self._connection.execute(text, list(parameters))
            columns = tuple(column[0] for column in result.description or ())
            return Answer(columns, tuple(result.fetchall()))
        except duckdb.CatalogException as error:
            found = self._connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1")
            msg = f"{error}\nTables and views: {', '.join(name for (name,) in found.fetchall())}"
            raise InvalidArgument(msg) from error
        except duckdb.Error as error:
            raise InvalidArgument(str(error)) from error


def statements(
    found: Mapping[str, Sequence[Path]], create: str = "CREATE", read: Callable[[Path], str] | None = None
) -> list[str]:
    """What makes a DuckDB connection one over the tables *found*, those not written yet, and views.

    With `CREATE TEMP` they are that connection's alone. Its time zone must be UTC.
    *read* says how a table is read.

    The extension `delta` is loaded before. A table in an object store is a view of its own, made before: `in_objects`.
    """
    rows = {name: [_no_rows(table)] for name, table in TABLES.items()}
    for name, paths in found.items():
        in_ms = _in_ms(paths) if name not in TABLES else {}
        rows.setdefault(name, []).extend(
            f"SELECT *{_as_instants(in_ms.get(path, ()))} FROM {(read or _from)(path)}" for path in paths
        )
    made = {name: "\nUNION ALL BY NAME\n".join(parts) for name, parts in sorted(rows.items())}
    made |= {view.name: view.select for view in [*views(), kafka_metrics.VIEW] if view.name not in found}
    return [
        *(f"{create} {word}" for word in SPARKS_WORDS),
        *(f"{create} VIEW {_named(name)} AS\n{text}" for name, text in made.items()),
    ]


def _in_ms(paths: Sequence[Path]) -> dict[Path, list[str]]:
    """Per table of a name the columns that an older version created as epoch ms, and that are timestamps in others."""
    if len(paths) < 2:
        return {}
    types = {path: {field.name: field.type for field in DeltaTable(str(path)).schema().fields} for path in paths}
    instants = {name for columns in types.values() for name, kind in columns.items() if kind == INSTANT}
    return {path: [name for name in columns if name in instants and columns[name] == BIGINT]
            for path, columns in types.items()}  # fmt: skip


def _as_instants(columns: Sequence[str]) -> str:
    shown = ", ".join(f"make_timestamptz({_named(column)} * 1000) AS {_named(column)}" for column in columns)
    return f" REPLACE ({shown})" if columns else ""


def attach_script(home: Path) -> str:
    """SQL that makes another DuckDB one over the tables that the warehouse *home* has now.

    It needs no download: DuckDB's extension for Delta is that of the installed package. Paths of tables are relative to
    the variable `warehouse`, so that the script still works when the folder was moved.
    Raises InvalidArgument for a warehouse in an object store.
    """
    if isinstance(home, ObjectPath):
        msg = f"{home}: a script is for tables on this machine; ask with tidemark sql, or copy the warehouse here first"
        raise InvalidArgument(msg)
    place = home.resolve()
    found = delta_tables(place)
    made = statements(found, read=lambda path: _from_variable(path.relative_to(place)))
    settings = [f"LOAD {_quoted(_extension())}", UTC, _where(place, found)]
    return _SCRIPT_HEAD + ";\n".join([*settings, *made, ""])


_SCRIPT_HEAD = f"""\
-- The tables and views of a Tidemark warehouse, for DuckDB {duckdb.__version__}. Written by `tidemark sql --script`.
-- Another version of DuckDB: put INSTALL delta; LOAD delta; in place of the first statement (this downloads).
-- The warehouse is the folder of the variable `warehouse` if it was set before; else the one below, if it is still
-- there; else the current folder.
"""


def _where(home: Path, found: Mapping[str, Sequence[Path]]) -> str:
    log = next((path for paths in found.values() for path in paths), home) / "_delta_log" / "*"
    here = f"CASE WHEN EXISTS (FROM glob({_quoted(log)})) THEN {_quoted(home)} ELSE '.' END"
    return f"SET VARIABLE warehouse = coalesce(getvariable('warehouse'), {here})"


def _from_variable(path: Path) -> str:
    return f"delta_scan(getvariable('warehouse') || {_quoted(Path('/') / path)})"


def _no_rows(table: Table) -> str:
    """A SELECT with the columns of *table*: what it has before somebody has written it, or an older version did."""
    columns = (f'CAST(NULL AS {_type(column.type)}) AS "{column.name}"' for column in table.columns)
    return f"SELECT {', '.join(columns)} WHERE false"


def _type(ddl: str) -> str:
    """DuckDB's word for a type in the words of `tables.py`, which are Spark's."""
    if not ddl.startswith("array<struct<"):
        return "timestamptz" if ddl == "timestamp" else ddl
    fields = (field.split(":") for field in ddl.removeprefix("array<struct<").removesuffix(">>").split(","))
    columns = (f'"{name}" {_type(word)}' for name, word in fields)
    return f"STRUCT({', '.join(columns)})[]"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def in_objects(found: Mapping[str, Sequence[Path]]) -> Iterator[tuple[str, ds.Dataset]]:
    """Names and rows of the tables that are in an object store.

    delta-rs reads those as Arrow, with the credentials that it has of the environment: DuckDB would need an extension
    that is not at hand without the network, and the credentials in SQL.
    """
    for path in chain.from_iterable(found.values()):
        if isinstance(path, ObjectPath):
            yield str(path), dataset_of(DeltaTable(str(path)))


def _from(path: Path) -> str:
    return _named(str(path)) if isinstance(path, ObjectPath) else f"delta_scan({_quoted(path)})"


def _confined(home: Path) -> Iterator[str]:
    """What keeps DuckDB to the files of the warehouse *home*, beside what `read_only` refuses: no other, no extension.

    `delta_scan`, which the views read with, heeds it for the rows of a table alone, and `write_blob` does not at all.
    """
    yield "SET autoload_known_extensions = false"
    yield "SET GLOBAL python_enable_replacements = false"  # a name is no variable of this program
    if not isinstance(home, ObjectPath):
        yield f"SET allowed_directories = [{_quoted(home.absolute())}, {_quoted(home.resolve())}]"
    yield "SET enable_external_access = false"
    yield "SET lock_configuration = true"


def _extension() -> Path:
    """DuckDB's extension `delta` in the installed package."""
    package = Path(str(files("duckdb_extension_delta")))
    return package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"


@lru_cache(maxsize=1)  # a process has one warehouse, but for tests
def _database(home: Path, *_: Path) -> duckdb.DuckDBPyConnection:
    """The one DuckDB of this process over the warehouse *home*: all who ask share its threads and its memory."""
    database = duckdb.connect()
    database.execute(f"LOAD {_quoted(_extension())}")
    database.execute("SET autoinstall_known_extensions = false")  # it would ask the network
    database.execute("SET enable_progress_bar = false")  # it would be part of the answer, in Python that reads no file
    database.execute(UTC.replace("SET", "SET GLOBAL"))
    for statement in _confined(home):
        database.execute(statement)
    return database


def _connect(found: Mapping[str, Sequence[Path]], home: Path) -> duckdb.DuckDBPyConnection:
    """A connection of its own to the DuckDB of this process: what it makes here nobody else sees."""
    with _ONE_AT_A_TIME:
        connection = _database(
            *([home] if isinstance(home, ObjectPath) else [home.absolute(), home.resolve()])
        ).cursor()
    for name, rows in in_objects(found):
        connection.register(name, rows)
    for statement in statements(found, "CREATE TEMP"):
        connection.execute(statement)
    return connection


_ONE_AT_A_TIME = Lock()
"""Two who ask first at the same time get the same DuckDB."""
