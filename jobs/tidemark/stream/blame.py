"""Names the record that makes a batch fail, for whoever has to mend it."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

MENDED_BY_HAND = (ValueError, pl.exceptions.PolarsError)
"""What expressions and operators raise over a record; the broker's and the disk's errors are about no record."""


def blame(error: Exception, rows: pl.DataFrame, again: Callable[[pl.DataFrame], object]) -> None:
    """Add a note to *error*, which *again* has raised over *rows*, that names the first row with which it does.

    It is looked for by halving, which works where one record alone is at fault.
    """
    if not isinstance(error, MENDED_BY_HAND):
        return

    def fails(count: int) -> bool:
        try:
            again(rows.head(count))
        except Exception as raised:
            return type(raised) is type(error)
        return False

    fine, failing = 0, rows.height
    while failing - fine > 1:
        middle = (fine + failing) // 2
        fine, failing = (fine, middle) if fails(middle) else (middle, failing)
    if fails(fine) or not fails(failing):
        return
    row = rows.row(fine, named=True)
    key = None if row["key"] is None else row["key"].decode(errors="replace")
    error.add_note(
        f"the record: source {row['source']}, partition {row['partition']}, offset {row['offset']}, key {key!r}"
    )


def as_reason(error: Exception) -> str:
    """*error* for a heartbeat: its kind, what it says, and what was added to it."""
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
