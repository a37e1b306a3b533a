"""Which rows of a sink with current rows become final with a batch: those whose windows its watermark has closed.

The earliest open window is remembered, so that a batch that closes none reads nothing.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from tidemark.current_rows import Closed, first_open_ms, in_ms
from tidemark.files import Rows, frames
from tidemark.kernels.final_rows import WINDOW_FINAL
from tidemark.spec.operators import Sink


class OpenWindows:
    """The windows in the tables under *home* whose rows are not final."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._earliest_ms: dict[str, int | None] = {}

    def closed(self, sink: Sink, watermark_ms: int | None) -> Closed | None:
        """The rows of *sink* that are to become final at *watermark_ms*; None: there are none."""
        window = sink.window
        if window is None or window.is_closed or window.column is None or not sink.table or not sink.key:
            return None
        up_to_ms = window.closed_up_to_ms(watermark_ms)
        if up_to_ms is None:
            return None
        if sink.name in self._earliest_ms:
            known_ms = self._earliest_ms[sink.name]
            if known_ms is None or known_ms > up_to_ms:
                return None
        first_ms = first_open_ms(DeltaTable(str(self._home / sink.table)), window.column)
        self._earliest_ms[sink.name] = first_ms
        return None if first_ms is None or first_ms > up_to_ms else Closed(window.column, up_to_ms)

    def committed(self, sink: Sink, rows: Rows | None, closed: Closed | None) -> None:
        """The table of *sink* has *rows* now, and those that are *closed* are final."""
        if closed is not None:
            self._earliest_ms.pop(sink.name, None)
        elif rows is not None and sink.name in self._earliest_ms and sink.window and sink.window.column:
            open_ms = [ms for part in frames(rows) if (ms := _earliest(part, sink.window.column)) is not None]
            known_ms = self._earliest_ms[sink.name]
            self._earliest_ms[sink.name] = min([*open_ms, *([] if known_ms is None else [known_ms])], default=None)


def _earliest(rows: pl.DataFrame, column: str) -> int | None:
    if WINDOW_FINAL not in rows.columns:
        return None
    earliest: int | None = rows.filter(~pl.col(WINDOW_FINAL)).select(in_ms(rows.schema, column).min()).item()
    return earliest
