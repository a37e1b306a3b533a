"""Compares percentiles of a month from rollups with raw latencies.

Rollups by hour and by day, and raw latencies, are queried by day in the same engine.

`RAW_ROWS=20_000_000 make bench PARTS=rollups` has so many raw latencies, instead of 100 million.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import polars as pl
from bench.ratios import Figure, by_turns, ratios, seconds
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from reference.buckets import bucket_value_sql

from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.rollups import QUANTILES
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import LATENCY_ROLLUP
from tidemark.query.spark import read_table
from tidemark.query.sql import Warehouse
from tidemark.semantics.buckets import bucket_sql
from tidemark.spark_session import session
from tidemark.storage.delta.report_tables import open_report

RAW_ROWS = int(os.environ.get("RAW_ROWS", "100_000_000"))
WARM_UP = 15
"""Runs after which the short query is compiled like the long one.

The long one over raw rows is compiled while it runs.
"""
OPERATORS, TASKS, DAYS = 8, 4, 30
RAW = f"""
    SELECT 'operator_' || i % {OPERATORS} AS operator, 't_' || i // {OPERATORS} % {TASKS} AS task_id,
        TIMESTAMPTZ '2026-03-01 00:00:00Z' + to_seconds(i * {DAYS * 86_400} / {RAW_ROWS}) AS finished_at,
        exp(3 + 8 * random() * random())::BIGINT AS latency_ms
    FROM range({RAW_ROWS}) raw(i)
"""
HOURS = f"""
    SELECT CASE WHEN grouping(task_id) = 1 THEN 'operator' ELSE 'task' END AS scope, 't' AS topology,
        's' AS sub_topology, operator, 'sink' AS kind, task_id, NULL::VARCHAR AS path, 'hour' AS grain,
        date_trunc('hour', finished_at) AS interval_start, interval_start + INTERVAL 1 HOUR AS interval_end,
        {bucket_sql("latency_ms")} AS bucket, count(*) AS n
    FROM raw GROUP BY GROUPING SETS ((operator, interval_start, bucket), (operator, task_id, interval_start, bucket))
    ORDER BY scope, interval_start
"""
OF_DAYS = """
    SELECT * EXCLUDE (grain, interval_start, interval_end, n), 'day' AS grain,
        date_trunc('day', interval_start) AS interval_start,
        date_trunc('day', interval_start) + INTERVAL 1 DAY AS interval_end, SUM(n)::BIGINT AS n
    FROM hours GROUP BY ALL ORDER BY scope, interval_start
"""
PERCENTILES = f"""
    WITH days AS (
        SELECT operator, date_trunc('day', interval_start) AS day, b.bucket, SUM(b.n) AS n
        FROM (
            SELECT operator, interval_start, explode(buckets) AS b
            FROM {LATENCY_ROLLUP.name} WHERE grain = '{{grain}}' AND scope = 'operator'
        ) listed GROUP BY 1, 2, 3
    ),
    ranked AS (
        SELECT operator, day, {bucket_value_sql("bucket")} AS value_ms,
            SUM(n) OVER (PARTITION BY operator, day ORDER BY bucket ROWS UNBOUNDED PRECEDING) AS up_to,
            SUM(n) OVER (PARTITION BY operator, day) AS total
        FROM days
    )
    SELECT operator, day,
        {
    ", ".join(
        f"MIN(CASE WHEN up_to > FLOOR({q}e0 * (total - 1)) THEN value_ms END) AS {name}"
        for name, q in QUANTILES.items()
    )
}
    FROM ranked GROUP BY operator, day
