"""Answers SQL over a warehouse with DuckDB (ring 2).

There is a view per table name, over all Delta tables of that name, and `kafka_metrics`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb

from tidemark.cli import kafka_metrics
from tidemark.errors import InvalidArgument
from tidemark.spec.layout import Layout

READ_ONLY = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})


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
    """Read access to the Delta tables under *home*, as they are when it is made; to those of *names* alone, if given.

    A table costs some 20 ms.
    """

    def __init__(self, home: Path, names: Container[str] | None = None) -> None:
        found = delta_tables(home)
        self.tables = found if names is None else {name: found[name] for name in found if name in names}
        self._connection = _connect(self.tables)

    def ask(self, text: str, parameters: Sequence[Any] = ()) -> Answer:
        """The answer to *text*, one statement that reads; InvalidArgument for any other, and for a mistake in it."""
        try:
            statements = self._connection.extract_statements(text)
            if len(statements) != 1 or statements[0].type not in READ_ONLY:
                msg = f"a query is one statement that reads, got {text!r}; start it with SELECT, WITH, FROM or DESCRIBE"
                raise InvalidArgument(msg)
            result = self._connection.execute(text, list(parameters))
            columns = tuple(column[0] for column in result.description or ())
            return Answer(columns, tuple(result.fetchall()))
        except duckdb.CatalogException as error:
            msg = f"{error}\nThe tables that have been written so far: {', '.join(sorted(self.tables)) or 'none'}"
            raise InvalidArgument(msg) from error
        except duckdb.Error as error:
            raise InvalidArgument(str(error)) from error


def delta_tables(warehouse: Path) -> Mapping[str, list[Path]]:
    """The Delta tables of *warehouse* by name; a name has one per stream, or one per topology, that writes it."""
    layout = Layout(warehouse)
    patterns = [layout.stream_table("*", "*", "*"), layout.report_table("*", "*")]
    found = defaultdict(list)
    for pattern in patterns:
        for log in sorted(warehouse.glob(str(pattern.relative_to(warehouse) / "_delta_log"))):
            found[log.parent.name].append(log.parent)
    return dict(sorted(found.items()))


def _connect(tables: Mapping[str, Sequence[Path]]) -> duckdb.DuckDBPyConnection:
    extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    connection.execute("SET autoinstall_known_extensions = false")  # it would ask the network
    connection.execute("SET TimeZone = 'UTC'")
    for name, paths in tables.items():
        scans = (f"SELECT * FROM delta_scan('{str(path).replace(chr(39), chr(39) * 2)}')" for path in paths)
        connection.execute(f'CREATE VIEW "{name}" AS {" UNION ALL BY NAME ".join(scans)}')
    if kafka_metrics.VIEW not in tables:
        connection.execute(kafka_metrics.view_sql(frozenset(tables)))
    return connection
