"""Finds the record at which drivers are killed or fail, by number of tries."""

from __future__ import annotations

import errno
import os

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidemark.errors import Contradiction, InvalidArgument, InvalidSpec, TidemarkError
from tidemark.stream.read.data_loss import DataLost
from tidemark.stream.read.parts import Ranges
from tidemark.stream.schemas.registry_client import NotPermitted, RegistryRefused, RegistryUnavailable
from tidemark.stream.startup.fatal import DEATH, cause_of, fatal_record, is_same, neighbours_of

RANGES = {"a": {0: (5, 9), 2: (100, 103)}, "b": {1: (7, 8)}}
"""Eight records."""
ALL = [*(("a", 0, n) for n in range(5, 9)), *(("a", 2, n) for n in range(100, 103)), ("b", 1, 7)]


def places(ranges: Ranges) -> list[tuple[str, int, int]]:
    parts = [(topic, number, *offsets) for topic, of in ranges.items() for number, offsets in of.items()]
    return [(topic, number, offset) for topic, number, start, end in parts for offset in range(start, end)]


@pytest.mark.parametrize("fatal", ALL)
def test_the_record_is_found_in_two_and_log_n_tries(fatal: tuple[str, int, int]) -> None:
    tries: list[Ranges] = []

    def fails(ranges: Ranges) -> bool:
        tries.append(ranges)
        return fatal in places(ranges)

    assert fatal_record(RANGES, fails) == fatal
    assert places(tries[0]) == ALL
    assert len(tries) == 5


def test_of_several_the_first_is_found() -> None:
    assert fatal_record(RANGES, lambda ranges: bool({ALL[2], ALL[5]} & {*places(ranges)})) == ALL[2]


def test_none_is_found_where_the_whole_can_be_read() -> None:
    tries: list[Ranges] = []
    assert fatal_record(RANGES, lambda ranges: bool(tries.append(ranges))) is None
    assert len(tries) == 1
    assert fatal_record({}, lambda _: True) is None


def test_none_is_found_where_only_many_together_fail() -> None:
    assert fatal_record(RANGES, lambda ranges: len(places(ranges)) > 3) is None


@pytest.mark.parametrize(
    ("found", "of_errors", "of_deaths"),
    [
        (("a", 0, 5), [("a", 0, 6)], []),
        (("a", 0, 8), [("a", 0, 7), ("a", 2, 100)], [("a", 0, 7)]),
        (("a", 2, 102), [("a", 2, 101)], [("a", 2, 101)]),
        (("b", 1, 7), [], []),
    ],
)
def test_the_records_beside_it_in_its_topic_must_not_fail(
    found: tuple[str, int, int], of_errors: list[tuple[str, int, int]], of_deaths: list[tuple[str, int, int]]
) -> None:
    for is_death, neighbours in ((False, of_errors), (True, of_deaths)):
        tries = neighbours_of(RANGES, found, is_death=is_death)
        assert [place for ranges in tries for place in places(ranges)] == neighbours
        assert len(tries) == max(len(neighbours), 1), "without neighbours nothing is read, and registries are asked"


REJECTED = "java.util.concurrent.RejectedExecutionException"


def lost(reason: str) -> Exception:
    """Returns Spark's error of a task that failed four times, the last time for *reason*."""
    last = "most recent failure: Lost task 0.3 in stage 12.0 (TID 36) (worker executor 8)"
    task = f"Job aborted due to stage failure: Task 0 in stage 12.0 failed 4 times, {last}: {reason}"
    return of_java(f"x\nCaused by: org.apache.spark.SparkException: {task}")


def of_java(text: str) -> Exception:
    error = RuntimeError("Job aborted")
    error._stackTrace = text  # type: ignore[attr-defined]
    return error


def test_an_error_is_the_same_wherever_it_is_raised() -> None:
    here = ValueError("7 of 500 values are wrong at 0x7f12ab")
    lines = 'Traceback (most recent call last):\n  File "w.py", line 3, in f\n'
    lines += "builtins.ValueError: 1 of 2 values are wrong at 0x0"
    task = of_java(
        f"org.apache.spark.SparkException: Job aborted\nCaused by: org.apache.spark.PythonException: {lines}"
    )
    assert cause_of(here) == "ValueError: 7 of 500 values are wrong at 0x7f12ab"
    assert cause_of(task) == "builtins.ValueError: 1 of 2 values are wrong at 0x0"
    assert is_same(cause_of(here), cause_of(task))
    assert not is_same(cause_of(here), cause_of(ValueError("7 of 500 values are strange at 0x7f12ab")))
    assert not is_same(cause_of(here), cause_of(TypeError(str(here))))
    assert not is_same(None, DEATH), "a try that succeeds is no death"


@pytest.mark.parametrize(
    "error",
    [
        TidemarkError("t"),
        Contradiction("lease"),
        DataLost("gone"),
        InvalidSpec("setting"),
        RegistryRefused("401"),
        NotPermitted("403"),
        RegistryUnavailable("down"),
        KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        TimeoutError(),
        RuntimeError(f"delta-rs: {os.strerror(errno.EROFS)} (os error 30)"),
        of_java("x\nCaused by: org.apache.kafka.common.errors.TimeoutException: no answer"),
        of_java("x\nCaused by: java.net.ConnectException: refused"),
        of_java("Traceback (most recent call last):\nFileNotFoundError: [Errno 2] gone"),
        of_java("Traceback (most recent call last):\ntidemark.stream.driver.versions.VersionMismatch: other versions"),
        of_java("x\nCaused by: org.apache.hadoop.fs.s3a.AWSBadRequestException: no"),
    ],
    ids=repr,
)
def test_errors_of_what_is_around_a_driver_are_about_no_record(error: Exception) -> None:
    assert cause_of(error) is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (InvalidArgument("many is no number"), "InvalidArgument: many is no number"),
        (KeyError("a"), "KeyError: 'a'"),
        (RecursionError(), "RecursionError: "),
        (of_java("x\nCaused by: java.lang.ArithmeticException: a"), "java.lang.ArithmeticException: a"),
        (of_java("x\nCaused by: java.lang.OutOfMemoryError: Java heap space"), DEATH),
        (lost("java.lang.OutOfMemoryError: Java heap space"), DEATH),
        (lost("ExecutorLostFailure (executor 8 exited caused by one of the running tasks) Reason: code 52"), DEATH),
        (lost(f"{REJECTED}: Task org.apache.spark.executor.Executor$TaskRunner@6e8874c1 rejected from a pool"), DEATH),
        (lost(f"{REJECTED}: Task our.Task rejected"), f"{REJECTED}: Task our.Task rejected"),
        (
            of_java("Traceback (most recent call last):\ntidemark.errors.InvalidArgument: no number"),
            "tidemark.errors.InvalidArgument: no number",
        ),
        (MemoryError(), DEATH),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), DEATH),
    ],
    ids=repr,
)  # fmt: skip
def test_all_others_may_be_about_a_record(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause
