"""Spark continues in hops whose commits were moved or lost.

Moved commits are beside the log.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from support.topologies import aggregate, repartition, source, topology_of
from tidemark.clock import wall_clock_ms
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.tables.catalog import HOP
from tidemark.model.topology import parse
from tidemark.storage.delta.log import HOP_LOG
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import Fence
from tidemark.stream.read.hop_log import KEPT, is_cut, put_back, trim
from tidemark.stream.read.sources import _hop

TOML = topology_of(
    events=source(fields="id string, at bigint", timestamp="at", max_ahead=None),
    r=repartition(key=["id"], columns=["at"]),
    n=aggregate("r", aggregates={"n": "count(*)"}),
)
SOURCE = parse(tomllib.loads(TOML), file="play.toml").operators["r_source"]


class Reader:
    """A streaming query over the hop at *path*, with a stream's checkpoint."""

    def __init__(self, spark: SparkSession, path: Path, control: Path) -> None:
        self._spark, self._path, self._control = spark, path, control
        self._committer = Committer("play/up", Fence(clock=lambda: 0))
        create(path, arrow_schema(HOP), log=HOP_LOG)

    def write(self, *batches: int) -> None:
        for batch_id in batches:
            self._committer.commit(self._path, rows_of(HOP, [{"seq": 0}], batch_id=batch_id), batch_id)

    def reads(self) -> list[int]:
        """The batches that it has not read before."""
        found: list[int] = []
        put_back(self._path, self._control)
        assert isinstance(SOURCE, HopSource)
        rows = _hop(self._spark, SOURCE, self._path, is_cut=is_cut(self._path, self._control))
        query = (
            rows.writeStream.foreachBatch(lambda frame, _: found.extend(row["offset"] for row in frame.collect()))
            .option("checkpointLocation", str(self._control / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)


def test_spark_resumes_from_commits_that_lay_beside_the_log(spark: SparkSession, tmp_path: Path) -> None:
    path, control = tmp_path / "hop_r", tmp_path / "control"
    reader = Reader(spark, path, control)
    reader.write(0, 1)
    assert reader.reads() == [0, 1]
    reader.write(2, 3, 4)
    table = DeltaTable(str(path))
    table.create_checkpoint()
    for file in (path / "_delta_log").glob("0*"):
        os.utime(file, (0, (wall_clock_ms() - 3_600_000) / 1_000))
    trim(path, table, [control], now_ms=wall_clock_ms())
    assert len([*(path / "_delta_log").glob("*.json")]) == 1
    assert [*(path / KEPT).glob("*.json")]
    reader.write(5)
    assert reader.reads() == [2, 3, 4, 5]
    reader.write(6, 7, 8)
    DeltaTable(str(path)).create_checkpoint()
    for version in range(9):
        (path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)
    assert is_cut(path, control)
    assert reader.reads() == [8]
