"""Cost of a batch, in counts that are equal on every machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
from bench.emit_on_change import Feed, Ours
from deltalake import DeltaTable
from pyspark.sql import SparkSession

COMMITS = {
    "changes",
    "suppressed",
    "operator_batches",
    "latency_minutes",
    "partition_batches",
    "batches",
}
"""Tables that a batch of a source and a table writes.

Each is written once when everything is measured.
"""


def test_a_batch_is_one_spark_job_and_one_commit_per_table(spark: SparkSession, tmp_path: Path) -> None:
    ours = Ours(spark, tmp_path, Feed(2_000, updates=500, changes=50))
    ours.batch()
    before = versions(ours)
    jobs = jobs_of(spark, ours.batch)
    after = versions(ours)
    assert len(jobs) == 1
    assert {table for table in after if after[table] != before[table]} == COMMITS
    for table in COMMITS:
        (version, files), (was_version, had_files) = after[table], before[table]
        assert (version - was_version, files - had_files) == (1, 1), table


def test_an_unchanged_update_costs_its_proof_alone(spark: SparkSession, tmp_path: Path) -> None:
    ours = Ours(spark, tmp_path, Feed(60_000, updates=50_000, changes=25_000))
    ours.batch()
    # Key, JSON and timestamp are some 110 bytes; the hash alone, which no compression makes smaller, is 32.
    assert ours.bytes_per_payload[0] < 1.2
    assert ours.bytes_per_skip[0] < 64


def test_a_look_up_reads_only_the_states_of_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    ours = Ours(spark, tmp_path, Feed(5_000, updates=500, changes=50))
    stored = ours.engine._steps.memory.stored["latest"]
    read, look_up = [], stored.look_up

    def watched(keys: pl.Series) -> pl.DataFrame:
        read.append(look_up(keys))
        return read[-1]

    stored.look_up = watched  # type: ignore[method-assign]
    ours.batch()
    assert [rows.height for rows in read] == [500]
    assert len(stored) == 5_000


def jobs_of(spark: SparkSession, work: Callable[[], object]) -> list[int]:
    """The Spark jobs that *work* runs."""
    spark.sparkContext.setJobGroup("price", "counted")
    work()
    return list(spark.sparkContext.statusTracker().getJobIdsForGroup("price"))


def versions(ours: Ours) -> dict[str, tuple[int, int]]:
    """The version and the number of files of each table."""
    tables = {path.parent.name: DeltaTable(str(path.parent)) for path in ours.stream.home.glob("*/_delta_log")}
    return {name: (table.version(), len(table.file_uris())) for name, table in tables.items()}
