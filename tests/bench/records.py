"""Provides a topology of a table and an aggregate, with raw records."""

from __future__ import annotations

import tomllib
from pathlib import Path

import polars as pl

from support.topologies import aggregate, source, table, topology_of
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse

PARTITIONS, NOON_MS = 4, 1_400_000_000_000
EMPTY = {
    "key": pl.Binary(),
    "headers": HEADERS,
    "clock_ms": pl.Int64(),
    "timestamp_ms": pl.Int64(),
    "reason": pl.String(),
}
"""The columns of raw records that are null here."""
COUNTED = topology_of(
    {"name": "bench", "level": "trace"},
    events=source(fields="id string, v bigint, note string, at bigint", timestamp="at"),
    newest=table(columns=["v"]),
    counts=aggregate(key=["id"], aggregates={"n": "count(*)", "total": "sum(v)"}),
)


def raw_partition(batch: int, partition: int, records: int, keys: int) -> pl.DataFrame:
    """Returns one *partition* of a *batch* of *records* in all partitions.

    Its keys are drawn from *keys*.
    """
    size = records // PARTITIONS
    first = batch * records + partition * size
    return pl.select(pl.int_range(first, first + size).alias("n")).select(
        source=pl.lit("events"),
        partition=pl.lit(partition, pl.Int32),
        offset=pl.int_range(batch * size, (batch + 1) * size),
        value=pl.concat_str(
            pl.lit('{"id":"key-'), pl.col("n") * 7_919 % keys, pl.lit('","v":'), pl.col("n"),
            pl.lit(',"note":"'), pl.col("n").cast(pl.String).str.zfill(60),
            pl.lit('","at":'), NOON_MS + pl.col("n") // 100, pl.lit("}"),
        ).cast(pl.Binary),
    )  # fmt: skip


def raw_rows(batch: int, records: int, keys: int) -> pl.DataFrame:
    """The rows of all partitions, as they come to the driver."""
    parts = pl.concat([raw_partition(batch, number, records, keys) for number in range(PARTITIONS)])
    rest = [pl.lit(None, kind).alias(name) for name, kind in EMPTY.items()]
    return parts.with_columns(rest)


def counted(home: Path, shards: int) -> Stream:
    """A stream in so many *shards*."""
    topology = parse(tomllib.loads(f"shards = {{ events = {shards} }}\n{COUNTED}"), file="bench.toml")
    return Stream(topology, topology.sub_topologies[0], Layout(home / "warehouse"))