"""
ROLLUPS = {f"{grain}s": PERCENTILES.format(grain=grain) for grain in ("hour", "day")}
"""The query of each rollup. A day sums its hours."""
OF_RAW = "SELECT operator, date_trunc('day', finished_at) AS day, {} FROM raw GROUP BY 1, 2"
IN_SPARK = OF_RAW.format(f"percentile_approx(latency_ms, array({', '.join(map(str, QUANTILES.values()))}))")
IN_DUCKDB = OF_RAW.format(f"quantile_disc(latency_ms, {list(QUANTILES.values())})")


def figures(runs: int) -> Iterator[Figure]:
    """Measures ratios in Spark and DuckDB, and the largest percentile error."""
    with TemporaryDirectory() as folder:
        home, raw = Path(folder) / "warehouse", str(Path(folder) / "raw.parquet")
        _lay_down(home, raw)
        warehouse, spark = Warehouse(home), session("bench")
        yield Figure("largest error of a percentile", [_largest_error(warehouse, raw)], 1, at_most=True, unit="%")
        with duckdb.connect() as of_raw:
            of_raw.execute("SET TimeZone = 'UTC'")
            of_raw.execute(f"CREATE VIEW raw AS FROM '{raw}'")
            asked = {rollup: partial(warehouse.ask, query) for rollup, query in ROLLUPS.items()}
            engines = {
                "DuckDB": {"raw": lambda: of_raw.sql(IN_DUCKDB).fetchall(), **asked},
                "Spark": _in_spark(spark, home, raw),
            }
            for engine, queries in engines.items():
                for _ in range(WARM_UP):
                    for rollup in ROLLUPS:
                        queries[rollup]()
                found = by_turns({name: partial(seconds, query) for name, query in queries.items()}, runs)
                for rollup in ROLLUPS:
                    what = f"a month of days from {rollup}, {engine}: {RAW_ROWS / 1e6:.0f} million raw latencies"
                    yield Figure(f"{what} take … as long", ratios(found, "raw", rollup), 50)
                    yield Figure(f"{what}, seconds from {rollup}", found[rollup], unit="s")


def _in_spark(spark: SparkSession, home: Path, raw: str) -> dict[str, Callable[[], Any]]:
    spark.read.parquet(raw).createOrReplaceTempView("raw")
    rollup = read_table(spark, Layout(home), "t", LATENCY_ROLLUP)
    rollup.createOrReplaceTempView(LATENCY_ROLLUP.name)
    texts = {"raw": IN_SPARK, **ROLLUPS}
    return {name: partial(_collect, spark, text) for name, text in texts.items()}


def _collect(spark: SparkSession, text: str) -> list[Any]:
    return spark.sql(text).collect()


def _lay_down(home: Path, raw: str) -> None:
    """Writes raw latencies and their rollups by hour and day.

    One file of hours a day, as maintenance would leave them.
    """
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY ({RAW}) TO '{raw}'")
        connection.execute(f"CREATE VIEW raw AS FROM '{raw}'")
        hours = connection.sql(HOURS).pl()
        days = connection.sql(OF_DAYS).pl()
    path = Layout(home).report_table("t", LATENCY_ROLLUP.name)
    rollup = open_report(LATENCY_ROLLUP, path)
    of_days = _listed(hours).with_columns(day=pl.col("interval_start").dt.date())
    for rows in of_days.partition_by("day", include_key=False):
        write_deltalake(rollup, rows_of(LATENCY_ROLLUP, rows), mode="append")
    write_deltalake(rollup, rows_of(LATENCY_ROLLUP, _listed(days)), mode="append")


def _listed(counts: pl.DataFrame) -> pl.DataFrame:
    """Returns rows of the rollup from *counts*, which have a row for each bucket."""
    listed = pl.struct(pl.col("bucket").cast(pl.Int32()), "n").alias("buckets")
    return counts.sort("bucket").group_by(pl.exclude("bucket", "n"), maintain_order=True).agg(pl.sum("n"), listed)


def _largest_error(warehouse: Warehouse, raw: str) -> float:
    """Returns the largest error of a percentile, in percent.

    In percent of the value of that rank, over the days of one operator.
    """
    latencies = pl.scan_parquet(raw).filter(pl.col("operator") == "operator_0")
    by_day = (
        latencies.select("latency_ms", day=pl.col("finished_at").dt.date()).collect().partition_by("day", as_dict=True)
    )
    errors = []
    for operator, day, *values_ms in warehouse.ask(ROLLUPS["days"]).rows:
        if operator == "operator_0":
            exact_ms = np.quantile(by_day[day.date(),]["latency_ms"], list(QUANTILES.values()), method="inverted_cdf")
            errors += list(np.abs(np.array(values_ms) - exact_ms) / exact_ms * 100)
    return max(errors)
