"""Runs the tasks of batches in shards on Spark. The tasks import tidemark: ship it with `--py-files`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.kernels.formats.written_schema import KnownSchemas
from tidemark.model.kinds.operator import Operator
from tidemark.spark_session import forget_archives
from tidemark.stream.driver.versions import Versions
from tidemark.stream.kafka.broker import TopicWriter
from tidemark.stream.read.sources import parsed_batch
from tidemark.stream.schemas.known_schemas import are_known
from tidemark.stream.shards.speculation import without_speculation
from tidemark.stream.shards.tasks import Dealt, IntakeTask, ShardTask
from tidemark.stream.shards.totals import ShardResult

DEALT = pa.schema([("shard", pa.int32()), ("dealt", pa.binary())])
WORKED = pa.schema([("shard", pa.int32()), ("worked", pa.binary())])


@dataclass(frozen=True)
class SparkExecutors:
    """Runs tasks on the *rows* of one batch, in Spark's session of these rows.

    Tasks get the *schemas* of registries that the driver knows. A batch with other schemas is left to the driver.
    """

    rows: DataFrame
    schemas: KnownSchemas = field(default_factory=dict)

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        """Runs *taking_in* on each partition of each source, then *working* on what was dealt to each shard."""
        take_in = _taking_in(taking_in, self.schemas)
        # Grouping shuffles all records, which is unnecessary where a task has whole partitions.
        if all(_has_task_per_partition(source) for source in taking_in.stream.sub.sources):
            return self._worked(self.rows.mapInArrow(take_in, "shard int, dealt binary"), working)
        by_partition = self.rows.groupBy("source", "partition")

        def take_in_group(rows: pa.Table) -> pa.Table:
            return pa.Table.from_batches(take_in(rows.to_batches()), schema=DEALT)

        return self._worked(by_partition.applyInArrow(take_in_group, "shard int, dealt binary"), working)

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        """Runs *working* on what was *dealt* to each shard."""
        rows = _as_batch(DEALT, dealt)
        return self._worked(self.rows.sparkSession.createDataFrame(pa.Table.from_batches([rows])), working)

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        """Runs all tasks of *publishing*, none of them twice at a time."""
        context = self.rows.sparkSession.sparkContext
        # Each task is one task of Spark, so that a failure repeats only that one.
        tasks = context.parallelize(range(publishing.tasks), publishing.tasks)
        with without_speculation(context._conf):
            return tasks.flatMap(_sending(publishing, Versions.here())).collect()

    def _worked(self, dealt: DataFrame, working: ShardTask) -> list[ShardResult]:
        # A shard to which nothing was dealt has work all the same: its windows may close.
        every = self.rows.sparkSession.range(working.shards, numPartitions=1)
        empty = every.select(F.col("id").cast("int").alias("shard"), F.lit(None).cast("binary").alias("dealt"))
        # repartitionById places rows by the number itself, so a task has one shard and no hash decides which.
        placed = dealt.unionAll(empty).repartitionById(working.shards, "shard")
        results = placed.mapInArrow(_working(working), "shard int, worked binary").toArrow()
        return [pickle.loads(worked) for worked in results.sort_by("shard")["worked"].to_pylist()]


def _has_task_per_partition(source: Operator) -> bool:
    """Returns True if Spark reads each partition of *source* in one task, which is so for topics."""
    return source.topic_read is not None


def _taking_in(
    task: IntakeTask, schemas: KnownSchemas
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def take_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_archives()
        read = [*batches]
        # Spark may give a task no batch, or empty ones.
        if read and (rows := pa.Table.from_batches(read)).num_rows:
            raw, operators = pl.DataFrame(rows), task.stream.sub.operators
            if not are_known(raw, operators, schemas):
                yield _as_batch(DEALT, task.left_to_driver())
                return
            parsed = parsed_batch(raw, operators, schemas)
            partitions = parsed.partition_by("source", "partition", maintain_order=True)
            yield _as_batch(DEALT, chain.from_iterable(map(task, partitions)))

    return take_in


def _working(task: ShardTask) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_archives()
        rows = pa.Table.from_batches([*batches])
        shard = rows["shard"][0].as_py()
        worked = task(shard, rows["dealt"].drop_null().to_pylist())
        yield _as_batch(WORKED, [(shard, pickle.dumps(worked))])

    return work


def _sending(publishing: TopicWriter, versions: Versions) -> Callable[[int], list[pl.DataFrame]]:
    def send(task: int) -> list[pl.DataFrame]:
        forget_archives()
        versions.refuse_others()
        return publishing(task)

    return send


def _as_batch(schema: pa.Schema, rows: Iterable[tuple[int, bytes]]) -> pa.RecordBatch:
    # zip() of no rows gives no columns.
    columns = [*zip(*rows, strict=True)] or [(), ()]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
