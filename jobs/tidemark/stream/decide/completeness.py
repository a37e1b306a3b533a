"""Decides which intervals of tables a batch completes: no more results are expected for a complete interval.

The rule is in `semantics.completeness`. This module knows the paths into a table, and makes the rows of `completeness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemark.model.kinds.operator import Operator
from tidemark.model.topology import SubTopology, Topology
from tidemark.selection import omit
from tidemark.semantics.completeness import Completion, IntervalCount, Intervals, complete, passed_ms, path_time
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.strategy import Strategy
from tidemark.stream.journal.batch import MicroBatch

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TablePaths:
    """A table whose intervals can be complete, and the paths into it.

    Attributes:
        operator: the operator that writes the table.
        intervals: the intervals of the table.
        allowed_lateness_ms: the longest allowed lateness of the operators on the paths; 0 if none closes anything.
        holding: those operators of this sub-topology on the paths that send results only periodically. They may still
            hold results of an interval that the watermark has passed.
    """

    operator: str
    intervals: Intervals
    allowed_lateness_ms: int
    holding: tuple[str, ...]


class Completeness:
    """Decides which intervals of the tables of *sub* are complete."""

    def __init__(self, topology: Topology, sub: SubTopology) -> None:
        self._topology, self._sub = topology, sub
        names = {operator.name for operator in sub.operators}
        self._tables: list[TablePaths] = []
        for operator in sub.operators:
            if operator.complete:
                path = topology.path_into(operator.name)
                holding = tuple(o.name for o in path if o.name in names and _is_periodic(o))
                late_ms = topology.allowed_lateness_ms(operator.name)
                self._tables.append(TablePaths(operator.name, operator.complete, late_ms, holding))
        self.intervals = {table.operator: table.intervals for table in self._tables}

    def decided(
        self,
        batch: MicroBatch,
        was: StreamProgress,
        now: StreamProgress,
        counts: Mapping[str, Mapping[int, IntervalCount]],
        held: Mapping[str, int],
    ) -> tuple[StreamProgress, Rows]:
        """Returns *now* with the state of intervals, and rows of `completeness`.

        Args:
            batch: the batch.
            was: progress before it.
            now: progress with what the batch read.
            counts: by operator, the records of the batch by start of an interval.
            held: by operator, the results that wait for a later batch.
        """
        tables, rows = {}, Rows()
        for table in self._tables:
            leading = self._sub.table_inputs()
            time = path_time(
                omit(was.inputs, leading),
                omit(now.inputs, leading),
                now.watermark_ms,
                allowed_lateness_ms=table.allowed_lateness_ms,
                held_by=was.held_by,
                since_ms=batch.decided_at_ms - (was.decided_at_ms or batch.decided_at_ms),
                blocked_by=next((name for name in table.holding if held.get(name)), None),
            )
            before = was.complete.get(table.operator)
            tables[table.operator], done = complete(table.intervals, before, counts.get(table.operator, {}), time)
            for completion in done:
                cause = self._cause(table, completion, was, now)
                rows.append(self._row(table, completion, batch, now) | {"cause": cause})
        return replace(now, complete=tables), rows

    def _row(self, table: TablePaths, done: Completion, batch: MicroBatch, now: StreamProgress) -> dict[str, Any]:
        source, _, partition = (done.waited_for or "").partition("/")
        return {
            "operator": table.operator,
            "table": self._topology.operators[table.operator].table_name,
            "interval_start": done.start_ms,
            "interval_end": done.end_ms,
            "watermark": now.watermark_ms,
            "records": done.records,
            "emitted": done.emitted,
            "waited_for": source or None,
            "waited_for_partition": int(partition) if partition else None,
            "waited_ms": done.waited_ms,
            "by_idleness": done.by_idleness,
            "reopened_at": batch.decided_at_ms if done.is_reopened else None,
            "cause_partition": done.first[0] if done.first else None,
            "cause_offset": done.first[1] if done.first else None,
        }

    def _cause(self, table: TablePaths, done: Completion, was: StreamProgress, now: StreamProgress) -> str | None:
        """Returns why an interval got results after it had been complete, or None if it did not."""
        if not done.is_reopened:
            return None
        if now.batch_id in was.reopened.values():
            return "requeued"
        reached_ms = passed_ms(now.watermark_ms, allowed_lateness_ms=table.allowed_lateness_ms)
        return "late_record" if reached_ms is not None and done.end_ms <= reached_ms else "time_reset"


def _is_periodic(operator: Operator) -> bool:
    return operator.emission is not None and operator.emission.strategy is Strategy.PERIODIC
