"""Reads topics, tables, files and hops with Spark; `parsing.py` then parses what was read.

Rows of tables and files have no offset: the driver numbers them in the order of the column `written`. A source of ticks
has no rows, and makes Spark plan a batch when no other source has new ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import assert_never

import polars as pl
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from tidemark.control.folder import ListedSource
from tidemark.errors import InvalidArgument
from tidemark.kernels.formats.fitting import misfits_of_schema
from tidemark.kernels.formats.written_schema import KnownSchemas
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import EARLIEST, MAX_BYTES_PER_BATCH, MAX_FILES_PER_BATCH, RECORD_PLACES
from tidemark.model.project.connections import Cluster, Clusters
from tidemark.model.project.kafka_security import ISOLATION, READ_COMMITTED
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import SubTopology
from tidemark.selection import names_in, omit
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.storage.location import path_of_url
from tidemark.storage.warehouse import is_table
from tidemark.stream.driver.ticks import Ticks
from tidemark.stream.kafka.numbering import multi_topic_sources, with_topic_partitions
from tidemark.stream.read.beyond_spark import overflows, records_at
from tidemark.stream.read.data_files import folder_of, rows_of_files
from tidemark.stream.read.data_loss import Offsets
from tidemark.stream.read.fitting import require_no_misfits
from tidemark.stream.read.hop_log import is_cut
from tidemark.stream.read.parsing import NO_SCHEMAS, SchemasOf, no_schemas, parsed_rows
from tidemark.stream.read.parts import BatchPart, to_read
from tidemark.stream.read.source_tables import LATER, UNSAFE
from tidemark.stream.read.table_rows import in_files, table_rows

RAW = {
    "source": "string",
    "partition": "int",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "clock_ms": "bigint",
    "stamped_ms": "bigint",
    "timestamp_ms": "bigint",
    "reason": "string",
}
"""The columns of every batch, with their DDL types. A column is null for sources that do not have it."""
STAMPED_BY_BROKER = 1
"""Kafka's number of LogAppendTime (`org.apache.kafka.common.record.TimestampType`)."""
_SPECIAL = re.compile(r"[*?\[\]{}\\]")
"""Characters that Spark takes for a pattern in the name of a folder."""
TOPIC = "_topic"
"""The column with the topic of a record, for sources that read several topics."""
FETCH_WAIT_MS = "20"
"""How long a broker holds back a fetch without records, ms.

A client fetches ahead beyond the end of a batch. By default that fetch is answered after 500 ms, and the first poll of
the next batch waits for it in each task.
"""
POLLED = "10000"
"""Most records that Kafka's client returns to Spark at once.

After each such poll Spark asks the broker for the ends of the partition, and the client drops and fetches again what it
has beyond the poll. So a poll should take all of a fetch, which `max.partition.fetch.bytes` bounds.
"""


def stream(
    spark: SparkSession,
    sub: SubTopology,
    layout: Layout,
    topology: str,
    clusters: Clusters,
    ticks: Ticks,
    listed: Mapping[str, ListedSource] = MappingProxyType({}),
    *,
    reads_topics: bool = True,
) -> DataFrame:
    """Returns all sources of *sub* and *ticks* as one streaming frame.

    Args:
        spark: The session.
        sub: The sub-topology.
        layout: Where its tables and control folders are.
        topology: The name of the topology.
        clusters: The Kafka clusters by name.
        ticks: The source of empty batches.
        listed: By name, the sources as the control folder lists them: with the offsets at which a new source begins.
        reads_topics: False if Spark only plans the offsets of topics, and does not read their records.

    Raises:
        InvalidArgument: A source's table or folder does not exist.
    """
    # With this setting a source whose rows are all filtered out is planned, but not read.
    spark.conf.set("spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan", "true")
    # Ticks come first: the first offset of a plan is theirs (journal/checkpoint.py, last_tick).
    frames = [_nothing(ticks)]
    for source in sub.sources:
        match source:
            case Source():
                rows = _source(spark, source, layout.warehouse, clusters, listed.get(source.name))
                frames.append(rows if reads_topics or source.topic is None else rows.filter(F.lit(col=False)))
            case HopSource():
                hop = layout.hop(topology, source.upstream, source.repartition)
                frames.append(_hop(spark, source, hop, is_cut=is_cut(hop, layout.control(topology, sub.name))))
            case _:
                assert_never(source)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _source(
    spark: SparkSession, source: Source, warehouse: Path, clusters: Clusters, listed: ListedSource | None
) -> DataFrame:
    if source.elsewhere is None:
        return _kafka(spark, source, clusters[source.kafka], (listed and listed.starts) or ())
    rows_of: Callable[[SparkSession, Source, Path], DataFrame] = resolve_name(RECORD_PLACES[source.elsewhere.kind].rows)
    return rows_of(spark, source, warehouse)


