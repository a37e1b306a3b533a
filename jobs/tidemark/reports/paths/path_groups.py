"""Finds critical paths for groups of windows, in this process or in tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, Interval
from tidemark.model.tables.catalog import OPERATOR_WINDOWS
from tidemark.model.topology import Topology
from tidemark.reports.paths.window_paths import DriverFacts, Paths, looks_back_ms, together, window_paths
from tidemark.reports.promises import Promises

GROUP = "group"


@dataclass(frozen=True)
class PathGroups:
    """Divides the windows of `topology` that end in `interval` into groups, and finds the paths of each group.

    A group is an hour long, or as long as averages look back, if that is longer. So each row is needed for its own
    group, and at most for the next one. This process and Spark's tasks use the same groups, so they give equal rows.
    """

    topology: Topology
    promises: Promises
    interval: Interval
    drivers: DriverFacts

    def paths(self, operator_windows: pl.DataFrame) -> Paths:
        """Finds the paths of *operator_windows* in this process."""
        end_ms = pl.col("window_end").dt.epoch("ms")
        numbers = operator_windows.select((end_ms - self.interval.start_ms) // self.group_ms).to_series().unique()
        # Numbers below 0 are of windows before the interval, which only averages need.
        paths_of_groups: list[Paths] = []
        for number in sorted(number for number in numbers if number >= 0):
            needed = self.averaged(self._interval(number))
            rows = operator_windows.filter(end_ms.is_between(needed.start_ms, needed.end_ms, closed="left"))
            paths_of_groups.append(self.of_group(rows.with_columns(pl.lit(number).alias(GROUP))))
        return self.together(paths_of_groups)

    def of_group(self, rows: pl.DataFrame) -> Paths:
        """Finds the paths of the windows of one group.

        *rows* are about its windows, and about the windows before them that their averages need.
        """
        windows = pl.DataFrame(rows_of(OPERATOR_WINDOWS, rows.drop(GROUP)))
        return window_paths(windows, self.topology, self.promises, self._interval(rows[GROUP][0]), self.drivers)

    def together(self, groups: Iterable[Paths]) -> Paths:
        """Returns the paths of all *groups* together; tables without rows if there are none."""
        # Without groups the tables need their columns.
        none = pl.DataFrame(rows_of(OPERATOR_WINDOWS, []))
        return together([window_paths(none, self.topology, self.promises, self.interval, self.drivers), *groups])

    @property
    def group_ms(self) -> int:
        """The length of a group, ms."""
        return max(Grain.HOUR.length_ms, looks_back_ms(self.topology))

    def _interval(self, number: int) -> Interval:
        # The last group may be shorter.
        start_ms = self.interval.start_ms + number * self.group_ms
        return Interval(start_ms, min(start_ms + self.group_ms, self.interval.end_ms))

    def averaged(self, interval: Interval) -> Interval:
        """Returns the interval in which the windows end that are needed for the paths of *interval*, with averages."""
        return Interval(interval.start_ms - looks_back_ms(self.topology), interval.end_ms)


def paths_on_spark(groups: PathGroups, layout: Layout) -> Paths:
    """Returns the paths of all *groups* from the tables in *layout*.

    A task has the rows of one group at a time. Spark is started, and left running.
    """
    # Most reports need no Spark.
    from pyspark.sql import Column
    from pyspark.sql import functions as F

    from tidemark.facts.large_facts import finished_windows
    from tidemark.spark_session import in_groups

    interval = groups.interval
    # Before the first column: functions of Spark need a session.
    finished = finished_windows(layout, groups.topology.name, groups.averaged(interval))
    end_ms = F.unix_millis("window_end")

    def number(at_ms: Column) -> Column:
        return F.floor((at_ms - interval.start_ms) / groups.group_ms)

    first, last = number(end_ms), number(end_ms + looks_back_ms(groups.topology))
    # A row is needed by the group of its window, and by later ones whose averages look back to it.
    needed_by = F.sequence(F.greatest(first, F.lit(0)), F.least(last, number(F.lit(interval.end_ms - 1))))
    rows = finished.withColumn(GROUP, F.explode(needed_by))
    return groups.together(in_groups(rows, [F.col(GROUP)], groups.of_group))
