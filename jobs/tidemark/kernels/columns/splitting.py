"""Splits rows and puts them in order, without copies where nothing moves."""

from __future__ import annotations

from operator import itemgetter

import polars as pl

MOST_RUNS = 1_000
"""Rows whose partition changes more often are sorted."""


def split(rows: pl.DataFrame, chosen: pl.Expr) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Returns the rows for which *chosen* is true, and those for which it is false or null."""
    is_chosen = rows.select(_chosen=chosen.fill_null(value=False)).to_series()
    # In almost every batch all rows are on one side.
    if is_chosen.all():
        return rows, rows.clear()
    return (rows.filter(is_chosen), rows.filter(~is_chosen)) if is_chosen.any() else (rows.clear(), rows)


def in_order(rows: pl.DataFrame, partition: str, offset: str) -> pl.DataFrame:
    """Returns *rows* sorted by the columns *partition* and *offset*."""
    # Spark returns the rows of a partition together and in order, but the partitions in any order.
    lengths, numbers = rows[partition].rle().struct.unnest().get_columns()
    if 0 < len(lengths) <= MOST_RUNS:
        starts = lengths.cum_sum() - lengths
        order = sorted(zip(numbers, starts, lengths, strict=True), key=itemgetter(0))
        together = pl.concat([rows.slice(start, length) for _, start, length in order])
        number, at = pl.col(partition), pl.col(offset)
        goes_on = (number > number.shift()) | ((number == number.shift()) & (at > at.shift()))
        if together.select(goes_on.all()).item():
            return together
    return rows.sort(partition, offset)
