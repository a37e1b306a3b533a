"""Reads a Delta table by each library that users read it by."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tidemark.model.tables.catalog import Table
from tidemark.query.spark import read
from tidemark.query.sql import MEMORY, _connect, _source
from tidemark.storage.delta.snapshots import snapshot_of


def of_all_types(tables: Iterable[Table]) -> list[ParameterSet]:
    """Returns *tables* as parameters.

    Those without a type of column of their own are long.
    """
    parameters, covered = [], set[str]()
    for table in sorted(tables, key=lambda table: -len({column.type for column in table.columns})):
        types = {column.type for column in table.columns}
        parameters.append(pytest.param(table, id=table.name, marks=pytest.mark.long if types <= covered else ()))
        covered |= types
    return parameters


def by_all_readers(spark: SparkSession, path: Path) -> pa.Table:
    """Returns the rows at *path*, which all readers must agree on."""
    seen = pa.table(DeltaTable(path).to_pyarrow_table())
    readers = {
        "Spark": read(spark, path).toArrow(),
        "DuckDB": _connect(path, MEMORY, reads_logs=True).execute(f"FROM delta_scan('{path}')").to_arrow_table(),
        "queries": _connect(path, MEMORY).execute(f"FROM {_source(path, snapshot_of(path))}").to_arrow_table(),
        "Polars": pl.scan_delta(str(path)).collect().to_arrow(),
    }
    for name, rows in readers.items():
        assert types_of(rows) == types_of(seen), name
        assert differences(rows, seen) == [], name
    return seen


def differences(one: pa.Table, other: pa.Table) -> list[tuple[Any, ...]]:
    """Returns up to ten rows that one has more often."""
    names = ", ".join(f'"{name}"' for name in other.column_names)
    more = f"(SELECT {names} FROM one EXCEPT ALL SELECT {names} FROM other)"
    less = f"(SELECT {names} FROM other EXCEPT ALL SELECT {names} FROM one)"
    with duckdb.connect() as calculator:
        calculator.execute("SET TimeZone = 'UTC'")
        calculator.register("one", one)
        calculator.register("other", other)
        return calculator.execute(f"FROM {more} UNION ALL FROM {less} LIMIT 10").fetchall()


def types_of(table: pa.Table) -> dict[str, str]:
    return {field.name: word(field.type) for field in table.schema}


def word(kind: pa.DataType) -> str:
    """Returns the word of `tables.py` for an Arrow type.

    Readers use one or the other of two Arrow types.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{word(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{word(field.type)}' for field in kind)}>"
    words = {
        pa.types.is_timestamp: "timestamp",
        pa.types.is_int32: "int",
        pa.types.is_int64: "bigint",
        pa.types.is_float64: "double",
        pa.types.is_boolean: "boolean",
    }
    for is_kind, named in words.items():
        if is_kind(kind):
            return named
    return "binary" if "binary" in str(kind) else "string" if "string" in str(kind) else str(kind)
