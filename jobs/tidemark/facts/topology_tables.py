"""Reads the tables of all streams of a topology."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, partial
from typing import NamedTuple, Protocol

import polars as pl

from tidemark.facts.fact_tables import Stored, nothing_in, stored_in
from tidemark.facts.report_rows import lies_in
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.tables.catalog import BATCHES, LATENCY_MINUTES, PARTITION_BATCHES, Table
from tidemark.storage.warehouse import stream_tables


class Scan(Protocol):
    """Reads a table of all streams of a topology."""

    def __call__(self, table: Table, *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Returns the rows of *table* for which *where* is true."""


def tables_of(layout: Layout, topology: str, stored: Stored | None = None) -> Scan:
    """Returns what reads the tables and journals of *topology*, also those of streams that it no longer has.

    They are as they were *stored* when others asked; None: as they are now. The frames have the columns that are
    declared. Files without rows for which *where* is true are not opened.
    """
    open_stream = cache(partial(stored_in, stored=stored))

    def scan(table: Table, *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        paths = stream_tables(layout, topology, table.name)
        parts = [open_stream(path.parent)(table, table.name).filter(*where) for path in paths]
        return pl.concat([nothing_in(table), *parts], how="diagonal_relaxed").select(table.names)

    return scan


class BatchRows(NamedTuple):
    """Rows about the batches of one topology.

    `batches` are rows of `batches`, `partitions` of `partition_batches`, and `latencies` those
    of `latency_minutes` about sources and the batches that closed windows.
    """

    batches: pl.DataFrame
    partitions: pl.DataFrame
    latencies: pl.DataFrame


def batch_rows(scan: Scan, over: Interval, *, closed_in: pl.Series, sources: Collection[str]) -> BatchRows:
    """Returns the facts of batches that finished in the interval *over*.

    *closed_in* are the batches that closed windows, and *sources* those whose latencies are read.
    """
    ran = lies_in("finished_at", over)
    is_closing = pl.col("closed_windows") & pl.col("batch_id").is_in(closed_in.implode())
    batches = scan(BATCHES, where=[ran]).collect()
    # A watermark that was decided long before may still hold. If a clock was set back, decisions are later than it.
    decided_ms = batches["decided_at"].drop_nulls().cast(pl.Datetime("ms", "UTC")).dt.epoch("ms")
    decided = Interval(over.start_ms - DAY_MS, max([over.end_ms, *decided_ms]) + 1)
    return BatchRows(
        batches=batches,
        partitions=scan(PARTITION_BATCHES, where=[lies_in("decided_at", decided)]).collect(),
        latencies=scan(LATENCY_MINUTES, where=[ran, is_closing, pl.col("operator").is_in([*sources])]).collect(),
    )
