"""Reads what the tables and the journal of a stream say of a batch or of a single record.

Each question names a batch, the offset of a record or a time, so that most files of a table are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from deltalake import DeltaTable

from tidemark.facts.fact_tables import FactTables, stored_in
from tidemark.model.settings.intervals import utc
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import (
    BATCHES,
    BECAME,
    CHANGES,
    DEAD_LETTERS,
    HOP,
    HOP_MARK,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    STATE_CHANGES,
    SUPPRESSED,
    Table,
)
from tidemark.query.sql import NO_PUSHED_JOINS, UTC
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import InputProgress
from tidemark.storage.delta.current_view import current_rows_sql
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.warehouse import changes_of
from tidemark.stream.journal.entries import Entry, newest_entry

NEVER_MS = 2**62
OFFSETS = ("from_offset", "until_offset", "lost_from_offset", "lost_until_offset")
READ_COLUMNS = ("batch_id", "source", "partition", "latest_offset", *OFFSETS)
Row = Mapping[str, Any]


class StreamEvidence:
    """The facts of *stream*; each is read when it is first asked for."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._facts = FactTables(stored_in(stream.home), NEVER_MS)
        self._tables: dict[str, DeltaTable | None] = {}
        self._scans: dict[str, pl.LazyFrame] = {}
        # All operators of a stream ask the same of a batch or a record.
        self._operators: dict[int, pl.DataFrame] = {}
        self._dead_letters: dict[tuple[int, int], pl.DataFrame] = {}

    @property
    def home(self) -> Path:
        """The folder of the stream's tables."""
        return self.stream.home

    def rows(self, table: Table, *where: pl.Expr, name: str = "", columns: Collection[str] = ()) -> pl.DataFrame:
        """Returns the rows of *table* that fulfil all of *where*, oldest batch first.

        *name* is that of the table if it is not the declared one, as for hops. Without *columns* all are read.
        """
        found = self._facts.scan(table, name, where=where)
        rows = (found.select(columns) if columns else found).collect()
        order = [column for column in ("batch_id", "seq") if column in rows.columns]
        return rows.sort(order, maintain_order=True)

    def rows_of_table(self, name: str, *where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of the table *name* of a sink that fulfil all of *where*.

        A table with current rows is read as its view: rows that are not merged yet are included.
        """
        scan = self._scan(name)
        return pl.DataFrame() if scan is None else scan.filter(*where).collect()

    def keys_of_table(self, name: str, columns: Collection[str], *where: pl.Expr) -> pl.DataFrame:
        """Returns the distinct values of *columns* in the rows of the table *name* of a sink that fulfil all of
        *where*.
        """
        scan = self._scan(name)
        if scan is None:
            return pl.DataFrame(schema=[*columns])
        return scan.filter(*where).select(columns).unique(maintain_order=True).collect()

    def _scan(self, name: str) -> pl.LazyFrame | None:
        table = self.table(name)
        if table is not None and name not in self._scans:
            changes = changes_of(self.home / name)
            if changes is None:
                self._scans[name] = pl.scan_pyarrow_dataset(dataset_of(table))
            else:
                self._scans[name] = _current(self.home / name, table, changes)
        return self._scans.get(name)

    def table(self, name: str) -> DeltaTable | None:
        """Returns the table *name*, which is opened once; None if it does not exist."""
        if name not in self._tables:
            path = str(self.home / name)
            self._tables[name] = DeltaTable(path) if DeltaTable.is_deltatable(path) else None
        return self._tables[name]

    @cached_property
    def batches(self) -> pl.DataFrame:
        """The times of all known batches, oldest first."""
        # There are many files of batches, and a trace needs few of their columns.
        columns = ("batch_id", "decided_at", "watermark")
        return self._facts.scan(BATCHES).select(columns).sort("batch_id").collect()

    @cached_property
    def reads(self) -> pl.DataFrame:
        """The offsets that each known batch read, or gave up as lost, of each partition, oldest batch first."""
        # Maintenance keeps the newest row of a partition for longer than its batch.
        rows = self._facts.scan(PARTITION_BATCHES).drop_nulls("until_offset").select(READ_COLUMNS)
        return rows.sort("batch_id", maintain_order=True).collect().join(self.batches, on="batch_id", how="semi")

    @cached_property
    def _newest(self) -> Entry | None:
        return newest_entry(self.stream.control)

    @cached_property
    def progress(self) -> Mapping[str, InputProgress]:
        """How far each source was read with the newest decided batch, by its name."""
        return self._newest.notes.progress.inputs if self._newest else {}

    @property
    def are_whole(self) -> bool:
        """Whether no facts of batches were deleted: the first batch is known, or is the newest and has none yet."""
        first = self.batches["batch_id"].min() if self.batches.height else self._newest and self._newest.batch_id
        return not first

    def batch_of(self, source: str, partition: int, offset: int) -> int | None:
        """Returns the batch that read *offset* of a partition; None if no known batch did."""
        read = self.reads.filter(
            pl.col("source") == source,
            pl.col("partition") == partition,
            pl.col("from_offset") <= offset,
            pl.col("until_offset") > offset,
        )
        # If a topic was created anew, an offset was read twice, and the newest read counts.
        return read["batch_id"].max()  # type: ignore[return-value]

    def is_lost(self, source: str, partition: int, offset: int) -> bool:
        """Returns True if a batch has given *offset* up as lost."""
        within = (pl.col("lost_from_offset") <= offset) & (pl.col("lost_until_offset") > offset)
        named = (pl.col("source") == source) & (pl.col("partition") == partition)
        return self.reads.filter(named & within).height > 0

    def batch(self, batch_id: int) -> Row:
        """Returns the row of a batch in `batches`: its decision time and its watermark."""
        return self.batches.row(by_predicate=pl.col("batch_id") == batch_id, named=True)

    def before(self, batch_id: int) -> Row | None:
        """Returns the row of the batch before *batch_id*; None for the first."""
        earlier = self.batches.filter(pl.col("batch_id") < batch_id).tail(1)
        return earlier.row(0, named=True) if earlier.height else None

    def counts(self, batch_id: int, operator: str) -> dict[str, int]:
        """Returns how many updates of *operator* had each outcome in a batch, without zeros.

        There are none if the facts of the batch were deleted.
        """
        row = _first(self._operators_in(batch_id).filter(pl.col("operator") == operator)) or {}
        return {word: row[word] for word in BECAME if row.get(word)}

    def are_kept(self, batch_id: int, operator: str) -> bool:
        """Returns whether every update that *operator* emitted or suppressed in a batch still has its row.

        `operator_batches` says how many there were.
        """
        counts, of_batch = self.counts(batch_id, operator), pl.col("batch_id") == batch_id
        emitted, suppressed = self.sent(operator, of_batch).height, self.skipped(operator, of_batch)["n"].sum()
        return bool(counts) and emitted >= counts.get("emitted", 0) and suppressed >= counts.get("suppressed", 0)

    def sent(self, operator: str, *where: pl.Expr) -> pl.DataFrame:
        """Returns the updates that *operator* sent on: rows of `changes`, or of its hop."""
        hop = next((o.hop_table for o in self.stream.sub.operators if o.name == operator), None)
        if hop is None:
            return self.rows(CHANGES, pl.col("operator") == operator, *where)
        is_update = [pl.col(column).is_null() for column in HOP_MARK]
        return self.rows(HOP, *is_update, *where, name=hop)

    def skipped(self, operator: str, *where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of `suppressed` about *operator*, each a run of equal updates."""
        return self.rows(SUPPRESSED, pl.col("operator") == operator, *where)

    def states(self, operator: str, *where: pl.Expr) -> pl.DataFrame:
        """Returns the rows of `state_changes` about *operator*."""
        return self.rows(STATE_CHANGES, pl.col("operator") == operator, *where)

    def late(self, operator: str, partition: int, offset: int, *where: pl.Expr) -> Row | None:
        """Returns the dead letter of a record that was late at *operator*; None if it was not late."""
        return self._dead_letter(DeadLetterKind.LATE, operator, partition, offset, *where)

    def bad(self, operator: str, partition: int, offset: int, *where: pl.Expr) -> Row | None:
        """Returns the dead letter of a record that *operator* quarantined; None if it was not quarantined."""
        return self._dead_letter(DeadLetterKind.QUARANTINED, operator, partition, offset, *where)

    def _dead_letter(
        self, kind: DeadLetterKind, operator: str, partition: int, offset: int, *where: pl.Expr
    ) -> Row | None:
        rows = self._dead_letters_of(partition, offset)
        return _first(rows.filter(pl.col("kind") == kind, pl.col("operator") == operator, *where))

    def held(self, source: str, partition: int, offset: int, *where: pl.Expr) -> Row | None:
        """Returns the state change with which *source* held a record; None if it was not held."""
        of_record = (pl.col("source_partition") == partition, pl.col("source_offset") == offset)
        return _first(self.rows(STATE_CHANGES, pl.col("operator") == source, *of_record, *where))

    def _dead_letters_of(self, partition: int, offset: int) -> pl.DataFrame:
        """Returns the dead letters of all records with that partition and offset, at any operator."""
        asked = (partition, offset)
        if asked not in self._dead_letters:
            where = (pl.col("partition") == partition, pl.col("offset") == offset)
            self._dead_letters[asked] = self.rows(DEAD_LETTERS, *where)
        return self._dead_letters[asked]

    def work(self, batch_id: int) -> Row:
        """Returns the row of a batch in `batches`, with all columns."""
        return self.rows(BATCHES, pl.col("batch_id") == batch_id).row(0, named=True)

    def clocks(self, batch_id: int) -> pl.DataFrame:
        """Returns the rows of a batch about operators whose latency was measured."""
        return self._operators_in(batch_id).drop_nulls("n")

    def _operators_in(self, batch_id: int) -> pl.DataFrame:
        if batch_id not in self._operators:
            columns = ("batch_id", "operator", *BECAME, "n", "finished_at", "queued_ms")
            of_batch = pl.col("batch_id") == batch_id
            self._operators[batch_id] = self.rows(OPERATOR_BATCHES, of_batch, columns=columns)
        return self._operators[batch_id]


def _current(path: Path, merged: DeltaTable, changes: Path) -> pl.LazyFrame:
    """Returns the current rows of the table at *path*: its *merged* rows, updated by the rows of the table
    *changes*.
    """
    appended = DeltaTable(str(changes))
    names = {path: "of_table", changes: "of_changes"}
    select = current_rows_sql(path, changes, names.__getitem__, lambda column: '"' + column.replace('"', '""') + '"')
    connection = duckdb.connect()
    connection.execute(f"{UTC}; {NO_PUSHED_JOINS}; SET enable_progress_bar = false")
    connection.register(names[path], dataset_of(merged))
    connection.register(names[changes], dataset_of(appended))
    # Polars filters the rows itself: DuckDB reads a condition with NaN or infinity as one with a column `None`.
    return connection.sql(select).pl(lazy=True).map_batches(lambda rows: rows, predicate_pushdown=False)


def _first(rows: pl.DataFrame) -> Row | None:
    return rows.row(0, named=True) if rows.height else None


def at(partition: int, offset: int) -> pl.Expr:
    """Returns the condition for rows that the record with that partition and offset has caused."""
    return (pl.col("source_partition") == partition) & (pl.col("source_offset") == offset)


def between(start_ms: int, end_ms: int) -> pl.Expr:
    """Returns the condition for rows with a record time from *start_ms* (included) to *end_ms* (excluded), epoch ms."""
    return (pl.col("timestamp") >= utc(start_ms)) & (pl.col("timestamp") < utc(end_ms))
