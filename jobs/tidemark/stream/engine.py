"""One stream's batches: recover, decide, write down, carry out. The only place that knows the order of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl

from tidemark.clock import Clock
from tidemark.errors import Contradiction
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.topology import SubTopology
from tidemark.stream.batch import Batch
from tidemark.stream.commit import Committing
from tidemark.stream.decision import Decider
from tidemark.stream.journal import Journal
from tidemark.stream.load import load_memory
from tidemark.stream.sources import TICK
from tidemark.stream.steps import Steps

if TYPE_CHECKING:
    import pyarrow as pa

Collect = Callable[[Mapping[str, int]], "pa.Table"]
"""Reads the batch through Spark; is given, per source, the watermark at or behind which raw bytes are wanted."""


class Engine:
    """Runs the batches of *sub*, whose tables lie in *home*.

    Purpose: the function that `foreachBatch` calls, whole.
    How it works: a batch that is in the journal is carried out again; one that is not is decided, written down and
    carried out; only then does what is kept in memory move. The first call rebuilds that from the tables.
    `batch_started_at_ms` is the clock at which the batch that runs now began; None between batches.
    Known limitation: between a record's arrival in a Kafka sink and the end of the batch a crash sends it twice.
    """

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        steps: Steps,
        decider: Decider,
        journal: Journal,
        committing: Committing,
        clock: Clock,
        *,
        epoch: int,
    ) -> None:
        self._sub, self._home, self._steps, self._decider = sub, home, steps, decider
        self._journal, self._committing, self._clock, self._epoch = journal, committing, clock, epoch
        self.progress: StreamProgress | None = None
        self.batch_started_at_ms: int | None = None

    def process(
        self, batch_id: int, collect: Collect, ends: Mapping[str, Mapping[int, int]] = MappingProxyType({})
    ) -> None:
        """Have the tables say what becomes of batch *batch_id*, whose rows *collect* reads up to *ends*."""
        if self.progress is None:
            self.progress = self._recover(batch_id)
        if batch_id <= self.progress.batch_id:
            return
        started_at_ms = self.batch_started_at_ms = self._clock()
        raw = pl.DataFrame(collect(self._decider.late_up_to_ms(self.progress)))
        batch = Batch(
            batch_id=batch_id,
            epoch=self._epoch,
            decided_at_ms=self._decision_time(raw, started_at_ms),
            started_at_ms=started_at_ms,
            read_at_ms=self._clock(),
            ends=dict(ends),
        )
        decision = self._decider.decide(raw, batch, self.progress)
        if decision is not None:
            self._journal.write(decision.entry)
            self._committing.carry_out(decision.entry)
            self._steps.take(decision.moves, watermark_ms=decision.progress.watermark_ms)
            self.progress = decision.progress
        self.batch_started_at_ms = None

    def _decision_time(self, raw: pl.DataFrame, started_at_ms: int) -> int:
        """The newest tick of the batch; without one that of the batch before, and never earlier than that."""
        newest = raw.filter(pl.col("source") == TICK)["timestamp_ms"].max()
        was = self.progress.decided_at_ms if self.progress else None
        if not isinstance(newest, int):
            return started_at_ms if was is None else was
        return max(newest, was or 0)

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
            self._committing.carry_out(newest)
        progress = StreamProgress.from_json(newest.notes["progress"]) if newest else StreamProgress()
        load_memory(self._steps, self._sub, self._home, progress)
        return progress
