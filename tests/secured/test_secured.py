"""Drivers and commands at a broker with TLS, logins and ACLs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark import cloudpickle
from secured.secured_broker import READER, SecuredBroker

from support.topologies import sink, source, topology_of
from tidemark.cli.project.check import check
from tidemark.clock import wall_clock_ms
from tidemark.control.driver_folder import DriverFolder, StartRequest
from tidemark.control.folder import Control, StreamState
from tidemark.control.launch_secrets import leave
from tidemark.control.process import wait_until, without_airflow
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import record_schema
from tidemark.model.kinds.sink import Sink
from tidemark.model.project.connections import Clusters, addressed_clusters
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology, load
from tidemark.sampling.topic_sample import SampledCluster
from tidemark.stream.kafka.access import LoginDenied
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.kafka.publishing import KafkaTopicWriter
from tidemark.why.causes.rights import MISSING_RIGHT
from tidemark.why.walk import why

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 150
RECORDS = 5
TOML = topology_of(
    {"name": "secured", "trigger": "1 s"},
    readings=source(
        fields="n bigint", sub_topology="copied", kafka="login", topic="readings", timestamp=None, max_ahead=None
    ),
    copies=sink("readings", kafka="cert", topic="copies"),
    granted=source(
        fields="n bigint", sub_topology="tokens", kafka="token", topic="by_token", timestamp=None, max_ahead=None
    ),
    kept=sink("granted", table="kept"),
    forbidden=source(
        fields="n bigint", sub_topology="unread", kafka="login", topic="forbidden", timestamp=None, max_ahead=None
    ),
    never=sink("forbidden", table="never"),
)
UNWRITTEN = topology_of(
    {"name": "unwritten", "trigger": "1 s"},
    readings=source(
        fields="n bigint", sub_topology="unwritten", kafka="plain", topic="readings", timestamp=None, max_ahead=None
    ),
    closed=sink("readings", kafka="cert", topic="closed"),
)
DENIED = topology_of(
    {"name": "denied", "trigger": "1 s"},
    readings=source(
        fields="n bigint", sub_topology="denied", kafka="wrong", topic="readings", timestamp=None, max_ahead=None
    ),
    kept=sink("readings", table="denied"),
)


@dataclass(frozen=True)
class Ran:
    """Traces of a driver: files in *home*, and *commands* of all processes."""

    home: Path
    topologies: dict[str, Topology]
    commands: set[bytes]

    @property
    def layout(self) -> Layout:
        return Layout(self.home / "warehouse")

    def control(self, topology: str, sub: str) -> Control:
        return Control(self.layout.control(topology, sub))

    def reason(self, topology: str, sub: str) -> str:
        """Returns the reason for which the stream *sub* failed."""
        beat = self.control(topology, sub).heartbeat()
        assert beat is not None
        assert beat.state is StreamState.FAILED
        return beat.reason or ""


def clusters(kafka: SecuredBroker) -> Clusters:
    """Returns the clusters of *kafka*; only `wrong` has a wrong secret."""
    source = 'kind = "source"\nkafka = "{0}"\ntopic = "{0}"\nfields = "n bigint"\nbound = "1 s"'
    names = ("login", "plain", "cert", "token", "wrong")
    tables = "\n".join(f"[operators.{name}]\n{source.format(name)}" for name in names)
    file = kafka.home / "all.toml"
    file.write_text(f'name = "all"\n{tables}\n{kafka.toml}')
    topology = load(file)
    secrets = {"token.client_secret": kafka.client_secret}
    return addressed_clusters(topology.clusters_used, topology.clusters, [], os.environ, secrets=secrets)


@pytest.mark.parametrize("name", ["login", "plain", "cert", "token"])
def test_a_client_logs_in_each_way(kafka: SecuredBroker, name: str) -> None:
    cluster = clusters(kafka)[name]
    broker = KafkaBroker({name: cluster}, "t", "s", wall_clock_ms)
    broker.refuse_silence()
    expected = {
        "login": {"readings", "forbidden"},
        "plain": {"readings", "forbidden"},
        "cert": {"copies", "closed", "direct"},
    }
    assert {*SampledCluster(cluster).partitions} == expected.get(name, {"by_token"})


def test_a_wrong_password_is_named_with_its_key(kafka: SecuredBroker) -> None:
    wrong = clusters(kafka)["wrong"]
    broker = KafkaBroker({"wrong": wrong}, "t", "s", wall_clock_ms)
    with pytest.raises(LoginDenied) as refused:
        broker.refuse_denied()
    said = str(refused.value)
    assert said.startswith(f"kafka.wrong: {kafka.login} refuses the login of {READER} by SCRAM-SHA-256: ")
    assert said.endswith("; correct password, ssl_ca, username of [kafka.wrong], or what they name")
    assert kafka.password not in said


def test_a_broker_of_another_ca_is_refused(kafka: SecuredBroker, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text((kafka.home / "writer.pem").read_text())
    file = tmp_path / "t.toml"
    toml = kafka.toml.replace(f"{kafka.home}/ca.pem", "ca.pem")
    file.write_text(UNWRITTEN.replace('"plain"', '"login"') + toml)
    topology = load(file)
    cluster = addressed_clusters(["login"], topology.clusters, [], os.environ)["login"]
    with pytest.raises(LoginDenied, match="certificate verify failed"):
        KafkaBroker({"login": cluster}, "t", "s", wall_clock_ms).refuse_silence()


def test_a_task_sends_with_settings_that_it_does_not_show(kafka: SecuredBroker) -> None:
    """An executor gets the settings with its task, and no files."""
    publishing = one_record(KafkaBroker({"cert": clusters(kafka)["cert"]}, "t", "s", wall_clock_ms))
    assert "PRIVATE" not in repr(publishing)
    assert cloudpickle.loads(cloudpickle.dumps(publishing))(0) == []
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("direct", 0, 0)])
    (message,) = consumer.consume(1, timeout=30)
    consumer.close()
    assert json.loads(message.value() or b"") == {"n": 7}


def test_files_of_secrets_are_read_once(kafka: SecuredBroker, tmp_path: Path) -> None:
    """A file that is rewritten, or missing meanwhile, stops no stream."""
    secrets = [shutil.copy(file, tmp_path) for suffix in ("pem", "key") for file in kafka.home.glob(f"*.{suffix}")]
    toml = tmp_path / "t.toml"
    toml.write_text(UNWRITTEN + kafka.toml.replace(f"{kafka.home}/", f"{tmp_path}/"))
    cluster = addressed_clusters(["cert"], load(toml).clusters, [], os.environ)["cert"]
    broker = KafkaBroker({"cert": cluster}, "t", "s", wall_clock_ms)
    for copied in secrets:
        Path(copied).unlink()
    assert one_record(broker)(0) == []


def one_record(broker: KafkaBroker) -> KafkaTopicWriter:
    """Returns a sender of one record to the topic `direct`."""
    schema = record_schema({"n": "bigint"})
    row = {"_key": "a", "_timestamp_ms": wall_clock_ms(), "_partition": 0, "_offset": 0, "_deleted": False, "n": 7}
    rows = pl.DataFrame([{name: row.get(name) for name in schema}], schema=schema).to_arrow()
    sink = Sink(name="direct", kafka="cert", topic="direct")
    return replace(broker.publishing(OutgoingRows(sink=sink, rows=rows, batch_id=1, epoch=1, first=0)), tasks=1)


def test_check_names_topic_and_right_that_are_missing(kafka: SecuredBroker, tmp_path: Path) -> None:
    for name in ("topologies", "expectations"):
        (tmp_path / name).mkdir()
    (tmp_path / "channels.toml").write_text("")
    (tmp_path / "expectations" / "slas.toml").write_text("")
    (tmp_path / "connections.toml").write_text(kafka.toml)
    file = tmp_path / "topologies" / "unwritten.toml"
    file.write_text(UNWRITTEN)
    with pytest.raises(InvalidSpec) as refused:
        check([file], tmp_path / "w", Project(tmp_path), look=True)
    assert str(refused.value) == (
        f"unwritten.toml: operators.closed.topic: is 'closed', of which {kafka.cert} does not grant WRITE; "
        "ask the administrator of that cluster for the right WRITE on topic closed"
    )
    file.write_text(UNWRITTEN.replace('topic = "closed"', 'topic = "copies"'))
    lines = check([file], tmp_path / "w", Project(tmp_path), look=True)
    assert (
        f"unwritten: topics: reads readings at {kafka.login} (1 partition), writes copies at {kafka.cert} (1 partition)"
        in lines
    )


@pytest.fixture(scope="module")
def ran(kafka: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Runs all streams in one process until each has copied or failed."""
    home = tmp_path_factory.mktemp("driver")
    producer = Producer({"bootstrap.servers": kafka.internal})
    for topic in ("readings", "by_token", "forbidden"):
        for n in range(RECORDS):
            producer.produce(topic, json.dumps({"n": n}), str(n))
    assert producer.flush(30) == 0
    commands: set[bytes] = set()
    with watched(commands), driver(kafka, home) as topologies:
        ran = Ran(home, topologies, commands)
        wait_until(lambda: copied(kafka) == RECORDS, "the copies", PATIENCE_S)
        wait_until(lambda: kept(ran) == RECORDS, "the table", PATIENCE_S)
        for topology, sub in (("secured", "unread"), ("unwritten", "unwritten"), ("denied", "denied")):
            control = ran.control(topology, sub)
            wait_until(lambda c=control: has_failed(c), f"the failure of {sub}", PATIENCE_S)  # type: ignore[misc]
    return ran


