"""Reads the facts about latency that rollups count, and how far they have counted.

Files are chosen by the statistics in the log. The rollup keeps its progress in its own Delta log, as two transactions
for each stream. `rollup/<topology>/<sub_topology>` is the newest batch that it has counted. `…/rows` is how many rows
the files had that end with that batch: operators of a team's own query write the facts of a batch one after the other,
so that the batch may have got more rows since.
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
"""An hour with more rows than this is counted by Spark, and otherwise in this process; a row has about 100 buckets."""


@dataclass(frozen=True)
class LatencyFacts:
    """The facts about latency of one sub-topology.

    Attributes:
        topology: the name of the topology.
        sub_topology: the name of the sub-topology.
        files: a row for each data file: `path`, `num_records`, and minimum and maximum of `batch_id` and `finished_at`.
        newest: the newest batch with facts.
        oldest: the oldest batch whose facts were not deleted yet.
    """

    topology: str
    sub_topology: str
    files: pl.DataFrame
    newest: int
    oldest: int

    def new_minutes(self, rollup: DeltaTable) -> set[int]:
        """Returns the minutes (finish clock, epoch ms) with facts that *rollup* has not counted."""
        counted = self._counted_by(rollup)
        rows = _rows(self._files(pl.col("max.batch_id") > counted)).filter(pl.col("batch_id") > counted)
        minute = pl.col("finished_at").dt.truncate("1m").dt.epoch("ms").unique()
        return set(rows.select(minute).collect(engine="streaming").to_series())

    def by_minute(self, minutes: Collection[Interval], spark_above: int) -> pl.DataFrame:
        """Counts the facts that finished in *minutes*, by task.

        If the files have more rows than *spark_above*, Spark is started to count them, and left running.
        """
        # All rows of a file finished between these two instants.
        least, largest = pl.col("min.finished_at").dt.epoch("ms"), pl.col("max.finished_at").dt.epoch("ms")
        touches = [(largest >= minute.start_ms) & (least < minute.end_ms) for minute in minutes]
        files = self._files(pl.any_horizontal(pl.lit(value=False), *touches))
        if files["num_records"].sum() > spark_above:
            # This imports pyspark, which most jobs do not need.
            from tidemark.facts import large_facts

            return large_facts.by_minute(files["path"].to_list(), minutes)
        return by_minute(_rows(files).select(FACTS), minutes, engine="streaming")

    def marks(self, rollup: DeltaTable, now: Collection[LatencyFacts]) -> dict[str, int]:
        """Returns the transactions that say that *rollup* has counted these facts.

        There are none if another run has counted newer facts meanwhile. *now* are the facts as they are now.
        """
        newest_now = max((facts.newest for facts in now if facts.sub_topology == self.sub_topology), default=-1)
        # A mark beyond all facts comes from before the tables were begun anew.
        had_newer = self.newest < (rollup.transaction_version(self._app) or 0) <= newest_now
        return {} if had_newer else self._marks(self.newest)

    def _files(self, are_read: pl.Expr) -> pl.DataFrame:
        """Returns the files for which the condition *are_read* is true.

        A file for which it is null has no statistics in the log, and is read, too.
        """
        return self.files.filter(are_read.fill_null(value=True))

    def _counted_by(self, rollup: DeltaTable) -> int:
        """Returns the newest batch of which *rollup* has counted every row.

        -1 if there is no such batch, or if the tables were begun anew.
        """
        batch_id = rollup.transaction_version(self._app)
        if batch_id is None or batch_id > self.newest:
            return -1
        # The batch may have got more rows since it was counted.
        marks = self._marks(batch_id)
        return int(batch_id) if marks == {app: rollup.transaction_version(app) for app in marks} else batch_id - 1

    def _marks(self, batch_id: int) -> dict[str, int]:
        """Returns the transactions of a rollup that has counted all rows up to a batch."""
        rows = self.files.filter(pl.col("max.batch_id") == batch_id).select(pl.sum("num_records")).item()
        return {self._app: batch_id, f"{self._app}/rows": rows}

    @property
    def _app(self) -> str:
        return _app(self.topology, self.sub_topology)


def _app(topology: str, sub_topology: str) -> str:
    return f"rollup/{topology}/{sub_topology}"


def counted_batches(layout: Layout, topology: str, sub_topologies: Iterable[str]) -> dict[str, int]:
    """Returns the newest batch that the rollup has counted, by sub-topology; those without one are left out."""
    path = layout.report_table(topology, LATENCY_ROLLUP.name)
    if not is_table(path):
        return {}
    rollup = DeltaTable(str(path))
    marks = {name: rollup.transaction_version(_app(topology, name)) for name in sub_topologies}
    return {name: batch_id for name, batch_id in marks.items() if batch_id is not None}


def facts_of(layout: Layout, topology: str) -> list[LatencyFacts]:
    """Returns the facts about latency of each sub-topology that has some."""
    by_sub_topology = []
    for path in stream_tables(layout, topology, LATENCY_MINUTES.name):
        files = _files(path)
        if not files.is_empty():
            newest, oldest = files.select(pl.max("max.batch_id")).item(), files.select(pl.min("min.batch_id")).item()
            by_sub_topology.append(LatencyFacts(topology, path.parent.name, files, newest=newest, oldest=oldest))
    return by_sub_topology


def _files(table: Path) -> pl.DataFrame:
    """Returns the data files of *table* with their statistics; an empty frame without files."""
    files = files_in_log(table)
    if files.is_empty():
        return files
    statistics = ("min.batch_id", "max.batch_id", "min.finished_at", "max.finished_at")
    return files.select("num_records", *statistics, path=f"{table}/" + pl.col("path"))


def _rows(files: pl.DataFrame) -> pl.LazyFrame:
    """Reads the rows of `latency_minutes` in *files*."""
    return rows_of_files(files["path"].to_list(), pl.Schema(arrow_schema(LATENCY_MINUTES)))
