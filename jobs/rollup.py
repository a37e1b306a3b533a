"""Rolls the latencies of a topology up by minute, hour and day of the finish clock: all that no rollup has had yet.

With --from and --to every hour that [--from, --to) touches is rolled up besides, whatever was done before. Running it
again puts the same rows in place of themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from operator import or_

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.delta import again_after_others
from tidemark.errors import InvalidArgument
from tidemark.kernels.rollups import (
    NO_OUTLINE,
    NO_TASKS,
    Outline,
    buckets,
    by_grain,
    in_scopes,
    kept,
    latencies,
    shrunk,
    starts_in,
)
from tidemark.report.batch_job import interval_parser, promised, writing
from tidemark.report.latency_facts import SPARK_ABOVE, Facts, facts_of
from tidemark.report.outline import outline
from tidemark.report.report_tables import lies_in, opened, replace_in, rows_in
from tidemark.spec.intervals import Grain, Interval, is_text, iso, joined
from tidemark.spec.layout import Layout
from tidemark.spec.tables import LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP, Table

log = logging.getLogger("tidemark.rollup")
ROLLUPS = (LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP)


def main() -> None:
    """Run as the command line says."""
    arguments = interval_parser(__doc__, required=False)
    spark_above = "rows of facts of an hour above which Spark counts them (%(default)s)"
    arguments.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    given = arguments.parse_args()
    if (given.start_ms is None) != (given.end_ms is None):
        arguments.error("an interval has two ends; give both --from and --to, or neither")
    interval = Interval(given.start_ms, given.end_ms) if given.start_ms is not None else None
    known = outline(given.topology, promised(given.topology))
    with writing(given.warehouse, given.topology.name):
        run(given.warehouse, given.topology.name, interval, known, spark_above=given.spark_above)


def run(
    layout: Layout,
    topology: str,
    interval: Interval | None = None,
    known: Outline = NO_OUTLINE,
    *,
    spark_above: int = SPARK_ABOVE,
) -> None:
    """Roll up what is new, and what *interval* touches; where another rollup did meanwhile, on top of that one.

    Spark counts an hour that has more rows of facts than *spark_above* in a sub-topology.
    What is stored of minutes whose facts are gone stays.

    Raises:
        InvalidArgument: *interval* touches such minutes.
    """
    job = _Job(layout, topology, known, spark_above)
    rollups, facts = job.opened(), facts_of(layout, topology)
    asked = interval.widened(Grain.HOUR) if interval else None
    minutes_ms = {minute_ms for part in facts for minute_ms in part.new_minutes(rollups.values())}
    minutes_ms |= set(range(asked.start_ms, asked.end_ms, Grain.MINUTE.length_ms)) if asked else set()
    hours = [list(of_hour) for _, of_hour in groupby(sorted(minutes_ms), lambda ms: ms // Grain.HOUR.length_ms)]
    for of_hour in hours:
        taken = facts if of_hour is hours[-1] else []
        again_after_others(partial(job.replace, of_hour, asked, taken))


@dataclass(frozen=True)
class _Job:
    """Rolls up *topology*, an hour at a time: what is in memory together, and what one commit replaces."""

    layout: Layout
    topology: str
    known: Outline
    spark_above: int

    def opened(self) -> dict[Table, DeltaTable]:
        """The rollups as they are now."""
        return {table: opened(table, self.layout.report_table(self.topology, table.name)) for table in ROLLUPS}

    def replace(self, minutes_ms: Sequence[int], asked: Interval | None, taken: Sequence[Facts]) -> None:
        """Roll up the minutes *minutes_ms* of one hour; that done, the rollups have had all facts that are *taken*."""
        rollups = self.opened()  # before the facts: then no rollup that it replaces was made from newer ones
        facts = facts_of(self.layout, self.topology)
        hour = Interval(minutes_ms[0], minutes_ms[0] + 1).widened(Grain.HOUR)
        minutes = joined(minutes_ms, Grain.MINUTE)
        tasks = pl.concat([NO_TASKS, *(part.by_minute(minutes, self.spark_above) for part in facts)])
        stored = pl.concat([rows_in(rollup, _of_day(hour)) for rollup in rollups.values()], how="diagonal")
        if gone := shrunk(stored.filter(starts_in(minutes)), tasks):
            _tell(gone, asked, facts)
            minutes = joined(set(minutes_ms) - set(gone), Grain.MINUTE)
        new = in_scopes(tasks.filter(starts_in(minutes)), self.known.paths)
        measured = by_grain(new, kept(stored, hour, minutes))
        rows = {LATENCY_BUCKET_ROLLUP: buckets(measured), LATENCY_ROLLUP: latencies(measured, self.known)}
        for table, rollup in rollups.items():
            marks = {app: version for part in taken for app, version in part.marks(rollup, facts).items()}
            replace_in(rollup, rows[table].select(table.names), table, where=_replaced(minutes, hour), marks=marks)


def _of_day(hour: Interval) -> pc.Expression:
    """The row is one of a minute of *hour*, or of an hour of its day."""
    starts = {Grain.MINUTE: hour, Grain.HOUR: hour.widened(Grain.DAY)}
    grain = pc.field("grain")
    return reduce(or_, [(grain == of.value) & lies_in("interval_start", span) for of, span in starts.items()])


def _replaced(minutes: Sequence[Interval], hour: Interval) -> str:
    """A predicate: the row is one that a rollup of *minutes* of *hour* replaces."""
    starts = {Grain.MINUTE: minutes, Grain.HOUR: [hour], Grain.DAY: [hour.widened(Grain.DAY)]}
    each = [(grain, span) for grain, spans in starts.items() for span in spans]
    return " or ".join(f"({is_text('grain', grain)} and {span.holds('interval_start')})" for grain, span in each)


def _tell(gone: Sequence[int], asked: Interval | None, facts: Sequence[Facts]) -> None:
    """Raise InvalidArgument where the minutes *gone* are *asked* for; else log that they stay as they are stored."""
    left = ", ".join(f"{part.oldest} of {part.sub_topology}" for part in facts) or "none"
    spans = ", ".join(f"[{iso(span.start_ms)}, {iso(span.end_ms)})" for span in joined(gone, Grain.MINUTE))
    seen = f"of {spans} there are fewer facts than were rolled up before; the oldest batches that are left: {left}"
    if asked and any(asked.start_ms <= start_ms < asked.end_ms for start_ms in gone):
        tables = " and ".join(table.name for table in ROLLUPS)
        msg = f"{seen}; choose a later --from, or delete the interval's rows from {tables} if they are to go"
        raise InvalidArgument(msg)
    log.warning("%s: what is stored stays, without the facts that came late", seen)


if __name__ == "__main__":
    main()
