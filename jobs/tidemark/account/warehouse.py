"""Reads the rows that the account of time needs from the tables of a topology, as of an instant."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import polars as pl

from tidemark.account.recorded import Recorded
from tidemark.control.folder import Control
from tidemark.facts.fact_tables import Stored, nothing_in
from tidemark.facts.topology_tables import Scan, tables_of
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import epoch_ms, utc
from tidemark.model.tables.catalog import (
    BATCHES,
    HEARTBEATS,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    TOPOLOGY_CHANGES,
    Table,
)
from tidemark.model.topology import Topology

OF_BATCHES = (OPERATOR_BATCHES, PARTITION_BATCHES, OPERATOR_WINDOWS)
"""Tables whose rows belong to a batch: a row counts when the row of its batch in `batches` does."""


@dataclass(frozen=True)
class AccountTables:
    """The tables of `topology` in `layout`. `stored` keeps each in the version in which it was first opened."""

    layout: Layout
    topology: Topology
    stored: Stored

    @cached_property
    def of_all_streams(self) -> Scan:
        """A function that returns the rows of a table of all streams together."""
        return tables_of(self.layout, self.topology.name, self.stored)

    def recorded(self, *, since_ms: int, at_ms: int, has_before: bool = True) -> Recorded:
        """Returns the rows of batches that had finished by *at_ms*, epoch ms.

        Batches count from *since_ms* on; with *has_before* the newest batch of each stream before that counts, too,
        however old it is. Of changes of the topology file all rows are there. The newest heartbeat of each stream comes
        from its control folder, which is written more often than the table. For an instant in the past, the batches
        that finished later, and the next heartbeat, tell what the streams did until then.
        """
        rows = {table.name: list[pl.DataFrame]() for table in (BATCHES, HEARTBEATS, TOPOLOGY_CHANGES, *OF_BATCHES)}
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
            of_stream = beats.collect()
            rows[HEARTBEATS.name] += [of_stream, self.told_until(sub.name, of_stream, at_ms)]
            # A source that began long ago may still be behind.
            changes = self._scan(sub.name, TOPOLOGY_CHANGES).filter(pl.col("decided_at") <= utc(at_ms))
            rows[TOPOLOGY_CHANGES.name].append(changes.collect())
            later.append(self._told_later(sub.name, batches["batch_id"].max(), at_ms))
        frames_of = {name: pl.concat(frames, how="diagonal") for name, frames in rows.items()}
        return Recorded(**frames_of, told_later=pl.concat(later, how="diagonal"))

    def told_until(self, stream: str, beats: pl.DataFrame, at_ms: int) -> pl.DataFrame:
        """Returns a heartbeat of *stream* that tells of the time from the newest of *beats* until *at_ms*, epoch ms.

        It is the next row of the table, or the heartbeat in the control folder, if this user may read the folder. Both
        may have been sent after *at_ms*; then only what they tell of the time until *at_ms* counts. Rows between the
        newest of *beats* and this heartbeat may not be written yet: until then nobody knows of pauses in that time.
        """
        epoch, is_next = beats["epoch"].max(), pl.col("beat_at") > utc(at_ms)
        is_next = is_next if epoch is None else is_next & (pl.col("epoch") == epoch)
        found = [self._scan(stream, HEARTBEATS).filter(is_next).sort("beat_at").head(1).collect()]
        with suppress(PermissionError):
            beat = Control(self.layout.control(self.topology.name, stream)).heartbeat()
            if beat is not None and beat.told is not None:
                same = {"topology": self.topology.name, "sub_topology": stream}
                found.append(pl.DataFrame(rows_of(HEARTBEATS, [beat.columns], **same)))
        told = _until(pl.concat(found, how="diagonal_relaxed"), at_ms)
        known = beats.group_by("epoch").agg(told_ms=pl.max("pulse_boot_ms"))
        newer = told.join(known, on="epoch", how="left", maintain_order="left").filter(
            pl.col("told_ms").is_null() | (pl.col("told_ms") < pl.col("pulse_boot_ms"))
        )
        from_ms = pl.min_horizontal("told_ms", "pulse_from_boot_ms")
        return newer.with_columns(pulse_from_boot_ms=from_ms).drop("told_ms").tail(1)

    def _told_later(self, stream: str, newest_batch: object, at_ms: int) -> pl.DataFrame:
        """Returns the batches that ran at *at_ms* (epoch ms), with that instant by their driver's boot clock,
        `until_ms`.
        """
        after = newest_batch + 1 if isinstance(newest_batch, int) else 0
        # What a batch does after its entry is in the row of the next one.
        is_next = pl.col("batch_id").is_between(after, after + 1) & (pl.col("finished_at") > utc(at_ms))
        at_boot_ms = pl.col("started_boot_ms") + at_ms - pl.col("started_at").dt.epoch("ms")
        until_ms = pl.min_horizontal("phases_boot_ms", at_boot_ms)
        return self._scan(stream, BATCHES).filter(is_next).collect().with_columns(until_ms=until_ms)

    def _scan(self, stream: str, table: Table) -> pl.LazyFrame:
        rows = self.stored.scan(self.layout.stream_table(self.topology.name, stream, table.name))
        return nothing_in(table) if rows is None else rows


def _until(beats: pl.DataFrame, at_ms: int) -> pl.DataFrame:
    """Returns *beats* cut at *at_ms*, epoch ms, as if they had been sent then; those of a later time are left out."""
    rows: list[dict[str, Any]] = []
    for row in beats.drop_nulls("pulse_boot_ms").iter_rows(named=True):
        later_ms = max(0, epoch_ms(row["beat_at"]) - at_ms)
        until_ms = row["pulse_boot_ms"] - later_ms
        if until_ms <= row["pulse_from_boot_ms"]:
            continue
        segments = [
            {**segment, "ended_ms": min(segment["ended_ms"], until_ms)}
            for segment in row["segments"] or ()
            if segment["began_ms"] < until_ms
        ]
        beat_at = row["beat_at"] - timedelta(milliseconds=later_ms)
        rows.append({**row, "beat_at": beat_at, "pulse_boot_ms": until_ms, "segments": segments or None})
    return pl.DataFrame(rows, schema=beats.schema)


HEARTBEATS_APART_MS = 60_000
"""A heartbeat vouches for the time since the one before it. The table has one at least this often, ms."""
