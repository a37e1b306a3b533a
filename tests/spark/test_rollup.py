from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
from deltalake import write_deltalake
from measuring import facts

import rollup
from tidemark.kernels.schemas import rows_of
from tidemark.report import latency_facts
from tidemark.spec.intervals import Grain, instant_ms
from tidemark.spec.layout import Layout
from tidemark.spec.tables import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, LATENCY_ROLLUP, OPERATOR_LATENCY

MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
MIDNIGHT = instant_ms("2026-03-01")
FACTS, ROLLUPS = (OPERATOR_LATENCY, LATENCY_BUCKETS), (LATENCY_ROLLUP, LATENCY_BUCKET_ROLLUP)


def test_spark_counts_what_one_process_counts(spark, warehouse):
    rng = random.Random(3)
    for batch_id in range(6):
        for task_id in ("0_0", "0_1"):
            at_ms = MIDNIGHT + rng.choice([0, 59_999, MINUTE, HOUR - 1, HOUR, DAY])
            latencies = [rng.randrange(-50, 9_000) for _ in range(9)]
            measured(warehouse, at_ms, latencies, batch_id=batch_id, task_id=task_id)

    in_process = rolled_up(warehouse)
    in_spark = rolled_up(warehouse, spark_above=0)

    assert in_spark == in_process
    assert sum(row["n"] for row in in_spark[0] if row["scope"] == "operator" and row["grain"] == "day") == 6 * 2 * 9


def test_spark_counts_by_hand(spark, warehouse):
    measured(warehouse, MIDNIGHT + MINUTE - 1, [100, -5])
    measured(warehouse, MIDNIGHT + MINUTE, [300], batch_id=1)
    measured(warehouse, MIDNIGHT + MINUTE, [7], batch_id=1, operator="p")
    measured(warehouse, MIDNIGHT + MINUTE, [400], batch_id=2, tables=[OPERATOR_LATENCY])

    rows, _ = rolled_up(warehouse, spark_above=0)

    of = ("operator", "grain", "n", "min_ms", "max_ms", "sum_ms", "negative_n")
    assert {(f"{row['interval_start']:%H:%M}", *(row[c] for c in of)) for row in rows if row["scope"] == "task"} == {
        ("00:00", "o", "minute", 2, -5, 100, 95, 1),
        ("00:01", "o", "minute", 1, 300, 300, 300, 0),
        ("00:01", "p", "minute", 1, 7, 7, 7, 0),
        ("00:00", "o", "hour", 3, -5, 300, 395, 1),
        ("00:00", "p", "hour", 1, 7, 7, 7, 0),
        ("00:00", "o", "day", 3, -5, 300, 395, 1),
        ("00:00", "p", "day", 1, 7, 7, 7, 0),
    }


def test_spark_counts_files_of_before_a_column_was_added_and_files_that_others_wrote(spark, warehouse, tmp_path):
    warehouse = replace(warehouse, layout=Layout(tmp_path / "it's {here}*"))
    for table, rows in facts(MIDNIGHT, [100, 200]).items():
        old = rows_of(table, rows, topology="t", sub_topology="s").drop_columns(["topology", "task_id"])
        write_deltalake(warehouse.layout.stream_table("t", "s", table.name), old)
    measured(warehouse, MIDNIGHT, [300], batch_id=1)
    measured(warehouse, MIDNIGHT, [400], sub_topology="z")
    for table in FACTS:
        path = str(warehouse.layout.stream_table("t", "z", table.name))
        spark.read.format("delta").load(path).write.format("delta").mode("append").save(path)

    in_process = rolled_up(warehouse)

    assert rolled_up(warehouse, spark_above=0) == in_process
    rows = [row for row in in_process[0] if row["scope"] == "task" and row["grain"] == "day"]
    assert [(row["topology"], row["sub_topology"], row["task_id"], row["sum_ms"]) for row in rows] == [
        ("t", "s", "0_0", 300),
        ("t", "z", "0_0", 800),
        (None, "s", None, 300),
    ]


def test_spark_is_started_for_more_rows_of_facts_than_it_is_said_and_not_for_fewer(warehouse, monkeypatch):
    measured(warehouse, MIDNIGHT, [1, 2, 3])  # a row of latency and three of buckets

    def asked(name):
        raise InterruptedError(name)

    monkeypatch.setattr(latency_facts, "session", asked)
    rolled_up(warehouse)
    rolled_up(warehouse, spark_above=4)
    with pytest.raises(InterruptedError, match="tidemark-rollup"):
        rolled_up(warehouse, spark_above=3)


def measured(warehouse, finished_at_ms, latencies, *, sub_topology="s", tables=FACTS, **of):
    for table, rows in facts(finished_at_ms, latencies, **of).items():
        if table in tables:
            warehouse.write(table, rows, sub_topology)


def rolled_up(warehouse, **how):
    """The rows of both rollups, made from all facts."""
    for table in ROLLUPS:
        shutil.rmtree(warehouse.layout.report_table("t", table.name), ignore_errors=True)
    rollup.run(warehouse.layout, "t", **how)
    return tuple(warehouse.report(table) for table in ROLLUPS)
