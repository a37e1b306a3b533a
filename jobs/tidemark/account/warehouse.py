"""Reads from the tables of a topology what the account of time needs, as of an instant."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from tidemark.account.recorded import Recorded
from tidemark.control.folder import Control
from tidemark.facts.fact_tables import Stored, nothing_in
from tidemark.facts.topology_tables import Scan, tables_of
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import (
    BATCHES,
    HEARTBEATS,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    Table,
)
from tidemark.model.topology import Topology

OF_BATCHES = (OPERATOR_BATCHES, PARTITION_BATCHES, OPERATOR_WINDOWS)
"""Tables with rows of batches, which count when their batch does."""


@dataclass(frozen=True)
class AccountTables:
    """The tables of *topology* in *layout*, as they were *stored* when they were first asked for."""

    layout: Layout
    topology: Topology
    stored: Stored

    @cached_property
    def of_all_streams(self) -> Scan:
        """Reads a table of all streams at once."""
        return tables_of(self.layout, self.topology.name, self.stored)

    def recorded(self, *, since_ms: int, at_ms: int, has_before: bool = True) -> Recorded:
        """Returns the rows of batches that had finished by *at_ms*, epoch ms.

        They are those from *since_ms* on, and if it *has_before* of each stream the newest one before that, which may
        be old. The newest heartbeat of each stream is that of its control folder, which is written more often than rows
        are. Of an instant in the past, what the streams did until then is told by the batches that finished later, and
        by the heartbeat that came next.
        """
        rows = {table.name: list[pl.DataFrame]() for table in (BATCHES, HEARTBEATS, *OF_BATCHES)}
        later = list[pl.DataFrame]()
        for sub in self.topology.sub_topologies:
            finished = self._scan(sub.name, BATCHES).filter(pl.col("finished_at") <= utc(at_ms))
            is_before = pl.col("finished_at") < utc(since_ms)
            before = finished.filter(is_before).select(pl.max("batch_id")).collect().item() if has_before else None
            batches = finished.filter(~is_before if before is None else pl.col("batch_id") >= before).collect()
            rows[BATCHES.name].append(batches)
            of_batch = pl.col("batch_id").is_between(batches["batch_id"].min(), batches["batch_id"].max())
            for table in OF_BATCHES:
                of_batches = nothing_in(table) if batches.is_empty() else self._scan(sub.name, table)
                rows[table.name].append(of_batches.filter(of_batch).collect())
            beats = self._scan(sub.name, HEARTBEATS).filter(
                pl.col("beat_at").is_between(utc(since_ms - HEARTBEATS_APART_MS), utc(at_ms))
            )
            of_stream = self._with_newest(beats.collect(), sub.name, at_ms)
            rows[HEARTBEATS.name] += [of_stream, self._next_beat(sub.name, of_stream["epoch"].max(), at_ms)]
            later.append(self._told_later(sub.name, batches["batch_id"].max(), at_ms))
        frames_of = {name: pl.concat(frames, how="diagonal") for name, frames in rows.items()}
        return Recorded(**frames_of, told_later=pl.concat(later, how="diagonal"))

    def newest_heartbeat(self, stream: str, at_ms: int) -> pl.DataFrame:
        """Returns the heartbeat of *stream* in its control folder as a row of `heartbeats`; empty if it is later than
        *at_ms*, epoch ms, tells nothing of its time, or may not be read.
        """
        with suppress(PermissionError):
            beat = Control(self.layout.control(self.topology.name, stream)).heartbeat()
            if beat is not None and beat.told is not None and beat.at_ms <= at_ms:
                same = {"topology": self.topology.name, "sub_topology": stream}
                return pl.DataFrame(rows_of(HEARTBEATS, [beat.columns], **same))
        return nothing_in(HEARTBEATS).collect()

    def _with_newest(self, beats: pl.DataFrame, stream: str, at_ms: int) -> pl.DataFrame:
        """Returns *beats* with the newest heartbeat, unless it comes after rows that are still to be written: its time
        begins with the newest row.
        """
        newest = self.newest_heartbeat(stream, at_ms)
        rows = newest.select("epoch", "pulse_from_boot_ms").join(
            beats.group_by("epoch").agg(told_ms=pl.max("pulse_boot_ms")), on="epoch", how="left"
        )
        is_next = rows.filter(pl.col("told_ms").is_null() | (pl.col("told_ms") == pl.col("pulse_from_boot_ms"))).height
        return pl.concat([beats, newest], how="diagonal_relaxed") if is_next else beats

    def _next_beat(self, stream: str, epoch: object, at_ms: int) -> pl.DataFrame:
        """Returns the pulse of the driver *epoch* until its first heartbeat after *at_ms*, epoch ms: gaps and clock."""
        is_its = (pl.col("epoch") == pl.lit(epoch, pl.Int64)) & (pl.col("beat_at") > utc(at_ms))
        return self._scan(stream, HEARTBEATS).filter(is_its).sort("beat_at").head(1).select(OF_PULSE).collect()

    def _told_later(self, stream: str, newest_batch: object, at_ms: int) -> pl.DataFrame:
        """Returns the batches that ran at *at_ms*, with `until_ms`, that instant by the boot clock of their driver."""
        after = newest_batch + 1 if isinstance(newest_batch, int) else 0
        # What a batch does after its entry is in the row of the next one.
        is_next = pl.col("batch_id").is_between(after, after + 1) & (pl.col("finished_at") > utc(at_ms))
        at_boot_ms = pl.col("started_boot_ms") + at_ms - pl.col("started_at").dt.epoch("ms")
        until_ms = pl.min_horizontal("phases_boot_ms", at_boot_ms)
        return self._scan(stream, BATCHES).filter(is_next).collect().with_columns(until_ms=until_ms)

    def _scan(self, stream: str, table: Table) -> pl.LazyFrame:
        rows = self.stored.scan(self.layout.stream_table(self.topology.name, stream, table.name))
        return nothing_in(table) if rows is None else rows


OF_PULSE = (
    *("topology", "sub_topology", "beat_at", "epoch", "state", "host"),
    *("pulse_from_boot_ms", "pulse_boot_ms", "gaps"),
)
"""Columns of `heartbeats` that tell of the time until a heartbeat."""
HEARTBEATS_APART_MS = 60_000
"""A heartbeat vouches for the time since the one before it. Tables have one at least this often."""
