"""What Spark does for a stream: read topics, tables, files and hops. `parsing.py` makes rows of what it reads.

Rows of tables and files have no offset: the driver numbers them in the order of `written`. Ticks, which have no rows,
make Spark plan batches in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from urllib.parse import unquote, urlsplit

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from tidemark.errors import Contradiction, InvalidArgument
from tidemark.kernels.avro_fields import avro_types
from tidemark.spark import is_table
from tidemark.spec.connections import Cluster, Clusters
from tidemark.spec.layout import Layout
from tidemark.spec.operators import MAX_BYTES, MAX_FILES, Format, HopSource, Operator, Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.intact import Offsets
from tidemark.stream.parts import Part
from tidemark.stream.read.fitting import require_fitting
from tidemark.stream.read.parsing import parsed_rows
from tidemark.stream.read.table_rows import nullable, table_rows

RAW = {
    "source": "string",
    "partition": "int",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "clock_ms": "bigint",
    "timestamp_ms": "bigint",
    "reason": "string",
}
"""The columns that every batch has, null where a source does not have them: name to DDL type."""


def stream(spark: SparkSession, sub: SubTopology, layout: Layout, topology: str, clusters: Clusters) -> DataFrame:
    """All sources of *sub* as one frame, also planned in silence; raises InvalidArgument if one is not there."""
    frames = [_ticks(spark)]
    for operator in sub.operators:
        if isinstance(operator, Source):
            frames.append(_source(spark, operator, layout.warehouse, clusters))
        elif isinstance(operator, HopSource):
            frames.append(_hop(spark, operator, layout.hop(topology, operator.upstream, operator.repartition)))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _source(spark: SparkSession, source: Source, warehouse: Path, clusters: Clusters) -> DataFrame:
    if source.delta is not None:
        return _delta(spark, source, warehouse / source.delta)
    if source.files is not None:
        return _files(spark, source, warehouse / source.files)
    return _kafka(spark, source, clusters[source.kafka])


def _ticks(spark: SparkSession) -> DataFrame:
    """No rows, but news every second: Spark plans a batch."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    columns = ticks.select(*(F.lit(None).cast(kind).alias(name) for name, kind in RAW.items()))
    return columns.filter(F.lit(col=False))


def _kafka(spark: SparkSession, source: Source, cluster: Cluster) -> DataFrame:
    """The rows of the topic of *source*, from its earliest offset.

    Known limitation: Spark fails on a record whose Kafka timestamp, not that of its payload, is 292,000 years away,
    before anybody sees it. By default a broker takes none from more than an hour ahead.
    """
    raw = spark.readStream.format("kafka").options(**kafka_options(source, cluster), startingOffsets="earliest")
    if source.max_records is not None:
        raw = raw.option("maxOffsetsPerTrigger", source.max_records)
    if source.format is Format.AVRO:
        require_fitting(avro_types(source.avro_schema or ""), source)
    return records_of(raw.load(), source)


def records_of(raw: DataFrame, source: Source) -> DataFrame:
    """The *raw* records as Spark reads them from a topic, headers included."""
    columns = ("partition", "offset", "key", "value", "headers", F.unix_millis("timestamp").alias("clock_ms"))
    return raw.select(F.lit(source.name).alias("source"), *columns)


def read_again(
    spark: SparkSession, source: Source, cluster: Cluster, offsets: Offsets, *, one_by_one: bool = False
) -> pl.DataFrame:
    """The rows of the topic of *source* at *offsets*, as a batch; nothing behind these is unpacked if *one_by_one*."""
    return collect(_records_at(spark, source, cluster, offsets, one_by_one=one_by_one), [source])


