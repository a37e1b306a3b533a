"""Columns of records that are bounds of windows.

They also name the windows of which the records are results. The engine and SQL have bounds in epoch ms; sinks write
them as timestamps, with a mark for final rows. Each kind of operator derives its columns from its inputs:
`Operator.window_columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.model.settings.sql_columns import column_in
from tidemark.model.settings.windows import Shape, Windows
from tidemark.selection import pick
from tidemark.semantics.strategy import Strategy

START, END = "window_start", "window_end"


@dataclass(frozen=True)
class ResultWindows:
    """The windows of an aggregate, and its strategy.

    Its records are one per result.
    """

    windows: Windows
    strategy: Strategy


@dataclass(frozen=True)
class WindowColumns:
    """Bounds of windows, START or END, by column.

    `results` are the results that the records are; None: not one record per result.
    """

    bounds: Mapping[str, str] = field(default_factory=dict)
    results: ResultWindows | None = None


@dataclass(frozen=True, kw_only=True)
class SinkWindow:
    """Windows of a sink's rows, and how their end is known.

    `column` is `before_ms` before the end of a window, or None where no column has it. With `is_closed` its rows are
    results of closed windows only.
    """

    windows: Windows
    is_closed: bool
    column: str | None
    before_ms: int = 0

    def closed_up_to_ms(self, watermark_ms: int | None) -> int | None:
        """Returns the latest value of `column` of a window closed at *watermark_ms*.

        None: no window is, or it is not known.
        """
        if watermark_ms is None or self.column is None:
            return None
        return self.windows.closed_up_to_ms(watermark_ms) - self.before_ms


def sink_window(columns: WindowColumns) -> SinkWindow | None:
    """Returns a sink's windows from the *columns* it reads.

    None if its rows are not the results of one aggregate.
    """
    if columns.results is None:
        return None
    named = {kind: column for column, kind in columns.bounds.items()}
    windows, is_closed = columns.results.windows, columns.results.strategy is Strategy.ON_WINDOW_CLOSE
    column, before_ms = named.get(END), 0
    # Sessions, and days of a local clock, have different lengths: their end does not follow from their start.
    if column is None and windows.shape is not Shape.SESSION and windows.timezone is None:
        column, before_ms = named.get(START), windows.size_ms
    return SinkWindow(windows=windows, is_closed=is_closed, column=column, before_ms=before_ms)


def selected_bounds(select: Mapping[str, str], bounds: Mapping[str, str]) -> dict[str, str]:
    """Returns the bounds among the results of *select*, SQL by column.

    *select* reads *bounds*.
    """
    return {column: bounds[column_in(sql)] for column, sql in select.items() if column_in(sql) in bounds}


def bounds_among(columns: Collection[str], bounds: Mapping[str, str]) -> dict[str, str]:
    """Returns those of *bounds* that are among *columns*."""
    return pick(bounds, columns)


def common(read: Sequence[WindowColumns]) -> WindowColumns:
    """Returns the columns that all of *read* share."""
    first, *others = read
    bounds = dict(first.bounds)
    for other in others:
        bounds = {column: kind for column, kind in bounds.items() if other.bounds.get(column) == kind}
    has_one_result = all(other.results == first.results for other in others)
    return WindowColumns(bounds, first.results if has_one_result else None)
