"""Table rows as real Spark reads them: microseconds and renamed fields."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidemark.errors import InvalidArgument
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import Elsewhere
from tidemark.stream.read.sources import RAW, collect
from tidemark.stream.read.table_rows import table_rows

NOON_S = 1_400_000_000
NOON = NOON_S * 1_000
MICROSECOND = timedelta(microseconds=1)


def source(**changes: Any) -> Source:
    range_ms = (946_684_800_000, 4_102_444_800_000)  # 2000 to 2100
    common = {"name": "t", "elsewhere": Elsewhere("delta", "t"), "timestamp_range_ms": range_ms, "bound_ms": 0}
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


def test_a_field_of_a_table_may_be_inside_a_column(spark: SparkSession) -> None:
    data = f"named_struct('fare', 7.31BD, 'a.b', 'x', 'at', {NOON}L) as data"
    raw = spark.sql(f"select {data}, 'z' as `zone.id`, struct(1L as at_ms, 'f' as file, 0L as start) as written")
    fields = {"fare": "decimal(12,2)", "x": "string", "zone": "string", "at": "bigint"}
    named = {"fare": "data.fare", "x": "data.`a.b`", "zone": "`zone.id`", "at": "data.at"}
    (row,) = read(raw, source(fields=fields, named=named, other_fields="rest"))
    assert (row["timestamp_ms"], row["reason"]) == (NOON, None)
    assert {**row["t"], "rest": json.loads(row["t"]["rest"]).keys()} == {
        "fare": Decimal("7.31"), "x": "x", "zone": "z", "at": NOON, "rest": {"data"},
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"data.fare is decimal\(3,2\), not decimal\(2,2\)"):
        read(raw, source(fields={"fare": "decimal(2,2)", "at": "bigint"}, named=named))
    with pytest.raises(InvalidArgument, match=r"fields names data.more; it reads the fields: data, `zone.id`"):
        read(raw, source(fields={"fare": "int", "at": "bigint"}, named={"fare": "data.more", "at": "data.at"}))
