"""Maps Spark DDL types of tables and topologies to Arrow and polars."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache

import polars as pl
import pyarrow as pa

from tidemark.model.settings.declared_fields import digits_of
from tidemark.model.tables.catalog import Column, Table

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "timestamp": UTC_TIMESTAMP,
}
INSTANT = pl.Datetime("us", "UTC")
"""The type of a field that is declared as `timestamp`: microseconds count."""
_POLARS: Mapping[str, pl.DataType] = {
    "string": pl.String(),
    "boolean": pl.Boolean(),
    "int": pl.Int32(),
    "bigint": pl.Int64(),
    "double": pl.Float64(),
    "timestamp": INSTANT,
}
HEADERS = pl.List(pl.Struct({"key": pl.String(), "value": pl.Binary()}))
META_SCHEMA: Mapping[str, pl.DataType] = {
    "_key": pl.String(),
    "_timestamp_ms": pl.Int64(),
    "_partition": pl.Int32(),
    "_offset": pl.Int64(),
    "_task": pl.Int32(),
    "_deleted": pl.Boolean(),
    "_headers": HEADERS,
    "_newest_ms": pl.Int64(),
    "_repeated": pl.Boolean(),
    "_read": pl.Int64(),
}


@cache
def arrow_type(ddl: str) -> pa.DataType:
    """Returns the Arrow type of a DDL word or of an array.

    An array has structs (`array<struct<name:word,…>>`) or words.
    """
    if ddl.startswith("array<struct<"):
        fields = (field.split(":") for field in ddl.removeprefix("array<struct<").removesuffix(">>").split(","))
        return pa.list_(pa.struct([(name, _ARROW[word]) for name, word in fields]))
    if ddl.startswith("array<"):
        return pa.list_(_ARROW[ddl.removeprefix("array<").removesuffix(">")])
    return _ARROW[ddl]


@cache
def arrow_schema(table: Table) -> pa.Schema:
    """Returns the Arrow schema of *table* with Delta's column comments."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), metadata={"comment": c.comment}) for c in table.columns])


def polars_type(word: str) -> pl.DataType:
    """Returns the polars type of a field that is declared as *word*."""
    digits = digits_of(word)
    return pl.Decimal(*digits) if digits else _POLARS[word]


def fields_schema(fields: Iterable[Column]) -> pl.Schema:
    """Returns the polars schema of the *fields* of a list of structs."""
    return pl.Schema({field.name: polars_type(field.type) for field in fields})


def type_word(kind: pl.DataType | pl.datatypes.DataTypeClass) -> str:
    """Returns the name in Spark SQL of the type *kind*; polars' own name where there is none."""
    match kind:
        case pl.List():
            return f"array<{type_word(kind.inner)}>"
        case pl.Struct():
            return f"struct<{','.join(f'{field.name}:{type_word(field.dtype)}' for field in kind.fields)}>"
        case pl.Datetime():
            return "timestamp" if kind.time_zone else "timestamp_ntz"
        case pl.Decimal():
            return f"decimal({kind.precision},{kind.scale})"
    words: dict[object, str] = {polars: word for word, polars in _POLARS.items()}
    more: dict[object, str] = {
        pl.Int8(): "tinyint",
        pl.Int16(): "smallint",
        pl.Float32(): "float",
        pl.Date(): "date",
        pl.Binary(): "binary",
    }
    return {**words, **more}.get(kind) or str(kind).lower()


def record_schema(fields: Mapping[str, str]) -> dict[str, pl.DataType]:
    """Returns the polars schema of records with payload *fields* (DDL words)."""
    return {name: polars_type(word) for name, word in fields.items()} | dict(META_SCHEMA)


def instants(ms: str | pl.Expr) -> pl.Expr:
    """Returns the column *ms*, epoch ms, as timestamps of a Delta table."""
    return pl.from_epoch(ms, time_unit="ms").dt.cast_time_unit("us").dt.replace_time_zone("UTC")


def rows_of(table: Table, rows: pa.Table | pl.DataFrame | list[dict[str, object]], **same: object) -> pa.Table:
    """Returns *rows* with the Arrow schema of *table*, and with the columns *same*, which are equal in every row.

    Columns are in the table's order, and epoch ms become timestamps, also in lists of structs. A missing column or
    field is null.

    Raises:
        KeyError: *rows* have a column or a field that the table does not have.
    """
    # Types come from all rows: a column may be null in the first hundred.
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame = frame.with_columns(pl.lit(value).alias(name) for name, value in same.items())
    if unknown := set(frame.columns) - set(table.names):
        msg = f"{table.name} has no columns {sorted(unknown)}"
        raise KeyError(msg)
    if lists := [*_with_all_fields(table, frame)]:
        frame = frame.with_columns(lists)
    arrow, wanted = frame.to_arrow(), arrow_schema(table)
    given = dict(zip(arrow.column_names, arrow.columns, strict=True))
    columns = [
        _cast(given[field.name], field.type) if field.name in given else pa.nulls(frame.height, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def _with_all_fields(table: Table, frame: pl.DataFrame) -> Iterator[pl.Expr]:
    """Yields the lists of structs in *frame* whose structs have other fields than those of *table*."""
    # polars makes a schema anew each time it is asked.
    kinds = frame.schema
    for column in table.columns:
        kind = kinds.get(column.name)
        if not isinstance(kind, pl.List) or not isinstance(kind.inner, pl.Struct):
            continue
        wanted = {field.name: field.type for field in arrow_type(column.type).value_type}
        present = {field.name: field.dtype for field in kind.inner.fields}
        if unknown := present.keys() - wanted.keys():
            msg = f"{table.name}.{column.name} has no fields {sorted(unknown)}"
            raise KeyError(msg)
        instants = {n for n in present if wanted[n] == UTC_TIMESTAMP and present[n].is_integer()}
        if instants or [*present] != [*wanted]:
            yield pl.col(column.name).list.eval(pl.struct([_field(n, present, instants) for n in wanted]))


def _field(name: str, present: Container[str], instants: Container[str]) -> pl.Expr:
    """Returns the field *name* of the elements of a list; null unless it is *present*."""
    if name not in present:
        return pl.lit(None).alias(name)
    value = pl.element().struct.field(name)
    return pl.from_epoch(value, "ms") if name in instants else value


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if wanted == UTC_TIMESTAMP and pa.types.is_integer(column.type):
        # Clocks and record times are whole ms, Delta keeps microseconds.
        column = column.cast(pa.timestamp("ms", tz="UTC"))
    return column if column.type == wanted else column.cast(wanted)
