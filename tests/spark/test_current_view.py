"""Spark's view of current rows says what DuckDB's says, before a merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.play import NOON, Play, ms
from support.topologies import BOARD, WINDOW_BOARD
from tidemark.model.project.layout import Layout
from tidemark.query.spark import register
from tidemark.query.sql import Warehouse

WINDOWS = WINDOW_BOARD.replace("10 s", "2 s")
SEEN = f"unix_millis(last_seen_at) - {NOON}"


@pytest.mark.parametrize(
    ("toml", "third", "rows"),
    [
        (BOARD, "null", [("a", 2, None), ("c", 1, None), ("d", 3, None)]),
        (f"{BOARD}last_seen_at = true\n", SEEN, [("a", 2, 1_000), ("c", 1, 4_000), ("d", 3, 4_000)]),
        (WINDOWS, "window_final", [("a", 2, True), ("b", 2, True), ("c", 1, True), ("c", 1, False), ("d", 1, False)]),
    ],
    ids=["values", "last_seen_at", "windows"],
)
def test_current_rows_are_the_same_in_spark_and_duckdb(
    spark: SparkSession, tmp_path: Path, toml: str, third: str, rows: list[tuple[Any, ...]]
) -> None:
    play = Play(toml, tmp_path)
    for second, values in {0: {"a": 1, "b": 1, "c": 1}, 1: {"a": 2, "b": None}, 4: {"c": 1, "d": 3}}.items():
        sent = [play.row("events", ms(second), id=id_, v=v) for id_, v in values.items()]
        deletes = toml is not WINDOWS
        play.batch([{**row, "deleted": deletes and row["events"]["v"] is None} for row in sent], at_ms=ms(second))
    order = ", window_start" if toml is WINDOWS else ""
    asked = f"SELECT id, v, {third} FROM board ORDER BY id{order}"
    register(spark, Layout(tmp_path), asked)
    of_spark = [tuple(row) for row in spark.sql(asked).collect()]
    assert of_spark == [*Warehouse(tmp_path).ask(asked).rows] == rows
