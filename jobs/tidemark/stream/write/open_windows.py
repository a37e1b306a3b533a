"""Finds out when a batch makes current rows of a sink final, because it closes windows whose results the sink has.

The open windows are remembered, so that only the first batch of a driver has to read the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.kernels.updates.final_rows import WINDOW_FINAL
from tidemark.model.kinds.sink import Sink
from tidemark.storage.delta.current_rows import ClosedRows
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.files import Rows, frames


def closed_column(sink: Sink) -> str | None:
    """Returns the column of *sink* that tells when windows close.

    The result is None if the sink cannot know that windows are closed, or if all its rows are final.
    """
    window = sink.window
    return window.column if window and not window.is_closed and sink.table and sink.key else None


class OpenWindows:
    """Remembers, for the tables below *home*, the windows whose rows are not final."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open_ms: dict[str, set[int]] = {}

    def closed(self, sink: Sink, watermark_ms: int | None) -> ClosedRows | None:
        """Returns which rows of *sink* become final at *watermark_ms*, or None if none do."""
        column = closed_column(sink)
        up_to_ms = sink.window.closed_up_to_ms(watermark_ms) if sink.window else None
        if column is None or up_to_ms is None:
            return None
        # Only the first batch of a driver reads the tables.
        if sink.name not in self._open_ms:
            ends_ms = (_ends_ms(rows, column) for rows in self._not_final(sink, column))
            self._open_ms[sink.name] = {*chain.from_iterable(ends_ms)}
        is_any_closed = any(ms <= up_to_ms for ms in self._open_ms[sink.name])
        return ClosedRows(column, up_to_ms) if is_any_closed else None

    def committed(self, sink: Sink, rows: Rows | None, closed: ClosedRows | None) -> None:
        """Remembers that the table of *sink* got *rows*, and that rows of *closed* windows are final."""
        # Nothing is remembered before the tables were read for the first time; that reading will find these rows.
        known_ms, column = self._open_ms.get(sink.name), closed_column(sink)
        if known_ms is None or column is None:
            return
        for part in frames(rows) if rows is not None else ():
            known_ms |= _ends_ms(part, column)
        if closed is not None:
            self._open_ms[sink.name] = {ms for ms in known_ms if ms > closed.up_to_ms}

    def _not_final(self, sink: Sink, column: str) -> Iterator[pl.DataFrame]:
        for name in (sink.table, sink.appends_to):
            rows = dataset_of(DeltaTable(str(self._home / str(name))))
            yield pl.DataFrame(rows.to_table(columns=[column, WINDOW_FINAL], filter=~pc.field(WINDOW_FINAL)))


def _ends_ms(rows: pl.DataFrame, column: str) -> set[int]:
    return set(rows.filter(~pl.col(WINDOW_FINAL)).select(pl.col(column).dt.epoch("ms")).to_series().drop_nulls())
