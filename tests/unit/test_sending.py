"""Sending with a full queue, or without a broker."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tidemark.control.process import free_port, wait_until
from tidemark.model.project.connections import Cluster
from tidemark.stream.kafka import publishing
from tidemark.stream.kafka.access import Refusals
from tidemark.stream.kafka.publishing import PublishError, RecordSender


class Full:
    """A producer with room for two records, until polled with patience."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.arrived: list[Any] = []

    def produce(self, topic: str, value: str, *_: Any, **__: Any) -> None:
        if len(self.queue) == 2:
            raise BufferError
        self.queue.append(value)

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            self.arrived.append(self.queue.pop(0))

    def flush(self, _: float) -> int:
        self.arrived += self.queue
        return 0


def test_a_full_queue_waits_until_there_is_room() -> None:
    producer = Full()
    sending = RecordSender(producer, "out", Cluster("b:1"), Refusals())  # type: ignore[arg-type]
    for row in range(9):
        sending.send(row, str(row), "k", 0, 0, [])
    assert sending.refused() == {}
    assert producer.arrived == [str(row) for row in range(9)]


def threads_of_clients() -> set[str]:
    """Returns the ids of the threads of Kafka clients."""
    found = set()
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            if name.read_text().startswith("rdk:"):
                found.add(name.parent.name)
    return found


def test_a_client_that_was_not_answered_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "TIMEOUT_S", 0.5)
    before = threads_of_clients()
    gone = f"127.0.0.1:{free_port()}"
    sending = RecordSender(Producer({"bootstrap.servers": gone, "log_level": 0}), "out", Cluster(gone), Refusals())
    sending.send(0, "value", "k", 0, 0, [])
    own = threads_of_clients() - before  # clients of other tests may end meanwhile
    assert own
    with pytest.raises(PublishError, match=r"the broker did not answer for 1 records"):
        sending.refused()
    del sending
    gc.collect()
    wait_until(lambda: not own & threads_of_clients(), "the end of the client", 20)
