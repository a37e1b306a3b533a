"""Lists the tables of a topology, their retention and needed rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import assert_never

import polars as pl

from tidemark.maintenance.live_rows import (
    NeededRows,
    are_in,
    is_newest,
    needed_changes,
    needed_last_seen,
    needed_of_hop,
    needed_partitions,
    needed_states,
)
from tidemark.maintenance.progress import ReachedBatch, read_progress
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import (
    CHANGES,
    HOP_MARK,
    PARTITION_BATCHES,
    STATE_CHANGES,
    SUPPRESSED,
    TABLES,
)
from tidemark.storage.delta.tables import read_before, scan
from tidemark.stream.read.hop_log import readers


@dataclass(frozen=True, kw_only=True)
class RetainedTable:
    """A table and its retention.

    Attributes:
        path: its folder.
        retention_ms: how long its rows are kept, or None if they are kept for ever.
        needed: finds the rows that are never deleted, if there are such rows.
        before_batch: rows of this batch and later ones are not looked at by *needed*, and are kept.
    """

    path: Path
    retention_ms: int | None
    needed: NeededRows | None = None
    before_batch: int = 0


def report_tables(layout: Layout, topology: str) -> list[Path]:
    """Returns the tables that the batch jobs of *topology* have written."""
    return sorted(log.parent for log in layout.reports(topology).glob("*/_delta_log"))


def retained_tables(stream: Stream, at: ReachedBatch) -> Iterator[RetainedTable]:
    """Yields the tables of *stream*, which has reached *at*; those of which old rows are queried come last."""
    retention, done = stream.topology.retention, at.done
    handled = {CHANGES.name, STATE_CHANGES.name, SUPPRESSED.name, PARTITION_BATCHES.name}
    for table in TABLES.values():
        if table.written_by == "stream" and table.name not in handled:
            yield _kept(stream, table.name, retention.of_stream(table.name))
    for operator in stream.sub.handing_out:
        match operator:
            case Sink(table=str() as name):
                for written in dict.fromkeys((name, str(operator.appends_to))):
                    yield _kept(stream, written, None if operator.key else retention.sinks_ms)
            case Repartition():
                needed = NeededRows(("batch_id", "seq", "id", *HOP_MARK), partial(needed_of_hop, operator))
                read = _read_by_all(stream, operator)
                yield _kept(stream, operator.output_table, retention.hops_ms, needed, min(done + 1, read))
            case Sink():
                pass  # a topic: the broker keeps its records
            case _:
                assert_never(operator)
    of_key = ("batch_id", "operator", "key")
    partitions = NeededRows(("batch_id", "source", "partition"), needed_partitions)
    changes = NeededRows((*of_key, "seq", "timestamp"), partial(_needed_changes, stream, at))
    columns = (*of_key, "state", "kind", "source_partition", "source_offset")
    states = NeededRows(columns, partial(needed_states, at.progress))
    suppressed = NeededRows((*of_key, "max_timestamp"), partial(_needed_suppressed, stream))
    yield _kept(stream, SUPPRESSED.name, retention.of_stream(SUPPRESSED.name), suppressed, done + 1)
    of_partitions = retention.of_stream(PARTITION_BATCHES.name)
    yield _kept(stream, PARTITION_BATCHES.name, of_partitions, partitions, done + 1)
    yield _kept(stream, CHANGES.name, retention.changes_ms, changes, done + 1)
    yield _kept(stream, STATE_CHANGES.name, retention.state_ms, states, done + 1)


def _kept(
    stream: Stream, name: str, retention_ms: int | None, needed: NeededRows | None = None, before_batch: int = 0
) -> RetainedTable:
    return RetainedTable(path=stream.home / name, retention_ms=retention_ms, needed=needed, before_batch=before_batch)


def _needed_changes(stream: Stream, at: ReachedBatch, rows: pl.DataFrame) -> pl.Series:
    before = at.done + 1
    states = read_before(stream.home / STATE_CHANGES.name, before, ["operator", "key", "state"])
    open_ = states.filter(is_newest(states, ["operator", "key"], ["batch_id"]) & pl.col("state").is_not_null())
    return needed_changes(rows, stream.sub, open_)


def _needed_suppressed(stream: Stream, rows: pl.DataFrame) -> pl.Series:
    """Finds when each key with an update in `changes` was last seen."""
    needed = needed_last_seen(rows)
    windowed = [o.name for o in stream.sub.operators if o.windows]
    if windowed and stream.topology.retention.changes_ms is not None:  # the updates of closed windows go
        of_windows = scan(stream.home / CHANGES.name).filter(pl.col("operator").is_in(windowed))
        with_updates = of_windows.select("operator", "key").unique().collect()
        needed &= ~rows["operator"].is_in(windowed) | are_in(rows, with_updates, ["operator", "key"])
    return needed


def _read_by_all(stream: Stream, repartition: Repartition) -> int:
    """Returns the first batch that not every reader of *repartition* has read."""
    # A hop whose reader never ran keeps all rows.
    reached = [(read_progress(reader), operator) for reader, operator in readers(stream, repartition.name)]
    return min((at.read_of(operator.name) if at else 0 for at, operator in reached), default=0)
