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
    """The windows of an aggregate whose results are records of their own, and its emission strategy."""

    windows: Windows
    strategy: Strategy


@dataclass(frozen=True)
class WindowColumns:
    """Which columns of an operator's records are bounds of windows.

    `bounds` has START or END by column. `results` has the windows of which the records are results; None if a record is
    not one result of one aggregate.
    """

    bounds: Mapping[str, str] = field(default_factory=dict)
    results: ResultWindows | None = None


@dataclass(frozen=True, kw_only=True)
class SinkWindow:
    """The windows whose results a sink's rows are, and how the end of a row's window is known.

    `column` is the column that tells it: it is `before_ms` before the end. None if no column tells it. With `is_closed`
    all rows are results of closed windows.
    """

    windows: Windows
    is_closed: bool
    column: str | None
    before_ms: int = 0

    def closed_up_to_ms(self, watermark_ms: int | None) -> int | None:
        """Returns the latest value that `column` has for a window that is closed at *watermark_ms*.

        None if no window is closed, or if no column tells the end of windows.
        """
        if watermark_ms is None or self.column is None:
            return None
        return self.windows.closed_up_to_ms(watermark_ms) - self.before_ms


def sink_window(columns: WindowColumns) -> SinkWindow | None:
    """Returns the windows of a sink that reads records with *columns*.

    None if these records are not the results of one aggregate.
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
    """Returns which columns of *select*, SQL by column, are bounds: those that only rename one of *bounds*."""
    return {column: bounds[column_in(sql)] for column, sql in select.items() if column_in(sql) in bounds}


def bounds_among(columns: Collection[str], bounds: Mapping[str, str]) -> dict[str, str]:
    """Returns those of *bounds* that are among *columns*."""
    return pick(bounds, columns)


def common(read: Sequence[WindowColumns]) -> WindowColumns:
    """Returns the bounds that all of *read* have in the same column, and the windows if all are results of the same."""
    first, *others = read
    bounds = dict(first.bounds)
    for other in others:
        bounds = {column: kind for column, kind in bounds.items() if other.bounds.get(column) == kind}
    has_one_result = all(other.results == first.results for other in others)
    return WindowColumns(bounds, first.results if has_one_result else None)
