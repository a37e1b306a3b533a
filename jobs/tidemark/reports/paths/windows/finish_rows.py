"""Reads rows of `operator_windows` as numbers, on one clock."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from tidemark.kernels.columns.clocks import on_one_clock
from tidemark.reports.paths.windows.operator_places import OperatorPlace
from tidemark.reports.paths.windows.window_group import OperatorFinish

WINDOW = ("topology", "window_start", "window_end")
FINISH = OperatorFinish._fields


class RowOperator(NamedTuple):
    """An operator of rows; `place` is None if they lack it."""

    name: str
    sub_topology: str
    place: OperatorPlace | None


def finish_rows(operator_windows: pl.DataFrame) -> tuple[pl.DataFrame, list[RowOperator]]:
    """Returns rows with WINDOW, FINISH and `operator_number`, and the operators.

    The rows are those of *operator_windows*, in the order of the windows' ends.
    """
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    finish = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms", "batch_id")
    own = ["operator", "sub_topology", "kind", "upstreams", "read_by"]
    rows = on_one_clock(operator_windows.with_columns(ms))
    rows = rows.with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, *own, *finish).sort("window_end", "window_start", "operator", *finish)
    names = rows.select(own).unique(maintain_order=True)
    operators: list[RowOperator] = []
    for name, sub, kind, waits_for, read_by in names.iter_rows():
        has_place = waits_for is not None and read_by is not None
        place = OperatorPlace(sub, kind, _names(waits_for), _names(read_by)) if has_place else None
        operators.append(RowOperator(name, sub, place))
    numbered = rows.join(names.with_row_index("operator_number"), on=own, nulls_equal=True, maintain_order="left")
    clock = pl.when(pl.col("host").is_not_null()).then(pl.struct("host", "skew_ms").rank("dense"))
    numbers = [
        pl.col("ewt_adjusted_at").alias("ewt_ms"), pl.col("batch_started_at").alias("began_ms"), pl.col("queued_ms"),
        pl.col("skew_error_ms"), clock.alias("clock"), pl.col("skew_ms"), pl.col("batch_id"),
    ]  # fmt: skip
    values = numbered.select(*WINDOW, "operator_number", *(each.cast(pl.Float64()) for each in numbers))
    return values.with_row_index("row"), operators


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
