"""The parser of checkpoints reads what the installed Spark writes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from support.offset_log import write_checkpoint
from tidemark.clock import wall_clock_ms
from tidemark.stream.journal.checkpoint import last_tick, newest_commit, plans, read_plan, version_read


def test_what_spark_writes_is_read(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    began_ms = wall_clock_ms()
    newest, table = write_checkpoint(spark, broker, tmp_path, "planned")
    checkpoint, ends = tmp_path / "checkpoint", {"planned": {0: 3, 1: 1}}
    plan = read_plan(checkpoint, newest)
    assert plan.ends == ends
    # The table has the versions 0 to 3.
    assert plan.versions == {table: 4}
    assert began_ms <= plan.at_ms <= wall_clock_ms()
    assert newest_commit(checkpoint) == (newest, False)
    assert plans(checkpoint)[newest] == ends
    assert version_read(checkpoint, table) == 4
    assert 0 <= last_tick(checkpoint) <= (wall_clock_ms() - began_ms) // 1_000
