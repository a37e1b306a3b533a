"""How far a stream has come, as its journal and its newest table of facts say."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress
from tidemark.spec.stream import Stream
from tidemark.spec.tables import BATCHES
from tidemark.stream.journal import Journal
from tidemark.stream.state_files import StateRuns


@dataclass(frozen=True)
class Reached:
    """`done` is the newest batch that is in all tables (None: none), `progress` that of the newest decided one.

    `decided_at_ms` is when that one was written down, epoch ms. `has_state_files`: the state is in files.
    """

    done: int | None
    progress: StreamProgress
    decided_at_ms: int
    has_state_files: bool

    @property
    def is_in_flight(self) -> bool:
        """Whether the newest decided batch is not in all tables."""
        return self.done is None or self.done < self.progress.batch_id

    @property
    def anything_waits(self) -> bool:
        """Whether records were read and not sent on."""
        parts = [part for i in self.progress.inputs.values() for part in i.partitions.values()]
        return any(part.done_until_offset < part.until_offset for part in parts)

    def read_of(self, hop_source: str) -> int:
        """The batch of the upstream up to which (exclusive) the reading end *hop_source* of a hop has come."""
        partitions = self.progress.inputs.get(hop_source, InputProgress()).partitions
        return partitions.get(0, PartitionProgress()).until_offset


def reached(stream: Stream) -> Reached | None:
    """How far *stream* has come; None before its first batch."""
    batches, home = stream.home / BATCHES.name, stream.control / "journal"
    if not home.is_dir() or not DeltaTable.is_deltatable(str(batches)):
        return None
    done = DeltaTable(str(batches)).transaction_version(f"{stream.topology.name}/{stream.sub.name}/{BATCHES.name}")
    journal = Journal(home, "data")
    newest = journal.newest()  # after `done`, so that it is no older
    if newest is None:
        return None
    progress, decided_at_ms = StreamProgress.from_json(newest.notes["progress"]), journal.written_at_ms(newest.batch_id)
    return Reached(done, progress, decided_at_ms, StateRuns.of(newest.notes) is not None)
