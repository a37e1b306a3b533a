"""The embedded broker keeps acknowledged records across restarts and kills.

It restarts on the same home.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidemark.control import process
from tidemark.errors import TidemarkError
from tidemark.local import broker as embedded


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kafka"
    embedded.stop(tmp_path / "kafka")


def write(address: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce("kept", value)
    assert producer.flush(10) == 0


def read(address: str, number: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    messages = consumer.consume(number, timeout=10)
    consumer.close()
    return [message.value() for message in messages]


def test_a_killed_and_restarted_broker_keeps_port_and_records(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In Turkish the capital of i is not I, so that Kafka does not know its own settings.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr -Duser.country=TR")
    first = embedded.start(home)
    embedded.create_topics(first.address, {"kept": 1})
    write(first.address, "before")
    os.kill(first.process.pid, signal.SIGKILL)
    process.wait_until(lambda: not process.is_alive(first.process), "its end", 5)

    second = embedded.start(home)
    assert second.address == first.address
    assert second.process.pid != first.process.pid
    write(second.address, "after")
    assert read(second.address, 2) == [b"before", b"after"]
    assert embedded.start(home) == second, "a running broker is found, not started"

    embedded.stop(home)
    assert not process.is_alive(second.process)
    assert " INFO " not in second.process.log.read_text(), "a sound broker has little to say"


def test_creating_topics_twice_is_fine_with_the_same_partitions(broker: str) -> None:
    embedded.create_topics(broker, {"three": 3, "one": 1})
    embedded.create_topics(broker, {"three": 3, "one": 1})
    with pytest.raises(TidemarkError, match=r"topic three at .* has 3 partitions, and needs 4; delete it first"):
        embedded.create_topics(broker, {"three": 4})


def test_a_broker_without_jars_names_the_remedy(home: Path, tmp_path: Path) -> None:
    with pytest.raises(TidemarkError, match=r"^.*/nowhere has no jars for broker; run `make setup`$"):
        embedded.start(home, jars=tmp_path / "nowhere")
    assert process.find(home, embedded.NAME) is None
