"""The facts about latency that a rollup reads, in files that are chosen by the statistics in the log (ring 2).

How far the rollups of a topology are stands in their own logs, as transactions of Delta. The one named
`rollup/<topology>/<sub_topology>` is the newest batch that they have had, and `…/rows` the rows that there were in the
files that end with it: operators of a query of a team's own tell of a batch one after the other, so that the newest
batch may have got more rows since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.kernels.rollups import by_minute
from tidemark.kernels.schemas import arrow_schema
from tidemark.report import large_facts
from tidemark.spark import is_table, session, stream_tables
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.tables import LATENCY_BUCKETS, OPERATOR_LATENCY, Table

TABLES = (LATENCY_BUCKETS, OPERATOR_LATENCY)
SPARK_ABOVE = 20_000_000
"""Rows of facts of an hour that one process still counts by itself."""
_AS_DECLARED = pl.ScanCastOptions(datetime_cast=["nanosecond-downcast", "convert-timezone"])
"""Whoever rewrites files may write timestamps in another way."""


@dataclass(frozen=True)
class Facts:
    """The facts of one sub-topology: the *newest* batch that both tables have, and the *oldest* that is left.

    *files* has a row for each data file: `table`, `path`, `num_records`, and from when to when its rows are.
    """

    topology: str
    sub_topology: str
    files: pl.DataFrame
    newest: int
    oldest: int

    def new_minutes(self, rollups: Iterable[DeltaTable]) -> set[int]:
        """The minutes of the finish clock, epoch ms, of which there are facts that one of *rollups* has not had."""
        had = min(self._had_by(rollup) for rollup in rollups)
        files = self._files(OPERATOR_LATENCY, pl.col("max.batch_id") > had)
        rows = self._rows(OPERATOR_LATENCY, files).filter(pl.col("batch_id") > had)
        minute = pl.col("finished_at").dt.truncate("1m").dt.epoch("ms").unique()
        return set(rows.select(minute).collect(engine="streaming").to_series())

    def by_minute(self, minutes: Collection[Interval], spark_above: int) -> pl.DataFrame:
        """Measured rows by task, of the facts that finished in *minutes*.

        Where their files have more rows than *spark_above*, Spark counts them. It is started then, and left running.
        """
        least, largest = (pl.col(f"{bound}.finished_at").dt.epoch("ms") for bound in ("min", "max"))
        touch = ((largest >= minute.start_ms) & (least < minute.end_ms) for minute in minutes)
        any_touches = pl.any_horizontal(pl.lit(value=False), *touch)
        files = {table: self._files(table, any_touches) for table in TABLES}
        if sum(of_table["num_records"].sum() for of_table in files.values()) > spark_above:
            paths = {table: of_table["path"].to_list() for table, of_table in files.items()}
            return large_facts.by_minute(session("tidemark-rollup"), paths, minutes, self.newest)
        buckets, latencies = (self._rows(table, of_table) for table, of_table in files.items())
        return by_minute(buckets, latencies, minutes).collect(engine="streaming")

    def marks(self, rollup: DeltaTable, now: Collection[Facts]) -> dict[str, int]:
        """The transactions that say that *rollup* has had these facts; none when it has had newer ones of *now*."""
        there = max((part.newest for part in now if part.sub_topology == self.sub_topology), default=-1)
        had_newer = self.newest < (rollup.transaction_version(self._app) or 0) <= there
        return {} if had_newer else self._marks(self.newest)

    def _files(self, table: Table, are_read: pl.Expr) -> pl.DataFrame:
        """Those of *files* of *table* that *are_read*, which may be null."""
        return self.files.filter(are_read.fill_null(value=True), table=table.name)

    def _rows(self, table: Table, files: pl.DataFrame) -> pl.LazyFrame:
        """The rows of *table* in *files*, of batches that both tables have."""
        paths = files["path"].to_list()
        schema = pl.DataFrame(arrow_schema(table).empty_table()).schema
        if not paths:
            return pl.LazyFrame(schema=schema)
        rows = pl.scan_parquet(
            paths,
            schema=schema,
            cast_options=_AS_DECLARED,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
        )
        return rows.filter(pl.col("batch_id") <= self.newest)

    def _had_by(self, rollup: DeltaTable) -> int:
        """The newest batch of which *rollup* has had every row; -1 for none, or when the tables were begun anew."""
        batch_id = rollup.transaction_version(self._app)
        if batch_id is None or batch_id > self.newest:
            return -1
        marks = self._marks(batch_id)
        return int(batch_id) if marks == {app: rollup.transaction_version(app) for app in marks} else batch_id - 1

    def _marks(self, batch_id: int) -> dict[str, int]:
        rows = self.files.filter(pl.col("max.batch_id") == batch_id).select(pl.sum("num_records")).item()
        return {self._app: batch_id, f"{self._app}/rows": rows}

    @property
    def _app(self) -> str:
        return f"rollup/{self.topology}/{self.sub_topology}"


def facts_of(layout: Layout, topology: str) -> list[Facts]:
    """The facts about latency in *topology* as they are now, of each sub-topology that has any."""
    found = []
    for path in stream_tables(layout, topology, OPERATOR_LATENCY.name):
        tables = [_files(path.with_name(table.name)) for table in TABLES]
        if not any(table.is_empty() for table in tables):
            files = pl.concat(tables)
            newest = min(table.select(pl.max("max.batch_id")).item() for table in tables)
            oldest = files.select(pl.min("min.batch_id")).item()
            found.append(Facts(topology, path.parent.name, files, newest=newest, oldest=oldest))
    return found


def _files(table: Path) -> pl.DataFrame:
    """What the log of *table* says of its data files; nothing where there is no table, or no file."""
    found = pl.DataFrame(DeltaTable(str(table)).get_add_actions(flatten=True)) if is_table(table) else pl.DataFrame()
    if found.is_empty():
        return found
    statistics = (f"{bound}.{column}" for column in ("batch_id", "finished_at") for bound in ("min", "max"))
    return found.select("num_records", *statistics, table=pl.lit(table.name), path=f"{table}/" + pl.col("path"))
