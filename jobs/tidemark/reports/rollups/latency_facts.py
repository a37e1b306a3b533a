"""Reads the facts about latency that rollups count.

Files are selected by the statistics in the log. The progress of rollups is in their own logs, as transactions of
Delta. `rollup/<topology>/<sub_topology>` is the newest batch that a rollup has counted. `…/rows` is the number of rows
that the files ending with that batch had. Operators of a team's own query write the facts of a batch one after the
other, so the newest batch may have got more rows since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import polars.selectors as cs
from deltalake import DeltaTable

from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.kernels.reports.operator_tasks import measured_tasks
from tidemark.kernels.reports.rollups import FACTS, by_minute
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import LATENCY_BUCKET_ROLLUP, LATENCY_BUCKETS, OPERATOR_BATCHES, Table
from tidemark.storage.warehouse import is_table, stream_tables

TABLES = (LATENCY_BUCKETS, OPERATOR_BATCHES)
SPARK_ABOVE = 20_000_000
"""Most rows of an hour that one process counts by itself."""
_AS_DECLARED = pl.ScanCastOptions(datetime_cast=["nanosecond-downcast", "convert-timezone"])
"""Casts timestamps, which other programs that rewrite files may change."""


@dataclass(frozen=True)
class Facts:
    """The facts about latency of one sub-topology.

    Attributes:
        topology: its name.
        sub_topology: its name.
        files: a row for each data file: `table`, `path`, `num_records`, and minimum and maximum of `batch_id` and
            `finished_at`.
        newest: the newest batch that both tables have.
        oldest: the oldest batch that is left.
    """

    topology: str
    sub_topology: str
    files: pl.DataFrame
    newest: int
    oldest: int

    def new_minutes(self, rollups: Iterable[DeltaTable]) -> set[int]:
        """Returns the minutes with facts that one of *rollups* lacks.

        They are minutes of the finish clock, epoch ms.
        """
        # A crash between the commits of two rollups leaves one of them behind.
        had = min(map(self._had_by, rollups))
        files = self._files(OPERATOR_BATCHES, pl.col("max.batch_id") > had)
        rows = self._rows(OPERATOR_BATCHES, files).filter(pl.col("batch_id") > had)
        minute = pl.col("finished_at").dt.truncate("1m").dt.epoch("ms").unique()
        return set(rows.select(minute).collect(engine="streaming").to_series())

    def by_minute(self, minutes: Collection[Interval], spark_above: int) -> pl.DataFrame:
        """Counts the facts that finished in *minutes*, by task.

        Spark counts them if their files have more rows than *spark_above*. It is started then, and left running.
        """
        # The rows of a file finished between these two instants.
        least, largest = pl.col("min.finished_at").dt.epoch("ms"), pl.col("max.finished_at").dt.epoch("ms")
        touches = [(largest >= minute.start_ms) & (least < minute.end_ms) for minute in minutes]
        any_touches = pl.any_horizontal(pl.lit(value=False), *touches)
        files = {table: self._files(table, any_touches) for table in TABLES}
        if pl.concat(files.values())["num_records"].sum() > spark_above:
            paths = {table: of_table["path"].to_list() for table, of_table in files.items()}
            # This imports pyspark, which most jobs do not need.
            from tidemark.reports.rollups import large_facts

            return large_facts.by_minute(paths, minutes, self.newest)
        # Each of the two tables has some of these columns.
        columns = cs.by_name(*FACTS, require_all=False)
        rows = [self._rows(table, of_table).select(columns) for table, of_table in files.items()]
        return by_minute(pl.concat(rows, how="diagonal"), minutes).collect(engine="streaming")

    def marks(self, rollup: DeltaTable, now: Collection[Facts]) -> dict[str, int]:
        """Returns the transactions by which *rollup* has counted these facts.

        There are none if it has counted newer facts of *now*.
        """
        newest_now = max((part.newest for part in now if part.sub_topology == self.sub_topology), default=-1)
        # A mark beyond all facts is that of tables that were begun anew.
        had_newer = self.newest < (rollup.transaction_version(self._app) or 0) <= newest_now
        return {} if had_newer else self._marks(self.newest)

    def _files(self, table: Table, are_read: pl.Expr) -> pl.DataFrame:
        """Returns the files of *table* that *are_read*.

        A file for which *are_read* is null is included: its log lacks statistics.
        """
        return self.files.filter(are_read.fill_null(value=True), table=table.name)

    def _rows(self, table: Table, files: pl.DataFrame) -> pl.LazyFrame:
        """Reads the facts of *table* in *files*, by task.

        They are of batches that both tables have.
        """
        paths = files["path"].to_list()
        schema = pl.DataFrame(arrow_schema(table).empty_table()).schema
        rows = pl.LazyFrame(schema=schema)
        if paths:
            rows = pl.scan_parquet(
                paths,
                schema=schema,
                cast_options=_AS_DECLARED,
                missing_columns="insert",
                extra_columns="ignore",
                glob=False,
            )
        known = rows.filter(pl.col("batch_id") <= self.newest)
        return measured_tasks(known) if table is OPERATOR_BATCHES else known

    def _had_by(self, rollup: DeltaTable) -> int:
        """Returns the newest batch of which *rollup* has counted every row.

        -1: there is none, or the tables were begun anew.
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
    """Returns the newest batch that the rollups have counted, by sub-topology."""
    path = layout.report_table(topology, LATENCY_BUCKET_ROLLUP.name)
    if not is_table(path):
        return {}
    rollup = DeltaTable(str(path))
    marks = {name: rollup.transaction_version(_app(topology, name)) for name in sub_topologies}
    return {name: batch_id for name, batch_id in marks.items() if batch_id is not None}


def facts_of(layout: Layout, topology: str) -> list[Facts]:
    """Returns the facts of each sub-topology of *topology* that has any."""
    by_sub_topology = []
    for path in stream_tables(layout, topology, OPERATOR_BATCHES.name):
        tables = [_files(path.with_name(table.name)) for table in TABLES]
        if not any(table.is_empty() for table in tables):
            files = pl.concat(tables)
            newest = min(table.select(pl.max("max.batch_id")).item() for table in tables)
            oldest = files.select(pl.min("min.batch_id")).item()
            by_sub_topology.append(Facts(topology, path.parent.name, files, newest=newest, oldest=oldest))
    return by_sub_topology


def _files(table: Path) -> pl.DataFrame:
    """Returns the data files of *table* with their statistics.

    The frame is empty if there is no table, or no file.
    """
    files = pl.DataFrame(DeltaTable(str(table)).get_add_actions(flatten=True)) if is_table(table) else pl.DataFrame()
    if files.is_empty():
        return files
    statistics = ("min.batch_id", "max.batch_id", "min.finished_at", "max.finished_at")
    return files.select("num_records", *statistics, table=pl.lit(table.name), path=f"{table}/" + pl.col("path"))
