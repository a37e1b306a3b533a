"""Drivers and commands at a broker with TLS, logins and ACLs."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import socket
import socketserver
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
from confluent_kafka.admin import AclOperation
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from secured.secured_broker import READER, TOPICS, WRITER, SecuredBroker

from support.consumer_groups import group_offsets
from support.process_watch import watched
from support.shared_spark import one_spark
from support.topologies import sink, source, topology_of
from tidemark.cli.project.check import check
from tidemark.clock import wall_clock_ms
from tidemark.control.driver_folder import DriverFolder, StartRequest
from tidemark.control.folder import Control, StreamState
from tidemark.control.launch_secrets import leave
from tidemark.control.process import wait_until, without_airflow
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import record_schema
from tidemark.local import broker as embedded
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source
from tidemark.model.project.connections import Cluster, Clusters, addressed_clusters
from tidemark.model.project.files import Project
from tidemark.model.project.kafka_security import Mechanism, Protocol, Security
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology, load
from tidemark.safe_text import _OneMessage
from tidemark.sample.topic_sample import SampledCluster
from tidemark.stream.driver import clock_skew
from tidemark.stream.driver.clock_skew import ClockSkew
from tidemark.stream.driver.heartbeats import ClockOffsets
from tidemark.stream.driver.reason import as_reason
from tidemark.stream.kafka.access import LoginDenied, LoginInterrupted
from tidemark.stream.kafka.client import KafkaBroker
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.kafka.publishing import KafkaTopicWriter
from tidemark.stream.read.sources import _kafka, _records_at, kafka_options
from tidemark.why.causes.rights import MISSING_RIGHT
from tidemark.why.walk import why

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_S = 150
RECORDS = 5
TOML = topology_of(
    {"name": "secured", "trigger": "1 s", "consumer_groups": True},
    readings=source(
        fields="n bigint", sub_topology="copied", kafka="login", topic="readings", timestamp=None, max_ahead=None
    ),
    copies=sink("readings", kafka="cert", topic="copies"),
    granted=source(
        fields="n bigint", sub_topology="tokens", kafka="token", topic="by_token", timestamp=None, max_ahead=None
    ),
    kept=sink("granted", table="kept"),
    certified=source(
        fields="n bigint", sub_topology="certificates", kafka="cert", topic="certified", timestamp=None, max_ahead=None
    ),
    signed=sink("certified", table="signed"),
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

LOG4J2 = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n%ex
logger.kafka.name = org.apache.kafka
logger.kafka.level = info
logger.source.name = org.apache.spark.sql.kafka010
logger.source.level = info
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = debug
"""
"""Both clients and the engine log their settings and plans."""


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
        "cert": {"certified", "copies", "closed", "direct"},
    }
    assert {*SampledCluster(cluster).partitions} & {*TOPICS} == expected.get(name, {"by_token"})


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
    for topic in ("readings", "by_token", "certified", "forbidden"):
        for n in range(RECORDS):
            producer.produce(topic, json.dumps({"n": n}), str(n))
    assert producer.flush(30) == 0
    commands: set[bytes] = set()
    with watched(commands), driver(kafka, home) as topologies:
        ran = Ran(home, topologies, commands)
        wait_until(lambda: copied(kafka) == RECORDS, "the copies", PATIENCE_S)
        for sub in ("tokens", "certificates"):
            wait_until(lambda s=sub: kept(ran, s) == RECORDS, f"the table of {sub}", PATIENCE_S)  # type: ignore[misc]
        for topology, sub in (("secured", "unread"), ("unwritten", "unwritten"), ("denied", "denied")):
            control = ran.control(topology, sub)
            wait_until(lambda c=control: has_failed(c), f"the failure of {sub}", PATIENCE_S)  # type: ignore[misc]
        for sub in ("copied", "tokens", "certificates"):
            ran.control("secured", sub).request_drain(by="test", now_ms=wall_clock_ms())
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
    settings = home / "conf"
    settings.mkdir()
    (settings / "log4j2.properties").write_text(LOG4J2)
    environment = {**without_airflow(os.environ), "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell"}
    environment["SPARK_CONF_DIR"] = str(settings)
    with (home / "driver.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield topologies
        process.wait(PATIENCE_S)  # a killed driver leaves half a file, which cannot be searched
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def has_failed(control: Control) -> bool:
    beat = control.heartbeat()
    return beat is not None and beat.state is StreamState.FAILED


def copied(kafka: SecuredBroker) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test"})
    end: int = consumer.get_watermark_offsets(TopicPartition("copies", 0), timeout=30)[1]
    consumer.close()
    return end


def kept(ran: Ran, sub: str) -> int:
    beat = ran.control("secured", sub).heartbeat()
    return sum(beat.offsets.values()) if beat else 0


def test_a_stream_reads_by_one_login_and_writes_by_another(ran: Ran, kafka: SecuredBroker) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.internal, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("copies", 0, 0)])
    values = [json.loads(message.value() or b"{}")["n"] for message in consumer.consume(RECORDS, timeout=30)]
    consumer.close()
    assert values == [*range(RECORDS)]


