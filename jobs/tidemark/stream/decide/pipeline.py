"""Runs the operators of one sub-topology over one batch.

It runs them in order, on frames in memory, and times them. Nothing is written here: the result goes into the journal
first. Clocks are epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from tidemark.clock import Clock
from tidemark.model.kinds.operator import Operator
from tidemark.model.topology import SubTopology
from tidemark.semantics.segments import SegmentOwner
from tidemark.stream.journal.batch import Moment
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.operate.steps import Steps
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import Run


class Pipeline:
    """Runs the operators of *sub*, timed by *clock*; *timeline* records which one works.

    *slow_ms* makes an operator sleep once per batch, after its result: this tests which operator the reports blame.
    """

    def __init__(
        self,
        sub: SubTopology,
        steps: Steps,
        clock: Clock,
        timeline: Timeline,
        *,
        slow_ms: Mapping[str, int],
        sleep_ms: Callable[[int], None],
    ) -> None:
        self._sub, self._steps, self._clock, self._timeline = sub, steps, clock, timeline
        self._slow_ms, self._sleep_ms = slow_ms, sleep_ms

    def run(self, arrived: Mapping[str, Run], moves: Moves, moment: Moment) -> dict[str, Run]:
        """Returns every operator's run, by name and in order.

        *arrived* has the runs of the sources. *moves* collects the changes of the memory.
        """
        runs: dict[str, Run] = {}
        taken_back = self._steps.take_back(moment.refused)
        for operator in self._sub.operators:
            # Sources have run before: their records were taken in when the batch was read.
            run = arrived.get(operator.name) or self._timed(operator, runs, moves, moment)
            if operator.name in self._slow_ms:
                self._timeline.begin(SegmentOwner.OPERATOR, operator.name)
                self._sleep_ms(self._slow_ms[operator.name])
                run.finished_at_ms = self._clock()
            runs[operator.name] = run
        self._timeline.begin(SegmentOwner.ENGINE)
        for name, rows in taken_back.items():
            # They are in the journal with this batch, unless it sends on another update of the key.
            stored = pl.concat([rows, moves.stored.get(name, rows.clear())])
            moves.stored[name] = stored.unique("key", keep="last", maintain_order=True)
        return runs

    def _timed(self, operator: Operator, runs: Mapping[str, Run], moves: Moves, moment: Moment) -> Run:
        upstreams = [runs[name] for name in operator.inputs]
        self._timeline.begin(SegmentOwner.OPERATOR, operator.name)
        started_at_ms = self._clock()
        inputs = [upstream.output for upstream in upstreams]
        if operator.last_seen_at:
            # A suppressed update is an observation of its key as well.
            inputs += [upstream.asserted for upstream in upstreams]
        run = self._steps.run(operator, inputs, moves, moment)
        run.started_at_ms, run.finished_at_ms = started_at_ms, self._clock()
        # A result that was ready before its reader started had to wait for the reader's turn.
        run.queued_ms = max(0, started_at_ms - max(upstream.finished_at_ms for upstream in upstreams))
        return run
