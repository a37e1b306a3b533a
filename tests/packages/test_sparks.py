"""Streams and recorded jobs on the other versions of Spark that people have; `make environments` runs this."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from packages.fresh import FreshEnvironment
from packages.projects import awaited, beside_spark, running

from support.topologies import NEWEST_SENT
from tidemark.control.process import free_port, wait_until

pytestmark = pytest.mark.long
FEED = """
import json, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
for second, (key, value) in enumerate([("a", 1), ("a", 1), ("b", 2), ("a", 3)]):
    record = {"id": key, "v": value, "event_time": 1_772_366_400_000 + second * 1_000}
    producer.produce("events", json.dumps(record), key)
producer.flush()
"""
READ = """
import sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "test"})
consumer.assign([TopicPartition("out", 0, 0)])
for record in consumer.consume(3, timeout=30):
    print(record.value().decode())
consumer.close()
"""
ORDERS = [
    '{"id": "a", "v": 1, "p": 0, "o": 0, "at": "2026-03-01T12:00:00Z"}',
    '{"id": "a", "v": 1, "p": 0, "o": 1, "at": "2026-03-01T12:00:01Z"}',
    '{"id": "b", "v": 2, "p": 0, "o": 2, "at": "2026-03-01T12:00:02Z"}',
]
JOB = """
import sys

from pyspark.sql import SparkSession
from tidemark.api import State, changed, measured

source, out, checkpoint, warehouse, remote = sys.argv[1:]
spark = (SparkSession.builder.remote(remote) if remote else SparkSession.builder).getOrCreate()
orders = spark.readStream.schema("id string, v int, p int, o bigint, at timestamp").json(source)
query = orders.writeStream.queryName("land").option("checkpointLocation", checkpoint).trigger(availableNow=True)
names = {"warehouse": warehouse, "topology": "shop", "sub_topology": "land"}
state = State(operator="newest", **names)


def append(rows, batch_id):
    rows.write.mode("append").parquet(out)


def write(rows, batch_id):
    with changed(rows, batch_id, key=["id"], columns=["v"], timestamp="at", order=("p", "o"), state=state) as some:
        some.write.mode("append").parquet(out)


writes = append if remote else write
started = query.foreachBatch(measured(writes, operator="write", timestamp="at", strict=True, **names)).start()
started.awaitTermination()
print(spark.read.parquet(out).count(), "rows")
"""
OUTCOMES = ["land,0,0,3", "land:incoming,0,0,3", "newest,2,1,0", "write,0,0,3"]
"""What became of the orders at each operator: emitted, suppressed and passed."""


@pytest.mark.parametrize(("spark", "python"), [("4.0.4", "3.11"), ("4.2.0", "3.13")])
def test_a_stream_reads_and_writes_topics_and_tables(spark: str, python: str, tmp_path: Path, wheel: Path) -> None:
    made = FreshEnvironment.on_spark(tmp_path, wheel, spark, *beside_spark(spark), python=python)
    assert "has 58 jars, each with its locked hash" in made.answer("tidemark", "jars")
    project = tmp_path / "mine"
    made.answer("tidemark", "init", str(project))
    (project / "topologies" / "play.toml").write_text(NEWEST_SENT)
    try:
        for topic in ("events", "out"):
            made.answer("tidemark", "topic", "create", topic, "--partitions", "1", folder=project)
        address = made.answer("tidemark", "topic", "address", folder=project).strip()
        made.answer("python", "-c", FEED, address)
        with running(made, project, "play") as has_ended:
            newest = "id,v\na,3\nb,2\n"
            assert awaited(made, project, "select id, v from board order by id", newest, has_ended) == newest
        sent = ['{"id":"a","v":1}', '{"id":"b","v":2}', '{"id":"a","v":3}']
        assert made.answer("python", "-c", READ, address).splitlines() == sent
        outcomes = (
            "select sum(emitted)::int as n, sum(suppressed)::int as m from operator_batches where operator = 'newest'"
        )
        assert made.answer("tidemark", "sql", "--format", "csv", outcomes, folder=project) == "n,m\n3,1\n"
    finally:
        made.answer("tidemark", "down", folder=project)


def test_a_job_of_spark_3_is_recorded(tmp_path: Path, wheel: Path) -> None:
    made = FreshEnvironment.on_spark(tmp_path, wheel, "3.5.9", python="3.11")
    project = orders(made, tmp_path)
    assert "2 rows" in run(made, project, remote="")
    assert recorded(made, project, "batches", "sub_topology, records_in") == ["land,3"]
    assert recorded(made, project, "operator_batches", "operator, passed") == [
        "land,3",
        "land:incoming,3",
        "newest,0",
        "write,3",
    ]
    streams = made.run("tidemark", "run", "shop", folder=project)
    assert "streams need Spark 4, and pyspark 3.5.9 is installed" in streams.stderr


def test_a_job_of_spark_connect_has_a_lease_and_is_measured_and_its_queries_are_not_recorded(
    tmp_path: Path, wheel: Path
) -> None:
    made = FreshEnvironment.of(tmp_path, wheel, "[spark]", python="3.12")
    project = orders(made, tmp_path)
    with connect_server(made) as remote:
        assert "3 rows" in run(made, project, remote)
    control = project / ".tidemark" / "warehouse" / "control" / "shop"
    assert recorded(made, project, "operator_batches", "operator, passed") == ["write,3"]
    assert json.loads((control / "orders" / "heartbeat.json").read_text())["state"] == "drained"


def orders(made: FreshEnvironment, folder: Path) -> Path:
    """Makes a project in *folder*, beside a job and three orders, of which one changes nothing."""
    project = folder / "mine"
    made.answer("tidemark", "init", str(project))
    (folder / "orders.py").write_text(JOB)
    (folder / "incoming").mkdir()
    (folder / "incoming" / "a.json").write_text("\n".join(ORDERS))
    return project


def run(made: FreshEnvironment, project: Path, remote: str) -> str:
    """Runs the job of *project* as the driver of a stream; returns what it prints."""
    warehouse = project / ".tidemark" / "warehouse"
    places = [str(project.parent / name) for name in ("incoming", "out", "checkpoint")]
    checkout = made.answer("python", "-c", "from tidemark.model.project.files import CHECKOUT; print(CHECKOUT)").strip()
    words = [f"--argument={word}" for word in (*places, str(warehouse), remote)]
    of_stream = ["--warehouse", str(warehouse), "--topology", "shop", "--sub-topology", "orders"]
    file = str(project.parent / "orders.py")
    return made.answer("python", f"{checkout}/jobs/application.py", "--application", file, *of_stream, *words)


def recorded(made: FreshEnvironment, project: Path, table: str, columns: str) -> list[str]:
    """Returns the rows of a table of the warehouse, in order."""
    query = f"select {columns} from {table} order by all"
    return made.answer("tidemark", "sql", "--format", "csv", query, folder=project).splitlines()[1:]


@contextmanager
def connect_server(made: FreshEnvironment) -> Iterator[str]:
    """Runs a server of Spark Connect on a free port; yields its address."""
    port = free_port()
    settings = {"grpc.binding.address": "127.0.0.1", "grpc.binding.port": str(port)}
    words = [word for name, value in settings.items() for word in ("--conf", f"spark.connect.{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    command = [str(made.folder / "venv" / "bin" / "spark-submit"), *server, *words, "spark-internal"]
    with subprocess.Popen(command, cwd=made.folder, env=made.environment()) as process:
        try:
            wait_until(lambda: listens(port), "a server of Spark Connect", 120)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()


def listens(port: int) -> bool:
    """Returns True if a server listens on *port* of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
