"""Rolls up the latencies of a topology by minute, hour and day.

Intervals are those of the finish clock. It rolls up all facts that no rollup has read yet. With --from and --to it also
rolls up every hour that overlaps [--from, --to), even if that was done before. A second run writes the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from operator import or_
from pathlib import Path

import polars as pl

import tidemark.arrow  # noqa: F401 - first, before others import pandas
from tidemark.errors import InvalidArgument
from tidemark.facts.latency_facts import SPARK_ABOVE, LatencyFacts, facts_of
from tidemark.facts.report_rows import lies_in, rows_in
from tidemark.kernels.reports.rollups import (
    NO_OUTLINE,
    NO_TASKS,
    Outline,
    by_grain,
    in_scopes,
    latencies,
    rows_to_keep,
    shrunk_minutes,
    starts_in,
)
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval, is_text, iso, join_intervals
from tidemark.model.tables.catalog import LATENCY_ROLLUP
from tidemark.reports.batch_job import interval_parser, load_usable_slas, parse, report_lock
from tidemark.reports.outline import outline
from tidemark.storage.delta.report_tables import open_report, replace_in
from tidemark.storage.delta.tables import again_after_others

log = logging.getLogger("tidemark.rollup")


def main() -> None:
    """Runs the rollup that the command line asks for."""
    parser = interval_parser(__doc__, required=False)
    spark_above = "rows of facts of an hour above which Spark counts them (default: %(default)s)"
    parser.add_argument("--spark-above", type=int, default=SPARK_ABOVE, metavar="ROWS", help=spark_above)
    arguments = parse(parser)
    if (arguments.start_ms is None) != (arguments.end_ms is None):
        parser.error("an interval has two ends; give both --from and --to, or neither")
    interval = Interval(arguments.start_ms, arguments.end_ms) if arguments.start_ms is not None else None
    layout, topology = arguments.warehouse, arguments.topology
    paths_and_promises = outline(topology, load_usable_slas(topology))
    with report_lock(layout, topology.name):
        run(layout, topology.name, interval, paths_and_promises, spark_above=arguments.spark_above)


def run(
    layout: Layout,
    topology: str,
    interval: Interval | None = None,
    topology_outline: Outline = NO_OUTLINE,
    *,
    spark_above: int = SPARK_ABOVE,
) -> None:
    """Rolls up all new facts, and the hours that *interval* touches.

    If another rollup commits meanwhile, the hour is rolled up again, from what the other one has stored. A minute whose
    facts are gone keeps its stored row.

    Args:
        layout: the warehouse.
        topology: the topology's name.
        interval: hours to roll up again, finish clock, or None for the new facts alone.
        topology_outline: the topology's paths and their SLAs.
        spark_above: rows of facts of an hour in a sub-topology above which Spark counts them.

    Raises:
        InvalidArgument: *interval* touches minutes whose facts are gone.
    """
    job = _Job(layout, topology, topology_outline, spark_above)
    rollup, facts = open_report(LATENCY_ROLLUP, job.path), facts_of(layout, topology)
    whole_hours = interval.widened(Grain.HOUR) if interval else None
    minutes_ms: set[int] = set()
    for part in facts:
        minutes_ms.update(part.new_minutes(rollup))
    minutes_ms |= set(range(whole_hours.start_ms, whole_hours.end_ms, Grain.MINUTE.length_ms)) if whole_hours else set()
    hours = [list(of_hour) for _, of_hour in groupby(sorted(minutes_ms), lambda ms: ms // Grain.HOUR.length_ms)]
    for of_hour in hours:
        # Only the commit of the last hour marks the facts as read: a run that dies before it is repeated whole.
        read_facts = facts if of_hour is hours[-1] else []
        again_after_others(partial(job.replace, of_hour, whole_hours, read_facts))


@dataclass(frozen=True)
class _Job:
    """Rolls up *topology* hour by hour; the rows of an hour are in memory together, and one commit replaces them."""

    layout: Layout
    topology: str
    outline: Outline
    spark_above: int

    @property
    def path(self) -> Path:
        return self.layout.report_table(self.topology, LATENCY_ROLLUP.name)

    def replace(
        self, minutes_ms: Sequence[int], requested: Interval | None, read_facts: Sequence[LatencyFacts]
    ) -> None:
        """Rolls up the minutes *minutes_ms* (epoch ms) of one hour.

        The commit marks all of *read_facts* as read. Raises InvalidArgument if minutes whose facts are gone are
        *requested* for.
        """
        # Opened before the facts are read, so that no rows that it replaces were made from newer facts.
        rollup = open_report(LATENCY_ROLLUP, self.path)
        facts = facts_of(self.layout, self.topology)
        hour = Interval(minutes_ms[0], minutes_ms[0] + 1).widened(Grain.HOUR)
        minutes = join_intervals(minutes_ms, Grain.MINUTE)
        tasks = pl.concat([NO_TASKS, *(part.by_minute(minutes, self.spark_above) for part in facts)])
        stored = rows_in(rollup, _day_condition(hour))
        if gone := shrunk_minutes(stored.filter(starts_in(minutes)), tasks):
            _refuse_or_warn(gone, requested, facts)
            minutes = join_intervals(set(minutes_ms) - set(gone), Grain.MINUTE)
        new = in_scopes(tasks.filter(starts_in(minutes)), self.outline.paths)
        rows = latencies(by_grain(new, rows_to_keep(stored, hour, minutes)), self.outline)
        # The marks are in the same commit as the rows: facts are counted once, however often a run dies.
        marks: dict[str, int] = {}
        for part in read_facts:
            marks |= part.marks(rollup, facts)
        where = _replaced_predicate(minutes, hour)
        replace_in(rollup, rows.select(LATENCY_ROLLUP.names), LATENCY_ROLLUP, where=where, marks=marks)


def _day_condition(hour: Interval) -> pl.Expr:
    """Returns the condition of rows that a rollup of *hour* reads: the minutes of *hour*, and the hours of its day."""
    starts = {Grain.MINUTE: hour, Grain.HOUR: hour.widened(Grain.DAY)}
    grain = pl.col("grain")
    conditions = [(grain == of.value) & lies_in("interval_start", span) for of, span in starts.items()]
    return reduce(or_, conditions)


def _replaced_predicate(minutes: Sequence[Interval], hour: Interval) -> str:
    """Returns the predicate (SQL) of the rows that a rollup of *minutes* of *hour* replaces."""
    starts = {Grain.MINUTE: minutes, Grain.HOUR: [hour], Grain.DAY: [hour.widened(Grain.DAY)]}
    conditions: list[str] = []
    for grain, spans in starts.items():
        conditions += [f"({is_text('grain', grain)} and {span.holds('interval_start')})" for span in spans]
    return " or ".join(conditions)


def _refuse_or_warn(gone: Sequence[int], requested: Interval | None, facts: Sequence[LatencyFacts]) -> None:
    """Refuses minutes *gone* that are *requested* for; logs that others stay.

    Raises:
        InvalidArgument: one of the minutes is *requested* for.
    """
    oldest_batches = ", ".join(f"{part.oldest} of {part.sub_topology}" for part in facts) or "none"
    spans = ", ".join(f"[{iso(span.start_ms)}, {iso(span.end_ms)})" for span in join_intervals(gone, Grain.MINUTE))
    observation = f"{spans} have fewer facts than an earlier rollup had; oldest remaining batches: {oldest_batches}"
    if requested and any(requested.start_ms <= start_ms < requested.end_ms for start_ms in gone):
        remedy = f"choose a later --from, or delete the interval's rows from {LATENCY_ROLLUP.name} to remove them"
        msg = f"{observation}; {remedy}"
        raise InvalidArgument(msg)
    log.warning("%s; the stored rows stay, without the late facts", observation)


if __name__ == "__main__":
    main()
