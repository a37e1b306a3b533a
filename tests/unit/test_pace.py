"""Records start a batch when they come, and batches keep their distance."""

from __future__ import annotations

import threading

import pytest

from tidemark.stream.driver.pace import ASK_MS, ASKS_FOR_MS, GATHERS_FOR_MS, Pace

TRIGGER_MS = 1_000
NEVER_MS = float("inf")


class Stream:
    """A stream whose batches take no time.

    Only waits advance its clock. Its records arrive at *arrivals_ms*. Something is due at *due_ms*, and a person
    requests something at *asked_ms*.
    """

    def __init__(self, *arrivals_ms: float, due_ms: float = NEVER_MS, asked_ms: float = NEVER_MS) -> None:
        self.now_ms, self.read, self.questions = 0.0, 0, 0
        self._arrivals_ms = arrivals_ms
        self.caused, self.urgent = Cause(self, min(due_ms, asked_ms)), Cause(self, asked_ms)
        self.pace = Pace(TRIGGER_MS, [self.unread], lambda: self.now_ms)

    def arrived(self) -> int:
        return sum(at_ms <= self.now_ms for at_ms in self._arrivals_ms)

    def unread(self) -> int:
        self.questions += 1
        return self.arrived() - self.read

    def batch(self, *, has_read: bool = True) -> float:
        """Returns when Spark plans after it."""
        self.pace.begin()
        self.read = self.arrived()
        self.pace.wait(self.urgent, self.caused, has_read=has_read)
        return self.now_ms


class Cause(threading.Event):
    """An event at *at_ms*; its waits advance the clock of *stream*."""

    def __init__(self, stream: Stream, at_ms: float) -> None:
        super().__init__()
        self._stream, self.at_ms = stream, at_ms

    def is_set(self) -> bool:
        return self._stream.now_ms >= self.at_ms

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        now_ms = self._stream.now_ms
        self._stream.now_ms = max(now_ms, min(now_ms + timeout * 1_000, self.at_ms))
        return self.is_set()


def test_a_record_after_a_silence_starts_a_batch_soon() -> None:
    at_ms = Stream(3_000).batch()
    # At most a fifth of the silence, and one more question whether others follow.
    assert 3_000 <= at_ms <= 3_600 + 2 * ASK_MS


def test_first_records_of_many_wait_for_the_others_200_ms() -> None:
    of_few = Stream(*(100 + n for n in range(50))).batch()
    assert 150 <= of_few <= 150 + 3 * ASK_MS
    of_many = Stream(*(100 + n for n in range(1_000))).batch()
    assert 100 + GATHERS_FOR_MS <= of_many <= 100 + GATHERS_FOR_MS + 3 * ASK_MS


def test_batches_of_a_steady_stream_are_a_trigger_apart() -> None:
    stream = Stream(*(10.0 * n for n in range(1_000)))
    # One begins early: its predecessor had only what came first.
    assert [stream.batch() for _ in range(5)][1:] == [1_000, 2_000, 3_000, 4_000]


def test_brokers_are_asked_in_the_10_s_after_records_alone() -> None:
    assert Stream().batch() == pytest.approx(ASKS_FOR_MS)
    assert Stream().batch(has_read=False) == 0
    stream = Stream(due_ms=3_000)
    assert stream.batch() == 3_000
    stream.caused.at_ms = NEVER_MS
    assert stream.batch(has_read=False) == pytest.approx(ASKS_FOR_MS), "what was due does not end it"


@pytest.mark.parametrize(("until_ms", "most"), [(1_000, 14), (ASKS_FOR_MS, 27)])
def test_brokers_are_asked_seldom_in_a_silence(until_ms: float, most: int) -> None:
    # Each 50 ms for 250 ms, and then the silence grows by a fifth with each question.
    stream = Stream(due_ms=until_ms)
    stream.batch()
    assert most / 2 <= stream.questions <= most


def test_no_further_source_is_asked_when_something_is_due() -> None:
    stream = Stream()

    def slow() -> int:
        stream.caused.at_ms = stream.now_ms
        return 0

    Pace(TRIGGER_MS, [slow, lambda: 1 // 0], lambda: stream.now_ms)._ask(stream.caused)


def test_what_is_due_keeps_the_distance_on_average() -> None:
    stream = Stream(due_ms=0)
    # One of them begins early.
    assert [stream.batch() for _ in range(20)] == [TRIGGER_MS * n for n in range(20)]


def test_what_is_due_ends_the_questions() -> None:
    assert Stream(due_ms=70).batch() == 70


def test_requests_do_not_wait_and_delay_records_by_a_trigger() -> None:
    stream = Stream(asked_ms=0)
    assert [stream.batch() for _ in range(10)] == [0] * 10
    stream.urgent.at_ms = NEVER_MS
    stream.pace.wait(stream.urgent, stream.caused, has_read=True)
    assert stream.now_ms == TRIGGER_MS


def test_spark_plans_where_brokers_do_not_answer() -> None:
    stream = Stream()
    pace = Pace(TRIGGER_MS, [lambda: 1 // 0], lambda: stream.now_ms)
    pace.begin()
    pace.wait(stream.urgent, stream.caused, has_read=True)
    assert stream.now_ms == 0
