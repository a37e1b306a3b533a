"""Table rows as real Spark reads them: microseconds and renamed fields."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.model.kinds.source import Source
from tidemark.stream.read.sources import RAW, collect
from tidemark.stream.read.table_rows import table_rows

NOON_S = 1_400_000_000
NOON = NOON_S * 1_000
MICROSECOND = timedelta(microseconds=1)


def source(**changes: Any) -> Source:
    range_ms = (946_684_800_000, 4_102_444_800_000)  # 2000 to 2100
    common = {"name": "t", "delta": "t", "timestamp_range_ms": range_ms, "bound_ms": 0}
    return Source(**{**common, "fields": {"id": "string", "n": "int", "at": "bigint"}, "timestamp": "at", **changes})


def read(raw: DataFrame, source: Source) -> list[dict[str, Any]]:
    empty = raw.sparkSession.createDataFrame([], ", ".join(f"`{name}` {kind}" for name, kind in RAW.items()))
    rows = empty.unionByName(table_rows(raw, source), allowMissingColumns=True)
    return collect(rows, [source]).to_dicts()


def test_a_timestamp_of_a_table_keeps_its_microseconds(spark: SparkSession) -> None:
    select = "'a' as id, timestamp '2014-05-13 16:53:20.000001Z' as at, timestamp_ntz '2014-05-13 16:53:20.5' as ntz"
    far = "timestamp '2014-05-13 16:53:20Z' + make_interval(8000) as seen"
    raw = spark.sql(f"select {select}, {far}, struct(1L as at_ms, 'f' as file, 0L as start) as written")
    fields = {"id": "string", "at": "timestamp", "seen": "timestamp"}
    reading = source(fields=fields, other_fields="rest")
    (row,) = read(raw, reading)
    assert (row["timestamp_ms"], row["reason"]) == (NOON, "wrong_type")  # the year 10014
    assert row["t"]["at"] == datetime.fromtimestamp(NOON_S, UTC) + MICROSECOND
    assert row["t"]["rest"] == '{"ntz":"2014-05-13T16:53:20.500000"}'
    assert json.loads(row["value"])["at"] == "2014-05-13T16:53:20.000001Z"


def test_a_column_of_a_table_is_read_from_a_renamed_field(spark: SparkSession) -> None:
    named = {"id": "ID", "at": "event Time"}
    written = "struct(1L as at_ms, 'f' as file, 0L as start) as written"
    raw = spark.sql(f"select 'a' as ID, {NOON}L as `event Time`, 7 as n, 'z' as zone, {written}")
    reading = source(named=named, other_fields="rest")
    (row,) = read(raw, reading)
    assert (row["timestamp_ms"], row["t"]) == (NOON, {"id": "a", "n": 7, "at": NOON, "rest": '{"zone":"z"}'})
