"""Names the record that makes a batch fail, for its correction."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

MENDED_BY_HAND = (ValueError, pl.exceptions.PolarsError)
"""Errors that expressions and operators raise over a record.

Errors of the broker and the disk are not about a record.
"""


def blame(error: Exception, rows: pl.DataFrame, again: Callable[[pl.DataFrame], object]) -> None:
    """Adds a note to *error* that names the row that causes it.

    *again* raised the error over *rows*. Nothing is added to errors that are not about a record.
    """
    if not isinstance(error, MENDED_BY_HAND):
        return

    def fails(count: int) -> bool:
        try:
            again(rows.head(count))
        except Exception as raised:
            return type(raised) is type(error)
        return False

    # Bisection of the number of rows works if a single record is at fault.
    fine, failing = 0, rows.height
    while failing - fine > 1:
        middle = (fine + failing) // 2
        fine, failing = (fine, middle) if fails(middle) else (middle, failing)
    # An error that does not depend on the rows, or that does not come again, is of no record.
    if fails(fine) or not fails(failing):
        return
    row = rows.row(fine, named=True)
    key = None if row["key"] is None else row["key"].decode(errors="replace")
    error.add_note(
        f"the record: source {row['source']}, partition {row['partition']}, offset {row['offset']}, key {key!r}"
    )