def _nothing(ticks: Ticks) -> DataFrame:
    """Returns *ticks* with the columns of every batch and without any row."""
    columns = ticks.rows.select(*(F.lit(None).cast(kind).alias(name) for name, kind in RAW.items()))
    return columns.filter(F.lit(col=False))


def _kafka(
    spark: SparkSession, source: Source, cluster: Cluster, starts: Iterable[tuple[str, int, int]] = ()
) -> DataFrame:
    """Returns the rows of the topic of *source*.

    *starts* are the offsets at which a new source begins, as topic, partition and offset. If there are none, it begins
    at the earliest offset.
    """
    begin: dict[str, dict[str, int]] = {}
    for topic, partition, offset in starts:
        begin.setdefault(topic, {})[str(partition)] = offset
    # A source without an offset in the checkpoint begins there; later starts continue where the checkpoint ends.
    starting = json.dumps(begin) if begin else EARLIEST
    raw = spark.readStream.format("kafka").options(**kafka_options(source, cluster), startingOffsets=starting)
    if source.max_records is not None:
        raw = raw.option("maxOffsetsPerTrigger", source.max_records)
    # A schema that does not fit fails the start, and not each record.
    require_no_misfits(misfits_of_schema(source), source)
    return records_of(raw.load(), source)


def records_of(raw: DataFrame, source: Source) -> DataFrame:
    """Returns the columns of *raw* records that Spark read from a topic.

    *raw* includes the headers. Rows of a source over several topics also have the topic, until `with_numbers` replaces
    it and the partition by the input partition.
    """
    if source.topic_partitions:
        raw = raw.withColumn("partition", _number(source, "topic"))
    elif source.reads_several:
        raw = raw.withColumn(TOPIC, F.col("topic"))
    topic_column = (TOPIC,) if source.reads_several and not source.topic_partitions else ()
    clock_ms = F.unix_millis("timestamp")
    # The broker's time says when a record arrived only in a topic that stamps records itself.
    stamped_ms = F.when(F.col("timestampType") == STAMPED_BY_BROKER, clock_ms).alias("stamped_ms")
    columns = ("partition", "offset", "key", "value", "headers", clock_ms.alias("clock_ms"), stamped_ms)
    return raw.select(F.lit(source.name).alias("source"), *topic_column, *columns)


def with_numbers(rows: DataFrame, sub: SubTopology, was: StreamProgress) -> DataFrame:
    """Returns the *rows* of a batch of *sub* with the numbers of input partitions in place of Kafka's.

    The two differ where a source reads several topics; *was* has the numbers. Records that were read before are left
    out: if a topic is missing from one plan, Spark begins it again with the next.
    """
    for source in (with_topic_partitions(o, was) for o in multi_topic_sources(sub)):
        is_its = F.col("source") == source.name
        rows = rows.withColumn("partition", F.when(is_its, _number(source, TOPIC)).otherwise(F.col("partition")))
        offsets_read = was.inputs.get(source.name, InputProgress()).offsets_read
        if offsets_read:
            next_offsets = {str(number): offset for number, offset in offsets_read.items()}
            next_offset = _looked_up(next_offsets, F.col("partition").cast("string"))
            rows = rows.filter(~is_its | (F.col("offset") >= F.coalesce(next_offset, F.lit(0))))
    return rows.drop(TOPIC)


def _number(source: Source, topic: str) -> Column:
    """Returns the input partition of records of *source*, whose topic is in the column *topic*."""
    if not source.topic_partitions:
        return F.lit(None).cast("int")  # the plan has no topic of the source, so the batch has no row of it
    numbers = {str(topic_partition): number for number, topic_partition in enumerate(source.topic_partitions)}
    return _looked_up(numbers, F.concat_ws("/", F.col(topic), F.col("partition")))


def _looked_up(numbers: Mapping[str, int], key: Column) -> Column:
    """Returns the number of *key* in the map *numbers*, or null if it has none."""
    literals = [F.lit(value).cast("string") for value in numbers]
    values = [F.lit(value) for value in numbers.values()]
    return F.try_element_at(F.map_from_arrays(F.array(*literals), F.array(*values)), key)


