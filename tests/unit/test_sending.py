"""Sending with a client whose queue is full."""

from __future__ import annotations

from typing import Any

from tidemark.model.project.connections import Cluster
from tidemark.stream.kafka.access import Refusals
from tidemark.stream.kafka.publishing import RecordSender


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
