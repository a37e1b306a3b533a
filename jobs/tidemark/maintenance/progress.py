"""Reads the progress of a stream from its journal and newest facts."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BATCHES
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress
from tidemark.storage.delta.datasets import open_to_read
from tidemark.storage.warehouse import is_table
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.layout import newest_batch


@dataclass(frozen=True)
class ReachedBatch:
    """The progress of a stream.

    Attributes:
        done: the newest batch that is in all tables, or -1 if there is none.
        progress: the progress with the newest decided batch.
        decided_at_ms: when that batch was written down, epoch ms.
    """

    done: int
    progress: StreamProgress
    decided_at_ms: int

    @property
    def is_in_flight(self) -> bool:
        """True if the newest decided batch is not in all tables."""
        return self.done < self.progress.batch_id

    def read_of(self, hop_source: str) -> int:
        """Returns the first batch of the upstream that *hop_source*, the reading end of a hop, has not read."""
        partitions = self.progress.inputs.get(hop_source, InputProgress()).partitions
        return partitions.get(0, PartitionProgress()).until_offset


def read_progress(stream: Stream) -> ReachedBatch | None:
    """Returns the progress of *stream*, or None before its first batch."""
    batches, home = stream.home / BATCHES.name, stream.control / "journal"
    if not home.is_dir() or not is_table(batches):
        return None
    done = newest_batch(batches, open_to_read(batches))
    journal = Journal(home, "data")
    newest = journal.newest()  # after `done`, so that it is no older
    if newest is None:
        return None
    progress, decided_at_ms = newest.notes.progress, journal.written_at_ms(newest.batch_id)
    return ReachedBatch(done, progress, decided_at_ms)