def _records_at(
    spark: SparkSession, source: Source, cluster: Cluster, offsets: Offsets, *, one_by_one: bool
) -> DataFrame:
    topic = source.topic or ""
    starts, ends = ({str(number): part[side] for number, part in offsets.items()} for side in (0, 1))
    options = {name: text for name, text in kafka_options(source, cluster).items() if name != "subscribe"}
    raw = spark.read.format("kafka").options(
        **options,
        assign=json.dumps({topic: list(offsets)}),
        startingOffsets=json.dumps({topic: starts}),
        endingOffsets=json.dumps({topic: ends}),
        **({"kafka.max.poll.records": "1"} if one_by_one else {}),  # Kafka's client unpacks 500 at once, past the end
    )
    return records_of(raw.load(), source)


def rows_of_part(rows: DataFrame, sub: SubTopology, clusters: Clusters, part: Part) -> DataFrame:
    """Those of the *rows* of a batch of *sub* that are in *part* of it; of topics Spark reads nothing else."""
    spark, sources = rows.sparkSession, [o for o in sub.operators if isinstance(o, Source) and o.topic]
    topics = [source.name for source in sources]
    others = F.lit(col=part.is_first and len(topics) < len(sub.sources)) & ~F.col("source").isin(topics)
    frames = [rows.filter(others)]
    for source in sources:
        if offsets := _to_read(part, source.topic or ""):
            frames.append(_records_at(spark, source, clusters[source.kafka], offsets, one_by_one=part.one_by_one))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _to_read(part: Part, topic: str) -> Offsets:
    """What *part* reads of the partitions of *topic*."""
    skipped = part.passed_over.get(topic, ())
    offsets = {number: (start + (number in skipped), end) for number, (start, end) in part.ranges[topic].items()}
    return {number: (start, end) for number, (start, end) in offsets.items() if start < end}


def kafka_options(source: Source, cluster: Cluster) -> dict[str, str]:
    """What Spark needs to know to read the topic of *source*, as a stream or as a batch."""
    return {
        **cluster.spark,
        "subscribe": source.topic or "",
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # stream/intact.py looks, and says what was lost
    }


def _delta(spark: SparkSession, source: Source, path: Path) -> DataFrame:
    """The rows that are appended to the table at *path*, from its oldest version.

    Rows that are deleted have been read, or are read before that commit: nothing of it is a record, so it is passed
    over (`ignoreDeletes`). A commit that rewrites rows has both new and old ones in it, and nothing tells them apart:
    Spark ends the query with an error that names the table and the version.
    """
    if not is_table(path):
        msg = f"operators.{source.name}.delta: {path}: there is no Delta table; create it before the stream starts"
        raise InvalidArgument(msg)
    rows = _appended(spark, path, max_files=source.max_files, max_bytes=source.max_bytes)
    place = F.struct(
        F.lit(None).cast("bigint").alias("at_ms"),
        nullable(F.input_file_name()).alias("file"),
        nullable(F.input_file_block_start()).alias("start"),
    )
    return table_rows(rows.withColumn("written", place), source)


def _appended(spark: SparkSession, path: Path, *, max_files: int | None, max_bytes: int | None) -> DataFrame:
    """The rows that are appended to the Delta table at *path*."""
    reader = spark.readStream.format("delta").option("ignoreDeletes", "true")
    return _paced(reader, max_files=max_files, max_bytes=max_bytes).load(str(path))


def _paced(reader: DataStreamReader, *, max_files: int | None, max_bytes: int | None) -> DataStreamReader:
    """*reader*, which takes in at most so many files a batch, and one at least. Of a folder Spark takes one limit."""
    limits = {"maxFilesPerTrigger": max_files, "maxBytesPerTrigger": max_bytes}
    return reader.options(**{name: most for name, most in limits.items() if most is not None})


def explained(error: Exception) -> Exception:
    """*error*, with which Spark ended a query; one of our own where it says that a source's table was rewritten."""
    if "DELTA_SOURCE_TABLE_IGNORE_CHANGES" not in str(error):
        return error
    return Contradiction(
        "a source reads a Delta table that is only appended to, and this one was rewritten; give the source another, "
        f"or the topology a new name, under which it reads the table as it is now: {error}"
    )