def test_a_group_needs_a_right_that_no_stream_needs(ran: Ran, kafka: SecuredBroker) -> None:
    assert group_offsets(kafka.internal, "tidemark-secured-tokens") == {"by_token/0": RECORDS}
    assert group_offsets(kafka.internal, "tidemark-secured-copied") == {}
    grant = f"kafka-acls --bootstrap-server {kafka.login} --add --allow-principal User:{READER} --operation Read"
    missing = "no right Read on group tidemark-secured-copied of kafka.login; ask the administrator of that cluster to "
    missing += f"grant it to {READER}: `{grant} --group tidemark-secured-copied`"
    log = (ran.home / "driver.log").read_text()
    assert log.count(f"consumer group tidemark-secured-copied: {missing}; the stream goes on") == 1


def test_a_topic_without_read_is_a_finding(ran: Ran, kafka: SecuredBroker) -> None:
    (finding, *_) = why(ran.topologies["secured"], ran.layout, at_ms=wall_clock_ms(), operator="never")
    assert finding.cause is MISSING_RIGHT
    assert finding.seen == "the driver of unread failed: kafka.login does not grant Read on topic forbidden"
    grant = (
        f"`kafka-acls --bootstrap-server {kafka.login} --add --allow-principal User:{READER} --operation Read --topic"
    )
    assert f"{grant} forbidden`" in finding.remedy
    assert ran.reason("secured", "unread").startswith(
        "MissingRight: no right Read on topic forbidden of kafka.login; ask the administrator of that cluster to "
        f"grant it to {READER}: {grant} forbidden`"
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
    log = (ran.home / "driver.log").read_text()
    assert "ssl.keystore.key = [hidden]" in log
    assert "sasl.jaas.config = [hidden]" in log
    for kind in ("driver.log", "heartbeat.json", "*.parquet", "events_1_*", "start_*.json"):
        assert kind == "start_*.json" or any(file.match(kind) for file in files), kind


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with one_spark() as spark:
        yield spark


def test_no_key_is_in_a_plan_of_a_source(
    kafka: SecuredBroker, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Producer({"bootstrap.servers": kafka.internal})
    producer.produce("certified", json.dumps({"n": 0}), "0")
    assert producer.flush(30) == 0
    used = clusters(kafka)
    canaries = ["-----BEGIN PRIVATE KEY", (kafka.home / "writer.key").read_text().splitlines()[3], kafka.password[-32:]]
    for name, given in (("cert", canaries[:2]), ("login", canaries[2:])):
        topic = {"cert": "certified", "login": "readings"}[name]
        fields = {"n": "bigint"}
        source = Source(name="s", kafka=name, topic=topic, fields=fields, bound_ms=0, timestamp_range_ms=(0, 1))
        options = repr(kafka_options(source, used[name]))
        assert all(canary in options for canary in given)
        batch = _records_at(spark, source, used[name], {0: (0, 1)}, one_by_one=False)
        streaming = _kafka(spark, source, used[name])
        for mode in ("simple", "extended", "formatted", "cost", "codegen"):
            batch.explain(mode=mode)
        sys.stdout.write(batch._jdf.queryExecution().toString())
        for mode in ("simple", "formatted", "codegen"):
            streaming.explain(mode=mode)
        shown = capsys.readouterr().out
        assert "afka" in shown
        assert [canary for canary in canaries if canary in shown] == []
        # Errors of Spark quote the analyzed plan, which has all options: Tidemark hides them where it passes errors on.
        with pytest.raises(AnalysisException) as refused:
            streaming.select("no_such_column")
        quoted = str(refused.value) + streaming._jdf.queryExecution().toString()
        assert any(canary in quoted for canary in given)
        caught = RuntimeError(quoted)
        logged = _OneMessage().format(logging.makeLogRecord({"msg": quoted}))
        assert [canary for canary in given[-1:] if canary in as_reason(caught) + logged] == []


def test_a_refused_login_on_a_sink_is_named(kafka: SecuredBroker) -> None:
    """A driver asks before it sends; a task only sends."""
    used = clusters(kafka)
    with pytest.raises(LoginDenied, match=r"^kafka\.wrong: .* refuses the login of ann by SCRAM-SHA-256: "):
        one_record(KafkaBroker({"cert": used["wrong"]}, "t", "s", wall_clock_ms))
    allowed = one_record(KafkaBroker({"cert": used["cert"]}, "t", "s", wall_clock_ms))
    task = replace(allowed, cluster=used["wrong"], client=used["wrong"].client)
    with pytest.raises(LoginDenied) as refused:
        cloudpickle.loads(cloudpickle.dumps(task))(0)
    said = str(pickle.loads(pickle.dumps(refused.value)))
    assert said.startswith(f"kafka.wrong: {kafka.login} refuses the login of {READER} by SCRAM-SHA-256: ")
    assert kafka.password not in said


def test_a_connection_cut_at_the_login_is_no_refusal(kafka: SecuredBroker) -> None:
    with cutting(kafka.internal) as address:
        security = Security(
            protocol=Protocol.SASL_PLAINTEXT,
            mechanism=Mechanism.SCRAM_SHA_256,
            values={"username": READER, "password": "unsaid"},
        )
        cluster = Cluster(address, "cut", security)
        broker = KafkaBroker({"cut": cluster}, "t", "s", wall_clock_ms)
        with pytest.raises(LoginInterrupted) as interrupted:
            broker.refuse_silence()
        broker.refuse_denied()  # a broker that restarts ends no stream
    said = str(interrupted.value)
    assert said.startswith(f"kafka.cut: {address} ended the connection during the login, without a refusal: ")
    assert "unsaid" not in said


@contextmanager
def cutting(to: str) -> Iterator[str]:
    """Yields an address where the broker at *to* answers one request.

    The connection ends at the next request.
    """

    class Cutting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            host, port = to.split(":")
            with socket.create_connection((host, int(port))) as upstream:
                upstream.sendall(self.request.recv(65_536))
                self.request.sendall(upstream.recv(65_536))
                self.request.recv(65_536)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Cutting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_write_alone_is_enough_for_the_clock_skew(kafka: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_skew, "TOPIC", "heartbeats_of_an_administrator")
    ClockSkew(Cluster(kafka.internal), ClockOffsets(), "t", "s", "here", wall_clock_ms).producer()
    kafka.grant(WRITER, clock_skew.TOPIC, AclOperation.WRITE)
    skew = ClockSkew(clusters(kafka)["cert"], ClockOffsets(), "t", "s", "here", wall_clock_ms)
    assert skew.estimate(skew.producer()) is not None


def test_create_and_write_make_the_topic_of_the_skew(kafka: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_skew, "TOPIC", "heartbeats_of_a_driver")
    for operation in (AclOperation.CREATE, AclOperation.WRITE):
        kafka.grant(WRITER, clock_skew.TOPIC, operation)
    skew = ClockSkew(clusters(kafka)["cert"], ClockOffsets(), "t", "s", "here", wall_clock_ms)
    assert skew.estimate(skew.producer()) is not None


def test_without_rights_the_clock_skew_warns_once(
    kafka: SecuredBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clock_skew, "TOPIC", "heartbeats_of_others")
    monkeypatch.setattr(clock_skew, "EVERY_S", 0.1)
    embedded.create_topics(kafka.internal, {clock_skew.TOPIC: 1})
    skew = ClockSkew(clusters(kafka)["cert"], ClockOffsets(), "t", "s", "here", wall_clock_ms)
    skew.start()
    wait_until(lambda: "cannot estimate the clock offset of here" in caplog.text, "a warning", 60)
    skew.end()
    assert "Topic authorization failed" in caplog.text
    assert "topic heartbeats_of_others: " in caplog.text
    assert skew.newest() is None


def test_the_file_of_a_launch_is_gone_when_it_was_read(ran: Ran) -> None:
    assert [*ran.home.rglob("secrets_*.json")] == []


def content(file: Path) -> bytes:
    """The bytes of *file*, and its values where they are compressed."""
    return file.read_bytes() + (repr(pl.read_parquet(file).rows()).encode() if file.suffix == ".parquet" else b"")
