"""Executors in the place of Spark's: tasks that share nothing but files."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import polars as pl
from pyspark import cloudpickle

from tidemark.stream.kafka.broker import TopicWriter
from tidemark.stream.shards import shard
from tidemark.stream.shards.tasks import Dealt, IntakeTask, ShardTask
from tidemark.stream.shards.totals import ShardResult


class Apart:
    """Executors that get tasks as bytes and run them in any order.

    Each task has a worker of its own.
    """

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows

    def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
        parts = self._rows.partition_by("source", "partition", maintain_order=True)
        return self.work(working, [dealt for part in reversed(parts) for dealt in _there_and_back(taking_in)(part)])

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        of_shard = defaultdict(list)
        for number, each in dealt:
            of_shard[number].append(each)
        return [self._worked(working, number, of_shard[number]) for number in range(working.shards)]

    def publish(self, publishing: TopicWriter) -> list[pl.DataFrame]:
        tasks = reversed(range(publishing.tasks))
        return [rows for task in tasks for rows in _there_and_back(_there_and_back(publishing)(task))]

    def _worked(self, working: ShardTask, number: int, dealt: list[bytes]) -> ShardResult:
        shard._KEPT.clear()
        worked: ShardResult = _as_returned(_there_and_back(working)(number, dealt))
        return worked


class OneWorker(Apart):
    """The same, by a worker that keeps what it has."""

    def _worked(self, working: ShardTask, number: int, dealt: list[bytes]) -> ShardResult:
        worked: ShardResult = _as_returned(_there_and_back(working)(number, dealt))
        return worked


class Workers(Apart):
    """Two workers that keep their states; some tasks run on both.

    Of the two tries of a task one counts.
    """

    chance = Random(1)

    def _worked(self, working: ShardTask, number: int, dealt: list[bytes]) -> ShardResult:
        workers = self.chance.choice([(0,), (1,), (0, 1), (1, 0)])
        counts, *_ = [self._by(worker, working, number, dealt) for worker in workers]
        return counts

    def _by(self, worker: int, working: ShardTask, number: int, dealt: list[bytes]) -> ShardResult:
        shard._KEPT = KEPT[worker]
        worked: ShardResult = _as_returned(_there_and_back(working)(number, dealt))
        return worked


KEPT: list[dict[Any, Any]] = [{}, {}]
"""Returns the states that each of the `Workers` has."""


def _as_returned(worked: ShardResult) -> ShardResult:
    """Returns what a task returns, which it pickles itself, as `on_spark.py` does."""
    returned: ShardResult = pickle.loads(pickle.dumps(worked))
    return returned


def _there_and_back(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))