def read_again(
    spark: SparkSession,
    source: Source,
    cluster: Cluster,
    offsets: Offsets,
    schemas: SchemasOf = no_schemas,
    *,
    one_by_one: bool = False,
) -> pl.DataFrame:
    """Returns the parsed rows of *source*'s topic at *offsets*, outside of the stream.

    Args:
        spark: the session.
        source: the source.
        cluster: its Kafka cluster.
        offsets: by input partition, the range of offsets.
        schemas: returns the schemas of registries that the rows need.
        one_by_one: fetch records one by one, so that none after the last offset is decompressed.
    """
    try:
        return collect(_records_at(spark, source, cluster, offsets, one_by_one=one_by_one), [source], schemas)
    except Exception as error:
        if not overflows(error):
            raise
        raw = records_at(source, cluster, offsets)
        return parsed_batch(raw, [source], schemas(raw, [source]))


def _records_at(
    spark: SparkSession, source: Source, cluster: Cluster, offsets: Offsets, *, one_by_one: bool
) -> DataFrame:
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for number, (start, end) in offsets.items():
        topic, partition = source.topic_partition(number)
        partitions.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = start
        ends.setdefault(topic, {})[str(partition)] = end
    # Spark accepts `assign`, which names partitions, only without `subscribe`.
    options = omit(kafka_options(source, cluster), _subscription(source))
    if one_by_one:
        options["kafka.max.poll.records"] = "1"  # Kafka's client unpacks a whole poll at once, past the end
    raw = spark.read.format("kafka").options(
        **options,
        assign=json.dumps(partitions),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
    )
    return records_of(raw.load(), source)


def rows_of_part(
    rows: DataFrame, sub: SubTopology, clusters: Clusters, part: BatchPart, *, topics_too: bool = True
) -> DataFrame:
    """Returns those *rows* of a batch of *sub* that are in the *part*.

    Records of topics are read again, only at the offsets of the part; without *topics_too* they are left out.
    """
    spark, sources = rows.sparkSession, [o for o in sub.outside_sources if o.topic]
    topics = names_in(sources)
    # Rows without an offset cannot be split, so they are all in the first part.
    others = F.lit(col=part.is_first and len(topics) < len(sub.sources)) & ~F.col("source").isin(topics)
    frames = [rows.filter(others).drop(TOPIC)]
    for source in sources if topics_too else ():
        if offsets := to_read(part, source.topic or ""):
            numbered = source.with_topic_partitions(part.places.get(source.name, ()))
            frames.append(_records_at(spark, numbered, clusters[source.kafka], offsets, one_by_one=part.one_by_one))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def kafka_options(source: Source, cluster: Cluster) -> dict[str, str]:
    """Returns Spark's options to read *source*'s topic, streaming or in batch."""
    return {
        "kafka.max.poll.records": POLLED,
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        f"kafka.{ISOLATION}": READ_COMMITTED,
        **cluster.spark,
        **_subscription(source),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # stream/read/data_loss.py finds and reports lost records
    }


def _subscription(source: Source) -> dict[str, str]:
    """Returns Spark's option that names the topics of *source*."""
    # A list is a pattern, too: with `subscribe` Spark ends the query if one of the topics is deleted.
    if source.reads_several:
        return {"subscribePattern": f"^(?:{source.subscribed_pattern})$"}
    return {"subscribe": source.topic or ""}


def rows_of_table(spark: SparkSession, source: Source, warehouse: Path) -> DataFrame:
    """Returns rows appended to the Delta table of *source*, from its oldest version.

    A commit that rewrites rows ends the query with an error that names the table and the version. Columns may have been
    renamed or dropped, except for declared columns: source_tables.py refuses that.
    """
    path = warehouse / (source.delta or "")
    if not is_table(path):
        msg = f"operators.{source.name}.delta: {path}: no Delta table; create it before the stream starts"
        raise InvalidArgument(msg)
    spark.conf.set(UNSAFE, "true")
    spark.conf.set(LATER, "true")
    rows = _appended(spark, path, max_files=source.max_files, max_bytes=source.max_bytes, begin=_begin(source))
    return table_rows(in_files(rows), source)


