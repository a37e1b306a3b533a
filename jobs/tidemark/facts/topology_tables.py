"""Reads a table of all streams of a topology at once."""

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
    """A function that reads a table of all streams of a topology."""

    def __call__(self, table: Table, *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        """Returns the rows of *table* that fulfil all of *where*."""


def tables_of(layout: Layout, topology: str, stored: Stored | None = None) -> Scan:
    """Returns a function that reads the tables of *topology* with their journals, in their declared columns.

    Streams that the topology no longer has are read, too. Files that cannot have a wanted row are not opened. *stored*
    are tables that were opened already; None opens the newest versions.
    """
    open_stream = cache(partial(stored_in, stored=stored))

    def scan(table: Table, *, where: Sequence[pl.Expr] = ()) -> pl.LazyFrame:
        paths = stream_tables(layout, topology, table.name)
        frames = [open_stream(path.parent)(table, table.name).filter(*where) for path in paths]
        return pl.concat([nothing_in(table), *frames], how="diagonal_relaxed").select(table.names)

    return scan


class BatchRows(NamedTuple):
    """Rows about batches of one topology.

    Attributes:
        batches: rows of `batches`.
        partitions: rows of `partition_batches`.
        latencies: rows of `latency_minutes` about sources, for batches that closed windows.
    """

    batches: pl.DataFrame
    partitions: pl.DataFrame
    latencies: pl.DataFrame


def batch_rows(scan: Scan, over: Interval, *, closed_in: pl.Series, sources: Collection[str]) -> BatchRows:
    """Returns the rows about batches that finished in an interval.

    Args:
        scan: reads a table of all streams.
        over: the interval, by the finish clock.
        closed_in: the batches that closed windows, whose latencies are read.
        sources: the sources whose latencies are read.
    """
    ran = lies_in("finished_at", over)
    is_closing = pl.col("closed_windows") & pl.col("batch_id").is_in(closed_in.implode())
    batches = scan(BATCHES, where=[ran]).collect()
    # A watermark of the day before may still hold. If a clock was set back, decisions may be later than the interval.
    decided_ms = batches["decided_at"].drop_nulls().cast(pl.Datetime("ms", "UTC")).dt.epoch("ms")
    decided = Interval(over.start_ms - DAY_MS, max([over.end_ms, *decided_ms]) + 1)
    return BatchRows(
        batches=batches,
        partitions=scan(PARTITION_BATCHES, where=[lies_in("decided_at", decided)]).collect(),
        latencies=scan(LATENCY_MINUTES, where=[ran, is_closing, pl.col("operator").is_in([*sources])]).collect(),
    )
