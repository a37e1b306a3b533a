"""Answers SQL over a warehouse with DuckDB.

There is a view for each table name, over all Delta tables of that name, and there are the views of `query.views` and
`kafka_metrics`. Most queries need neither Arrow nor polars nor delta-rs, and importing them takes longer than the
answer. So functions that need them import them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import duckdb

from tidemark.errors import InvalidArgument, UnreadableFile
from tidemark.model.project.layout import CHANGES_OF
from tidemark.model.tables.catalog import TABLES
from tidemark.query import kafka_metrics, read_only
from tidemark.query.stored_tables import StoredTables
from tidemark.query.views import View, names_used_in, views
from tidemark.selection import names_in, outside
from tidemark.storage.delta.snapshots import MOST_FILES, Snapshot
from tidemark.storage.object_path import ObjectPath
from tidemark.storage.private_folder import private_folder
from tidemark.storage.warehouse import changes_of, delta_tables
from tidemark.stream.journal.layout import not_waiting

if TYPE_CHECKING:
    import polars as pl

SPARKS_WORDS = (
    "MACRO unix_millis(instant) AS epoch_ms(instant)",
    "MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000)",
    "MACRO get_json_object(text, path) AS json_extract_string(text, path)",
    "MACRO explode(list) AS unnest(list)",
    "MACRO explode(list) AS TABLE SELECT unnest(list) AS col",
    "MACRO string(bytes) AS try(decode(bytes))",
    "MACRO try_validate_utf8(text) AS text",
)
"""Macros for functions of Spark SQL that DuckDB has under other names.

With these, views and cookbook have one text for both. `try_validate_utf8(string(bytes))` is null where the bytes are no
text: in Spark the outer function makes it so, in DuckDB the inner one.
"""


LISTS = re.compile(r"\b(show|information_schema|pg_catalog|duckdb_\w+)\b", re.IGNORECASE)
"""Words of queries that may list all tables and views."""
GLOB = re.compile(r"[*?\[]")
"""Characters that make a path of files a pattern for DuckDB."""
UTC = "SET TimeZone = 'UTC'"
NO_PUSHED_JOINS = "SET disabled_optimizers = 'join_filter_pushdown'"
"""Keeps DuckDB from filtering a scan by the other side of a join.

