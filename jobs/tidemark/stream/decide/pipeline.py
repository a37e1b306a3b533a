"""Runs the operators of one sub-topology over one batch, in order, and measures the time of each.

Operators work on frames in memory. Nothing is written here: the result goes into the journal first. Clocks are epoch ms
UTC.
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
    """Runs the operators of a sub-topology.

    Args:
        sub: the sub-topology.
        steps: run the operators.
        clock: epoch ms, read before and after each operator.
        timeline: records which operator works.
        slow_ms: by operator, how long it sleeps in each batch, after it has its result. This is for tests of which
            operator the reports blame.
        sleep_ms: sleeps.
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
        """Runs all operators and returns their results, by name and in order.

        Args:
            arrived: the results of the sources.
            moves: collects the changes of states.
            moment: the times of the batch.
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
            # These changes are journalled with this batch, unless it sends on another update of the key.
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
