"""Measures two shards beside the driver: a batch from read to commit.

Its topology has a table and an aggregate.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ratios import Figure, by_turns, ratios
from bench.records import PARTITIONS, counted, raw_partition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.quiet_broker import Silence
from tidemark.model.stream import Stream
from tidemark.spark_session import session
from tidemark.stream.read.sources import RAW, collect
from tidemark.stream.shards.on_spark import SparkExecutors
from tidemark.stream.wiring import build_engine

KEYS = 1_000_000


def figures(runs: int) -> Iterator[Figure]:
    """Two sizes of batches, on two cores that do nothing else."""
    with TemporaryDirectory() as folder:
        spark = session("bench-shards")
        try:
            for records in (20_000, 200_000):
                yield from _figures(runs, Path(folder) / str(records), spark, records)
        finally:
            spark.stop()


def _figures(runs: int, home: Path, spark: SparkSession, records: int) -> Iterator[Figure]:
    sides = {n: Side(counted(home / str(n), n), spark, records) for n in (1, 2)}
    for side in sides.values():
        side.batch()  # the first one starts what the others find
        side.batch()
    turns: dict[str, Callable[[], float]] = {str(n): side.batch for n, side in sides.items()}
    cpu_s = by_turns(turns, runs)
    wall_s = {name: sides[int(name)].wall_s[-runs:] for name in cpu_s}
    of = f"2 shards / the driver, batches of {records:,}"
    is_large = records > 100_000
    yield Figure(f"{of}: CPU", ratios(cpu_s, "2", "1"), 2 if is_large else None, at_most=True)
    yield Figure(f"{of}: time", ratios(wall_s, "2", "1"), 1.2 if is_large else None, at_most=True)
    yield Figure(f"the driver, batches of {records:,}", cpu_s["1"], unit="s CPU")
    yield Figure(f"2 shards, batches of {records:,}", cpu_s["2"], unit="s CPU")


class Side:
    """A *stream* with *records* per batch, from batch *n* on."""

    def __init__(
        self, stream: Stream, spark: SparkSession, records: int, *, n: int = 0, but: Sequence[int] = ()
    ) -> None:
        self._stream, self._home, self._but = stream, stream.layout.warehouse.parent, but
        self._spark, self._records, self._n = spark, records, n
        self.wall_s: list[float] = []
        self._engine = build_engine(stream, Silence(PARTITIONS), thread_id="t", epoch=1 + n, slow_ms={})

    def batch(self) -> float:
        """Measures CPU time of the next batch without some processes.

        It includes this process and all its children.
        """
        rows, operators = self._rows(), self._stream.sub.operators
        began_s, at_s = cpu_s(self._but), time.perf_counter()
        self._engine.process(self._n, lambda: collect(rows, operators), {}, SparkExecutors(rows))
        self.wall_s.append(time.perf_counter() - at_s)
        self._n += 1
        return cpu_s(self._but) - began_s

    def _rows(self) -> DataFrame:
        """Returns the next records as Spark reads them from a topic.

        Each partition has a file of its own.
        """
        for partition in range(PARTITIONS):
            path = self._home / f"batch-{self._n}" / f"{partition}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            raw_partition(self._n, partition, self._records, KEYS).write_parquet(path)
        frames = [self._spark.read.parquet(str(path)) for path in sorted(path.parent.iterdir())]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        rest = {name: kind for name, kind in RAW.items() if name not in whole.columns}
        return whole.select(*whole.columns, *(F.lit(None).cast(kind).alias(name) for name, kind in rest.items()))


def cpu_s(but: Sequence[int] = (), of: Sequence[int] = ()) -> float:
    """Returns CPU use of *of* (this process) and descendants, *but* for some.

    Ended ones count.
    """
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    below, found = {*(of or [os.getpid()])}, 0
    while below:
        found += sum(used.get(pid, 0) for pid in below)
        below = {pid for pid, parent in parents.items() if parent in below} - {*but}
    return found / os.sysconf("SC_CLK_TCK")
