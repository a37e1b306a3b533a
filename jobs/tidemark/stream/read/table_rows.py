"""Types the rows of tables as a source declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.model.kinds.source import Source
from tidemark.stream.read.fitting import require_fitting

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
"""The format of timestamps in JSON.

By default Spark omits what is below a millisecond.
"""


def table_rows(raw: DataFrame, source: Source) -> DataFrame:
    """Returns the *raw* rows in the form that read/parsing.py reads.

    They have columns and `written`; `value` is a JSON object of the columns.

    Raises:
        InvalidArgument: A declared column is missing, or of a type that does not fit.
    """
    columns = StructType([column for column in raw.schema if column.name != "written"])
    types = {column.name: column.dataType.simpleString() for column in columns}
    require_fitting(types, source)
    read: dict[str, Column] = {}
    fields: dict[str, Column] = {}
    for name, field in source.field_of.items():
        # Names may have dots, which Spark takes for a field of a struct unless they are quoted.
        read[name] = F.col(f"`{field}`")
        fields[name] = nullable(_converted(read[name], source.fields[name]))
    if source.other_fields:
        fields[source.other_fields] = _others(columns, source.types_of_fields)
    own_columns = [fields[name].alias(name) for name in source.columns]
    return raw.select(
        F.lit(source.name).alias("source"),
        F.lit(0).alias("partition"),
        _json(F.struct(*(F.col(f"`{name}`") for name in columns.names))).cast("binary").alias("value"),
        _lost(source, read, fields).alias("reason"),
        F.struct(*own_columns).alias(source.name),
        "written",
    )


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
    others = [F.col(f"`{name}`") for name in columns.names if name not in declared]
    # to_json() omits null columns, so a row without others gives an empty object.
    return F.nullif(_json(F.struct(*others)), F.lit("{}")) if others else F.lit(None).cast("string")


def _json(struct: Column) -> Column:
    """Returns *struct* as a JSON object with microseconds in timestamps."""
    return F.to_json(struct, {"timestampFormat": f"{_MICROSECONDS}XXX", "timestampNTZFormat": _MICROSECONDS})


def nullable(column: Column) -> Column:
    """Returns *column* with a nullable type.

    pyarrow accepts no null for a struct whose fields may not be null.
    """
    return F.when(column.isNotNull(), column)


def _converted(column: Column, word: str) -> Column:
    """Returns *column*, of a type that fits, as the declared type *word*.

    A timestamp outside of the years 1 to 9999 is null, and so is text that is not UTF-8.
    """
    if word == "timestamp":
        at = column.cast(word)
        return F.when(F.year(at).between(1, 9999), at)
    return F.try_validate_utf8(column) if word == "string" else column.cast(word)
