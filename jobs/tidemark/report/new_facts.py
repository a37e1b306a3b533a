"""Which facts no rollup has had yet, by the logs of the tables of facts: no data file is read to find out (ring 2).

How far the rollups of a topology are stands in their own logs, as transactions of Delta. The one named
`rollup/<topology>/<sub_topology>` is the newest batch that they have had, and `…/rows` the rows that there were in the
files that end with it: operators of a query of a team's own tell of a batch one after the other, so that the newest
batch may have got more rows since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.delta import scan
from tidemark.spark import is_table, stream_tables
from tidemark.spec.intervals import is_text
from tidemark.spec.layout import Layout
from tidemark.spec.tables import LATENCY_BUCKETS, OPERATOR_LATENCY

_FILES: Mapping[str, pl.DataType] = {"num_records": pl.Int64(), "min.batch_id": pl.Int64(), "max.batch_id": pl.Int64()}


@dataclass(frozen=True)
class Facts:
    """The facts of one sub-topology: the *newest* batch that both tables have, and the *oldest* that is left.

    *path* is that of its operator_latency; *files* has, of each data file of both tables, rows, first and last batch.
    """

    topology: str
    sub_topology: str
    path: Path
    files: pl.DataFrame
    newest: int
    oldest: int

    @property
    def are_whole(self) -> str:
        """A predicate: the row is one of this sub-topology, and of a batch that both tables have."""
        return f"({is_text('sub_topology', self.sub_topology)} and batch_id <= {self.newest})"

    def new_minutes(self, rollups: Iterable[DeltaTable]) -> set[int]:
        """The minutes of the finish clock, epoch ms, of which there are facts that one of *rollups* has not had.

        Files without such facts are not read.
        """
        had = min(self._had_by(rollup) for rollup in rollups)
        is_new = pl.col("batch_id").is_between(had, self.newest, closed="right")
        minute = pl.col("finished_at").dt.truncate("1m").dt.epoch("ms").unique()
        return set(scan(self.path).filter(is_new).select(minute).collect().to_series())

    def marks(self, rollup: DeltaTable) -> dict[str, int]:
        """The transactions that say that *rollup* has had these facts; none when it has had newer ones."""
        return {} if (rollup.transaction_version(self._app) or 0) > self.newest else self._marks(self.newest)

    def _had_by(self, rollup: DeltaTable) -> int:
        """The newest batch of which *rollup* has had every row; -1 for none."""
        batch_id = rollup.transaction_version(self._app)
        if batch_id is None:
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
        tables = [_files(table) for table in (path, path.with_name(LATENCY_BUCKETS.name))]
        if not any(table.is_empty() for table in tables):
            newest = min(table.select(pl.max("max.batch_id")).item() for table in tables)
            files = pl.concat(tables)
            oldest = files.select(pl.min("min.batch_id")).item()
            found.append(Facts(topology, path.parent.name, path, files, newest=newest, oldest=oldest))
    return found


def _files(path: Path) -> pl.DataFrame:
    """What the log of the table at *path* says of its data files; nothing where there is no table."""
    found = pl.DataFrame(DeltaTable(str(path)).get_add_actions(flatten=True)) if is_table(path) else pl.DataFrame()
    return pl.DataFrame(schema=_FILES) if found.is_empty() else found.select(*_FILES)
