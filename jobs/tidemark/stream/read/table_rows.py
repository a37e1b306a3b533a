"""Converts the columns of tables to the types that a source declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import path_of, steps, whole_fields
from tidemark.stream.read.fitting import require_fitting

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""The format of timestamps in JSON. By default Spark omits what is below a millisecond."""


def table_rows(raw: DataFrame, source: Source) -> DataFrame:
    """Returns the *raw* rows of a table in the form that read/parsing.py reads.

    The declared columns are in a struct, and `value` is a JSON object of all columns of the table.

    Raises:
        InvalidArgument: A declared column is missing, or of a type that does not fit.
    """
    columns = StructType([column for column in raw.schema if column.name != "written"])
    types = {path_of((column.name,)): column.dataType.simpleString() for column in columns}
    types |= {path: kind for path in source.field_of.values() if (kind := _type_at(columns, path)) is not None}
    require_fitting(types, source)
    read: dict[str, Column] = {}
    fields: dict[str, Column] = {}
    for name, path in source.field_of.items():
        read[name] = F.col(".".join(map(_quoted, steps(path))))
        fields[name] = nullable(_converted(read[name], source.fields[name]))
    if source.other_fields:
        fields[source.other_fields] = _others(columns, whole_fields(source.types_of_fields))
    own_columns = [fields[name].alias(name) for name in source.columns]
    return raw.select(
        F.lit(source.name).alias("source"),
        F.lit(0).alias("partition"),
        _json(F.struct(*(F.col(_quoted(name)) for name in columns.names))).cast("binary").alias("value"),
        _lost(source, read, fields).alias("reason"),
        F.struct(*own_columns).alias(source.name),
        "written",
    )


def in_files(raw: DataFrame) -> DataFrame:
    """Returns *raw* rows with `written`, by which the driver orders them: their file, and where its block starts."""
    written = F.struct(
        F.lit(None).cast("bigint").alias("at_ms"),
        nullable(F.input_file_name()).alias("file"),
        nullable(F.input_file_block_start()).alias("start"),
    )
    return raw.withColumn("written", written)


def _quoted(name: str) -> str:
    """Returns *name* in backquotes: Spark takes a dot without them for a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def _type_at(columns: StructType, path: str) -> str | None:
    """Returns the type of the column, or the field inside one, at *path*; None where there is none."""
    kind: DataType = columns
    for name in steps(path):
        if not isinstance(kind, StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind.simpleString()


def _lost(source: Source, read: Mapping[str, Column], fields: Mapping[str, Column]) -> Column:
    """Returns why a row is quarantined; null if all columns fit.

    A column that was *read* does not fit if its value is lost in conversion.
    """
    lost = {word: F.lit(col=False) for word in ("string", "other")}
    for name, column in read.items():
        kind = "string" if source.fields[name] == "string" else "other"
        lost[kind] |= column.isNotNull() & fields[name].isNull()
    return F.when(lost["string"], "invalid_utf8").when(lost["other"], "wrong_type")


def _others(columns: StructType, declared: Collection[str]) -> Column:
    """Returns the undeclared *columns* as a JSON object; null without any."""
    others = [F.col(_quoted(name)) for name in columns.names if name not in declared]
    # to_json() omits null columns, so a row without others gives an empty object.
    return F.nullif(_json(F.struct(*others)), F.lit("{}")) if others else F.lit(None).cast("string")


def _json(struct: Column) -> Column:
    """Returns *struct* as a JSON object with microseconds in timestamps."""
    return F.to_json(struct, {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS})


def nullable(column: Column) -> Column:
    """Returns *column* with a nullable type: pyarrow accepts no null for a struct whose fields may not be null."""
    return F.when(column.isNotNull(), column)


def _converted(column: Column, word: str) -> Column:
    """Returns *column*, of a type that fits, as the declared type *word*.

    A timestamp outside of the years 1 to 9999 is null, and so is text that is not UTF-8.
    """
    if word == "timestamp":
        instant = column.cast(word)
        return F.when(F.year(instant).between(1, 9999), instant)
    return F.try_validate_utf8(column) if word == "string" else column.cast(word)
