"""Which tables a topology has, for how long their rows are kept, and what of them is needed for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.delta import read_before, scan
from tidemark.maintenance.needed import (
    Needed,
    are_in,
    is_newest,
    needed_changes,
    needed_last_seen,
    needed_of_hop,
    needed_states,
    needed_watermarks,
)
from tidemark.maintenance.progress import Reached, reached
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Aggregate, HopSource, Repartition, Sink
from tidemark.spec.stream import Stream
from tidemark.spec.tables import CHANGES, HELD_RECORDS, HOP, HOP_MARK, OPERATOR_STATE, SUPPRESSED, TABLES, WATERMARKS


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A table at *path* whose rows are kept for *retention_ms* (None: for ever).

    With *needed* only rows that are not may go, and only those of batches before *before_batch* are looked at.
    """

    path: Path
    retention_ms: int | None
    needed: Needed | None = None
    before_batch: int = 0


def report_tables(layout: Layout, topology: str) -> list[Path]:
    """Those that the batch jobs of *topology* have written."""
    return sorted(log.parent for log in layout.reports(topology).glob("*/_delta_log"))


def is_of_older_version(stream: Stream, at: Reached) -> bool:
    """Return whether a driver of this version has yet to take over *stream*, which has come as far as *at*.

    Until then its state may be in its tables alone.
    """
    if not at.has_state_files:
        return True
    tables = {table.name: table for table in TABLES.values() if table.written_by == "stream"}
    tables |= {f"hop_{o.name}": HOP for o in stream.sub.operators if isinstance(o, Repartition)}
    for name, table in tables.items():
        path = str(stream.home / name)
        if not DeltaTable.is_deltatable(path) or {*table.names} - {f.name for f in DeltaTable(path).schema().fields}:
            return True
    return False


def kept_of(stream: Stream, at: Reached) -> Iterator[Kept]:
    """The tables of *stream*, which has come as far as *at*; those of which people ask for old rows last."""
    retention, done = stream.topology.retention, -1 if at.done is None else at.done
    asked = {CHANGES.name, OPERATOR_STATE.name, SUPPRESSED.name, WATERMARKS.name}
    for table in TABLES.values():
        if table.written_by == "stream" and table.name not in asked:
            waits = table == HELD_RECORDS and at.anything_waits
            yield _kept(stream, table.name, None if waits else retention.of_stream(table.name))
    for operator in stream.sub.operators:
        match operator:
            case Sink(table=str() as name):
                yield _kept(stream, name, None if operator.key else retention.sinks_ms)
            case Repartition():
                needed = Needed(("batch_id", "seq", "id", *HOP_MARK), partial(needed_of_hop, operator))
                read = _read_by_all(stream, operator)
                yield _kept(stream, f"hop_{operator.name}", retention.hops_ms, needed, min(done + 1, read))
    of_key = ("batch_id", "operator", "key")
    watermarks = Needed(("batch_id", "source", "partition"), needed_watermarks)
    changes = Needed((*of_key, "seq", "timestamp"), partial(_needed_changes, stream, at))
    states = Needed((*of_key, "state"), needed_states)
    suppressed = Needed((*of_key, "max_timestamp"), partial(_needed_suppressed, stream))
    yield _kept(stream, SUPPRESSED.name, retention.of_stream(SUPPRESSED.name), suppressed, done + 1)
    yield _kept(stream, WATERMARKS.name, retention.of_stream(WATERMARKS.name), watermarks, done + 1)
    yield _kept(stream, CHANGES.name, retention.changes_ms, changes, done + 1)
    yield _kept(stream, OPERATOR_STATE.name, retention.state_ms, states, done + 1)


def _kept(
    stream: Stream, name: str, retention_ms: int | None, needed: Needed | None = None, before_batch: int = 0
) -> Kept:
    return Kept(path=stream.home / name, retention_ms=retention_ms, needed=needed, before_batch=before_batch)


def _needed_changes(stream: Stream, at: Reached, rows: pl.DataFrame) -> pl.Series:
    before = 0 if at.done is None else at.done + 1
    states = read_before(stream.home / OPERATOR_STATE.name, before, ["operator", "key", "state"])
    open_ = states.filter(is_newest(states, ["operator", "key"], ["batch_id"]) & pl.col("state").is_not_null())
    return needed_changes(rows, stream.sub, open_)


def _needed_suppressed(stream: Stream, rows: pl.DataFrame) -> pl.Series:
    """When each key of which `changes` has an update was last seen."""
    seen = needed_last_seen(rows)
    windowed = [o.name for o in stream.sub.operators if isinstance(o, Aggregate) and o.windows]
    if windowed and stream.topology.retention.changes_ms is not None:  # the updates of closed windows go
        of_windows = scan(stream.home / CHANGES.name).filter(pl.col("operator").is_in(windowed))
        known = of_windows.select("operator", "key").unique().collect()
        seen &= ~rows["operator"].is_in(windowed) | are_in(rows, known, ["operator", "key"])
    return seen


def _read_by_all(stream: Stream, repartition: Repartition) -> int:
    """The batch up to which (exclusive) every reader of the hop of *repartition* has read it."""
    readers = [
        (sub, operator)
        for sub in stream.topology.sub_topologies
        for operator in sub.operators
        if isinstance(operator, HopSource) and operator.repartition == repartition.name
    ]
    come = [(reached(Stream(stream.topology, sub, stream.layout)), operator) for sub, operator in readers]
    return min((at.read_of(operator.name) if at else 0 for at, operator in come), default=0)
