"""A real Airflow launches a stream at a secured broker.

Airflow's connections keep the password of its source and the key of its sink.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from secured.secured_broker import READER, SecuredBroker, granted

from support.process_watch import watched
from support.supervised_streams import SPARK, Stage, Supervised, staged
from tidemark.control.process import wait_until

pytestmark = pytest.mark.long  # tests/secured has the broker, and test_kafka_secrets.py the connections
TOML = """
name = "numbers"
trigger = "1 s"
[operators.numbers]
kind = "source"
kafka = "eu"
topic = "readings"
fields = "n bigint"
bound = "1 s"
[operators.copies]
kind = "sink"
input = "numbers"
kafka = "us"
topic = "copies"
[kafka.eu]
bootstrap = "{login}"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
username = {{ airflow = "kafka_eu" }}
password = {{ airflow = "kafka_eu" }}
ssl_ca = "{home}/ca.pem"
[kafka.us]
bootstrap = "{cert}"
security_protocol = "SSL"
ssl_ca = "{home}/ca.pem"
ssl_certificate = "{home}/writer.pem"
ssl_key = {{ airflow = "kafka_us", field = "key" }}
"""
MADE = {"secrets.json", "passwords.json"}
"""Files of the embedded Airflow with secrets of its own."""


@dataclass(frozen=True)
class Traces:
    """A run has left *home*, the task's *log*, *commands* of processes."""

    home: Path
    control: Path
    log: str
    commands: set[bytes]
    copies: list[int]
    canaries: list[bytes]

    def leaked(self, text: bytes) -> bool:
        return any(canary in text for canary in self.canaries)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    home = tmp_path_factory.mktemp("secured stream")
    with granted(tmp_path_factory.mktemp("guarded")) as kafka, staged(home / "stage") as stage:
        key = (kafka.home / "writer.key").read_text()
        connect(stage, "kafka_eu", login=READER, password=kafka.password)
        connect(stage, "kafka_us", extra=json.dumps({"key": key}))
        stage.topology(SPARK).write_text(TOML.format(**vars(kafka)))
        producer = Producer({"bootstrap.servers": kafka.internal})
        for n in range(3):
            producer.produce("readings", json.dumps({"n": n}), str(n))
        assert producer.flush(30) == 0
        stream = Supervised(stage, home / "warehouse", SPARK)
        commands: set[bytes] = set()
        with watched(commands):
            run_id = stream.trigger()
            stream.running()
            wait_until(lambda: len(copies(kafka)) == 3, "the copies", 90)
            log = stream.log(run_id)
            stream.drain(run_id)
        # Lines in the middle of the key, and the letters of the password that need no escapes anywhere.
        canaries = [kafka.password[-32:].encode(), *(line.encode() for line in key.splitlines()[2:5])]
        yield Traces(home, stream.driver.home, log + stream.log(run_id), commands, copies(kafka), canaries)


def connect(stage: Stage, name: str, **fields: str) -> None:
    """Stores a connection in Airflow's database."""
    stage.api._call("POST", "/api/v2/connections", {"connection_id": name, "conn_type": "kafka", **fields})


def copies(kafka: SecuredBroker) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test", "enable.auto.commit": False})
    place = TopicPartition("copies", 0, 0)
    end = consumer.get_watermark_offsets(place, timeout=30)[1]
    consumer.assign([place])
    values = [json.loads(message.value() or b"{}")["n"] for message in consumer.consume(end, timeout=30)] if end else []
    consumer.close()
    return values


def test_a_stream_of_airflow_logs_in_by_its_connections(traces: Traces) -> None:
    assert traces.copies == [0, 1, 2]


def test_no_file_of_airflow_or_the_stream_has_a_secret(traces: Traces) -> None:
    files = [file for file in traces.home.rglob("*") if file.is_file() and not file.is_symlink()]
    assert [str(file) for file in files if file.name not in MADE and traces.leaked(content(file))] == []
    kinds = ("airflow.db", "attempt=1.log", "*.trigger.*.log", "driver.log", "heartbeat.json")
    assert [kind for kind in kinds if not any(file.match(kind) for file in files)] == []
    assert traces.log
    assert not traces.leaked(traces.log.encode())


def test_the_control_folder_keeps_no_file_of_secrets(traces: Traces) -> None:
    assert (traces.control / "heartbeat.json").is_file()
    assert [*traces.control.parent.rglob("secrets_*.json")] == []


def test_no_process_of_the_run_had_a_secret_as_argument(traces: Traces) -> None:
    driver = [command for command in traces.commands if b"/jobs/stream.py\0" in command]
    assert driver
    assert [command for command in traces.commands if traces.leaked(command)] == []


def content(file: Path) -> bytes:
    """The bytes of *file*, and its values where they are compressed."""
    return file.read_bytes() + (repr(pl.read_parquet(file).rows()).encode() if file.suffix == ".parquet" else b"")
