"""Compares checks of tables of a stream: contracts against great-expectations in Spark.

`ROWS=1_000_000 make bench PARTS=contracts` has so many rows in each table, instead of 100,000. Both must find the same.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import polars as pl
from bench.grown import EVERY_MS, NEWS, Grown
from bench.ratios import Figure, by_turns, ratios, seconds
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from streaming.drivers import PROJECT

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.tables.catalog import COUNTED, TABLES
from tidemark.model.topology import Topology, load
from tidemark.sla.contracts.counts import judge_contracts
from tidemark.spark_session import session

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    from tidemark.sla.contracts.quality import Quality

ROWS = int(os.environ.get("ROWS", "100_000"))
RECORDS = os.environ.get("RECORDS", "300_000 3_000_000").split()
BATCHES = 100
NOW_MS = 1_772_323_200_000
HOUR = Interval(NOW_MS - 3_600_000, NOW_MS)
KINDS = ["source", "map", "table", "aggregate", "repartition", "join", "sink"]


def unique(*columns: str) -> tuple[str, str, dict[str, Any]]:
    """No two rows have the same *columns*."""
    return "duplicate_keys", "expect_compound_columns_to_be_unique", {"column_list": [*columns]}


def among(column: str, *words: str) -> tuple[str, str, dict[str, Any]]:
    """*column* has one of *words*."""
    return "unknown_words", "expect_column_values_to_be_in_set", {"column": column, "value_set": [*words]}


def counted(column: str) -> tuple[str, str, dict[str, Any]]:
    """*column* is not negative."""
    return "negative_counts", "expect_column_values_to_be_between", {"column": column, "min_value": 0}


def ordered(first: str, last: str) -> tuple[str, str, dict[str, Any]]:
    """*first* is not above *last*."""
    pair = {"column_A": last, "column_B": first, "or_equal": True}
    return "not_adding_up", "expect_column_pair_values_a_to_be_greater_than_b", pair


CHECKS = {
    "batches": [among("level", "info", "debug", "trace"), counted("records_in")],
    "operator_batches": [unique("batch_id", "operator"), among("kind", *KINDS), ordered("min_ms", "max_ms")],
    "latency_minutes": [unique("batch_id", "operator", "task_id", "window_start"), ordered("min_ms", "max_ms")],
    "operator_windows": [unique("operator", "window_start"), counted("records")],
    "partition_batches": [unique("batch_id", "source", "partition"), among("activity", "active", "idle", "backlogged")],
    "changes": [unique("batch_id", "operator", "seq"), counted("seq")],
    "suppressed": [counted("n"), ordered("first_offset", "last_offset")],
}
"""Maps tables to Tidemark's checks and the equivalent stock expectations."""
BROKEN = {("operator_batches", "unknown_words"), ("changes", "duplicate_keys"), ("suppressed", "negative_counts")}


def figures(runs: int) -> Iterator[Figure]:
    """Measures a check after RECORDS, and how much longer the stock way takes."""
    yield from _growing([int(size) for size in RECORDS if int(size)], runs)
    yield from _against_stock(runs)


def _growing(sizes: list[int], runs: int) -> Iterator[Figure]:
    """Measures checks after *sizes* records, all with the same number of records since the check before.

    The last check is the first one of a day, which compares keys in whole tables.
    """
    cpu_s: dict[int, float] = {}
    for size in sizes:
        midnight_ms = int(time.time() * 1_000) // DAY_MS * DAY_MS
        with TemporaryDirectory() as folder:
            grown = Grown(Path(folder) / "checked", size, midnight_ms - 2 * NEWS * EVERY_MS)
            grown.write()
            found = {"the first check": [grown.check("first")], "a check": [], "one without news": []}
            later = grown.goes_on()
            for _ in range(runs):
                again = replace(later, folder=Path(folder) / "again")
                shutil.copytree(later.folder, again.folder)
                found["a check"].append(again.check("news"))
                found["one without news"].append(again.check("quiet", later_ms=EVERY_MS))
                shutil.rmtree(again.folder)
            later.check("news")
            found["the first check of a day"] = [later.goes_on().check("whole")]
        cpu_s[size] = median(cost.cpu_s for cost in found["a check"])
        for name, costs in found.items():
            yield Figure(f"{name} after {size:,} records", [cost.cpu_s for cost in costs], unit="CPU s")
            yield Figure("  memory above its imports", [cost.memory_mb for cost in costs], 150, at_most=True, unit="MB")
        yield Figure("  memory of its imports", [cost.imports_mb for cost in found["a check"]], unit="MB")
    if len(sizes) > 1:
        name = f"a check after {sizes[-1]:,} records against one after {sizes[0]:,}"
        yield Figure(name, [cpu_s[sizes[-1]] / cpu_s[sizes[0]]], 1.1, at_most=True)


