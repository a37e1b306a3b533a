"""A real Kafka broker of one node on 127.0.0.1, without Docker.

It needs no ZooKeeper (KRaft, combined roles). Started again on the same home it is the same broker: cluster id, data
and, if it is still free, port.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidemark.control import process
from tidemark.control.process import Process
from tidemark.errors import TidemarkError
from tidemark.model.project.files import jars_folder
from tidemark.model.project.jars import require_jars
from tidemark.model.project.spark_settings import OF_ARCHIVES

NAME = "broker"
JARS = jars_folder()
LISTENING_ON = re.compile(r"PLAINTEXT://127\.0\.0\.1:(\d+)")
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.language=en", "-Duser.country=US")
"""With the first three of them, Kafka starts in 2.4 CPU seconds instead of 4.3.

On one machine the cores belong to Spark. The last two are for users with a Turkish locale, under which Kafka does not
start: there Java changes the case of the letter i to other letters.
"""
ARCHIVE = "broker.jsa"
"""The archive of the broker's classes, in the folder of jars.

`make setup` writes it.
"""
UP_WITHIN_S = 60.0
ANSWER_WITHIN_S = 10.0

# Records have timestamps of a replay, for which a broker must not delete them. Limits of a record's size and time are
# Kafka's defaults: a stream has to work with these.
SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

LOG4J2_PROPERTIES = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True)
class EmbeddedBroker:
    """A running broker: its *address*, `127.0.0.1:<port>`, and its *process*."""

    address: str
    process: Process


def start(home: Path, *, port: int | None = None, jars: Path = JARS) -> EmbeddedBroker:
    """Returns the running broker of *home*, which it starts if necessary.

    Starting takes about 3 s until it answers. If it does not come up, nothing is left running.

    Args:
        home: its folder.
        port: it listens here; None: on the port it had before, else on a free one.
        jars: the folder that `make setup` or `tidemark jars` fills.

    Raises:
        TidemarkError: there are no jars, or it does not come up; the message has the end of its log.
    """
    if (running := process.find(home, NAME)) is not None:
        return EmbeddedBroker(f"127.0.0.1:{_last_port(home)}", running)
    require_jars("broker", folder=jars)
    chosen = port or _last_port_if_free(home) or process.free_port()
    try:
        env = process.without_airflow(os.environ)
        launched = process.launch(NAME, _command(home, jars, chosen), home=home, env=env)
        broker = EmbeddedBroker(f"127.0.0.1:{chosen}", launched)
        client = _client(broker.address)
        process.wait_until(lambda: _answers(client), f"Kafka at {broker.address}", UP_WITHIN_S, by=[launched])
    except BaseException:  # Ctrl-C, too
        stop(home)
        raise
    return broker


def address(home: Path) -> str:
    """Returns the address, kept from now on, of the broker in *home*."""
    if process.find(home, NAME) is None and _last_port_if_free(home) is None:
        home.mkdir(parents=True, exist_ok=True)
        listeners = f"listeners=PLAINTEXT://127.0.0.1:{process.free_port()}\n"
        (home / "server.properties").write_text(listeners, encoding="utf-8")  # the rest is written when it starts
    return f"127.0.0.1:{_last_port(home)}"


def stop(home: Path) -> None:
    """Stops the broker in *home*, if it runs; its data stays."""
    process.stop(home, NAME)


def create_topics(address: str, partitions: Mapping[str, int]) -> None:
    """Creates topics with so many *partitions*, and waits until they are served.

    Calling it twice changes nothing.

    Raises:
        TidemarkError: a topic exists with another number of partitions, or Kafka refuses.
    """
    client = _client(address)
    _request(client, address, partitions)
    what = f"topics {', '.join(partitions)} at {address}"
    process.wait_until(lambda: partitions.keys() <= _topics(client).keys(), what, ANSWER_WITHIN_S)
    existing = _topics(client)
    for topic, number in partitions.items():
        if existing[topic] != number:
            msg = f"topic {topic} at {address} has {existing[topic]} partitions, and needs {number}; delete it first"
            raise TidemarkError(msg)
    # A partition is listed a moment before its leader serves it.
    consumer = Consumer({"bootstrap.servers": address, "group.id": "create-topics", "log_level": 0})
    process.wait_until(lambda: _serves(consumer, partitions), what, ANSWER_WITHIN_S)
    consumer.close()


def topics(address: str) -> dict[str, int]:
    """Returns the number of partitions of each topic except Kafka's own."""
    return {name: number for name, number in sorted(_topics(_client(address)).items()) if not name.startswith("__")}


