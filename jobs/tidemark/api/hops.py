"""Notes in a record's Kafka headers through which hands it went, and when: one header `tidemark-hop` per hop."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.kernels.headers import HOP, ID, MOST_HOPS
from tidemark.spec.layout import NAME, usable

_HEADERS = "array<struct<key:string,value:binary>>"
_VALUE = rf"^((?:{NAME.pattern}/)?{NAME.pattern}):([0-9]{{1,18}})\z"


def with_hop(rows: DataFrame, name: str, *, clock: Clock = wall_clock_ms) -> DataFrame:
    """*rows* with the header `tidemark-hop: <name>:<epoch ms>` added to `headers`, to be written to Kafka.

    The instant is the driver's clock at the time of this call, one for all rows: call it inside `foreachBatch`, when
    the work is done and right before the records are written. Never `current_timestamp()`, by which Spark means the
    instant at which the batch began. `headers` is made where there is none; other headers stay as they are, but for
    `tidemark-id`, by which the record that these are made of was told from its repeats. Of more than 32 hops the
    oldest are forgotten.

    Raises:
        InvalidArgument: *rows* are a stream, for all of which there is no one instant; or *name* is not usable.
    """
    if rows.isStreaming:
        msg = f"a hop is noted of the rows of one batch, got a stream; call with_hop({name!r}) inside foreachBatch"
        raise InvalidArgument(msg)
    hop = F.struct(F.lit(HOP).alias("key"), F.encode(F.lit(f"{usable(name)}:{clock()}"), "UTF-8").alias("value"))
    known = F.coalesce(F.col("headers"), F.array().cast(_HEADERS)) if "headers" in rows.columns else F.array()
    headers = known.cast(_HEADERS)
    others = F.filter(headers, lambda header: (header["key"] != ID) & ~_is_hop(header))
    noted = F.concat(F.filter(headers, _is_hop), F.array(hop).cast(_HEADERS))
    return rows.withColumn(
        "headers", F.concat(others, F.slice(noted, -F.least(F.size(noted), F.lit(MOST_HOPS)), MOST_HOPS))
    )


def hops(rows: DataFrame) -> DataFrame:
    """*rows*, read from Kafka with `includeHeaders`, with a column `hops`: array<struct<name:string,at_ms:bigint>>.

    In the order in which they were noted; `at_ms` is epoch ms of the clock of the driver that noted it. Empty where
    there are none; a header of that name that says no instant is not a hop.
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
