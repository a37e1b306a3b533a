"""Decides a batch whose operators run in shards: Spark's tasks work on it, and the driver sums up what they tell.

Records never come here. The journal entry that this makes is carried out and repeated like any other; files of a batch
that was never decided belong to no table, and VACUUM takes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Protocol

import polars as pl
import pyarrow as pa

from tidemark.clock import Clock
from tidemark.delta import Reference
from tidemark.disk import UntilWritten, trouble_of
from tidemark.files import Rows, files_of
from tidemark.kernels.schemas import arrow_schema
from tidemark.place import remove_folder
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.operators import HopSource, Join
from tidemark.spec.stream import Stream
from tidemark.spec.tables import HOP
from tidemark.stream.batch import Batch
from tidemark.stream.broker import Answers
from tidemark.stream.decision import Decider, Decision, Tally
from tidemark.stream.distributed.answers import Answered
from tidemark.stream.distributed.resharding import remembered, reshard
from tidemark.stream.distributed.sharding import NotSharded, sharding
from tidemark.stream.distributed.tasks import ROWS, SEQ_BITS, Dealt, TakingIn, Task, Working
from tidemark.stream.distributed.totals import TakenIn, Worked, joined, summed, together
from tidemark.stream.distributed.versions import Versions
from tidemark.stream.journal import Journal
from tidemark.stream.load import load_waiting
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps
from tidemark.stream.table_marks import NewestMarks

log = logging.getLogger("tidemark.stream")

Collect = Callable[[], pl.DataFrame]
"""Reads the batch into the driver, and parses it."""


class Executors(Protocol):
    """Whoever runs tasks over the rows of one batch, and sends back what they return, in the order of shards."""

    def run(self, taking_in: TakingIn, working: Working) -> list[Worked]:
        """Run *taking_in* on the rows of each partition of each source, then *working* on what it deals to a shard."""

    def work(self, working: Working, dealt: Iterable[Dealt]) -> list[Worked]:
        """Run *working* on what was *dealt* to each shard."""


@dataclass(frozen=True)
class ReadByDriver:
    """The *executors*, but for reading: the driver does that."""

    executors: Executors

    def run(self, taking_in: TakingIn, working: Working) -> list[Worked]:
        """Leave it to the driver to take in the batch."""
        return [Worked(shard=0, is_doubtful=True)]

    def work(self, working: Working, dealt: Iterable[Dealt]) -> list[Worked]:
        """Run *working* on what was *dealt* to each shard."""
        return self.executors.work(working, dealt)


class Shards:
    """Decides the batches of *stream*, whose operators run in shards.

    *until_written* has all of it done again where a disk took no file; then what was written is removed, unless
    *check_lease* raises: a newer driver may have written files of the same batch.
    """

    def __init__(
        self,
        stream: Stream,
        decider: Decider,
        steps: Steps,
        journal: Journal,
        broker: Answers,
        table_marks: NewestMarks,
        clock: Clock,
        *,
        slow_ms: Mapping[str, int],
        reached: Callable[[str], None],
        check_lease: Callable[[], None],
        until_written: UntilWritten,
    ) -> None:
        self._check_lease, self._until_written = check_lease, until_written
        self._stream, self._journal = stream, journal
        self._broker, self._table_marks = broker, table_marks
        self._decider, self._clock = decider, clock
        self._slow_ms, self._reached = slow_ms, reached
        self._states: list[StateRuns] | None = None
        self._versions = Versions.here()
        self._sharding = sharding(stream.topology, stream.sub, steps)
        self._hops = {o.name: steps.hop_columns(o) for o in stream.sub.operators if isinstance(o, HopSource)}

    def decide(self, executors: Executors, collect: Collect, was: StreamProgress, batch: Batch) -> Decision | None:
        """What becomes of *batch*, of which nothing has been read yet; None when it changes nothing."""
        self._forget(batch.epoch)
        if self._states is None:
            self._refuse_if_records_wait(was)
            self._states = self._states_after_newest()
        task = Task(
            stream=self._stream,
            batch=batch,
            was=was,
            sharding=self._sharding,
            answers=Answered.about(self._stream.sub, was, batch, self._broker, self._table_marks),
            versions=self._versions,
        )
        decision = self._until_written(lambda: self._tried(executors, collect, task))
        if decision is not None:
            self._states = StateRuns.of(decision.entry.notes)
        return decision

    def _refuse_if_records_wait(self, was: StreamProgress) -> None:
        """Raise NotSharded where a driver with `max_drift` left records that wait: no shard would send them on."""
        steps = Steps(self._stream.topology, Reference(self._stream.layout.warehouse))
        load_waiting(steps, self._stream.sub, self._stream.home, was)
        for source, rows in steps.memory.waiting.items():
            if rows.height:
                wait = "1 record waits" if rows.height == 1 else f"{rows.height} records wait"
                msg = (
                    f"{self._stream.sub.name}: of {source} {wait} for what max_drift was to align; start it once "
                    "with shards = 1, whose first batch sends on what waits"
                )
                raise NotSharded(msg)

    def _forget(self, epoch: int) -> None:
        """Remove the rows of earlier batches, which are done once another one is to be decided.

        Those of drivers newer than *epoch* stay: one that has lost its lease and does not know takes nothing away.
        """
        for folder in (self._stream.control / ROWS).glob("*"):
            if int(folder.name) <= epoch:
                remove_folder(folder)

    def _tried(self, executors: Executors, collect: Collect, task: Task) -> Decision | None:
        """What becomes of the batch of *task*; where the disk takes no file, none is left of it."""
        try:
            return self._decided(executors, collect, task)
        except Exception as error:
            if trouble_of(error) is not None:
                written = files_of(self._stream.home, task.batch.batch_id)
                self._check_lease()  # after the files were seen: a driver that comes later has not written any of them
                for file in written:
                    file.unlink(missing_ok=True)
                remove_folder(task.folder)
            raise

    def _decided(self, executors: Executors, collect: Collect, task: Task) -> Decision | None:
        began_ms, was, batch = self._clock(), task.was, task.batch
        working = self._working(task)
        worked = executors.run(
            TakingIn(**vars(task), late_up_to_ms=self._decider.late_up_to_ms(was), hops=self._hops), working
        )
        taken_in = worked[0].taken_in
        if taken_in is None or any(shard.is_doubtful for shard in worked):
            log.warning("a topic may have lost records, or one is passed over: the driver takes in this batch")
            taken_in, dealt = self._taken_in(collect, task)
            worked = executors.work(replace(working, taken_in=taken_in), dealt)
        ended_ms = self._clock()
        self._reached("worked on")
        if not any(shard.is_news for shard in worked):
            return None
        batch = replace(batch, read_at_ms=ended_ms)
        tallies = {name: _within(tally, began_ms, ended_ms) for name, tally in taken_in.tallies.items()}
        of_operators = {name: [s.tallies[name] for s in worked if name in s.tallies] for name in self._operators}
        tallies |= {name: summed(parts, began_ms, ended_ms) for name, parts in of_operators.items() if parts}
        tables: dict[str, Rows] = together((taken_in.tables, *(shard.tables for shard in worked)), task.lay_out)
        hops = self._decider.for_tables.hops
        tables |= {name: arrow_schema(HOP).empty_table() for name in hops if name not in tables}
        last = dict.fromkeys(hops, self._stream.shards << SEQ_BITS)

        def join(name: str, rows: Rows, mark: pa.Table) -> Rows:
            return joined([rows, mark], partial(task.lay_out, name))

        entry, now = self._decider.concluded(batch, was, taken_in.now, taken_in.seen, tallies, tables, last, join)
        moved = {name: rows for shard in worked for name, rows in shard.moved.items()}
        task_runs = [
            asdict(run) for run in (*taken_in.task_runs, *(run for shard in worked for run in shard.task_runs))
        ]
        states = StateRuns.notes([shard.state for shard in worked])
        notes = {**entry.notes, "state": states, "tasks": task_runs}
        state_bytes = sum(shard.state_bytes for shard in worked)
        return Decision(replace(entry, tables={**entry.tables, **moved}, notes=notes), now, None, state_bytes)

    def _working(self, task: Task) -> Working:
        stream = self._stream
        reference = Reference(stream.layout.warehouse)
        joined_tables = [o.delta for o in stream.sub.operators if isinstance(o, Join) and o.delta]
        return Working(
            **vars(task),
            states=tuple(self._states or ()),
            references={place: reference.version(place) for place in joined_tables},
            slow_ms=self._slow_ms,
        )

    def _taken_in(self, collect: Collect, task: Task) -> tuple[TakenIn, list[Dealt]]:
        """What the sources take in when the driver reads the batch, and what of it is dealt out."""
        intakes = self._decider.taken_in(collect(), task.batch, task.was)
        taken_in = TakenIn(
            now=self._decider.with_intakes(task.was, intakes, task.batch),
            seen={name: intake.seen for name, intake in intakes.items()},
            tallies={name: Tally.of(of.run, window_ms=self._decider.window_ms) for name, of in intakes.items()},
            tables=task.laid_out(task.tables({name: intake.run for name, intake in intakes.items()})),
        )
        return taken_in, [dealt for name, intake in intakes.items() for dealt in task.dealt(name, 0, intake.run.output)]

    @property
    def _operators(self) -> list[str]:
        """Those that are no sources."""
        sub = self._stream.sub
        return [operator.name for operator in sub.operators if operator not in sub.sources]

    def _states_after_newest(self) -> list[StateRuns]:
        """The state of each shard after the newest entry; made anew where there were more or fewer shards."""
        newest = self._journal.newest()
        if newest is None:
            return [StateRuns()] * self._stream.shards
        found = StateRuns.of(newest.notes)
        if found is not None and len(found) == self._stream.shards:
            return found
        if (made := remembered(self._stream, newest)) is not None:
            return made
        log.info("the state is dealt out to %d shards; `tidemark reshard` does it before a start", self._stream.shards)
        return reshard(self._stream, self._journal, newest, self._sharding, self._state, log.info)

    def _state(self, number: int) -> StateFiles:
        return StateFiles(
            self._stream,
            self._journal,
            number,
            self._stream.shards,
            check_lease=self._check_lease,
            until_written=self._until_written,
        )


def _within(tally: Tally, began_ms: int, ended_ms: int) -> Tally:
    """*tally* with its end as far as the driver's clock before and after it allows."""
    return replace(tally, finished_at_ms=min(max(tally.finished_at_ms, began_ms), ended_ms))
