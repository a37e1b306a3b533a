from __future__ import annotations

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
from deltalake import write_deltalake

import rollup
from support.latency_facts import facts
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, instant_ms
from tidemark.model.tables.catalog import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, LATENCY_ROLLUP, OPERATOR_BATCHES
from tidemark.reports.rollups import large_facts

MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
MIDNIGHT = instant_ms("2026-03-01")
FACTS, ROLLUPS = (OPERATOR_BATCHES, LATENCY_BUCKETS), (LATENCY_ROLLUP, LATENCY_BUCKET_ROLLUP)


def test_spark_counts_what_one_process_counts(spark, warehouse):
    rng = random.Random(3)
    known = []
    for batch_id, operator, task_id in product(range(6), "op", ("0_0", "0_1")):
        at_ms = MIDNIGHT + rng.choice([0, 59_999, MINUTE, HOUR - 1, HOUR, DAY])
        latencies = [rng.randrange(-50, 9_000) for _ in range(9)]
        measured(warehouse, at_ms, latencies, batch_id=batch_id, task_id=task_id, operator=operator)
        known += [(operator, task_id, at_ms, latency) for latency in latencies]
    measured(
        warehouse, MIDNIGHT, [400], batch_id=6, tables=[OPERATOR_BATCHES]
    )  # of which the buckets are not there yet

    in_process = rolled_up(warehouse)
    in_spark = rolled_up(warehouse, spark_above=0)

    assert in_spark == in_process
    found = {
        (row["grain"], row["operator"], row["task_id"], ms_of(row["interval_start"])): statistics_of(row)
        for row in in_spark[0]
        if row["scope"] == "task"
    }
    assert found == counted_one_by_one(known)


def counted_one_by_one(known):
    """Computes statistics of *known* latencies one by one.

    Count, least, largest, sum and negatives by grain, operator, task and interval.
    """
    of: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for operator, task_id, at_ms, latency in known:
        for grain in Grain:
            of[grain.value, operator, task_id, at_ms // grain.length_ms * grain.length_ms].append(latency)
    return {key: (len(ms), min(ms), max(ms), sum(ms), sum(each < 0 for each in ms)) for key, ms in of.items()}


def statistics_of(row):
    return tuple(row[column] for column in ("n", "min_ms", "max_ms", "sum_ms", "negative_n"))


def ms_of(at):
    return round(at.timestamp() * 1000)


def test_spark_counts_old_files_and_those_of_other_writers(spark, warehouse, tmp_path):
    warehouse = replace(warehouse, layout=Layout(tmp_path / "it's {here}*"))
    for table, rows in facts(MIDNIGHT, [100, 200], task_id=None).items():
        old = rows_of(table, rows, topology="t", sub_topology="s").drop_columns(["topology"])
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


def test_spark_is_started_for_more_rows_than_it_is_said(warehouse, monkeypatch):
    measured(warehouse, MIDNIGHT, [1, 2, 3])  # a row of latency and three of buckets

    def asked(name):
        raise InterruptedError(name)

    monkeypatch.setattr(large_facts, "session", asked)
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
