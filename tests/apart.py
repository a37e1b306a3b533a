"""Executors in the place of Spark's: tasks that share nothing but files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import polars as pl
from pyspark import cloudpickle

from tidemark.stream.distributed import shard
from tidemark.stream.distributed.tasks import Dealt, TakingIn, Working
from tidemark.stream.distributed.totals import Worked


class Apart:
    """Executors that are given a task as bytes, and deal out in any order; each task has a worker of its own."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows

    def run(self, taking_in: TakingIn, working: Working) -> list[Worked]:
        parts = self._rows.partition_by("source", "partition", maintain_order=True)
        return self.work(working, [dealt for part in reversed(parts) for dealt in _there_and_back(taking_in)(part)])

    def work(self, working: Working, dealt: Iterable[Dealt]) -> list[Worked]:
        of_shard = defaultdict(list)
        for number, each in dealt:
            of_shard[number].append(each)
        return [self._worked(working, number, of_shard[number]) for number in range(working.shards)]

    def _worked(self, working: Working, number: int, dealt: list[bytes]) -> Worked:
        shard._KEPT.clear()
        worked: Worked = _there_and_back(_there_and_back(working)(number, dealt))
        return worked


class OneWorker(Apart):
    """The same, by a worker that keeps what it has."""

    def _worked(self, working: Working, number: int, dealt: list[bytes]) -> Worked:
        worked: Worked = _there_and_back(_there_and_back(working)(number, dealt))
        return worked


def _there_and_back(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))
