"""Reads the facts about latency that rollups count.

Files are selected by the statistics in the log. The progress of the rollup is in its own log, as transactions of
Delta. `rollup/<topology>/<sub_topology>` is the newest batch that it has counted. `…/rows` is the number of rows
that the files ending with that batch had. Operators of a team's own query write the facts of a batch one after the
other, so the newest batch may have got more rows since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.facts.versions import files_in_log
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.kernels.reports.rollups import FACTS, by_minute
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import LATENCY_MINUTES, LATENCY_ROLLUP
from tidemark.storage.delta.datasets import rows_of_files
from tidemark.storage.warehouse import is_table, stream_tables

SPARK_ABOVE = 200_000
"""Most rows of an hour that one process counts by itself; a row has about a hundred buckets."""


@dataclass(frozen=True)
class LatencyFacts:
    """The facts about latency of one sub-topology.

    Attributes:
        topology: its name.
        sub_topology: its name.
        files: a row for each data file: `path`, `num_records`, and minimum and maximum of `batch_id` and `finished_at`.
        newest: the newest batch that is there.
        oldest: the oldest batch that is left.
    """

    topology: str
    sub_topology: str
    files: pl.DataFrame
    newest: int
    oldest: int

    def new_minutes(self, rollup: DeltaTable) -> set[int]:
        """Returns the minutes with facts that *rollup* lacks.

        They are minutes of the finish clock, epoch ms.
        """
        had = self._had_by(rollup)
        rows = _rows(self._files(pl.col("max.batch_id") > had)).filter(pl.col("batch_id") > had)
        minute = pl.col("finished_at").dt.truncate("1m").dt.epoch("ms").unique()
        return set(rows.select(minute).collect(engine="streaming").to_series())

    def by_minute(self, minutes: Collection[Interval], spark_above: int) -> pl.DataFrame:
        """Counts the facts that finished in *minutes*, by task.

        Spark counts them if their files have more rows than *spark_above*. It is started then, and left running.
        """
        # The rows of a file finished between these two instants.
        least, largest = pl.col("min.finished_at").dt.epoch("ms"), pl.col("max.finished_at").dt.epoch("ms")
        touches = [(largest >= minute.start_ms) & (least < minute.end_ms) for minute in minutes]
        files = self._files(pl.any_horizontal(pl.lit(value=False), *touches))
        if files["num_records"].sum() > spark_above:
            # This imports pyspark, which most jobs do not need.
            from tidemark.facts import large_facts

            return large_facts.by_minute(files["path"].to_list(), minutes)
        return by_minute(_rows(files).select(FACTS), minutes, engine="streaming")

    def marks(self, rollup: DeltaTable, now: Collection[LatencyFacts]) -> dict[str, int]:
        """Returns the transactions by which *rollup* has counted these facts.

        There are none if it has counted newer facts of *now*.
        """
        newest_now = max((part.newest for part in now if part.sub_topology == self.sub_topology), default=-1)
        # A mark beyond all facts is that of a table that was begun anew.
        had_newer = self.newest < (rollup.transaction_version(self._app) or 0) <= newest_now
        return {} if had_newer else self._marks(self.newest)

    def _files(self, are_read: pl.Expr) -> pl.DataFrame:
        """Returns the files that *are_read*.

        A file for which *are_read* is null is included: its log lacks statistics.
        """
        return self.files.filter(are_read.fill_null(value=True))

    def _had_by(self, rollup: DeltaTable) -> int:
        """Returns the newest batch of which *rollup* has counted every row.

        -1: there is none, or the table was begun anew.
        """
        batch_id = rollup.transaction_version(self._app)
        if batch_id is None or batch_id > self.newest:
            return -1
        # The batch may have got more rows since it was counted.
        marks = self._marks(batch_id)
        return int(batch_id) if marks == {app: rollup.transaction_version(app) for app in marks} else batch_id - 1

    def _marks(self, batch_id: int) -> dict[str, int]:
        rows = self.files.filter(pl.col("max.batch_id") == batch_id).select(pl.sum("num_records")).item()
        return {self._app: batch_id, f"{self._app}/rows": rows}

    @property
    def _app(self) -> str:
        return _app(self.topology, self.sub_topology)


def _app(topology: str, sub_topology: str) -> str:
    return f"rollup/{topology}/{sub_topology}"


def counted_batches(layout: Layout, topology: str, sub_topologies: Iterable[str]) -> dict[str, int]:
    """Returns the newest batch that the rollup has counted, by sub-topology."""
    path = layout.report_table(topology, LATENCY_ROLLUP.name)
    if not is_table(path):
        return {}
    rollup = DeltaTable(str(path))
    marks = {name: rollup.transaction_version(_app(topology, name)) for name in sub_topologies}
    return {name: batch_id for name, batch_id in marks.items() if batch_id is not None}


def facts_of(layout: Layout, topology: str) -> list[LatencyFacts]:
    """Returns the facts of each sub-topology of *topology* that has any."""
    by_sub_topology = []
    for path in stream_tables(layout, topology, LATENCY_MINUTES.name):
        files = _files(path)
        if not files.is_empty():
            newest, oldest = files.select(pl.max("max.batch_id")).item(), files.select(pl.min("min.batch_id")).item()
            by_sub_topology.append(LatencyFacts(topology, path.parent.name, files, newest=newest, oldest=oldest))
    return by_sub_topology


def _files(table: Path) -> pl.DataFrame:
    """Returns the data files of *table* with their statistics.

    The frame is empty if there is no file.
    """
    files = files_in_log(table)
    if files.is_empty():
        return files
    statistics = ("min.batch_id", "max.batch_id", "min.finished_at", "max.finished_at")
    return files.select("num_records", *statistics, path=f"{table}/" + pl.col("path"))


def _rows(files: pl.DataFrame) -> pl.LazyFrame:
    """Reads the rows of `latency_minutes` in *files*."""
    return rows_of_files(files["path"].to_list(), pl.Schema(arrow_schema(LATENCY_MINUTES)))