DuckDB would give a scan of Arrow data a Bloom filter, which the scan does not implement: duckdb-python issue 463.
"""
NO_DAMAGE = (
    duckdb.CatalogException,
    duckdb.InterruptException,
    duckdb.OutOfMemoryException,
    duckdb.ParserException,
)
"""Errors of a query that no damaged table causes. A search for damage would keep an interrupted query running."""
MEMORY = "2GB"
"""Default memory of DuckDB, which spills larger intermediate results to files."""
DELTA_SCAN = "delta_scan("
"""Beginning of a scan by DuckDB's extension, which takes 0.1 s of CPU to load."""
DELTA_TYPES = {"string": "varchar", "long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
DELTA_TYPES |= {"binary": "blob", "timestamp": "timestamptz"}
DELTA_TYPES |= {word: word for word in ("float", "double", "boolean", "date")}
"""DuckDB's names of Delta's types.

Decimals have the same name in both; types with parts are made of these.
"""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query: column names, and rows of Python values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The rows, each by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Warehouse:
    """Answers queries over the Delta tables of a warehouse.

    Facts that only the journals have are included. A query opens the tables that it names, and only those of one
    topology if it asks for one. Later queries read the same versions.

    Args:
        home: the folder of the warehouse.
        topology: the tables of other topologies look empty; None for all topologies.
        only: tables at other paths look empty; None for all paths.
        memory: most memory of queries, a size of DuckDB such as 512MB. The rest is spilled to a temporary folder of
            this process.
        stored: opened tables to share with other readers, so that all of them see the same versions.
        given: by name, rows that a table has in place of its stored ones.
    """

    def __init__(
        self,
        home: Path,
        *,
        topology: str | None = None,
        only: Container[Path] | None = None,
        memory: str = MEMORY,
        stored: StoredTables | None = None,
        given: Mapping[str, pl.DataFrame] = MappingProxyType({}),
    ) -> None:
        self.stored, self._given = stored or StoredTables(), given
        self._home, self._only, self._topology, self._memory = home, only, topology, memory
        self._reads_logs, self._by_name = False, False
        self._of_topology: Warehouse | None = None
        self._opened, self._arrow = dict[str, str](), dict[str, Any]()

    @cached_property
    def tables(self) -> Mapping[str, Sequence[Path]]:
        """The paths of the tables by name, as of the first time that they were needed."""
        found: dict[str, list[Path]] = {}
        for name, paths in delta_tables(self._home, self._topology).items():
            allowed = [path for path in paths if self._only is None or path in self._only]
            if allowed:
                found[name] = allowed
        return found

    @cached_property
    def _views(self) -> Sequence[View]:
        return [view for view in [*views(), kafka_metrics.VIEW] if view.name not in self.tables]

    @cached_property
    def _selects(self) -> Mapping[str, Callable[[], str]]:
        return selects_of(self.tables, self._from) | {name: partial(self._given_rows, name) for name in self._given}

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return _connect(self._home, self._memory)

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> QueryResult:
        """Returns the answer to the query *text*.

        Raises:
            InvalidArgument: *text* has a mistake, or is not one statement that only reads.
            UnreadableFile: a table is damaged.
        """
        try:
            return self._ask(text, parameters)
        except UnreadableFile:
            raise
        except Exception as error:
            if not _may_be_damage(error):
                raise
            from tidemark.storage.delta.data_files import naming_damage

            with naming_damage(lambda: self._paths_in(text)):
                raise

    def _ask(self, text: str, parameters: Sequence[Any]) -> QueryResult:
        try:
            read_only.check(self._connection, text, self._selects)
            if (topology := self._asked_topology(text)) is not None:
                self._of_topology = Warehouse(
                    self._home,
                    topology=topology,
                    only=self._only,
                    memory=self._memory,
                    stored=self.stored,
                    given=self._given,
                )
                return self._of_topology.ask(text, parameters)
            self._open(text)
            result = self._connection.execute(text, list(parameters))
            columns = tuple(column[0] for column in result.description or ())
            return QueryResult(columns, tuple(result.fetchall()))
        except duckdb.CatalogException as error:
            msg = f"{error}\nTables and views: {', '.join(sorted(self._selects))}"
            raise InvalidArgument(msg) from error
        except duckdb.OutOfMemoryException as error:
            msg = f"the query needs more than {self._memory} of memory and the free disk space: {error}"
            raise InvalidArgument(msg) from error
        except duckdb.InterruptException as error:
            msg = "the query was interrupted"
            raise InvalidArgument(msg) from error
        except (duckdb.InternalError, duckdb.NotSupportedError) as error:
            msg = f"DuckDB {duckdb.__version__} cannot answer this query: {error}\n{text.strip()}"
            raise InvalidArgument(msg) from error
        except duckdb.Error as error:
            if self._by_name or isinstance(error, duckdb.ParserException):
                raise InvalidArgument(str(error)) from error
        self._connection, self._by_name = _connect(self._home, self._memory, reads_logs=self._reads_logs), True
        self._opened.clear()
        return self._ask(text, parameters)

    def interrupt(self) -> None:
        """Interrupts the query of another thread, which then raises InvalidArgument."""
        tables = self._of_topology or self
        tables._connection.interrupt()

    def _asked_topology(self, text: str) -> str | None:
        """Returns the only topology whose rows answer *text*, or None if other topologies may have rows for it, too."""
        table, topology = (self._topology is None and read_only.topology_of(self._connection, text)) or ("", None)
        is_ours = table in TABLES or table in {*names_in(self._views)}
        return topology if is_ours else None  # a sink's column of that name may say anything

    def _named_in(self, text: str) -> list[str]:
        """Returns the tables and views that *text* names; all if it lists them."""
        names = " ".join(self._selects) if LISTS.search(text) else text
        return names_used_in(names, self._selects.keys(), self._views)

    def _paths_in(self, text: str) -> Iterator[Path]:
        """Yields the paths of the tables that were read for *text*."""
        for path in chain.from_iterable(self.tables.get(name, ()) for name in self._named_in(text)):
            yield path
            yield path.with_name(f"{CHANGES_OF}{path.name}")

    def _open(self, text: str) -> None:
        """Creates the views that *text* names in the connection."""
        new = {name: self._selects[name]() for name in self._named_in(text) if name not in self._opened}
        if not self._reads_logs and any(DELTA_SCAN in select for select in new.values()):
            self._connection, self._reads_logs = _connect(self._home, self._memory, reads_logs=True), True
            new = self._opened | new
        for name, rows in self._arrow.items():
            self._connection.register(name, rows)
        for name, select in new.items():
            self._opened[name] = select
            self._connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS\n{select}")

    def _given_rows(self, name: str) -> str:
        self._arrow[f"given {name}"] = self._given[name].to_arrow()
        return f"SELECT * FROM {identifier(f'given {name}')}"

    def _from(self, path: Path) -> str:
        """Returns the SQL that reads the table at *path*, with the facts that only the journal of its stream has."""
        unflushed, snapshot = self.stored.unflushed(path), self.stored.snapshot(path)
        if isinstance(path, ObjectPath):
            # delta-rs reads a table in an object store as Arrow, with the credentials of the environment. DuckDB would
            # need an extension that must be downloaded, and the credentials in SQL.
            self._arrow[str(path)] = _dataset(path)
            source = identifier(str(path))
        else:
            source = _source(path, snapshot, by_name=self._by_name)
        flushed, later = unflushed.of(path, snapshot) if unflushed else (-1, {})
        if not later:
            return source
        from tidemark.stream.journal.unflushed import as_table

        self._arrow[f"unflushed {path}"] = as_table(later)
        rows = f"SELECT * FROM {identifier(f'unflushed {path}')}"
        return f"(SELECT * FROM {source} WHERE {not_waiting(path.name, flushed)} UNION ALL BY NAME {rows})"


def _may_be_damage(error: Exception) -> bool:
    """Returns True if a damaged table may be the cause of an *error* of a query."""
    if not isinstance(error, InvalidArgument):
        return True
    # Without another error as its cause, the statement was refused before any table was read.
    return error.__cause__ is not None and not isinstance(error.__cause__, NO_DAMAGE)


def _dataset(path: Path) -> Any:
    """Returns the table at *path* as an unread Arrow dataset."""
    from deltalake import DeltaTable

    from tidemark.storage.delta.datasets import dataset_of

    return dataset_of(DeltaTable(str(path)))


def selects_of(tables: Mapping[str, Sequence[Path]], read: Callable[[Path], str]) -> dict[str, Callable[[], str]]:
    """Returns, by the name of each table and view, a function that makes its SELECT.

    Tables that are not written yet are included.

    Args:
        tables: paths by name.
        read: returns the SQL that reads the table at a path.
    """
    names = dict.fromkeys(sorted({*TABLES, *tables}))
    selects: dict[str, Callable[[], str]] = {
        name: partial(_select_of_table, name, tables.get(name, ()), read) for name in names
    }
    for view in [*views(), kafka_metrics.VIEW]:
        selects.setdefault(view.name, partial(str, view.select))
    return selects


def _select_of_table(name: str, paths: Sequence[Path], read: Callable[[Path], str]) -> str:
    """Returns the SELECT of all rows of tables with one *name*."""
    # A table has all its columns before it is written.
    rows = [_empty(TABLES[name].delta_types)] if name in TABLES else []
    rows += [f"SELECT * FROM {_current(path, read)}" for path in paths]
    return "\nUNION ALL BY NAME\n".join(rows)


def _current(path: Path, read: Callable[[Path], str]) -> str:
    """Returns the SQL that reads the table at *path*, with current rows that are not merged yet."""
    changes = changes_of(path)
    if changes is None:
        return read(path)
    from tidemark.storage.delta.current_view import current_rows_sql

    return f"({current_rows_sql(path, changes, read, identifier)})"


def _source(path: Path, snapshot: Snapshot | None, *, by_name: bool = True) -> str:
    """Returns the SQL that reads the files of the local table at *path*, or the table if it has too many files."""
    # DuckDB reads the log of a table for each query, twice for the first. That takes longer than to read the rows.
    return (snapshot and rows_in_files(snapshot, by_name=by_name)) or scan_of(path)


def rows_in_files(snapshot: Snapshot, *, by_name: bool = True) -> str | None:
    """Returns the SQL that reads the files of *snapshot*, or None if DuckDB has to read the table by its log.

    It has to if there are more than MOST_FILES, and because of some names of files and types of columns.

    Args:
        snapshot: a version of a local table.
        by_name: whether files may lack columns, or have them in another order.
    """
    if len(snapshot.data_files) > MOST_FILES or GLOB.search(str(snapshot.path)):
        return None
    try:
        parts = [_empty(snapshot.columns)]
    except KeyError:  # a type that DuckDB's extension may know
        return None
    folder = snapshot.path.absolute()
    for partition, names in snapshot.files.items():
        if any(map(GLOB.search, names)):
            return None
        values = "".join(f", {_text(value or None)} AS {identifier(name)}" for name, value in partition)
        stored = outside(snapshot.columns, dict(partition))
        columns = "*" if by_name else ", ".join(map(identifier, stored))
        files = ", ".join(_text(f"{folder}/{name}") for name in names)
        # By position the query fails if a file lacks a column, but DuckDB opens no file before it reads its rows.
        how = f"union_by_name = {by_name}, hive_partitioning = false"
        parts.append(f"SELECT {columns}{values} FROM read_parquet([{files}], {how})")
    return f"({' UNION ALL BY NAME '.join(parts)})"


def scan_of(path: Path) -> str:
    """Returns the SQL that reads the table at *path*."""
    return f"{DELTA_SCAN}{literal(path)})"


def _empty(columns: Mapping[str, Any]) -> str:
    """Returns a SELECT without rows of *columns*, Delta's types by name."""
    typed = (f"CAST(NULL AS {_duckdb_type(kind)}) AS {identifier(name)}" for name, kind in columns.items())
    return f"SELECT {', '.join(typed)} WHERE false"


def _duckdb_type(kind: Any) -> str:
    """Returns DuckDB's name of a type of Delta, which is a word, or an object that describes a nested type.

    Raises:
        KeyError: DuckDB has no such type.
    """
    if isinstance(kind, str):
        return kind if kind.startswith("decimal(") else DELTA_TYPES[kind]
    match kind["type"]:
        case "array":
            return f"{_duckdb_type(kind['elementType'])}[]"
        case "map":
            return f"MAP({_duckdb_type(kind['keyType'])}, {_duckdb_type(kind['valueType'])})"
        case _:
            fields = (f"{identifier(field['name'])} {_duckdb_type(field['type'])}" for field in kind["fields"])
            return f"STRUCT({', '.join(fields)})"


def identifier(name: str) -> str:
    """Returns *name* as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(path: Path | str) -> str:
    """Returns a path or text as a literal of SQL."""
    return _text(str(path))


def _text(value: str | None) -> str:
    return "NULL::varchar" if value is None else "'" + value.replace("'", "''") + "'"


def _confining_settings(home: Path) -> Iterator[str]:
    """Yields settings by which DuckDB opens no files outside of the warehouse *home*, and loads no extension."""
    # `delta_scan`, which views use, obeys them for the rows of a table alone, and `write_blob` does not at all:
    # `read_only` refuses these in queries.
    yield "SET autoload_known_extensions = false"
    yield "SET GLOBAL python_enable_replacements = false"  # else a name may stand for a variable of this program
    if not isinstance(home, ObjectPath):
        yield f"SET allowed_directories = [{literal(home.absolute())}, {literal(home.resolve())}]"
    yield "SET enable_external_access = false"
    yield "SET lock_configuration = true"


def extension_file() -> Path:
    """Returns the path of DuckDB's extension `delta` in the installed package."""
    package = Path(str(files("duckdb_extension_delta")))
    return package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"


@lru_cache(maxsize=2)  # a process has one warehouse, but for tests
def _database(home: Path, _: Path, memory: str, *, reads_logs: bool) -> duckdb.DuckDBPyConnection:
    """Returns the DuckDB of this process over the warehouse *home*; all connections share its threads and *memory*."""
    # Its settings forbid to load an extension later, so a DuckDB that reads logs is another one.
    database = duckdb.connect()
    if reads_logs:
        database.execute(f"LOAD {literal(extension_file())}")
    database.execute("SET autoinstall_known_extensions = false")  # it would ask the network
    # In a Python that does not run a file the progress bar would be part of the output.
    database.execute("SET enable_progress_bar = false")
    database.execute(UTC.replace("SET", "SET GLOBAL"))
    database.execute(NO_PUSHED_JOINS.replace("SET", "SET GLOBAL"))
    database.execute(f"SET memory_limit = {_text(memory)}")
    # The operating system caches the files of this machine.
    database.execute("SET enable_external_file_cache = false")
    # Only this user can read what is spilled. DuckDB would put it into the current folder, where others may.
    database.execute(f"SET temp_directory = {literal(private_folder('tidemark-sql-'))}")
    for statement in _confining_settings(home):
        database.execute(statement)
    return database


def _connect(home: Path, memory: str, *, reads_logs: bool = False) -> duckdb.DuckDBPyConnection:
    """Returns a new connection, which alone sees the views made in it."""
    paths = (home, home) if isinstance(home, ObjectPath) else (home.absolute(), home.resolve())
    with _ONE_AT_A_TIME:
        connection = _database(*paths, memory, reads_logs=reads_logs).cursor()
    for word in SPARKS_WORDS:
        connection.execute(f"CREATE TEMP {word}")
    return connection


_ONE_AT_A_TIME = Lock()
"""Gives simultaneous first connections the same DuckDB."""
