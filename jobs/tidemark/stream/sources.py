"""What Spark does for a stream: read Kafka and hops, parse, and say of each record whether it can be used.

Every row has source, partition, offset, key, value, timestamp_ms (record time, epoch ms), reason (why it cannot be
used;
null: it can) and, under the source's name, a struct with its fields. A tick source gives each batch its idea of now,
the same again on replay, and batches in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.spec.layout import Layout
from tidemark.spec.operators import HopSource, Source
from tidemark.spec.topology import SubTopology

TICK = "_tick"
_CORRUPT = "_corrupt"


def stream(spark: SparkSession, sub: SubTopology, layout: Layout, topology: str, bootstrap: str) -> DataFrame:
    """All sources of *sub* and the ticks as one streaming frame."""
    frames = [_ticks(spark)]
    for operator in sub.operators:
        if isinstance(operator, Source):
            frames.append(_kafka(spark, operator, bootstrap))
        elif isinstance(operator, HopSource):
            frames.append(_hop(spark, operator, layout.hop(topology, operator.upstream, operator.repartition)))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _ticks(spark: SparkSession) -> DataFrame:
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    return ticks.select(
        F.lit(TICK).alias("source"),
        F.lit(0).alias("partition"),
        F.col("value").alias("offset"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
    )


def _kafka(spark: SparkSession, source: Source, bootstrap: str) -> DataFrame:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    schema = ", ".join(f"`{name}` {word}" for name, word in source.fields.items()) + f", {_CORRUPT} string"
    text = F.try_validate_utf8(F.col("value").cast("string"))
    parsed = raw.withColumn("parsed", F.from_json(text, schema, {"columnNameOfCorruptRecord": _CORRUPT}))
    timestamp_ms = F.col(f"parsed.{source.timestamp}")
    return parsed.select(
        F.lit(source.name).alias("source"),
        "partition",
        "offset",
        "key",
        "value",
        "headers",
        F.lit(col=False).alias("deleted"),
        timestamp_ms.alias("timestamp_ms"),
        _reason(text, timestamp_ms, source.timestamp_range_ms).alias("reason"),
        F.struct(*[F.col(f"parsed.{name}") for name in source.fields]).alias(source.name),
    )


def _reason(text: Column, timestamp_ms: Column, plausible_ms: tuple[int, int]) -> Column:
    """Why a record cannot be used, null when it can; the first that holds, in the order of reading it."""
    low_ms, high_ms = plausible_ms
    return (
        F.when(F.col("key").isNull(), "null_key")
        .when(F.col("value").isNull(), "null_value")
        .when(text.isNull(), "invalid_utf8")
        .when(F.col("parsed").isNull() | F.col(f"parsed.{_CORRUPT}").isNotNull(), "malformed_json")
        .when(timestamp_ms.isNull(), "missing_timestamp")
        .when((timestamp_ms < low_ms) | (timestamp_ms >= high_ms), "timestamp_out_of_range")
    )


def _hop(spark: SparkSession, source: HopSource, path: Path) -> DataFrame:
    rows = spark.readStream.format("delta").load(str(path))
    return rows.select(
        F.lit(source.name).alias("source"),
        "partition",
        F.col("batch_id").alias("offset"),
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "headers",
        F.struct(
            "seq",
            "id",
            "key",
            "old_value",
            "value",
            F.unix_millis("old_timestamp").alias("old_timestamp_ms"),
            "source_partition",
            "source_offset",
            F.unix_millis("watermark").alias("watermark_ms"),
        ).alias(source.name),
    )


def with_bytes_where_needed(rows: DataFrame, late_up_to_ms: Mapping[str, int]) -> DataFrame:
    """*rows* whose raw bytes are kept only where a table will show them: records that are unusable or late."""
    late = [
        (F.col("source") == name) & (F.col("timestamp_ms") <= watermark_ms)
        for name, watermark_ms in late_up_to_ms.items()
    ]
    if "value" not in rows.columns:
        return rows
    needed = reduce(lambda one, other: one | other, late, F.col("reason").isNotNull())
    return rows.withColumn("value", F.when(needed, F.col("value")))
