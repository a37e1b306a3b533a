"""A batch is caused when one is due, and not before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.semantics.timetable import LOOKS_AT_HOPS_EVERY_MS
from tidemark.stream.driver.pace import Pace
from tidemark.stream.driver.waking import AGAIN_AFTER_MS, SIGN_EVERY_MS, Hops, Waker

T = 1_000_000_000
PATIENCE_S = 10
TRIGGER_MS = 50


class Stream:
    """A driver between two batches, with values set by hand.

    They are what is due, what was asked, and the clock.
    """

    def __init__(self, *, is_woken: bool = False, pace: Pace | None = None) -> None:
        self.now_ms, self.due_at_ms, self.asked = T, 0, ()
        self.waited_at_ms: list[int] = []
        self.ticks: list[int] = []
        self._looked = threading.Event()
        self.waking = Waker(
            lambda: self.due_at_ms,
            lambda: self.asked,
            self.waited_at_ms.append,
            self._clock,
            every_s=0.001,
            is_woken=is_woken,
            pace=pace,
        )

    def _clock(self) -> int:
        self._looked.set()
        return self.now_ms

    def tick(self) -> None:
        self.ticks.append(self.now_ms)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.waking.ticking(self.tick):
            yield

    def batch(self) -> None:
        self.waking.begin()
        self.waking.finish()

    def look(self, *, at_ms: int | None = None) -> int:
        """Returns the number of batches so far; the driver looks at *at_ms*."""
        self.now_ms = self.now_ms if at_ms is None else at_ms
        for _ in range(3):  # the first may have begun before
            self._looked.clear()
            assert self._looked.wait(PATIENCE_S)
        return len(self.ticks)


def test_the_first_batch_of_a_query_needs_no_cause() -> None:
    stream = Stream()
    with stream.running():
        assert stream.look() == 0
        assert stream.look(at_ms=T + AGAIN_AFTER_MS) == 1, "if Spark plans none by itself, a signal makes it"


def test_a_batch_is_caused_when_it_is_due_and_once() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = T + 10_000
        assert stream.look(at_ms=T + 9_999) == 0
        assert stream.look(at_ms=T + 10_000) == 1
        assert stream.look(at_ms=T + 10_000 + AGAIN_AFTER_MS - 1) == 1


def test_a_batch_that_does_not_come_is_caused_again() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = T + 1
        assert [stream.look(at_ms=T + 1 + after) for after in (0, AGAIN_AFTER_MS)] == [1, 2]


def test_none_is_caused_while_one_runs() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.waking.begin()
        assert stream.look(at_ms=T + 10 * SIGN_EVERY_MS) == 0
        stream.waking.finish()
        assert stream.look() == 1


def test_a_stream_with_nothing_to_do_gives_a_sign_each_minute() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = None
        assert stream.look(at_ms=T + SIGN_EVERY_MS - 1) == 0
        assert stream.look(at_ms=T + SIGN_EVERY_MS) == 1


def test_what_is_asked_causes_one_batch() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = None
        assert stream.look() == 0
        stream.asked = ("end",)
        assert stream.look() == 1
        stream.batch()
        assert stream.look() == 1, "the batch has done it"


def test_a_stream_that_waits_for_nothing_due_is_not_stuck() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = T + 10_000
        stream.look(at_ms=T + 9_000)
        assert stream.waited_at_ms[-1] == T + 9_000
        stream.look(at_ms=T + 12_000)
        assert stream.waited_at_ms[-1] < T + 10_000, "what is due and does not come takes its time from then on"


def test_who_is_woken_while_spark_plans_has_another_batch() -> None:
    stream = Stream()
    with stream.running():
        stream.batch()
        stream.due_at_ms = None
        stream.waking.wake()
        assert stream.look() == 1
        stream.waking.wake()  # after the batch was planned, and before it begins
        assert stream.look() == 1
        stream.waking.begin()
        stream.waking.wake()
        assert stream.look() == 1
        stream.waking.finish()
        assert stream.look() == 2
        stream.batch()
        assert stream.look() == 2


def test_a_batch_ends_when_the_next_one_is_caused() -> None:
    stream = Stream(is_woken=True)
    with stream.running():
        stream.due_at_ms = None
        waiting = threading.Thread(target=stream.batch)
        waiting.start()
        stream.look()
        assert waiting.is_alive()
        stream.waking.wake()
        waiting.join(PATIENCE_S)
        assert stream.ticks == [T]


def test_a_commit_wakes_the_readers_of_its_writer_alone() -> None:
    hops = Hops(is_shared=True)
    writer, reader, other = (Stream(is_woken=True) for _ in range(3))
    with (
        hops.running(Path("writer"), [], writer.waking),
        hops.running(Path("reader"), [Path("writer")], reader.waking),
        hops.running(Path("other"), [Path("elsewhere")], other.waking),
    ):
        hops.committed(Path("writer"))
        assert [stream.waking._has_news for stream in (writer, reader, other)] == [False, True, False]
        signs = [stream.waking.sign_every_ms for stream in (writer, reader, other)]
        assert signs == [SIGN_EVERY_MS, SIGN_EVERY_MS, LOOKS_AT_HOPS_EVERY_MS]


def test_a_reader_of_another_process_looks_seldom_when_idle() -> None:
    stream = Stream()
    stream.waking._trigger_ms, stream.due_at_ms = 2_000, None  # type: ignore[assignment]
    stream.waking.sign_every_ms = LOOKS_AT_HOPS_EVERY_MS
    with stream.running():
        stream.waking.begin()
        stream.waking.finish(has_changed=True)
        assert [stream.look(at_ms=T + at_ms) for at_ms in (1_999, 2_000)] == [0, 1]
        stream.waking.begin()
        stream.waking.finish(has_changed=False)
        assert [stream.look(at_ms=T + 2_000 + at_ms) for at_ms in (9_999, 10_000)] == [1, 2]


def test_it_goes_on_looking_after_an_error() -> None:
    stream = Stream()
    stream.asked = property()  # type: ignore[assignment]
    stream.waking._requests = lambda: 1 // 0  # type: ignore[method-assign]
    with stream.running():
        stream.batch()
        stream.look()
        stream.waking._requests = tuple  # type: ignore[method-assign]
        assert stream.look(at_ms=T + SIGN_EVERY_MS) == 1


def took_ms(stream: Stream, batches: int, cause: Callable[[], object] = lambda: None) -> float:
    """Returns how long *batches* take that do no work.

    *cause* is called in each one.
    """
    began_s = time.monotonic()
    with stream.running():
        for _ in range(batches):
            stream.waking.begin()
            cause()
            stream.waking.finish()
    return (time.monotonic() - began_s) * 1_000


@pytest.mark.parametrize("is_woken", [False, True], ids=["of topics", "of hops"])
def test_what_is_due_keeps_batches_a_trigger_apart(*, is_woken: bool) -> None:
    # On processing time, and with a periodic operator, something is due as soon as a batch has ended.
    always_due = Stream(is_woken=is_woken, pace=Pace(TRIGGER_MS, ()))
    # One begins early, and the first needs no distance.
    assert took_ms(always_due, 10) >= 9 * TRIGGER_MS - 1


def test_requests_wait_for_no_trigger() -> None:
    stream = Stream(pace=Pace(1_000 * PATIENCE_S, ()))

    def ask() -> None:
        stream.asked = (*stream.asked, "drain")  # type: ignore[assignment]

    assert took_ms(stream, 10, ask) < 1_000 * PATIENCE_S


def test_hops_wake_streams_that_read_topics_too_once_a_trigger() -> None:
    of_hops = Stream(is_woken=True, pace=Pace(1_000 * PATIENCE_S, ()))
    of_both = Stream(pace=Pace(TRIGGER_MS, ()))
    assert took_ms(of_hops, 10, of_hops.waking.wake) < 1_000 * PATIENCE_S
    assert took_ms(of_both, 10, of_both.waking.wake) >= 9 * TRIGGER_MS - 1


def test_a_commit_that_a_due_batch_reads_causes_no_other() -> None:
    stream = Stream(is_woken=True, pace=Pace(1_000 * PATIENCE_S, ()))
    with stream.running():
        stream.batch()  # the next one may begin early
        ending = threading.Thread(target=stream.batch)
        ending.start()
        assert stream.look() == 2, "a batch is due, and keeps its distance"
        stream.waking.wake()
        ending.join(PATIENCE_S)
        stream.due_at_ms = None
        waiting = threading.Thread(target=stream.batch)
        waiting.start()
        assert stream.look() == 2
        assert waiting.is_alive()
