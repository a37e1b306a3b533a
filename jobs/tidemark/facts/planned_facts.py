"""Answers what the newest batches read that do not count yet: they were planned, and perhaps decided and carried out.

The facts of a batch become visible with the entry of the next one. Until then its plan in Spark's checkpoint and its
own entry in the journal have how far it reads. Of an earlier instant, a batch is known that was planned by then and
finished later.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path

import polars as pl

from tidemark.errors import UnreadableFile
from tidemark.facts.fact_tables import RECENT_MS, FactTables, Stored, stored_in
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import PARTITION_BATCHES
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.journal.entries import Journal

Ends = dict[tuple[str, int], int]
"""By source and input partition, the offset up to which a batch reads, exclusive."""
NO_TABLE = ("no table",)
"""Of an entry only the notes are read."""


class PlannedFacts:
    """The batches of the stream with *tables* and the folder *control* that were planned by their instant."""

    def __init__(self, tables: FactTables, control: Path) -> None:
        self._tables, self._control = tables, control
        self._ends_of: dict[str, Ends | None] = {}

    def ends(self, sub: SubTopology) -> Ends | None:
        """Returns how far the batches of *sub* read that do not count yet; None: no such batch is known to be planned.

        Damaged files, and those that this user may not read, are left out.
        """
        # Each partition asks, and the files are the same for all.
        if sub.name not in self._ends_of:
            self._ends_of[sub.name] = self._ends(sub)
        return self._ends_of[sub.name]

    def has_no_news(self, sub: SubTopology) -> bool:
        """Returns True if these batches are known to read no record that the batches before them had not read."""
        ends = self.ends(sub)
        rows = self._tables.rows(PARTITION_BATCHES, self._tables.first).group_by("source", "partition")
        read = {(source, n): end for source, n, end in rows.agg(pl.max("until_offset")).collect().iter_rows()}
        return ends is not None and all(end <= (read.get(place) or 0) for place, end in ends.items())

    def _ends(self, sub: SubTopology) -> Ends | None:
        parts: list[Ends] = []
        later = self._later
        if later.height:
            parts.append({(source, partition): until for source, partition, until in later.iter_rows()})
        if self._decided is not None and self._decided.batch_id > self._tables.newest:
            inputs = self._decided.inputs.items()
            parts.append({(name, n): end for name, source in inputs for n, end in source.offsets_read.items()})
        from tidemark.stream.startup.unread import planned_ends

        with suppress(PermissionError, UnreadableFile):
            planned = planned_ends(self._control, sub, at_ms=self._tables.at_ms, after=self._tables.newest)
            parts += [] if planned is None else [planned]
        ends: Ends = {}
        for part in parts:
            ends |= {place: max(end, ends.get(place, end)) for place, end in part.items()}
        return ends if parts else None

    @cached_property
    def _later(self) -> pl.DataFrame:
        """How far batches that were planned by the instant, and finished after it, read each partition."""
        is_later = pl.col("batch_id") > self._tables.newest
        rows = self._tables.scan(PARTITION_BATCHES, where=[is_later]).filter(pl.col("decided_at") <= self._tables.at_ms)
        return (
            rows.drop_nulls("until_offset").group_by("source", "partition").agg(pl.col("until_offset").max()).collect()
        )

    @cached_property
    def _decided(self) -> StreamProgress | None:
        """The progress with the newest batch in the journal that had been decided; None: there is none."""
        folder = self._control / "journal"
        with suppress(PermissionError, UnreadableFile):
            journal = Journal(folder, "data") if folder.is_dir() else None
            # Of an entry before the newest one, the facts are in the next.
            newest = journal.batches()[-1:] if journal else []
            entry = journal.read(newest[0], only=NO_TABLE) if journal and newest else None
            if entry and entry.notes.decided is not None:
                progress = entry.notes.progress
                is_known = progress.decided_at_ms is not None and progress.decided_at_ms <= self._tables.at_ms
                return progress if is_known else None
        return None


def has_no_news(layout: Layout, topology: str, sub: SubTopology, *, at_ms: int, stored: Stored) -> bool:
    """Returns True if the batches of *sub* that do not count yet at *at_ms* (epoch ms) are known to read no record."""
    tables = FactTables(stored_in(layout.stream(topology, sub.name), stored), at_ms, recent_ms=RECENT_MS)
    return PlannedFacts(tables, layout.control(topology, sub.name)).has_no_news(sub)
