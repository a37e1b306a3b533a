"""Executors in the place of Spark's: tasks that share nothing but files."""

from __future__ import annotations

from typing import Any

import polars as pl
from pyspark import cloudpickle

from tidemark.stream.spread_tasks import Arrived, Arriving, Worked, Working


class Apart:
    """Executors that are given a task as bytes, and finish in any order."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows

    def parallelism(self) -> int:
        return 3

    def arrive(self, task: Arriving) -> list[Arrived]:
        parts = self._rows.partition_by("source", "partition", maintain_order=True)
        return [_there_and_back(_there_and_back(task)(part)) for part in reversed(parts)]

    def work(self, task: Working) -> list[Worked]:
        return [_there_and_back(_there_and_back(task)(number)) for number in range(task.shares)]


def _there_and_back(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))
