"""Answers how far the batches read that are planned and do not count yet.

A batch counts when its facts are visible, which they are with the journal entry of the next batch. Until then, its plan
in Spark's checkpoint and its own journal entry tell how far it reads. For an instant in the past, the tables tell which
batches were planned by then and finished later.
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
"""The exclusive end offset that a batch reads of each input partition, by source and number."""
NO_TABLE = ("no table",)
"""A name that no table has, so that only the notes of a journal entry are read."""


class PlannedFacts:
    """The batches that were planned by the instant of *tables* and do not count yet.

    *control* is the control folder of the stream.
    """

    def __init__(self, tables: FactTables, control: Path) -> None:
        self._tables, self._control = tables, control
        self._ends_of: dict[str, Ends | None] = {}

    def ends(self, sub: SubTopology) -> Ends | None:
        """Returns the ends of the planned batches of *sub*; None if no such batch is known.

        Damaged files, and those that this user may not read, are left out.
        """
        # Each partition asks, and all need the same files.
        if sub.name not in self._ends_of:
            self._ends_of[sub.name] = self._ends(sub)
        return self._ends_of[sub.name]

    def has_no_news(self, sub: SubTopology) -> bool:
        """Returns True if such batches are known, and read no record that the batches before them had not read."""
        ends = self.ends(sub)
        rows = self._tables.rows(PARTITION_BATCHES, self._tables.first).group_by("source", "partition")
        read = {(source, n): end for source, n, end in rows.agg(pl.max("until_offset")).collect().iter_rows()}
        return ends is not None and all(end <= (read.get(partition) or 0) for partition, end in ends.items())

    def _ends(self, sub: SubTopology) -> Ends | None:
        known: list[Ends] = []
        later = self._later
        if later.height:
            known.append({(source, partition): until for source, partition, until in later.iter_rows()})
        if self._decided is not None and self._decided.batch_id > self._tables.newest:
            inputs = self._decided.inputs.items()
            known.append({(name, n): end for name, source in inputs for n, end in source.offsets_read.items()})
        from tidemark.stream.startup.unread import planned_ends

        with suppress(PermissionError, UnreadableFile):
            planned = planned_ends(self._control, sub, at_ms=self._tables.at_ms, after=self._tables.newest)
            known += [] if planned is None else [planned]
        ends: Ends = {}
        for batch_ends in known:
            ends |= {partition: max(end, ends.get(partition, end)) for partition, end in batch_ends.items()}
        return ends if known else None

    @cached_property
    def _later(self) -> pl.DataFrame:
        """The ends of batches that were decided by the instant and finished after it, as `source`, `partition` and
        end.
        """
        is_later = pl.col("batch_id") > self._tables.newest
        rows = self._tables.scan(PARTITION_BATCHES, where=[is_later]).filter(pl.col("decided_at") <= self._tables.at_ms)
        return (
            rows.drop_nulls("until_offset").group_by("source", "partition").agg(pl.col("until_offset").max()).collect()
        )

    @cached_property
    def _decided(self) -> StreamProgress | None:
        """The progress of the stream with the newest journal entry, if that was decided by the instant; None
        otherwise.
        """
        folder = self._control / "journal"
        with suppress(PermissionError, UnreadableFile):
            journal = Journal(folder, "data") if folder.is_dir() else None
            # The facts of an earlier batch are in the entry after it, and count already.
            newest = journal.batches()[-1:] if journal else []
            entry = journal.read(newest[0], only=NO_TABLE) if journal and newest else None
            if entry and entry.notes.decided is not None:
                progress = entry.notes.progress
                is_known = progress.decided_at_ms is not None and progress.decided_at_ms <= self._tables.at_ms
                return progress if is_known else None
        return None


def has_no_news(layout: Layout, topology: str, sub: SubTopology, *, at_ms: int, stored: Stored) -> bool:
    """Returns True if planned batches of *sub* are known that do not count at *at_ms* (epoch ms) and read no record."""
    tables = FactTables(stored_in(layout.stream(topology, sub.name), stored), at_ms, recent_ms=RECENT_MS)
    return PlannedFacts(tables, layout.control(topology, sub.name)).has_no_news(sub)
