from __future__ import annotations

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
from deltalake import write_deltalake

import rollup
from support.latency_facts import minute_row
from tidemark.facts import large_facts
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, instant_ms
from tidemark.model.tables.catalog import LATENCY_MINUTES, LATENCY_ROLLUP

MINUTE, HOUR, DAY = (grain.length_ms for grain in Grain)
MIDNIGHT = instant_ms("2026-03-01")


def test_spark_counts_what_one_process_counts(spark, warehouse):
    rng = random.Random(3)
    known = []
    for batch_id, operator, task_id in product(range(6), "op", ("0_0", "0_1")):
        at_ms = MIDNIGHT + rng.choice([0, 59_999, MINUTE, HOUR - 1, HOUR, DAY])
        latencies = [rng.randrange(-50, 9_000) for _ in range(9)]
        measured(warehouse, at_ms, latencies, batch_id=batch_id, task_id=task_id, operator=operator)
        known += [(operator, task_id, at_ms, latency) for latency in latencies]

    in_process = rolled_up(warehouse)
    in_spark = rolled_up(warehouse, spark_above=0)

    assert in_spark == in_process
    found = {
        (row["grain"], row["operator"], row["task_id"], ms_of(row["interval_start"])): statistics_of(row)
        for row in in_spark
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
    row = minute_row(MIDNIGHT, [100, 200])
    old = rows_of(LATENCY_MINUTES, [row], topology="t", sub_topology="s").drop_columns(["topology", "task_id"])
    write_deltalake(warehouse.layout.stream_table("t", "s", LATENCY_MINUTES.name), old)
    measured(warehouse, MIDNIGHT, [300], batch_id=1)
    measured(warehouse, MIDNIGHT, [400], sub_topology="z")
    path = str(warehouse.layout.stream_table("t", "z", LATENCY_MINUTES.name))
    spark.read.format("delta").load(path).write.format("delta").mode("append").save(path)

    in_process = rolled_up(warehouse)

    assert rolled_up(warehouse, spark_above=0) == in_process
    rows = [row for row in in_process if row["scope"] == "task" and row["grain"] == "day"]
    assert [(row["topology"], row["sub_topology"], row["task_id"], row["sum_ms"]) for row in rows] == [
        ("t", "s", "0_0", 300),
        ("t", "z", "0_0", 800),
        (None, "s", None, 300),
    ]


def test_spark_is_started_for_more_rows_than_it_is_said(warehouse, monkeypatch):
    for batch_id in range(4):
        measured(warehouse, MIDNIGHT, [1, 2, 3], batch_id=batch_id)

    def asked(name):
        raise InterruptedError(name)

    monkeypatch.setattr(large_facts, "session", asked)
    rolled_up(warehouse)
    rolled_up(warehouse, spark_above=4)
    with pytest.raises(InterruptedError, match="tidemark-rollup"):
        rolled_up(warehouse, spark_above=3)


def measured(warehouse, finished_at_ms, latencies, *, sub_topology="s", **of):
    warehouse.write(LATENCY_MINUTES, [minute_row(finished_at_ms, latencies, **of)], sub_topology)


def rolled_up(warehouse, **how):
    """The rows of the rollup, made from all facts."""
    shutil.rmtree(warehouse.layout.report_table("t", LATENCY_ROLLUP.name), ignore_errors=True)
    rollup.run(warehouse.layout, "t", **how)
    return warehouse.report(LATENCY_ROLLUP)
