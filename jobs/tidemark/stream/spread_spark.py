"""Spark's executors, for the tasks of a large batch. They import tidemark: ship it with `--py-files`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from tidemark.stream.read.sources import parsed_batch
from tidemark.stream.spread_tasks import Arrived, Arriving, Worked, Working

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class SparkExecutors:
    """The executors of the session that has *rows*, those of one batch."""

    rows: DataFrame

    @property
    def _context(self) -> SparkContext:
        return self.rows.sparkSession.sparkContext

    def parallelism(self) -> int:
        """How many tasks run at once."""
        return self._context.defaultParallelism

    def arrive(self, task: Arriving) -> list[Arrived]:
        """Run *task* on the rows of each partition of each source."""
        # A hash puts partitions into tasks: of many tasks few get two, and one without any costs next to nothing.
        by_partition = self.rows.repartition(8 * self.parallelism(), "source", "partition").groupBy(
            "source", "partition"
        )
        told = by_partition.applyInArrow(_arriving(task), "arrived binary").collect()
        return [pickle.loads(row["arrived"]) for row in told]

    def work(self, task: Working) -> list[Worked]:
        """Run *task* for the number of each share, from 0 up."""
        return self._context.parallelize(range(task.shares), task.shares).map(task).collect()


def _arriving(task: Arriving) -> Callable[[pa.Table], pa.Table]:
    def arrive(rows: pa.Table) -> pa.Table:
        arrived = task(parsed_batch(pl.DataFrame(rows), task.sub.operators))
        return pa.table({"arrived": pa.array([pickle.dumps(arrived)], pa.binary())})

    return arrive
