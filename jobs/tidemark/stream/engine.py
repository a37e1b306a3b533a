"""One stream's batches: recover, decide, write down, carry out. The only place that knows the order of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tidemark.clock import Clock
from tidemark.errors import Contradiction
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.topology import SubTopology
from tidemark.stream.batch import Batch
from tidemark.stream.blame import blame
from tidemark.stream.commit import Committing
from tidemark.stream.decision import Decider, Decision
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.load import load_memory, load_waiting
from tidemark.stream.requests import Requests
from tidemark.stream.spread import Executors, Spread
from tidemark.stream.state_files import StateFiles
from tidemark.stream.steps import Steps

Collect = Callable[[], pl.DataFrame]
"""Reads the batch through Spark, and parses it."""


class Engine:
    """Runs the batches of *sub*, whose tables lie in *home*.

    Purpose: the function that `foreachBatch` calls, whole.
    How it works: a batch that is in the journal is carried out again; one that is not is decided, written down and
    carried out; only then does what is kept in memory move. The first batch that needs it reads that from files and the
    journal; after a batch that executors worked on, the tables have what this one moved.
    `batch_started_at_ms` is the clock at which the batch that runs now began; None between batches. `load` has what the
    last batches say of how much there is to do, as columns of `heartbeats`.
    Known limitation: between a record's arrival in a Kafka sink and the end of the batch a crash sends it twice.
    """

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        steps: Steps,
        decider: Decider,
        spread: Spread,
        journal: Journal,
        committing: Committing,
        clock: Clock,
        *,
        epoch: int,
        requests: Requests,
        state: StateFiles,
    ) -> None:
        self._requests, self._state = requests, state
        self._sub, self._home, self._steps, self._decider = sub, home, steps, decider
        self._journal, self._committing, self._clock, self._epoch = journal, committing, clock, epoch
        self._spread = spread
        self._remembered = -1
        self.progress: StreamProgress | None = None
        self.batch_started_at_ms: int | None = None
        self.load: Mapping[str, int | None] = {}

    def process(
        self,
        batch_id: int,
        collect: Collect,
        ends: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
        executors: Executors | None = None,
        *,
        planned_at_ms: int | None = None,
        versions: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Have the tables say what becomes of batch *batch_id*, whose rows *collect* reads up to *ends*.

        Delta tables, by their ids, are read before these *versions*. One batch that is too large for that is left to
        *executors*. It is judged as of *planned_at_ms*, which must be the same when it is run again (None: the clock).
        """
        if self.progress is None:
            self.progress = self._recover(batch_id)
        if batch_id <= self.progress.batch_id:
            return
        started_at_ms = self.batch_started_at_ms = self._clock()
        batch = Batch(
            batch_id=batch_id,
            epoch=self._epoch,
            decided_at_ms=self.progress.decided_at(started_at_ms if planned_at_ms is None else planned_at_ms),
            started_at_ms=started_at_ms,
            read_at_ms=started_at_ms,
            ends=dict(ends),
            versions=dict(versions),
        )
        self._spread.forget(self._epoch)
        was = self._requests(self.progress, batch)
        decision = self._spread.decide(executors, was, batch) if executors else None
        decision = decision or self._collected(batch, collect, was)
        if decision is not None:
            entry, memory = decision.entry, self._steps.memory
            if decision.moves is not None:
                entry = self._state.noted(entry, memory, was.batch_id, decision.moves)
            entry = self._committing.laid_out(entry)
            self._journal.write(entry, needed_after=self._state.needed_after)
            self._committing.carry_out(entry)
            if decision.moves is not None:
                self._steps.take(decision.moves, watermark_ms=decision.progress.watermark_ms)
                self._state.taken(memory, batch_id)
                self._remembered = batch_id
            self.progress = decision.progress
            self.load = {**self.load, "records_waiting": _waiting(entry), "state_bytes": self._steps.memory.bytes()}
        self.load = {**self.load, "last_batch_ms": self._clock() - started_at_ms}
        self.batch_started_at_ms = None

    def _collected(self, batch: Batch, collect: Collect, was: StreamProgress) -> Decision | None:
        """What becomes of *batch* when its rows come here."""
        if self._remembered < was.batch_id:
            if self._remembered < 0 and (newest := self._journal.newest()):
                self._remembered = self._state.load(self._steps.memory, newest)
                load_waiting(self._steps, self._sub, self._home, was)
            if self._remembered < was.batch_id:
                load_memory(self._steps, self._sub, self._home, was, after=self._remembered)
            self._remembered = was.batch_id
        raw = collect()
        batch = replace(batch, read_at_ms=self._clock())
        try:
            return self._decider.decide(raw, batch, was)
        except Exception as error:
            blame(error, raw, lambda rows: self._decider.decide(rows, replace(batch, ends={}), was))
            raise

    def _recover(self, batch_id: int) -> StreamProgress:
        """The progress made before *batch_id*, or with it where the journal has it: then it is carried out first."""
        newest = self._journal.newest()
        if newest is not None and newest.batch_id > batch_id:
            msg = (
                f"{self._home}: the checkpoint goes on with batch {batch_id}, but batch {newest.batch_id} was decided "
                "before; the checkpoint was rolled back or replaced: restore it, or give the stream a new name"
            )
            raise Contradiction(msg)
        if newest is not None and newest.batch_id == batch_id:
            self._committing.carry_out(newest, recovers=True)
        return StreamProgress.from_json(newest.notes["progress"]) if newest else StreamProgress()


def _waiting(entry: Entry) -> int | None:
    """Count the records that the batch of *entry* left unread or held; None if the unread ones are not known."""
    sources, operators = entry.notes["sources"], entry.notes["operators"].values()
    ends = [(part["latest_offset"], part["until_offset"]) for part in sources if part["latest_offset"] is not None]
    unread: int = sum(max(0, latest - until) for latest, until in ends)
    held: int = sum(operator["counts"].get("held_after", 0) for operator in operators)
    return unread + held if ends else None
