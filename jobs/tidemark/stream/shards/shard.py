"""Keeps the operators of a shard in a worker, with its states.

The states are in files, which are mapped, and in the journal entries since: so any worker can load any shard quickly. A
worker that had the shard before reads only the entries that it has not read. It reads even its own results from the
journal, because another attempt at its task may be the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tidemark.model.stream import Stream
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.state.files import StateFiles

ShardId = tuple[str, int, int]
"""The control folder of the stream, how many shards it has, and the number of the shard."""
Schemas = Mapping[str, Mapping[str, pl.DataType]]
"""The columns of each operator's output, as the driver knows them."""
# Shards are kept as long as the worker's Python process lives, which Spark reuses for later batches.
_KEPT: dict[ShardId, Shard] = {}


@dataclass(frozen=True)
class Shard:
    """A shard in a worker.

    Attributes:
        stream: the stream.
        schemas: the columns of each operator's output.
        steps: the operators, with their states.
        files: the files with the states.
        reference: reads joined Delta tables.
        id: identifies the shard.
    """

    stream: Stream
    schemas: Schemas
    steps: Steps
    files: StateFiles
    reference: Reference
    id: ShardId

    @classmethod
    def after(cls, was: StreamProgress, stream: Stream, number: int, runs: StateRuns, schemas: Schemas) -> Shard:
        """Returns the shard *number* of *stream* with its state after the progress *was*.

        *runs* are the files with its state; *schemas* are the columns of the operators' outputs.
        """
        shard_id = str(stream.control), stream.shards, number
        # The shard is removed here and put back by keep(), so that none is used after a failure.
        shard = _KEPT.pop(shard_id, None)
        if shard is None or (shard.stream, shard.schemas) != (stream, schemas):
            # None was kept, or the topology file or a joined table has changed while this process lived on.
            shard = cls._new(stream, schemas, shard_id)
        shard.files.load(shard.steps.memory, runs, was.batch_id)
        shard.steps.forget(shard.steps.memory.versions, watermark_ms=was.watermark_ms)
        return shard

    @classmethod
    def _new(cls, stream: Stream, schemas: Schemas, shard_id: ShardId) -> Shard:
        _, shards, number = shard_id
        reference = Reference(stream.layout.warehouse)
        files = StateFiles(stream, Journal(stream.control / "journal", "data"), number, shards)
        # A task can read a joined table only once its driver has left the copy of a version.
        return cls(stream, schemas, Steps(stream.topology, reference, schemas=schemas), files, reference, shard_id)

    def keep(self) -> None:
        """Keeps the shard for the next batch."""
        # A shard whose batch failed half-way is not kept, and is read anew.
        _KEPT[self.id] = self

    def read_versions(self, versions: Mapping[str, int], copies: Path) -> None:
        """Sets the *versions* of joined Delta tables to read from now on; some are in the folder *copies*."""
        self.reference.versions, self.reference.copies = versions, copies
