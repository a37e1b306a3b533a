"""What two shards cost beside the driver itself: a batch of a table and an aggregate, read, decided and committed."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import Figure, by_turns, ratios
from playing import Silence
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.spark import session
from tidemark.spec.layout import Layout
from tidemark.spec.stream import Stream
from tidemark.spec.topology import parse
from tidemark.stream.distributed.on_spark import SparkExecutors
from tidemark.stream.read.sources import RAW, collect
from tidemark.stream.wiring import build_engine

PARTITIONS, KEYS, NOON_MS = 4, 1_000_000, 1_400_000_000_000
TOML = """
name = "bench"
level = "trace"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v bigint, note string, at bigint"
timestamp = "at"
bound = "1 s"
max_ahead = "unlimited"
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
columns = ["v"]
[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
aggregates = { n = "count(*)", total = "sum(v)" }
"""


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
    sides = {n: _Side(home / str(n), spark, records, n) for n in (1, 2)}
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


class _Side:
    """A stream in so many *shards*, of which each batch has so many *records*."""

    def __init__(self, home: Path, spark: SparkSession, records: int, shards: int) -> None:
        topology = parse(tomllib.loads(f"shards = {{ events = {shards} }}\n{TOML}"), file="bench.toml")
        self._stream = Stream(topology, topology.sub_topologies[0], Layout(home / "warehouse"))
        self._home, self._spark, self._records, self._n = home, spark, records, 0
        self.wall_s: list[float] = []
        self._engine = build_engine(self._stream, Silence(PARTITIONS), thread_id="t", epoch=1, slow_ms={})

    def batch(self) -> float:
        """The CPU time of the next batch, of this process and all that it has started."""
        rows, operators = self._rows(), self._stream.sub.operators
        began_s, at_s = _cpu_s(), time.perf_counter()
        self._engine.process(self._n, lambda: collect(rows, operators), {}, SparkExecutors(rows))
        self.wall_s.append(time.perf_counter() - at_s)
        self._n += 1
        return _cpu_s() - began_s

    def _rows(self) -> DataFrame:
        """The next records as Spark has them of a topic, each partition in a file of its own."""
        size, first = self._records // PARTITIONS, self._n * self._records
        for partition in range(PARTITIONS):
            numbers = pl.select(pl.int_range(first + partition * size, first + (partition + 1) * size).alias("n"))
            values = numbers.select(
                source=pl.lit("events"),
                partition=pl.lit(partition, pl.Int32),
                offset=pl.int_range(self._n * size, (self._n + 1) * size),
                value=pl.concat_str(
                    pl.lit('{"id":"key-'), pl.col("n") * 7_919 % KEYS, pl.lit('","v":'), pl.col("n"),
                    pl.lit(',"note":"'), pl.col("n").cast(pl.String).str.zfill(60),
                    pl.lit('","at":'), NOON_MS + pl.col("n") // 100, pl.lit("}"),
                ).cast(pl.Binary),
            )  # fmt: skip
            path = self._home / f"batch-{self._n}" / f"{partition}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            values.write_parquet(path)
        frames = [self._spark.read.parquet(str(path)) for path in sorted(path.parent.iterdir())]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        rest = {name: kind for name, kind in RAW.items() if name not in whole.columns}
        return whole.select(*whole.columns, *(F.lit(None).cast(kind).alias(name) for name, kind in rest.items()))


def _cpu_s() -> float:
    """What this process and all below it have used so far, and those that have ended of them."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    below, found = {os.getpid()}, 0
    while below:
        found += sum(used.get(pid, 0) for pid in below)
        below = {pid for pid, parent in parents.items() if parent in below}
    return found / os.sysconf("SC_CLK_TCK")
