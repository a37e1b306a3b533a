"""Reads from the tables of a topology what the account of time needs, as of an instant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from tidemark.account.recorded import Recorded
from tidemark.facts.fact_tables import Stored, nothing_in
from tidemark.facts.topology_tables import Scan, tables_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
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
        be old. Changes of the topology file are all there.
        """
        rows = {table.name: list[pl.DataFrame]() for table in (BATCHES, HEARTBEATS, TOPOLOGY_CHANGES, *OF_BATCHES)}
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
            rows[HEARTBEATS.name].append(beats.collect())
            # A source that began long ago may still be behind.
            changes = self._scan(sub.name, TOPOLOGY_CHANGES).filter(pl.col("decided_at") <= utc(at_ms))
            rows[TOPOLOGY_CHANGES.name].append(changes.collect())
        return Recorded(**{name: pl.concat(frames, how="diagonal") for name, frames in rows.items()})

    def _scan(self, stream: str, table: Table) -> pl.LazyFrame:
        rows = self.stored.scan(self.layout.stream_table(self.topology.name, stream, table.name))
        return nothing_in(table) if rows is None else rows


HEARTBEATS_APART_MS = 60_000
"""A heartbeat vouches for the time since the one before it. Tables have one at least this often."""