def _files(spark: SparkSession, source: Source, folder: Path) -> DataFrame:
    """The rows of the files that are put into *folder*, in the order of their modification times.

    The first line of every CSV file names its columns, the same ones in the same order. What the columns of CSV and
    Parquet files are is asked of those that are there at the start; without any they are the declared ones.
    """
    if not folder.is_dir():
        msg = f"operators.{source.name}.files: {folder}: there is no such folder; create it before the stream starts"
        raise InvalidArgument(msg)
    paced = _paced(spark.readStream, max_files=source.max_files, max_bytes=source.max_bytes)
    if source.format is Format.JSON:
        lines = _with_place(paced.text(str(folder)).filter(F.trim("value") != ""))
        value = F.col("value").cast("binary").alias("value")
        return lines.select(F.lit(source.name).alias("source"), F.lit(0).alias("partition"), value, "written")
    reader = {"header": "true", "enforceSchema": "false"} if source.format is Format.CSV else {}
    known = any(file.is_file() and file.name[0] not in "._" for file in folder.iterdir())
    texts = source.format is Format.CSV
    declared = source.types_of_fields.items()
    schema: StructType | str = ", ".join(f"`{field}` {'string' if texts else word}" for field, word in declared)
    if known:
        schema = spark.read.format(source.format.value).options(**reader).load(str(folder)).schema
    rows = paced.format(source.format.value).options(**reader).schema(schema).load(str(folder))
    return table_rows(_with_place(rows), source, texts=texts)


def _with_place(rows: DataFrame) -> DataFrame:
    """*rows* with `written`: sorting by it, and else leaving rows in their order, is the order of writing."""
    place = F.struct(
        nullable(F.unix_millis("_metadata.file_modification_time")).alias("at_ms"),
        nullable(F.col("_metadata.file_path")).alias("file"),
        nullable(F.col("_metadata.file_block_start")).alias("start"),
    )
    return rows.withColumn("written", place)


def _hop(spark: SparkSession, source: HopSource, path: Path) -> DataFrame:
    # Of a hop maintenance deletes, in whole files, rows that this stream has read.
    # The mark that ends a commit is in its last file: of a commit that is cut, the rows before it come first.
    rows = _appended(spark, path, max_files=MAX_FILES, max_bytes=MAX_BYTES)
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
            "idle",
            F.unix_millis("newest").alias("newest_ms"),
            "repeated",
        ).alias(source.name),
    )


def collect(rows: DataFrame, operators: Iterable[Operator]) -> pl.DataFrame:
    """The *rows* of a batch at the sources among *operators*, parsed."""
    return parsed_batch(pl.DataFrame(rows.toArrow()), operators)


def parsed_batch(raw: pl.DataFrame, operators: Iterable[Operator]) -> pl.DataFrame:
    """What Spark read at the sources among *operators*, parsed."""
    return parsed_rows(_with_modification_times(raw), operators)


def _with_modification_times(rows: pl.DataFrame) -> pl.DataFrame:
    """*rows* with `written.at_ms` of the files of Delta tables, of which Spark does not say it in a stream."""
    if "written" not in rows.columns:
        return rows
    place = pl.col("written").struct
    unknown = rows.filter(place.field("at_ms").is_null()).select(place.field("file")).to_series().drop_nulls().unique()
    at_ms = {file: _modified_ms(Path(unquote(urlsplit(file).path))) for file in unknown}
    told = place.field("file").replace_strict(at_ms, default=None, return_dtype=pl.Int64)
    return rows.with_columns(written=place.with_fields(at_ms=pl.coalesce(place.field("at_ms"), told)))


def _modified_ms(file: Path) -> int | None:
    """When *file* was last written, epoch ms; None when it cannot be asked: its name is all there is to sort by."""
    try:
        return file.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None
