"""Replaces rows of a table by their keys.

MERGE of delta-rs writes text as Arrow's `string_view`, which pyarrow cannot compare with a text. Therefore the files
that hold replaced rows are written again here, with the types that the table declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from tidemark.errors import Contradiction
from tidemark.kernels.updates.final_rows import WINDOW_FINAL
from tidemark.kernels.updates.last_seen import SEEN_ANEW, SEEN_ONLY, merged_last_seen
from tidemark.selection import outside
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.files import File, write_file

CLOSED_UP_TO = "_closed_up_to"
"""Column with the end of the last window that a batch closed; rows of windows up to there are final.

The column is set in one extra row of the batch, which has no other values.
"""
NEWEST_MS = "_newest_ms"
"""Column of new rows with the time of the newest record that a row reflects, epoch ms, or null if it reflects none."""
OF_REPLACING = frozenset({"deleted", SEEN_ONLY, SEEN_ANEW, CLOSED_UP_TO, NEWEST_MS})
"""Columns of new rows that say how they replace stored ones; the table itself does not have them."""
AT_MOST = 1_000_000
"""Rows after which a new file is begun."""


@dataclass(frozen=True)
class ClosedRows:
    """The windows of a table that are closed: those that end at *up_to_ms* (record time, epoch ms) or before.

    *column* is the column with the end of a row's window.
    """

    column: str
    up_to_ms: int

    def up_to(self, schema: pa.Schema) -> pa.Scalar:
        """Returns `up_to_ms` as a value of `column` in *schema*."""
        return pa.scalar(self.up_to_ms, pa.timestamp("ms", "UTC")).cast(schema.field(self.column).type)

    def open_rows(self, schema: pa.Schema) -> pc.Expression:
        """Returns the condition for rows of closed windows that a table with *schema* does not mark as final yet."""
        up_to = self.up_to(schema)
        return (pc.field(self.column) <= up_to) & ~pc.field(WINDOW_FINAL)

    def finished(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns *rows* with the rows of closed windows marked as final."""
        ends_ms = pl.col(self.column).dt.epoch("ms")
        # The mark is null for a row of which it is not known whether it is final, and stays null.
        return rows.with_columns(pl.col(WINDOW_FINAL) | (ends_ms <= self.up_to_ms) & pl.col(WINDOW_FINAL).is_not_null())


def closed_row(closed: ClosedRows, schema: pa.Schema, batch_id: int) -> pa.Table:
    """Returns the row that records up to where a batch has *closed* windows.

    All columns of *schema* are null in it except for `batch_id` and CLOSED_UP_TO.
    """
    row = {"batch_id": pa.array([batch_id], pa.int64()), CLOSED_UP_TO: pa.array([closed.up_to(schema)])}
    return pa.table({field.name: row.get(field.name, pa.nulls(1, field.type)) for field in schema}, schema)


def closed_by(rows: pl.DataFrame, column: str | None) -> ClosedRows | None:
    """Returns the windows that a `closed_row` among *rows* closes, or None if there is no such row.

    *column* is the column with the ends of windows, None for a table without windows.
    """
    if column is None or CLOSED_UP_TO not in rows.columns:
        return None
    up_to_ms = rows.select(pl.col(CLOSED_UP_TO).dt.epoch("ms").max()).item()
    return None if up_to_ms is None else ClosedRows(column, up_to_ms)


