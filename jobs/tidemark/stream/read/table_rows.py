"""The rows of tables and of CSV files, as Spark has them, in the types that a source declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.spec.operators import Source
from tidemark.stream.read.fitting import require_fitting, require_there

_ISO_8601 = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"
_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""How JSON has a timestamp; without this Spark leaves out what is below a millisecond."""


def table_rows(raw: DataFrame, source: Source, *, texts: bool = False) -> DataFrame:
    """The *raw* rows, with columns and `written`, for read/parsing.py: `value` is a JSON object of the columns.

    With *texts* all columns are text, to be read as what is declared. Raises InvalidArgument when a declared column is
    missing or of a type that does not fit.
    """
    columns = StructType([column for column in raw.schema if column.name != "written"])
    types = {column.name: column.dataType.simpleString() for column in columns}
    if texts:
        require_there(types, source)
    else:
        require_fitting(types, source)
    read = {name: F.col(f"`{field}`") for name, field in source.field_of.items()}
    fields = {name: nullable(_converted(column, types[source.field_of[name]], source.fields[name]))
              for name, column in read.items()}  # fmt: skip
    if source.other_fields:
        fields[source.other_fields] = _others(columns, source.types_of_fields)
    return raw.select(
        F.lit(source.name).alias("source"),
        F.lit(0).alias("partition"),
        _json(F.struct(*(F.col(f"`{name}`") for name in columns.names))).cast("binary").alias("value"),
        _lost(source, read, fields).alias("reason"),
        F.struct(*(fields[name].alias(name) for name in source.columns)).alias(source.name),
        "written",
    )


def _lost(source: Source, read: Mapping[str, Column], fields: Mapping[str, Column]) -> Column:
    """Why a row is quarantined: a column that was *read* does not fit its type; null if all do."""
    lost = {word: F.lit(col=False) for word in ("string", "other")}
    for name, column in read.items():
        kind = "string" if source.fields[name] == "string" else "other"
        lost[kind] |= column.isNotNull() & fields[name].isNull()
    return F.when(lost["string"], "invalid_utf8").when(lost["other"], "wrong_type")


def _others(columns: StructType, declared: Collection[str]) -> Column:
    """Those of *columns* that are not *declared*, as a JSON object; null without any."""
    others = [F.col(f"`{name}`") for name in columns.names if name not in declared]
    return F.nullif(_json(F.struct(*others)), F.lit("{}")) if others else F.lit(None).cast("string")


def _json(struct: Column) -> Column:
    """*struct* as a JSON object, whose timestamps have their microseconds."""
    return F.to_json(struct, {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS})


def nullable(column: Column) -> Column:
    """*column*, which may be null by its type: pyarrow takes no struct for null whose fields may not be."""
    return F.when(column.isNotNull(), column)


def _converted(column: Column, kind: str, word: str) -> Column:
    """*column*, of Spark type *kind*, as the declared type *word*; null: does not fit.

    A timestamp is of the years 1 to 9999, and of its text the digits behind the microseconds are not looked at.
    """
    if word == "timestamp":
        text = column.rlike(_ISO_8601) if kind == "string" else F.lit(col=True)
        at = F.when(text, F.try_to_timestamp(column) if kind == "string" else column.cast(word))
        return F.when(F.year(at).between(1, 9999), at)
    return F.try_validate_utf8(column) if word == "string" else column.try_cast(word)
