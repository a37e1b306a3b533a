"""Notes in a record's Kafka headers which streams it has passed and when: one header `tidemark-hop` for each."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.kernels.records.headers import HOP, ID, MOST_HOPS
from tidemark.model.project.layout import NAME, usable

_HEADERS = "array<struct<key:string,value:binary>>"
# Java's regular expressions: `\z` is the very end; `$` also matches before a final line break.
_VALUE = rf"^((?:{NAME.pattern}/)?{NAME.pattern}):([0-9]{{1,18}})\z"


def with_hop(rows: DataFrame, name: str, *, clock: Clock = wall_clock_ms) -> DataFrame:
    """Returns *rows* with the header `tidemark-hop: <name>:<epoch ms>` added to the column `headers`.

    The instant is the driver's clock at the time of this call, one for all rows: call it inside `foreachBatch`, when
    the work is done and right before the records are written to Kafka. Never use `current_timestamp()`, which is the
    instant at which the batch began. A missing column `headers` is created, as array<struct<key:string,value:binary>>.
    Other headers stay as they are, except for `tidemark-id`: that one identifies the record that was read, and not the
    one that is written. Of more than 32 hops the oldest are dropped.

    Args:
        rows: the rows of one batch, with Kafka's `headers` if they have any.
        name: the name of this stream: letters, digits, `_`, `.` and `-`, also as `topology/name`.
        clock: returns epoch ms UTC.

    Raises:
        InvalidArgument: *rows* are a stream, which has no single instant for all rows; or *name* is not usable.
    """
    if rows.isStreaming:
        msg = f"with_hop needs the rows of one batch, got a stream; call with_hop({name!r}) inside foreachBatch"
        raise InvalidArgument(msg)
    hop = F.struct(F.lit(HOP).alias("key"), F.encode(F.lit(f"{usable(name)}:{clock()}"), "UTF-8").alias("value"))
    present = F.coalesce(F.col("headers"), F.array().cast(_HEADERS)) if "headers" in rows.columns else F.array()
    headers = present.cast(_HEADERS)
    others = F.filter(headers, lambda header: (header["key"] != ID) & ~_is_hop(header))
    noted = F.concat(F.filter(headers, _is_hop), F.array(hop).cast(_HEADERS))
    return rows.withColumn(
        "headers", F.concat(others, F.slice(noted, -F.least(F.size(noted), F.lit(MOST_HOPS)), MOST_HOPS))
    )


def hops(rows: DataFrame) -> DataFrame:
    """Returns *rows* from Kafka, which are read with `includeHeaders`, with the column `hops`.

    The type of `hops` is array<struct<name:string,at_ms:bigint>>, in the order of the headers. `at_ms` is epoch ms of
    the clock of the driver that wrote the header. The array is empty for a record without hops. A header `tidemark-hop`
    without an instant is not a hop.
    """
    headers = F.coalesce(F.col("headers"), F.array().cast(_HEADERS))
    read = F.transform(F.filter(headers, _is_hop), _hop)
    return rows.withColumn("hops", read)


def _is_hop(header: Column) -> Column:
    return (header["key"] == HOP) & header["value"].cast("string").rlike(_VALUE)


def _hop(header: Column) -> Column:
    text = header["value"].cast("string")
    name, at_ms = (F.regexp_extract(text, _VALUE, group) for group in (1, 2))
    return F.struct(name.alias("name"), at_ms.cast("bigint").alias("at_ms"))
