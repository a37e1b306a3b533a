"""Two workers process and send records, which bypass the driver.

`TIDEMARK_SHARDED=2000000` runs it with so many records.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cluster.submitting import spark_table, submit_command
from confluent_kafka import Consumer, Producer, TopicPartition
from streaming import drivers
from streaming.drivers import OnlyDriver

from tidemark.embedded import broker as embedded
from tidemark.embedded.spark_cluster import LocalCluster
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan

NOON = 1_400_000_000_000
N = int(os.environ.get("TIDEMARK_SHARDED", "20000"))
KEYS = N // 10
MOST_BYTES = N * 50
"""Limit on task results per job: a third of the records' size."""
TOML = f"""
name = "sharded"
level = "trace"
trigger = "1 s"
shards = 2

[operators.events]
kind = "source"
sub_topology = "all"
topic = "sharded"
fields = "id string, v bigint, note string, at bigint"
timestamp = "at"
bound = "1 s"
max_records = {N}

[operators.renamed]
kind = "map"
input = "events"
select = {{ name = "id", v = "v", half = "v / 2" }}

[operators.newest]
kind = "table"
input = "renamed"
key = ["name"]

[operators.kept]
kind = "sink"
input = "newest"
table = "kept"

[operators.sent]
kind = "sink"
input = "newest"
topic = "sent"

[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
aggregates = {{ n = "count(*)" }}
select = {{ n = "n" }}
decide = "batch"
"""


def send(address: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
    for n in numbers:
        value = f'{{"id":"k{n % KEYS}","v":{n // KEYS // 2},"note":"{n:040d}","at":{NOON + n}}}'
        producer.produce("sharded", value, f"k{n % KEYS}", n % 2)
        producer.poll(0)
    assert producer.flush(120) == 0


def frame(home: Path, table: str) -> pl.LazyFrame:
    """The rows of *table*, in order."""
    path = Layout(home / "warehouse").stream_table("sharded", "all", table)
    rows = scan(path) if (path / "_delta_log").is_dir() else pl.LazyFrame(schema={"records_in": pl.Int64()})
    return (
        rows.sort("batch_id", *(["seq"] if table == "changes" else [])) if "batch_id" in rows.collect_schema() else rows
    )


def read(home: Path) -> int:
    return int(frame(home, "batches").select(pl.col("records_in").sum()).collect().item())


def per(home: Path, table: str, *by: str, n: pl.Expr) -> set[tuple[Any, ...]]:
    return set(frame(home, table).group_by(by).agg(n).collect().rows())


def sent(address: str) -> list[tuple[str, int]]:
    """Returns name and number of the topic's records, by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    found: list[tuple[str, int]] = []
    for number in range(2):
        place = TopicPartition("sent", number, 0)
        consumer.assign([place])
        rest = consumer.get_watermark_offsets(place, timeout=30)[1]
        while rest:
            messages = consumer.consume(min(rest, 10_000), timeout=30)
            rest -= len(messages)
            found += [(row["name"], row["v"]) for row in (json.loads(m.value() or b"") for m in messages)]
    consumer.close()
    return found


def values(home: Path, operator: str) -> list[str]:
    """Returns the values that the operator sent for k3, in order."""
    of_key = (pl.col("operator") == operator) & (pl.col("key") == "k3")
    return list(frame(home, "changes").filter(of_key).select("value").collect().to_series())


def test_large_and_small_batches_are_worked_on_by_a_cluster(
    tmp_path: Path, broker: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "PATIENCE_S", 180 + N // 5_000)
    embedded.create_topics(broker, {"sharded": 2, "sent": 2})
    send(broker, range(N))
    toml = TOML + spark_table(cluster.address, tmp_path, **{"spark.driver.maxResultSize": str(MOST_BYTES)})
    (tmp_path / "sharded.toml").write_text(toml)
    program = submit_command(tmp_path / "sharded.toml", tmp_path / "airflow")
    with OnlyDriver(tmp_path, toml, broker, program=program) as driver:
        driver.wait(lambda: read(tmp_path) == N, "a large batch")
        send(broker, range(N, N + 10))
        driver.wait(lambda: read(tmp_path) == N + 10, "a small batch")
        assert driver.drain() == 0
    rows = pl.len().cast(pl.Int64)
    (small,) = {b for b, n in per(tmp_path, "batches", "batch_id", n=pl.col("records_in").sum()) if n == 10}
    batches = per(tmp_path, "batches", "batch_id", n=pl.col("records_in").sum())
    assert {(b, n) for b, n in batches if n} == {(0, N), (small, 10)}  # one without records may tell of idleness
    # Of each key's ten records every second one has the value of the one before.
    assert per(tmp_path, "changes", "batch_id", "operator", n=rows) == {
        (0, "newest", N // 2),
        (0, "counts", KEYS),
        (small, "newest", 10),
        (small, "counts", 10),
    }
    assert per(tmp_path, "suppressed", "operator", n=pl.col("n").sum()) == {("newest", N // 2)}
    halves = ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]
    assert values(tmp_path, "newest") == [f'{{"v":{v},"half":{half}}}' for v, half in enumerate(halves)]
    assert values(tmp_path, "counts") == ['{"n":10}', '{"n":11}']
    assert per(tmp_path, "kept", "batch_id", n=rows) == {(0, N // 2), (small, 10)}
    records = sent(broker)
    assert len(records) == N // 2 + 10
    assert [v for name, v in records if name == "k3"] == [0, 1, 2, 3, 4, 5]
    handed_out = {("kept", N // 2 + 10), ("sent", N // 2 + 10)}
    measured = {("events", N + 10), ("newest", N + 10), ("counts", N + 10), *handed_out}
    for table in ("operator_latency", "latency_buckets"):
        assert per(tmp_path, table, "operator", n=pl.col("n").sum()) == measured
    # Workers and driver are on one host here, so that their clocks are one.
    skews = per(tmp_path, "operator_tasks", "skew_ms", "skew_error_ms", n=rows)
    assert {(skew_ms, error_ms) for skew_ms, error_ms, _ in skews} == {(0, 0)}
    # What executors wrote is part of the table as it is.
    assert len(list((tmp_path / "warehouse").glob("**/changes/batch-*.parquet"))) >= 2
