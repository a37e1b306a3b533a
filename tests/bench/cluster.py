"""Measures the driver's load when a standalone cluster works on shards.

It also measures millions of keys. The cluster is a master and two workers of this machine. With fewer than six cores
only the CPU times of the driver (Python and JVM) are meaningful.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench.large_state import SHARDS, with_keys
from bench.one_task import own_mb
from bench.ratios import Figure
from bench.records import counted
from bench.shards import Side
from pyspark.sql import SparkSession

from tidemark.local import spark_cluster
from tidemark.local.spark_cluster import LocalCluster
from tidemark.model.project.files import CHECKOUT as PROJECT
from tidemark.model.project.spark_settings import jars, settings
from tidemark.spark_session import session

T = TypeVar("T")
RECORDS, WARMING = 200_000, 2
MOST_KEYS = int(os.environ.get("TIDEMARK_KEYS", "5000000"))


def figures(runs: int) -> Iterator[Figure]:
    """Runs one engine locally, then four shards on a cluster.

    Without keys, with a fifth, and with all of them.
    """
    with TemporaryDirectory() as folder:
        home = Path(folder)
        in_process = _apart(_in_process, home / "alone", runs)
        with _on_cluster(home / "cluster") as (spark, cluster):
            but = [worker.pid for worker in cluster.workers]
            side = _warm(Side(counted(home / "sharded", SHARDS), spark, RECORDS, but=but))
            of_driver = [side.batch() for _ in range(runs)]
            empty_mb = own_mb()
            yield Figure(
                f"driver of {SHARDS} shards on a cluster / in one process: CPU",
                [one / other for one, other in zip(of_driver, in_process, strict=True)],
                0.15,
                at_most=True,
            )
            per_million = [cpu_s / RECORDS * 1_000_000 for cpu_s in of_driver]
            yield Figure("driver, a million records", per_million, unit="s CPU")
            yield Figure("one process, a million records", [s / RECORDS * 1e6 for s in in_process], unit="s CPU")
            sides = {}
            for keys in (MOST_KEYS // 5, MOST_KEYS):
                _apart(_make_keys, home / str(keys), keys)
                sides[keys] = Side(counted(home / str(keys), SHARDS), spark, RECORDS, n=1, but=but)
                sides[keys].batch()
            few, many = sides.values()
            yield Figure("first batch with all keys / with a fifth: time", [many.wall_s[0] / few.wall_s[0]])
            for _ in range(runs):
                few.batch(), many.batch()
            ratio = [one / other for one, other in zip(many.wall_s[1:], few.wall_s[1:], strict=True)]
            yield Figure("batches with all keys / with a fifth: time", ratio, 1.3, at_most=True)
            yield Figure(f"batch with {MOST_KEYS:,} keys", many.wall_s[1:], unit="s")
            yield Figure(
                "driver with all keys, beyond none: memory", [own_mb() - empty_mb], 100, at_most=True, unit="MB"
            )
            yield Figure("driver without keys: memory", [empty_mb], unit="MB")


def _apart(work: Callable[[Path, int], T], home: Path, n: int) -> T:
    """Runs *work* in a separate process and returns its result.

    A JVM has one secret for good, and keys take memory to make.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        return apart.submit(work, home, n).result()


def _in_process(home: Path, runs: int) -> list[float]:
    spark = session("bench-in-process")
    try:
        alone = _warm(Side(counted(home, 1), spark, RECORDS))
        return [alone.batch() for _ in range(runs)]
    finally:
        spark.stop()


def _make_keys(home: Path, keys: int) -> None:
    with_keys(home, keys)


def _warm(side: Side) -> Side:
    for _ in range(WARMING):
        side.batch()
    return side


@contextmanager
def _on_cluster(home: Path) -> Iterator[tuple[SparkSession, LocalCluster]]:
    cluster = spark_cluster.start(home, cores=2, memory="2g")
    try:
        builder = SparkSession.builder.appName("bench-cluster").master(cluster.address)
        library = os.pathsep.join(str(PROJECT / part) for part in ("jobs", "tests"))
        spark = builder.config(
            map={
                **dict(settings(PROJECT / "docker" / "spark-defaults.conf")),
                **dict(settings(cluster.secrets)),
                "spark.driver.host": spark_cluster.HOST,
                "spark.driver.bindAddress": spark_cluster.HOST,
                "spark.jars": ",".join(jars(PROJECT)),
                "spark.pyspark.python": sys.executable,
                "spark.executorEnv.PYTHONPATH": library,
                "spark.executor.memory": "700m",
            }
        ).getOrCreate()
        try:
            yield spark, cluster
        finally:
            spark.stop()
    finally:
        spark_cluster.stop(home)
