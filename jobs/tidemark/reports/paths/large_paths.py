"""Finds critical paths in Spark's tasks.

The reports do so where there are too many windows for one process.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.facts.large_facts import finished_windows
from tidemark.model.project.layout import Layout
from tidemark.reports.paths.path_groups import GROUP, PathGroups
from tidemark.reports.paths.window_paths import Paths, looks_back_ms
from tidemark.spark_session import in_groups


def paths_on_spark(groups: PathGroups, layout: Layout) -> Paths:
    """Returns the paths of all *groups*, by the rows in *layout*.

    A task has the rows of one group at a time. Spark is started, and left running.
    """
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