def write_replacements(
    path: Path, table: DeltaTable, rows: pl.DataFrame | None, *, key: Sequence[str], closed: ClosedRows | None = None
) -> tuple[list[File], set[str]]:
    """Writes files in which *rows* replace the stored rows of their keys.

    A new row may also have only the instant at which its key was last seen (kernels/updates/last_seen.py).

    Args:
        path: the folder of the table.
        table: the opened table.
        rows: new rows, one for each key; a row that is `deleted` removes its key. None if windows are closed only.
        key: columns that identify a row.
        closed: windows whose rows become final.

    Returns:
        The new files, and the names of the files that they replace. The caller commits both.

    Raises:
        Contradiction: the table is partitioned.
    """
    if partitioned := table.metadata().partition_columns:
        by = ", ".join(partitioned)
        msg = f"{path}: the table is partitioned by {by}, and a sink with current rows cannot be; choose another table"
        raise Contradiction(msg)
    dataset = dataset_of(table)
    schema = dataset.schema
    if rows is None:
        rows = pl.DataFrame(schema.empty_table()).with_columns(deleted=pl.lit(value=False))
    new = _with_table_types(rows, schema)
    touched = _touched_files(dataset, new, key, closed)
    # A replaced row keeps its values of columns that *rows* does not have.
    kept_columns = outside(schema.names, rows.columns)
    if kept_columns or SEEN_ONLY in new.columns:
        old = (_rows(part, schema).join(new, on=key, how="semi", nulls_equal=True) for part in touched)
        # A key that is in the table twice would double its new row.
        replaced = pl.concat([pl.DataFrame(schema.empty_table()), *old]).unique(key, keep="any")
        kept_values = replaced.select(*key, *kept_columns)
        new = new.join(kept_values, on=key, how="left", nulls_equal=True, maintain_order="left")
        new = merged_last_seen(new, replaced, key) if SEEN_ONLY in new.columns else new
    # A generator: the replaced files are read one after the other, not all at once.
    others = (_rows(part, schema).join(new, on=key, how="anti", nulls_equal=True) for part in touched)
    current = new.filter(~pl.col("deleted")).select(schema.names)
    files = []
    for content in _in_files([current], others):
        final = closed.finished(content) if closed else content
        # polars has text types of its own; the files have those of the table.
        files.append(write_file(path, final.to_arrow().cast(schema)))
    return files, {Path(part.path).name for part in touched}


def _touched_files(
    dataset: ds.Dataset, new: pl.DataFrame, key: Sequence[str], closed: ClosedRows | None
) -> list[ds.ParquetFileFragment]:
    """Returns the files that have a key of *new*, or rows of windows that are *closed* now."""
    possible = _possible(dataset, new, key) if new.height else ()
    touched = [part for part in possible if _holds_one(part, dataset.schema, new, key)]
    if closed is not None:
        paths = {part.path for part in touched}
        for part in dataset.get_fragments(filter=closed.open_rows(dataset.schema)):
            # The filter only reads the bounds of a file; the file itself may have no such row.
            if part.path not in paths and _holds_open(part, dataset, closed):
                touched.append(part)
    return touched


def _with_table_types(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """Returns *rows* with the types of the table."""
    arrow = rows.to_arrow()
    # A row that deletes its key, or only says when the key was seen, has nulls even in columns that are NOT NULL.
    types = {field.name: pa.field(field.name, field.type) for field in schema}
    fields = [types.get(field.name, field) for field in arrow.schema]
    return pl.DataFrame(arrow.cast(pa.schema(fields)))


def _possible(dataset: ds.Dataset, new: pl.DataFrame, key: Sequence[str]) -> Iterator[ds.ParquetFileFragment]:
    """Returns the files whose bounds in the log allow a *new* key."""
    within: pc.Expression | None = None
    for column in new.select(key).iter_columns():
        # Nulls and NaN are not inside bounds, and nested columns have none.
        if column.null_count() or column.dtype.is_float() or column.dtype.is_nested() or not len(column):
            continue
        low, high = (pa.scalar(bound, dataset.schema.field(column.name).type) for bound in _bounds(column))
        bounds = (pc.field(column.name) >= low) & (pc.field(column.name) <= high)
        within = bounds if within is None else within & bounds
    return iter(dataset.get_fragments(filter=within))


def _bounds(column: pl.Series) -> tuple[Any, Any]:
    return column.min(), column.max()


def _holds_one(part: ds.Fragment, schema: pa.Schema, new: pl.DataFrame, key: Sequence[str]) -> bool:
    return _rows(part, schema, key).join(new, on=key, how="semi", nulls_equal=True).height > 0


def _holds_open(part: ds.Fragment, dataset: ds.Dataset, closed: ClosedRows) -> bool:
    open_rows = part.to_table(dataset.schema, columns=[closed.column], filter=closed.open_rows(dataset.schema))
    return len(open_rows) > 0


def _rows(part: ds.Fragment, schema: pa.Schema, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return pl.DataFrame(part.to_table(schema, columns=columns and [*columns]))


def _in_files(first: Sequence[pl.DataFrame], parts: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yields *first* and *parts*, concatenated to about AT_MOST rows each."""
    waiting = [*first]
    for part in parts:
        waiting.append(part)
        if sum(rows.height for rows in waiting) >= AT_MOST:
            yield pl.concat(waiting)
            waiting = []
    if any(rows.height for rows in waiting):
        yield pl.concat(waiting)