@contextmanager
def driver(kafka: SecuredBroker, home: Path) -> Iterator[dict[str, Topology]]:
    """Runs all streams in one process, as Airflow starts it."""
    events = home / "events"
    events.mkdir()
    folder, warehouse = DriverFolder(home / "driver"), home / "warehouse"
    topologies = {}
    for toml in (TOML, UNWRITTEN, DENIED):
        name = toml.split('"')[1]
        file = home / f"{name}.toml"
        file.write_text(toml + kafka.toml)
        topologies[name] = load(file)
        for sub in topologies[name].sub_topologies:
            control = Layout(warehouse).control(name, sub.name)
            secrets = leave(control, sub.name, {"token.client_secret": kafka.client_secret})
            arguments = ("--warehouse", str(warehouse), "--topology", str(file), "--sub-topology", sub.name)
            given = ("--launch-id", sub.name, "--secrets", str(secrets))
            with folder.asking(within_s=30):
                folder.ask(StartRequest(sub.name, str(control), (*arguments, *given)))
    command = [sys.executable, str(PROJECT / "jobs" / "stream.py"), "--driver", str(folder.home)]
    conf = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.compress=false --conf spark.eventLog.dir={events}"
    environment = {**without_airflow(os.environ), "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell"}
    with (home / "driver.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield topologies
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@contextmanager
def watched(commands: set[bytes]) -> Iterator[None]:
    """Collects the command lines of all processes of this machine."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    commands.add((entry / "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def has_failed(control: Control) -> bool:
    beat = control.heartbeat()
    return beat is not None and beat.state is StreamState.FAILED


def copied(kafka: SecuredBroker) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test"})
    end: int = consumer.get_watermark_offsets(TopicPartition("copies", 0), timeout=30)[1]
    consumer.close()
    return end


def kept(ran: Ran) -> int:
    beat = ran.control("secured", "tokens").heartbeat()
    return sum(beat.offsets.values()) if beat else 0


def test_a_stream_reads_by_one_login_and_writes_by_another(ran: Ran, kafka: SecuredBroker) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("copies", 0, 0)])
    values = [json.loads(message.value() or b"{}")["n"] for message in consumer.consume(RECORDS, timeout=30)]
    consumer.close()
    assert values == [*range(RECORDS)]


def test_a_topic_without_read_is_a_finding(ran: Ran) -> None:
    (finding, *_) = why(ran.topologies["secured"], ran.layout, at_ms=wall_clock_ms(), operator="never")
    assert finding.cause is MISSING_RIGHT
    assert finding.seen == "the driver of unread failed: kafka.login does not grant Read on topic forbidden"
    assert "`kafka-acls --add --allow-principal User:NAME --operation Read --topic forbidden`" in finding.remedy
    assert ran.reason("secured", "unread").startswith(
        "MissingRight: no right Read on topic forbidden of kafka.login; ask the administrator of that cluster to "
        f"grant it to {READER}: `kafka-acls --add --allow-principal User:{READER} --operation Read --topic forbidden`"
    )


def test_a_topic_without_write_is_a_finding(ran: Ran) -> None:
    (finding, *_) = why(ran.topologies["unwritten"], ran.layout, at_ms=wall_clock_ms(), operator="closed")
    assert finding.cause is MISSING_RIGHT
    assert finding.seen == "the driver of unwritten failed: kafka.cert does not grant Write on topic closed"


def test_a_driver_with_a_wrong_password_says_so(ran: Ran) -> None:
    reason = ran.reason("denied", "denied")
    assert reason.startswith("LoginDenied: kafka.wrong: ")
    assert "; correct password, ssl_ca, username of [kafka.wrong]" in reason


def test_no_secret_is_in_arguments_logs_or_files(ran: Ran, kafka: SecuredBroker) -> None:
    key = (kafka.home / "writer.key").read_text().splitlines()[3]
    canaries = [canary.encode() for canary in (kafka.password[-32:], kafka.client_secret, key)]
    assert any(str(ran.home).encode() in command for command in ran.commands)
    assert [command for command in ran.commands if any(canary in command for canary in canaries)] == []
    files = [file for file in ran.home.rglob("*") if file.is_file() and not file.is_symlink()]
    leaked = [str(file) for file in files if any(canary in content(file) for canary in canaries)]
    assert leaked == []
    for kind in ("driver.log", "heartbeat.json", "*.parquet", "events_1_*", "start_*.json"):
        assert kind == "start_*.json" or any(file.match(kind) for file in files), kind


def test_the_file_of_a_launch_is_gone_when_it_was_read(ran: Ran) -> None:
    assert [*ran.home.rglob("secrets_*.json")] == []


def content(file: Path) -> bytes:
    """The bytes of *file*, and its values where they are compressed."""
    return file.read_bytes() + (repr(pl.read_parquet(file).rows()).encode() if file.suffix == ".parquet" else b"")