def _appended(
    spark: SparkSession,
    path: Path,
    *,
    max_files: int | None,
    max_bytes: int | None,
    from_any_version: bool = False,
    begin: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Returns the rows that are appended to the Delta table at *path*.

    With *from_any_version*, older versions may be missing. *begin* are options for where a new reader begins.
    """
    # Deleted rows have been read, or are read before that commit: the commit has no record, so it is passed over. A
    # commit that rewrites rows has both new and old ones, and nothing distinguishes them: Spark ends the query.
    reader = spark.readStream.format("delta").option("ignoreDeletes", "true")
    # Otherwise Spark ends the query over a missing version; of a hop that is cut, data_loss.py decides.
    reader = reader.option("failOnDataLoss", str(not from_any_version).lower())
    return _paced(reader, max_files=max_files, max_bytes=max_bytes).options(**begin).load(str(path))


def _begin(source: Source) -> dict[str, str]:
    """Returns Spark's options for where *source*, a table, begins."""
    at_ms = source.starting_offsets
    return {"startingTimestamp": iso(at_ms)} if isinstance(at_ms, int) else {}


def _paced(reader: DataStreamReader, *, max_files: int | None, max_bytes: int | None) -> DataStreamReader:
    """Returns *reader* with limits on the files and bytes of a batch."""
    # A batch has at least one file, however large. For a folder Spark accepts only one of the limits.
    limits = {"maxFilesPerTrigger": max_files, "maxBytesPerTrigger": max_bytes}
    return reader.options(**{name: most for name, most in limits.items() if most is not None})


def rows_of_folder(spark: SparkSession, source: Source, warehouse: Path) -> DataFrame:
    """Has Spark plan the files that are put into the folder of *source*, and returns no rows.

    data_files.py reads the files.
    """
    folder = folder_of(source, warehouse)
    if not folder.is_dir():
        msg = f"operators.{source.name}.files: {folder}: no such folder; create it before the stream starts"
        raise InvalidArgument(msg)
    paced = _paced(spark.readStream, max_files=source.max_files, max_bytes=source.max_bytes).options(
        # Otherwise names such as `day=1` are taken for partitions, and two of them for a contradiction.
        recursiveFileLookup="true",
        # By default a file that is a week older than the newest is never planned, as one that was copied with its time.
        maxFileAge="36500d",
        # Spark asks for the status of each file; data_files.py reports those that are gone.
        ignoreMissingFiles="true",
        ignoreCorruptFiles="true",
    )
    statuses = paced.format("binaryFile").schema(
        "path string, modificationTime timestamp, length bigint, content binary"
    )
    planned = statuses.load(_SPECIAL.sub(r"\\\g<0>", str(folder))).filter(F.lit(col=False))
    nothing = F.lit(None).cast("struct<at_ms:bigint,file:string,start:bigint>").alias("written")
    return planned.select(F.lit(source.name).alias("source"), F.lit(0).alias("partition"), nothing)


def _hop(spark: SparkSession, source: HopSource, path: Path, *, is_cut: bool) -> DataFrame:
    # Of a hop maintenance deletes, in whole files, rows that this stream has read.
    # The mark that ends a commit is in its last file: of a commit that is cut, the rows before it come first.
    # If its log `is_cut`, stream/read/data_loss.py reports the lost rows, and Spark continues with the remaining ones.
    if is_cut:  # Spark looks at the commits of the last batch again, which may be gone, too
        spark.conf.set("spark.databricks.delta.streaming.trailingCommitValidation.enabled", "false")
    rows = _appended(spark, path, max_files=MAX_FILES_PER_BATCH, max_bytes=MAX_BYTES_PER_BATCH, from_any_version=is_cut)
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
            "result_row",
            F.unix_millis("idle_watermark").alias("idle_watermark_ms"),
        ).alias(source.name),
    )


def collect(
    rows: DataFrame,
    operators: Collection[Operator],
    schemas: SchemasOf = no_schemas,
    more: Callable[[], pl.DataFrame] = pl.DataFrame,
) -> pl.DataFrame:
    """Collects the *rows* of a batch into the driver and parses those of sources among *operators*.

    *schemas* returns the schemas of registries that they need. *more* returns rows that Spark does not read.
    """
    raw = pl.concat([pl.DataFrame(rows.toArrow()), more()], how="diagonal")
    return parsed_batch(raw, operators, schemas(raw, operators))


def parsed_batch(raw: pl.DataFrame, operators: Iterable[Operator], schemas: KnownSchemas = NO_SCHEMAS) -> pl.DataFrame:
    """Returns the *raw* rows at the sources among *operators*, parsed."""
    return parsed_rows(_with_modification_times(rows_of_files(raw, operators)), operators, schemas)


def _with_modification_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* with modification times of the files of Delta tables."""
    if "written" not in rows.columns:
        return rows
    written = pl.col("written").struct
    at_ms, file = written.field("at_ms"), written.field("file")
    # Spark leaves the time null for Delta tables in a stream.
    unknown = rows.filter(at_ms.is_null()).select(file).to_series().drop_nulls().unique()
    times_ms = {name: _modified_ms(path_of_url(name)) for name in unknown}
    modified_ms = file.replace_strict(times_ms, default=None, return_dtype=pl.Int64)
    return rows.with_columns(written=written.with_fields(at_ms=pl.coalesce(at_ms, modified_ms)))


def _modified_ms(file: Path) -> int | None:
    """Returns when *file* was last written, epoch ms."""
    try:
        return file.stat().st_mtime_ns // 1_000_000
    # The file system does not know; rows are then sorted by the name of the file alone.
    except OSError:
        return None