def _request(client: AdminClient, address: str, partitions: Mapping[str, int]) -> None:
    wanted = [NewTopic(topic, number, -1) for topic, number in partitions.items()]
    futures = client.create_topics(wanted, request_timeout=ANSWER_WITHIN_S)
    for topic, future in futures.items():
        try:
            future.result()
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                msg = f"topic {topic} was not created at {address}: {refusal.args[0].str()}; check that the broker runs"
                raise TidemarkError(msg) from refusal


def _command(home: Path, jars: Path, port: int) -> list[str]:
    """Writes the configuration; returns the command that serves it.

    It formats the storage if that was never done.
    """
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    while (controller_port := process.free_port()) == port:
        pass
    server = SERVER_PROPERTIES.format(port=port, controller_port=controller_port, data=home / "data")
    (home / "server.properties").write_text(server, encoding="utf-8")
    (home / "log4j2.properties").write_text(LOG4J2_PROPERTIES, encoding="utf-8")
    if not (home / "data" / "meta.properties").exists():
        _format(jars, home)
    return server_command(jars, home)


def server_command(jars: Path, settings: Path) -> list[str]:
    """Returns the command that runs a broker with the files in *settings*."""
    return [*_java(jars, settings), "kafka.Kafka", str(settings / "server.properties")]


def format_command(jars: Path, settings: Path, cluster_id: str) -> list[str]:
    """Returns the command that formats storage once; repeated, it changes nothing."""
    storage_tool = ["kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted"]
    options = ["--cluster-id", cluster_id, "--config", str(settings / "server.properties")]
    return [*_java(jars, settings), *storage_tool, *options]


def _java(jars: Path, settings: Path) -> list[str]:
    archive = jars / ARCHIVE
    # From it a broker starts in half the CPU time. One of another JVM or of other jars is silently ignored.
    shared = [f"-XX:SharedArchiveFile={archive}", *OF_ARCHIVES.split()] if archive.is_file() else []
    logs = f"-Dlog4j2.configurationFile={settings / 'log4j2.properties'}"
    return ["java", *JVM_OPTIONS, *shared, logs, "-cp", f"{jars}/broker/*"]


def _format(jars: Path, home: Path) -> None:
    # The id is 16 bytes in base64; these never start with a dash, which would read as an option.
    cluster_id = urlsafe_b64encode(b"tidemark" + secrets.token_bytes(8)).decode().rstrip("=")
    storage_tool = format_command(jars, home, cluster_id)
    try:
        done = subprocess.run(storage_tool, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        msg = f"Kafka needs Java 17 or 21: {missing.filename!r} not found; install it or correct PATH"
        raise TidemarkError(msg) from missing
    if done.returncode != 0:
        msg = f"Kafka's storage in {home} was not formatted: {(done.stdout + done.stderr).strip()}; run `make setup`"
        raise TidemarkError(msg)


def _last_port(home: Path) -> int | None:
    properties = home / "server.properties"
    match = LISTENING_ON.search(properties.read_text(encoding="utf-8")) if properties.exists() else None
    return int(match[1]) if match else None


def _last_port_if_free(home: Path) -> int | None:
    port = _last_port(home)
    if port is None:
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return None
    return port


def _client(address: str) -> AdminClient:
    # Level 0: that a broker is still starting is no news; and do not wait 10 s before looking again.
    return AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 200})


def _answers(client: AdminClient) -> bool:
    try:
        return bool(client.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def _topics(client: AdminClient) -> dict[str, int]:
    """Returns the number of partitions of each topic."""
    topics = client.list_topics(timeout=ANSWER_WITHIN_S).topics
    return {topic: len(metadata.partitions) for topic, metadata in topics.items()}


def _serves(consumer: Consumer, partitions: Mapping[str, int]) -> bool:
    places: list[TopicPartition] = []
    for topic, count in partitions.items():
        places += [TopicPartition(topic, number) for number in range(count)]
    try:
        return all(consumer.get_watermark_offsets(place, timeout=1) is not None for place in places)
    except KafkaException:
        return False
