"""Measures a sink of current rows with 1,000 changed keys per batch.

It compares tables with few and many rows, and measures a merge.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
from bench.ratios import Figure
from deltalake import DeltaTable, write_deltalake

from support.play import NOON, Play
from support.topologies import NEWEST
from tidemark.storage.delta.compaction import data_files_of

SMALL, LARGE = 100_000, 5_000_000
CHANGED = 1_000
TOPOLOGY = NEWEST.replace('refresh = "0 s"\n', "")
BATCHES, MERGES_PER_HOUR = 59, 60
PART = 1_000_000


@dataclass
class _Measured:
    """CPU s per batch without merge; CPU s and bytes per merge.

    The merge has the changes of a minute.
    """

    batch_s: list[float] = field(default_factory=list)
    merge_s: float = 0.0
    merge_bytes: int = 0


def figures(_: int) -> Iterator[Figure]:
    """Compares a large table with a small one.

    A batch a second for a minute, and the merge that follows.
    """
    with TemporaryDirectory() as folder:
        small, large = (_measured(Path(folder) / str(rows), rows) for rows in (SMALL, LARGE))
    ratio = [median(large.batch_s) / median(small.batch_s)]
    yield Figure(f"batch of {CHANGED:,} keys: CPU time, {LARGE:,} rows against {SMALL:,}", ratio, 1.5, at_most=True)
    for rows, found in ((SMALL, small), (LARGE, large)):
        batch_ms, written = median(found.batch_s) * 1_000, found.merge_bytes * MERGES_PER_HOUR / 1e6
        yield Figure(f"current rows, {rows:,}: CPU time of a batch", [batch_ms], 500, at_most=True, unit="ms")
        yield Figure(f"current rows, {rows:,}: CPU time of a merge", [found.merge_s], 20, at_most=True, unit="s")
        yield Figure(f"current rows, {rows:,}: written by merges", [written], 20_000, at_most=True, unit="MB an hour")


def _measured(home: Path, rows: int) -> _Measured:
    """Creates a table of *rows* and batches of random changed keys."""
    play, found, chance = Play(TOPOLOGY, home), _Measured(), random.Random(21)
    play.start()
    _filled(play.table("board"), rows)
    for second in range(BATCHES + 1):
        at_ms = NOON + second * 1_000
        sent = [play.row("events", at_ms, id=f"key {n}", v=second) for n in chance.sample(range(rows), CHANGED)]
        began_s = time.process_time()
        play.batch(sent, at_ms=at_ms)
        if second:  # the first one merges
            found.batch_s.append(time.process_time() - began_s)
    before = {file.name for file in data_files_of(play.table("board"))}
    began_s = time.process_time()
    play.batch(at_ms=NOON + 61_000)
    found.merge_s = time.process_time() - began_s
    found.merge_bytes = sum(file.bytes for file in data_files_of(play.table("board")) if file.name not in before)
    return found


def _filled(path: Path, rows: int) -> None:
    """Give the table at *path* so many rows."""
    schema = pa.schema(DeltaTable(str(path)).schema().to_arrow())
    for start in range(0, rows, PART):
        number = pl.int_range(start, min(start + PART, rows), eager=True)
        part = pl.DataFrame({"id": "key " + number.cast(pl.String), "v": number}).with_columns(
            timestamp=pl.lit(NOON).cast(pl.Datetime("ms")).dt.replace_time_zone("UTC"),
            batch_id=pl.lit(-1, pl.Int64),
            source_partition=pl.lit(0),
            source_offset=number,
        )
        write_deltalake(str(path), part.select(schema.names).to_arrow().cast(schema), mode="append")
