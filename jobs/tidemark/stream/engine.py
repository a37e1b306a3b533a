"""One stream's batches: recover, decide, write down, carry out. The only place that knows the order of these."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tidemark.clock import Clock
from tidemark.errors import Contradiction
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.stream import Stream
from tidemark.stream.batch import Batch
from tidemark.stream.blame import blame
from tidemark.stream.checkpoint import Ends
from tidemark.stream.commit import Committing
from tidemark.stream.decision import Decider, Decision
from tidemark.stream.distributed.resharding import remembered
from tidemark.stream.distributed.shards import Collect, Executors, Shards
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.load import load_waiting, load_whole
from tidemark.stream.parts import Part, Places, parts
from tidemark.stream.requests import Requests
from tidemark.stream.state_files import StateFiles, StateRun, StateRuns, remove_unnamed
from tidemark.stream.steps import Steps

log = logging.getLogger("tidemark.stream")

ReadPart = Callable[[Part], tuple[Collect, Executors | None]]
"""How a part of a batch is read: into the driver, or by executors."""


class Engine:
    """Runs the batches of *stream*.

    Purpose: the function that `foreachBatch` calls, whole.
    How it works: a batch that is in the journal is carried out again; one that is not is decided, written down and
    carried out; only then does what is kept in memory move. The first batch that needs it reads that from files and the
    journal. With *shards* executors keep the states. A batch that was planned too large is run in parts, each of which
    is a batch with a number of its own.
    `batch_started_at_ms` is the clock at which the batch that runs now began; None between batches. `load` has what the
    last batches say of how much there is to do, as columns of `heartbeats`.
    Known limitation: between a record's arrival in a Kafka sink and the end of the batch a crash sends it twice.
    """

    def __init__(
        self,
        stream: Stream,
        steps: Steps,
        decider: Decider,
        shards: Shards | None,
        journal: Journal,
        committing: Committing,
        clock: Clock,
        *,
        epoch: int,
        requests: Requests,
        state: StateFiles,
        check_lease: Callable[[], None],
    ) -> None:
        self._check_lease = check_lease
        self._requests, self._state = requests, state
        self._stream, self._steps, self._decider = stream, steps, decider
        self._journal, self._committing, self._clock, self._epoch = journal, committing, clock, epoch
        self._shards = shards
        self._is_loaded = False
        self._goes_on = False  # the newest batch is a part, and others follow
        self._runs: list[tuple[StateRun, ...]] = []
        self.progress: StreamProgress | None = None
        self.batch_started_at_ms: int | None = None
        self.load: Mapping[str, int | None] = {}

    def process(
        self,
        batch_id: int,
        collect: Collect,
        ends: Ends = MappingProxyType({}),
        executors: Executors | None = None,
        *,
        planned_at_ms: int | None = None,
        versions: Mapping[str, int] = MappingProxyType({}),
        read_part: ReadPart | None = None,
        passed_over: Places | None = None,
    ) -> None:
        """Have the tables say what becomes of the batch that Spark calls *batch_id*, and reads up to *ends*.

        *collect* reads its rows; *executors* work on batches in shards. Delta tables, by their ids, are read before
        these *versions*. It is judged as of *planned_at_ms*, which must be the same when it is run again (None: the
        clock). One that is too large is read by *read_part* (None: it is not cut), and so is one of which records are
        *passed_over*, if only none (None: it is read as it was planned).
        """
        if self.progress is None:
            self.progress = self._recover(batch_id)
        is_begun = batch_id == self.progress.planned_id
        if batch_id < self.progress.planned_id or (is_begun and not self._goes_on):
            return
        earliest = self._decider.reader.earliest
        cut = parts(self._stream.sub, ends, self.progress, earliest, is_begun=is_begun, passed_over=passed_over)
        if read_part is None or any(part.is_whole for part in cut):
            batch = self._batch(batch_id + self.progress.ahead, ends, versions, planned_at_ms)
            self._decide(batch, self.progress, collect, executors)
            return
        for part in cut:
            self._decide_part(part, batch_id, planned_at_ms, versions if part.is_first else {}, read_part)

    def _decide_part(
        self,
        part: Part,
        batch_id: int,
        planned_at_ms: int | None,
        versions: Mapping[str, int],
        read_part: ReadPart,
    ) -> None:
        """Have the tables say what becomes of *part* of the batch that Spark calls *batch_id*."""
        was = self.progress
        assert was is not None
        if was.planned_id == batch_id:
            was = replace(was, ahead=was.ahead + 1)
        log.warning("batch %s is carried out in parts: this one reads %s", batch_id, dict(part.ranges))
        batch = self._batch(batch_id + was.ahead, part.ends, versions, planned_at_ms)
        self._decide(replace(batch, is_last=part.is_last), was, *read_part(part))

    def _batch(self, batch_id: int, ends: Ends, versions: Mapping[str, int], planned_at_ms: int | None) -> Batch:
        assert self.progress is not None
        now_ms = self._clock()
        return Batch(
            batch_id=batch_id,
            epoch=self._epoch,
            decided_at_ms=self.progress.decided_at(now_ms if planned_at_ms is None else planned_at_ms),
            started_at_ms=now_ms,
            read_at_ms=now_ms,
            ends=dict(ends),
            versions=dict(versions),
        )

    def _decide(self, batch: Batch, was: StreamProgress, collect: Collect, executors: Executors | None) -> None:
        """Decide *batch* after the progress that *was*, write that down and carry it out."""
        self.batch_started_at_ms = batch.started_at_ms
        was = self._requests(was, batch)
        if self._shards and executors:
            decision = self._shards.decide(executors, collect, was, batch)
        else:
            decision = self._collected(batch, collect, was)
        if decision is not None:
            entry = self._committing.laid_out(self._with_state(decision, was))
            states = StateRuns.of(entry.notes) or []
            self._journal.write(entry, needed_after=min(state.batch_id for state in states))
            self._committing.carry_out(entry)
            if decision.moves is not None:
                self._steps.take(decision.moves, watermark_ms=decision.progress.watermark_ms)
                self._state.taken(self._steps.memory, batch.batch_id)
            if self._runs != (runs := [state.runs for state in states]):
                remove_unnamed(self._stream.control, states, check_lease=self._check_lease)
                self._runs = runs
            self.progress, self._goes_on = decision.progress, not batch.is_last
            state_bytes = self._steps.memory.bytes() if decision.moves is not None else decision.state_bytes
            self.load = {**self.load, "records_waiting": _waiting(entry), "state_bytes": state_bytes}
        self.load = {**self.load, "last_batch_ms": self._clock() - batch.started_at_ms}
        self.batch_started_at_ms = None

    def _collected(self, batch: Batch, collect: Collect, was: StreamProgress) -> Decision | None:
        """What becomes of *batch* when its rows come here."""
        if not self._is_loaded:
            self._load(was)
            self._is_loaded = True
        raw = collect()
        batch = replace(batch, read_at_ms=self._clock())
        try:
            return self._decider.decide(raw, batch, was)
        except Exception as error:
            blame(error, raw, lambda rows: self._decider.decide(rows, replace(batch, ends={}), was))
            raise

    def _load(self, was: StreamProgress) -> None:
        """Have the memory keep the state after the progress *was*."""
        newest = self._journal.newest()
        states = StateRuns.of(newest.notes) if newest else None
        if newest is not None and (states is None or len(states) > 1):
            states = remembered(self._stream, newest) or states
        load_waiting(self._steps, self._stream.sub, self._stream.home, was)
        if newest is None:
            return
        if states is not None and len(states) == 1:
            self._state.load(self._steps.memory, states[0], was.batch_id)
        else:
            load_whole(self._steps, self._stream, self._journal, newest, was)

    def _with_state(self, decision: Decision, was: StreamProgress) -> Entry:
        """The entry of *decision* with what it says of the state in memory; states in shards are in it already."""
        entry, moves = decision.entry, decision.moves
        if moves is None:
            return entry
        moved = self._state.noted(self._steps.memory, was.batch_id, entry.batch_id, moves)
        notes = {**entry.notes, "state": StateRuns.notes([self._state.runs])}
        return replace(entry, tables={**entry.tables, **moved}, notes=notes)

    def _recover(self, batch_id: int) -> StreamProgress:
        """The progress made before *batch_id*, or with it where the journal has it: then it is carried out first."""
        newest = self._journal.newest()
        if newest is None:
            return StreamProgress()
        progress = StreamProgress.from_json(newest.notes["progress"])
        if progress.planned_id > batch_id:
            msg = (
                f"{self._stream.home}: the checkpoint goes on with batch {batch_id}, but batch {progress.planned_id} "
                "was decided before; the checkpoint was rolled back or replaced: restore it, or give the stream a new "
                "name"
            )
            raise Contradiction(msg)
        if progress.planned_id == batch_id:
            self._committing.carry_out(newest, recovers=True)
        self._goes_on = not newest.notes["batch"].get("is_last", True)
        return progress


def _waiting(entry: Entry) -> int | None:
    """Count the records that the batch of *entry* left unread or held; None if the unread ones are not known."""
    sources, operators = entry.notes["sources"], entry.notes["operators"].values()
    ends = [(part["latest_offset"], part["until_offset"]) for part in sources if part["latest_offset"] is not None]
    unread: int = sum(max(0, latest - until) for latest, until in ends)
    held: int = sum(operator["counts"].get("held_after", 0) for operator in operators)
    return unread + held if ends else None
