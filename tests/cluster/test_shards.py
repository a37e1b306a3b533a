"""Two workers process and send records, which bypass the driver.

`TIDEMARK_SHARDED=2000000` runs it with so many records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyspark
import pytest
from cluster.submitting import python_without_the_library, spark_table, submit_command
from confluent_kafka import Consumer, Producer, TopicPartition
from streaming import drivers
from streaming.drivers import OnlyDriver

from tidemark.kernels.reports.operator_tasks import spark_tasks
from tidemark.local import broker as embedded
from tidemark.local.spark_cluster import LocalCluster
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan
from tidemark.storage.warehouse import is_table

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
    rows = scan(path) if is_table(path) else pl.LazyFrame(schema={"records_in": pl.Int64()})
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
    assert per(tmp_path, "latency_minutes", "operator", n=pl.col("n").sum()) == measured
    operators = frame(tmp_path, "operator_batches").drop_nulls("n")
    assert {*operators.group_by("operator").agg(pl.col("n").sum()).collect().rows()} == measured
    # Workers and driver are on one host here, so that their clocks are one.
    tasks = spark_tasks(frame(tmp_path, "operator_batches"))
    assert {*tasks.select("skew_ms", "skew_error_ms").collect().rows()} == {(0, 0)}
    # What executors wrote is part of the table as it is.
    assert len(list((tmp_path / "warehouse").glob("**/changes/batch-*.parquet"))) >= 2


ORDERS = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from tidemark import api
from tidemark.errors import InvalidArgument
from tidemark.storage.library import archive

warehouse, n = Path(sys.argv[1]), int(sys.argv[2])
spark = SparkSession.builder.getOrCreate()
got = []  # the numbers of rows that reach this driver
for name in ("toArrow", "collect"):
    def counted(rows, fetch=getattr(type(spark.range(1)), name)):
        fetched = fetch(rows)
        got.append(len(fetched))
        return fetched
    setattr(type(spark.range(1)), name, counted)
values = {"order_id": f"id % {n // 10}", "status": f"id div {n // 5}", "ordered_at": "timestamp_millis(id)"}
values |= {"partition": "0", "offset": "id"}
judged_by = {"key": ["order_id"], "columns": ["status"], "timestamp": "ordered_at", "order": ("partition", "offset")}

def run(batch_id, operator="status", **shards):
    state = api.State(warehouse=warehouse, topology="shop", sub_topology="orders", operator=operator, **shards)
    rows = spark.range(batch_id * n, (batch_id + 1) * n).select(*(F.expr(v).alias(k) for k, v in values.items()))
    got.clear()
    with api.changed(rows, batch_id, **judged_by, state=state) as news:
        return {"changed": news.count(), "fetched": sorted(got)}

results = {}
try:
    run(0)
except InvalidArgument as error:
    results["without the package"] = str(error)
spark.sparkContext.addPyFile(str(archive(warehouse.parent / "library")))
results["usual"] = run(0)
results["three"] = [run(0, "three", shards=3), run(1, "three")]
results["driver"] = run(0, "driver", shards=1)
print("RESULTS", json.dumps(results))
"""


def test_keys_of_an_api_state_stay_on_the_executors(tmp_path: Path, cluster: LocalCluster) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)
    properties = {
        **{f"spark.driver.{name}": "127.0.0.1" for name in ("host", "bindAddress")},
        **{"spark.cores.max": 2, "spark.executor.cores": 1, "spark.executor.memory": "600m"},
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": python_without_the_library(tmp_path / "python"),
        "spark.ui.enabled": "false",
    }
    conf = (word for name, value in properties.items() for word in ("--conf", f"{name}={value}"))
    secrets = ("--properties-file", str(cluster.secrets))
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.address, *secrets, *conf]
    job = [str(tmp_path / "orders.py"), str(tmp_path / "warehouse"), "2000"]
    ran = subprocess.run([*submit, *job], capture_output=True, text=True, timeout=drivers.PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr[-5_000:]
    results = json.loads(ran.stdout.rpartition("RESULTS ")[2])
    remedies = "install the wheel of Tidemark there, or keep the keys in the driver: api.State(…, shards=1)"
    assert results["without the package"] == (
        f"executors share the keys of status, and their Python has no module tidemark; {remedies}"
    )
    # Every second update of a key has the value of the one before. A batch fetches one row of checks, and one of each
    # shard; the second batch goes on with three of them.
    assert results["usual"] == {"changed": 1_000, "fetched": [1, 2]}
    assert results["three"] == [{"changed": 1_000, "fetched": [1, 3]}] * 2
    assert results["driver"] == {"changed": 1_000, "fetched": [2_000]}
