"""Gives other DuckDB processes access to a warehouse: they run a script, or open a database file of views."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import duckdb

from tidemark.errors import InvalidArgument
from tidemark.model.project.extras import DISTRIBUTION
from tidemark.model.tables.catalog import TABLES
from tidemark.query.kafka_metrics import VIEW
from tidemark.query.sql import SPARKS_WORDS, UTC, extension_file, identifier, literal, scan_of, selects_of
from tidemark.query.views import views
from tidemark.storage.object_path import ObjectPath
from tidemark.storage.warehouse import delta_tables, no_tables

PUBLISHED = "tidemark_published"
"""Table in a published file whose one row has the warehouse, the instant of publishing and Tidemark's version."""


def attach_script(home: Path) -> str:
    """Returns SQL that gives another DuckDB access to the tables that the warehouse *home* has now.

    Paths of tables are relative to the variable `warehouse`, so that the script works after the folder was moved.

    Raises:
        InvalidArgument: the warehouse is in an object store.
    """
    folder = _local(home, "a script is")
    tables = delta_tables(folder)
    selects = selects_of(tables, lambda path: _from_variable(path.relative_to(folder)))
    macros = [f"CREATE {word}" for word in SPARKS_WORDS]
    views_of_tables = [f"CREATE VIEW {identifier(name)} AS\n{select()}" for name, select in selects.items()]
    # The script loads DuckDB's extension for Delta from an installed package, and downloads nothing.
    settings = [f"LOAD {literal(extension_file())}", UTC, _set_variable(folder, tables)]
    return _SCRIPT_HEAD + ";\n".join([*settings, *macros, *views_of_tables, ""])


_SCRIPT_HEAD = f"""\
-- The tables and views of a Tidemark warehouse, for DuckDB {duckdb.__version__}. Written by `tidemark sql --script`.
-- Another version of DuckDB: put INSTALL delta; LOAD delta; in place of the first statement (this downloads).
-- The warehouse is the folder of the variable `warehouse` if it was set before; else the one below, if it is still
-- there; else the current folder.
"""


def publish(home: Path, file: Path) -> list[str]:
    """Writes a DuckDB database with views of the warehouse *home*.

    The views read the current versions of the tables, by DuckDB's extension for Delta. They have comments. The file
    replaces an older one atomically; a reader that has the older one open goes on with it.

    Returns:
        The names of the views.

    Raises:
        InvalidArgument: the warehouse is in an object store or has no tables, or *file* is something else or open for
            writing.
    """
    folder_of_tables = _local(home, "a database file is")
    tables = delta_tables(folder_of_tables)
    if not tables:
        raise no_tables(home)
    if file.exists() and not _is_published(file):
        msg = f"{file} is not a file that `tidemark publish` wrote; give another name with --file"
        raise InvalidArgument(msg)
    selects = {name: select() for name, select in selects_of(tables, scan_of).items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
        new = Path(folder) / file.name
        with duckdb.connect(str(new)) as database:
            database.execute(f"LOAD {literal(extension_file())}")
            for word in SPARKS_WORDS:
                database.execute(f"CREATE {word}")
            for name, select in selects.items():
                database.execute(f"CREATE VIEW {identifier(name)} AS\n{select}")
            for statement in _comments(selects):
                database.execute(statement)
            written_by = literal(version(DISTRIBUTION))
            row = f"SELECT {literal(folder_of_tables)} AS warehouse, {written_by} AS version, now() AS at"
            database.execute(f"CREATE TABLE {PUBLISHED} AS {row}")
        os.replace(new, file)
    return sorted(selects)


def install_extension() -> None:
    """Installs DuckDB's extension for Delta for this user, without a download.

    From then on DuckDB loads the extension when a view needs it.
    """
    with duckdb.connect() as database:
        database.execute(f"INSTALL {literal(extension_file())}")


def _local(home: Path, what: str) -> Path:
    """Returns the resolved folder; raises InvalidArgument for an object store."""
    if isinstance(home, ObjectPath):
        msg = f"{home}: {what} for tables on this machine; use tidemark sql, or copy the warehouse here first"
        raise InvalidArgument(msg)
    return home.resolve()


def _is_published(file: Path) -> bool:
    try:
        with duckdb.connect(str(file), read_only=True) as database:
            database.execute(f"FROM {PUBLISHED}")
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException) and "lock on file" in str(error):
            msg = f"{file} is open for writing in another program; close it there, or open it read-only"
            raise InvalidArgument(msg) from error
        return False
    return True


def _comments(selects: Mapping[str, str]) -> list[str]:
    """Returns statements that describe views, and the columns of tables."""
    meaning = {view.name: view.row for view in [*views(), VIEW]} | {name: table.row for name, table in TABLES.items()}
    statements = [
        f"COMMENT ON VIEW {identifier(name)} IS {literal(f'One row per {meaning[name]}')}"
        for name in selects
        if name in meaning
    ]
    for name in selects.keys() & TABLES.keys():
        for column in TABLES[name].columns:
            column_name = f"{identifier(name)}.{identifier(column.name)}"
            statements.append(f"COMMENT ON COLUMN {column_name} IS {literal(column.comment)}")
    return statements


def _set_variable(home: Path, tables: Mapping[str, Sequence[Path]]) -> str:
    log = next(chain.from_iterable(tables.values()), home) / "_delta_log" / "*"
    here = f"CASE WHEN EXISTS (FROM glob({literal(log)})) THEN {literal(home)} ELSE '.' END"
    return f"SET VARIABLE warehouse = coalesce(getvariable('warehouse'), {here})"


def _from_variable(path: Path) -> str:
    return f"delta_scan(getvariable('warehouse') || {literal(Path('/') / path)})"