def _against_stock(runs: int) -> Iterator[Figure]:
    """Measures how much longer the stock way takes.

    Imports, Spark's start and a first run of each are not counted.
    """
    topology = load(PROJECT / "jobs" / "topologies" / "flights.toml")
    with TemporaryDirectory() as folder, session("bench") as spark:
        layout = Layout(Path(folder))
        _lay_down(layout, topology)
        found: dict[str, set[tuple[str, str]]] = {}
        sides = {
            "stock": lambda: seconds(lambda: found.update(stock=_stock(spark, layout, topology))),
            "ours": lambda: seconds(lambda: found.update(ours=_ours(layout, topology))),
        }
        by_turns(sides, 1)
        took = by_turns(sides, runs)
    if not found["stock"] == found["ours"] == BROKEN:
        msg = f"the verdicts differ: {found}, planted {BROKEN}"
        raise AssertionError(msg)
    n = sum(map(len, CHECKS.values()))
    name = f"{n} checks of {len(CHECKS)} tables of {ROWS:,} rows: stock great-expectations against ours"
    yield Figure(name, ratios(took, "stock", "ours"), 5)
    yield Figure("  the stock way", took["stock"], unit="s")
    yield Figure("  ours", took["ours"], unit="s")


def _ours(layout: Layout, topology: Topology) -> set[tuple[str, str]]:
    """Tables and what is broken there."""
    found = judge_contracts(layout, topology, HOUR)
    rows = Quality().check_each("contract", pd.DataFrame([dict(each.counts) for each in found]))
    broken = {(found[place].table, row["column"]) for place, row in rows if not row["success"]}
    return broken & {(table, name) for table, checks in CHECKS.items() for name, _, _ in checks}


def _stock(spark: SparkSession, layout: Layout, topology: Topology) -> set[tuple[str, str]]:
    """The same, by a suite for each table."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source, broken = context.data_sources.add_spark("tables"), set()
    for table, checks in CHECKS.items():
        frame = spark.read.format("delta").load(str(_path(layout, topology, table)))
        suite = gx.ExpectationSuite(table, [{"type": kind, "kwargs": kwargs} for _, kind, kwargs in checks])
        batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe("whole")
        for result in batch.get_batch({"dataframe": frame}).validate(suite).results:
            told = result.expectation_config
            (name,) = (
                name for name, kind, kwargs in checks if kind == told.type and kwargs.items() <= told.kwargs.items()
            )
            broken |= set() if result.success else {(table, name)}
    return broken


def _path(layout: Layout, topology: Topology, table: str) -> Path:
    return layout.stream_table(topology.name, topology.sub_topologies[0].name, table)


def _lay_down(layout: Layout, topology: Topology) -> None:
    """ROWS rows of each table in BATCHES batches, and what is BROKEN."""
    rows = pl.select(i=pl.int_range(ROWS)).with_columns(batch_id=pl.col("i") * BATCHES // ROWS)
    place, at = pl.format("o{}", "i"), NOW_MS - 1_000
    zero = {name: pl.lit(0) for name in COUNTED}
    kind = pl.when(pl.col("i") == 7).then(pl.lit("filter")).otherwise(pl.lit("table"))
    same = {
        "task_id": pl.lit("s_0"),
        "operator": place,
        "source": place,
        "kind": pl.lit("table"),
        "finished_at": pl.lit(at),
    }
    read = {"first_offset": pl.col("i"), "last_offset": pl.col("i")}
    own = {
        "batches": {"batch_id": pl.col("i") % BATCHES, "records_in": pl.lit(1), "level": pl.lit("info")},
        "operator_batches": {**zero, "kind": kind, "min_ms": pl.lit(1), "max_ms": pl.lit(2)},
        "latency_minutes": {"n": pl.lit(1), "negative_n": pl.lit(0), "min_ms": pl.lit(1), "max_ms": pl.lit(2)},
        "operator_windows": {"window_start": pl.lit(at), "window_end": pl.lit(at + 1), "records": pl.lit(1)},
        "partition_batches": {"partition": pl.lit(0), "activity": pl.lit("active")},
        "changes": {"seq": pl.when(pl.col("i") == ROWS - 1).then(ROWS - 2).otherwise("i"), "operator": pl.lit("o")},
        "suppressed": {"n": pl.when(pl.col("i") == 7).then(-1).otherwise(0)} | read,
    }  # fmt: skip
    for name, columns in own.items():
        table = TABLES[name]
        given = {**{column: value for column, value in same.items() if column in table.names}, **columns}
        frame = rows.with_columns(**given).drop("i")
        write_deltalake(_path(layout, topology, name), rows_of(table, frame))
