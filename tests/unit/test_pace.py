"""Records start a batch when they come, and batches keep their distance."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tidemark.stream.driver.pace import GATHERS_FOR_MS, LOOK_MS, LOOKS_FOR_MS, Pace

TRIGGER_MS = 1_000


class Cause(threading.Event):
    """An event whose waits only advance a clock; it happens at *at_ms*."""

    def __init__(self, at_ms: float = float("inf")) -> None:
        super().__init__()
        self.now_ms, self._at_ms = 0.0, at_ms

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_ms = min(self.now_ms + timeout * 1_000, max(self._at_ms, self.now_ms))
        return self.now_ms >= self._at_ms


def looked_at_ms(
    arrivals_ms: list[float] | Callable[[], int], cause: Cause, *, has_read: bool = True, batches: int = 1
) -> list[float]:
    """Returns when Spark looks after each batch; a batch takes no time."""
    read = 0

    def arrived() -> int:
        assert isinstance(arrivals_ms, list)
        return sum(at_ms <= cause.now_ms for at_ms in arrivals_ms)

    ask = (lambda: arrived() - read) if isinstance(arrivals_ms, list) else arrivals_ms
    pace, looks = Pace(TRIGGER_MS, ask, lambda: cause.now_ms), []
    for _ in range(batches):
        pace.begin()
        read = arrived() if isinstance(arrivals_ms, list) else 0
        pace.wait(cause, has_read=has_read)
        looks.append(cause.now_ms)
    return looks


def test_a_record_after_a_silence_starts_a_batch_soon() -> None:
    (at_ms,) = looked_at_ms([3_000], Cause())
    # At most a tenth of the silence, and one more look whether others follow.
    assert 3_000 <= at_ms <= 3_300 + 2 * LOOK_MS


def test_first_records_of_many_wait_for_the_others_a_moment() -> None:
    (of_few,) = looked_at_ms([100 + n for n in range(50)], Cause())
    assert 150 <= of_few <= 150 + 3 * LOOK_MS
    (of_many,) = looked_at_ms([100 + n for n in range(1_000)], Cause())
    assert 100 + GATHERS_FOR_MS <= of_many <= 100 + GATHERS_FOR_MS + 3 * LOOK_MS


def test_batches_of_a_steady_stream_are_a_trigger_apart() -> None:
    arrivals_ms = [10.0 * n for n in range(1_000)]
    # One begins early: its predecessor had only what came first.
    assert looked_at_ms(arrivals_ms, Cause(), batches=5)[1:] == [1_000, 2_000, 3_000, 4_000]


def test_nobody_is_asked_long_after_records_or_after_none() -> None:
    assert looked_at_ms([], Cause()) == [pytest.approx(LOOKS_FOR_MS, rel=0.1)]
    assert looked_at_ms([], Cause(), has_read=False) == [0]


def test_what_is_due_waits_for_nothing() -> None:
    assert looked_at_ms([], Cause(at_ms=70)) == [70]
    # Many of them delay records by one trigger at most.
    busy = Cause(at_ms=0)
    pace = Pace(TRIGGER_MS, lambda: 1, lambda: busy.now_ms)
    for _ in range(10):
        pace.begin()
        pace.wait(busy, has_read=True)
    quiet = Cause()
    pace.wait(quiet, has_read=True)
    assert quiet.now_ms == TRIGGER_MS


def test_spark_looks_itself_where_brokers_do_not_answer() -> None:
    assert looked_at_ms(lambda: 1 // 0, Cause()) == [0]
