"""Measures traces of a record and of a row among many.

`ROWS=500_000 make bench PARTS=trace` has so many records, instead of five million. They are laid down as facts and rows
of batches of 20,000; the traced record and row are of real batches before them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import polars as pl
from bench.ratios import Figure, seconds

from support.play import NOON, Play, ms
from support.topologies import map_of, sink, source, table, topology_of
from support.traced import KeptRecords
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.tables.catalog import BATCHES, CHANGES, OPERATOR_BATCHES, PARTITION_BATCHES
from tidemark.storage.delta.tables import append
from tidemark.trace.lineage import trace_row
from tidemark.trace.outcomes import RecordPosition

ROWS = int(os.environ.get("ROWS", "5_000_000"))
A_BATCH = 20_000
TOML = topology_of(
    events=source("id string, v int", sub_topology="main"),
    mapped=map_of(select={"id": "id", "v": "v"}),
    newest=table("mapped", columns=["v"]),
    board=sink("newest", table="board"),
)
NAMES = {"topology": "play", "sub_topology": "main"}


def figures(runs: int) -> Iterator[Figure]:
    """Measures the first trace of a process's tracer, tables opened anew."""
    with TemporaryDirectory() as folder:
        play = Play(TOML, Path(folder))
        kept = KeptRecords(play)
        play.batch(kept.keep(play.row("events", ms(0), id="real", v=1)), at_ms=ms(1))
        play.batch(kept.keep(play.row("events", ms(2), id="real", v=1)), at_ms=ms(3))
        for number in range(2, 2 + ROWS // A_BATCH):
            _lay_down(play, number)
        place = RecordPosition("events", 0, 1)
        began_s = process_time()
        took = [seconds(lambda: kept.tracer().trace(place)) for _ in range(runs)]
        record_s = process_time() - began_s
        rows = [seconds(lambda: trace_row(kept.tracer(), "board", "real")) for _ in range(runs)]
        row_s = process_time() - began_s - record_s
        reason = kept.tracer().trace(place).results[2].reason
        if "emitted for 0/0 in batch 0" not in reason:
            msg = f"the record should repeat the one before it, got {reason!r}"
            raise AssertionError(msg)
    yield Figure(f"trace of a record among {ROWS:,}", took, 2, at_most=True, unit="s")
    yield Figure("  CPU of it", [record_s / runs], unit="s")
    yield Figure(f"trace of a row among {ROWS:,}", rows, 2, at_most=True, unit="s")
    yield Figure("  CPU of it", [row_s / runs], unit="s")


def _lay_down(play: Play, number: int) -> None:
    """Writes facts and rows of the batch *number*."""
    first, at = number * A_BATCH, datetime.fromtimestamp((NOON + number * 1_000) / 1_000, UTC)
    keys = pl.Series([f"id{first + n}" for n in range(A_BATCH)])
    offsets = pl.int_range(first, first + A_BATCH, eager=True)
    same = {**NAMES, "batch_id": number}
    changes = pl.DataFrame({"key": keys, "source_offset": offsets}).with_columns(
        seq=pl.int_range(A_BATCH),
        operator=pl.lit("newest"),
        value=pl.lit('{"v":1}'),
        timestamp=pl.lit(at),
        value_hash=pl.lit("0"),
        source_partition=pl.lit(0, pl.Int32),
    )
    append(play.table("changes"), rows_of(CHANGES, changes, **same))
    read = {"source": "events", "partition": 0, "from_offset": first, "until_offset": first + A_BATCH}
    batch = {"decided_at": at, "started_at": at, "finished_at": at, "records_in": A_BATCH}
    append(play.table("batches"), rows_of(BATCHES, [batch], **same))
    append(play.table("partition_batches"), rows_of(PARTITION_BATCHES, [read], **same))
    outcome = {"operator": "newest", "kind": "table", "records_in": A_BATCH, "emitted": A_BATCH}
    append(play.table("operator_batches"), rows_of(OPERATOR_BATCHES, [outcome], **same))
    board = pl.DataFrame({"id": keys, "source_offset": offsets}).select(
        "id",
        v=pl.lit(1, pl.Int32),
        timestamp=pl.lit(at).dt.cast_time_unit("us"),
        batch_id=pl.lit(number, pl.Int64),
        source_partition=pl.lit(0, pl.Int32),
        source_offset="source_offset",
        deleted=pl.lit(value=False),
    )
    append(play.table("board"), board.to_arrow())
