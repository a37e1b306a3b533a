"""Spark Structured Streaming without Tidemark, into a Delta table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

import polars as pl
from contests.peers.peer import PROJECT, Peer, Place, Promise, package_versions
from contests.workload import TYPES, Expected

PROGRAM = Path(__file__).parents[1] / "programs" / "spark.py"
JARS = PROJECT / ".jars" / "spark"


class SparkAppend(Peer):
    """Every record is parsed and appended; no state."""

    name = "spark_append"
    title = "stock Spark: parse and append, no state"
    promise = Promise.EXACTLY_ONCE
    expected = Expected.ALL
    has_state = False
    settings: ClassVar = {"master": "local[2]", "trigger": "as soon as possible (default)", "heap": "1 GB (default)"}

    def versions(self) -> dict[str, str]:
        return package_versions("pyspark", "delta-spark")

    def command(self, place: Place) -> list[str]:
        way = self.name.removeprefix("spark_")
        return [sys.executable, str(PROGRAM), way, place.address, place.input, str(place.home / "table"), str(JARS)]

    def progress(self, place: Place) -> dict[int, int]:
        checkpoint = place.home / "table_checkpoint"
        batches = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
        if not batches:
            return {}
        last = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[-1]
        return {int(partition): offset for partition, offset in json.loads(last)[place.input].items()}

    def emitted(self, place: Place) -> pl.DataFrame:
        return pl.scan_delta(str(place.home / "table")).select(TYPES.keys()).sort("at").collect()


class SparkMerge(SparkAppend):
    """The last record of each key, by MERGE in `foreachBatch`."""

    name = "spark_merge"
    title = "stock Spark: foreachBatch with MERGE"
    expected = Expected.LAST
    has_state = True
    settings: ClassVar = SparkAppend.settings | {"spark.sql.shuffle.partitions": "4"}


class SparkState(SparkMerge):
    """The value of each key in Spark's state, by rows."""

    name = "spark_state"
    title = "stock Spark: transformWithState, rows in Python"
    expected = Expected.CHANGES
    settings: ClassVar = SparkMerge.settings | {"state": "RocksDB, changelog checkpointing"}


class SparkStatePandas(SparkState):
    """The same with a pandas frame per key and batch."""

    name = "spark_state_pandas"
    title = "stock Spark: transformWithStateInPandas"
