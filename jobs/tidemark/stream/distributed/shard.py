"""A shard as a worker has it: operators with the states of its keys, kept from one batch to the next.

A worker that has worked on the newest batch of a shard has its state; any other reads it from files and the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.delta import Reference
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.stream import Stream
from tidemark.stream.journal import Journal
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps

Place = tuple[str, int, int]
"""Control folder, number of shards, and shard."""
_KEPT: dict[Place, Shard] = {}


@dataclass(frozen=True)
class Shard:
    """The operators of *stream* with the states that are in *files*."""

    stream: Stream
    steps: Steps
    files: StateFiles
    reference: Reference
    place: Place

    @classmethod
    def after(cls, was: StreamProgress, stream: Stream, number: int, runs: StateRuns) -> Shard:
        """The shard *number* of *stream*, with the state after the progress *was*, which *runs* tell of."""
        place = str(stream.control), stream.shards, number
        kept = _KEPT.pop(place, None)
        if kept is None or kept.files.runs.attempt != runs.attempt or kept.stream != stream:
            kept = cls._loaded(was, stream, place, runs)
        return kept

    @classmethod
    def _loaded(cls, was: StreamProgress, stream: Stream, place: Place, runs: StateRuns) -> Shard:
        _, shards, number = place
        reference = Reference(stream.layout.warehouse)
        files = StateFiles(stream, Journal(stream.control / "journal", "data"), number, shards)
        steps = Steps(stream.topology, reference)
        files.load(steps.memory, runs, was.batch_id)
        return cls(stream, steps, files, reference, place)

    def keep(self) -> None:
        """Have the next batch find it as it is: after one that failed half-way it is read anew."""
        _KEPT[self.place] = self

    def read_versions(self, versions: Mapping[str, int]) -> None:
        """Read Delta tables that are joined in these *versions* from now on."""
        self.reference.versions = versions
