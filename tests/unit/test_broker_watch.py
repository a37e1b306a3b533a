"""A driver waits for silent brokers, and for nothing else; it looks for open transactions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import Contradiction
from tidemark.model.kinds.source import Source
from tidemark.stream.kafka import watch as watch_module
from tidemark.stream.kafka.publishing import PublishError
from tidemark.stream.kafka.transactions import TransactionWatch
from tidemark.stream.kafka.watch import BrokerWatch

NOON = 1_400_000_000_000
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Clusters:
    """A cluster `eu` without answers to the next *unanswered* requests."""

    def __init__(self, unanswered: int) -> None:
        self.unanswered = unanswered

    def silent(self) -> dict[str, str]:
        self.unanswered -= 1
        return {"eu": "eu.example.org:9092"} if self.unanswered >= 0 else {}


class ClockOfWaits:
    """A clock that goes on only while the driver waits."""

    def __init__(self) -> None:
        self.now_ms = NOON

    def __call__(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)


class DrainRequested(Exception):
    """Ends the wait."""


def test_a_silent_cluster_is_named_since_its_last_answer() -> None:
    clusters, clock = Clusters(0), ClockOfWaits()
    watch = BrokerWatch(clusters, clock, sleep_s=clock.sleep)
    clock.sleep(7)
    assert watch.answer()
    assert watch.trouble is None
    clusters.unanswered = 2
    for _ in range(2):
        clock.sleep(10)
        assert not watch.answer()
    assert watch.trouble == (
        "waits for Kafka: no answer of eu.example.org:9092 (cluster eu) since 2014-05-13T16:53:27.000Z"
    )
    assert watch.answer()
    assert watch.trouble is None


@pytest.mark.parametrize("error", [TIMED_OUT, PublishError("the broker did not answer for 1 records")])
def test_an_error_of_silence_waits_for_the_answer(error: Exception) -> None:
    clock, checks = ClockOfWaits(), []
    watch = BrokerWatch(Clusters(3), clock, sleep_s=clock.sleep)
    watch.wait_after(error, lambda: checks.append(clock()))
    # The first request has no answer, nor have the two before pauses of 3 s.
    assert clock() == NOON + 6_000
    assert len(checks) == 7


def test_an_error_is_repeated_if_brokers_were_silent_before() -> None:
    clock = ClockOfWaits()
    watch = BrokerWatch(Clusters(1), clock, sleep_s=clock.sleep)
    assert not watch.answer()
    assert watch.answer()
    watch.wait_after(TIMED_OUT, lambda: None)
    assert clock() == NOON


@pytest.mark.parametrize(
    ("error", "unanswered"),
    [(TIMED_OUT, 0), (Contradiction("rows of this one were rewritten"), 9), (ValueError("of a record"), 9)],
)
def test_other_errors_end_the_driver(error: Exception, unanswered: int) -> None:
    clock = ClockOfWaits()
    with pytest.raises(type(error)):
        BrokerWatch(Clusters(unanswered), clock, sleep_s=clock.sleep).wait_after(error, lambda: None)


def test_a_drain_ends_the_wait_for_brokers() -> None:
    clock = ClockOfWaits()

    def check() -> None:
        if clock() == NOON + 2_000:
            raise DrainRequested

    with pytest.raises(DrainRequested):
        BrokerWatch(Clusters(99), clock, sleep_s=clock.sleep).wait_after(TIMED_OUT, check)


class Faulty(Clusters):
    """A cluster whose next *faults* requests raise an error that nobody expects; `asked` is set after *rounds*."""

    def __init__(self, faults: int, rounds: int) -> None:
        super().__init__(0)
        self.faults, self.rounds, self.asked = faults, rounds, threading.Event()

    def silent(self) -> dict[str, str]:
        self.faults, self.rounds = self.faults - 1, self.rounds - 1
        if self.rounds < 0:
            self.asked.set()
        if self.faults >= 0:
            raise KeyError(7)
        return super().silent()


def test_an_unexpected_error_is_logged_once_and_the_brokers_are_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch_module, "EVERY_S", 0.001)
    clusters, looks = Faulty(faults=2, rounds=4), threading.Event()
    watch = BrokerWatch(clusters, ClockOfWaits(), look=looks.set)
    watch.start()
    try:
        assert clusters.asked.wait(60)
        assert looks.wait(60)
    finally:
        watch.end()
    (told,) = [record for record in caplog.records if "could not be asked" in record.message]
    assert told.exc_info is not None
    assert told.exc_info[0] is KeyError


class Stable:
    """A broker of one topic with last stable offsets of partitions with open transactions."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] | None = {}

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        if self.offsets is None:
            raise TIMED_OUT
        return {number: offset for number, offset in self.offsets.items() if number in partitions}


def test_a_transaction_is_named_once_a_second_look_finds_it_where_it_was() -> None:
    clock, broker = ClockOfWaits(), Stable()
    events = Source(name="events", topic="orders", fields={}, timestamp_range_ms=(0, 1), bound_ms=0)
    watch = TransactionWatch(broker, lambda: [(events, [0, 1])], clock)

    def look(offsets: dict[int, int] | None) -> list[tuple[str, int, int]]:
        clock.sleep(10)
        broker.offsets = offsets
        watch.look()
        return [(str(each.topic_partition), each.stable_offset, each.since_ms - NOON) for each in watch.open]

    assert look({0: 5, 2: 9}) == []
    assert look({0: 5, 1: 7}) == [("orders/0", 5, 10_000)]
    # The transaction of partition 1 ended, and another one follows it.
    assert look({0: 5, 1: 8}) == [("orders/0", 5, 10_000)]
    # What is known stays known while the broker does not answer.
    assert look(None) == [("orders/0", 5, 10_000)]
    assert look({1: 8}) == [("orders/1", 8, 30_000)]
    assert look({}) == []
