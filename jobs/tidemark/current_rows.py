"""Replaces the rows of a table that have the keys of new rows (ring 2).

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

from tidemark.datasets import dataset_of
from tidemark.errors import Contradiction
from tidemark.files import File, write_file
from tidemark.kernels.final_rows import WINDOW_FINAL
from tidemark.kernels.last_seen import SEEN_ANEW, SEEN_ONLY, merged_last_seen

OF_REPLACING = frozenset({"deleted", SEEN_ONLY, SEEN_ANEW})
"""Columns of new rows that say how they replace, and are no columns of the table."""
AT_MOST = 1_000_000
"""From so many rows on, the rest goes into another file."""


@dataclass(frozen=True)
class Closed:
    """The rows of a table whose *column* is at most *up_to_ms* (record time, epoch ms): their windows are closed."""

    column: str
    up_to_ms: int

    def open_rows(self, schema: pa.Schema) -> pc.Expression:
        """Those of a table with *schema* that do not say yet that they are final."""
        kind = schema.field(self.column).type
        up_to = pa.scalar(self.up_to_ms, pa.int64() if kind == pa.int64() else pa.timestamp("ms", "UTC")).cast(kind)
        return (pc.field(self.column) <= up_to) & ~pc.field(WINDOW_FINAL)

    def finished(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows* of which those are final; one that an older version wrote does not say it."""
        ends_ms = in_ms(rows.schema, self.column)
        return rows.with_columns(pl.col(WINDOW_FINAL) | (ends_ms <= self.up_to_ms) & pl.col(WINDOW_FINAL).is_not_null())


def in_ms(schema: pl.Schema, column: str) -> pl.Expr:
    """The instants of *column*, in epoch ms."""
    return pl.col(column) if schema[column] == pl.Int64() else pl.col(column).dt.epoch("ms")


def first_open_ms(table: DeltaTable, column: str) -> int | None:
    """The earliest *column* (epoch ms) among the rows of *table* that are not final; None: all are, or do not say."""
    rows = pl.DataFrame(table.to_pyarrow_table(columns=[column], filters=~pc.field(WINDOW_FINAL)))
    earliest: int | None = rows.select(in_ms(rows.schema, column).min()).item()
    return earliest


def replacing(
    path: Path, table: DeltaTable, rows: pl.DataFrame | None, *, key: Sequence[str], closed: Closed | None = None
) -> tuple[list[File], set[str]]:
    """New files with *rows* (one per *key*, less those `deleted`) in the opened *table* at *path*.

    Rows of windows that are *closed* become final. Returns the new files, and the names of those that they replace.
    A replaced row keeps its values of columns that *rows* does not have, and rows may say only when their key was last
    seen (kernels/last_seen.py).
    Raises Contradiction for a partitioned table.
    """
    if partitioned := table.metadata().partition_columns:
        by = ", ".join(partitioned)
        msg = f"{path}: a sink with current rows is not partitioned, and this table is, by {by}; name another table"
        raise Contradiction(msg)
    dataset = dataset_of(table)
    if rows is None:
        rows = pl.DataFrame(dataset.schema.empty_table()).with_columns(deleted=pl.lit(value=False))
    new = _typed(rows, dataset.schema)
    touched = [part for part in _possible(dataset, new, key) if _holds_one(part, dataset.schema, new, key)]
    if closed is not None:
        known_files = {part.path for part in touched}
        settled = dataset.get_fragments(filter=closed.open_rows(dataset.schema))
        touched += [part for part in settled if part.path not in known_files and _holds_open(part, dataset, closed)]
    others = [name for name in dataset.schema.names if name not in rows.columns]
    if others or SEEN_ONLY in new.columns:
        old = (_rows(part, dataset.schema).join(new, on=key, how="semi", nulls_equal=True) for part in touched)
        known = pl.concat([pl.DataFrame(dataset.schema.empty_table()), *old]).unique(key, keep="any")
        new = new.join(known.select(*key, *others), on=key, how="left", nulls_equal=True, maintain_order="left")
        new = merged_last_seen(new, known, key) if SEEN_ONLY in new.columns else new
    parts = (_rows(part, dataset.schema).join(new, on=key, how="anti", nulls_equal=True) for part in touched)
    current = new.filter(~pl.col("deleted")).select(dataset.schema.names)
    written = (closed.finished(part) if closed else part for part in _in_files([current], parts))
    files = [write_file(path, part.to_arrow().cast(dataset.schema)) for part in written]
    return files, {Path(part.path).name for part in touched}


def _typed(rows: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
    """*rows* with the types that the table has."""
    arrow = rows.to_arrow()
    fields = [schema.field(field.name) if field.name in schema.names else field for field in arrow.schema]
    return pl.DataFrame(arrow.cast(pa.schema(fields)))


def _possible(dataset: ds.Dataset, new: pl.DataFrame, key: Sequence[str]) -> Iterator[ds.ParquetFileFragment]:
    """The files whose bounds in the log do not exclude every key of *new*."""
    within: pc.Expression | None = None
    for column in new.select(key).iter_columns():
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


def _holds_open(part: ds.Fragment, dataset: ds.Dataset, closed: Closed) -> bool:
    found = part.to_table(dataset.schema, columns=[closed.column], filter=closed.open_rows(dataset.schema))
    return len(found) > 0


def _rows(part: ds.Fragment, schema: pa.Schema, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return pl.DataFrame(part.to_table(schema, columns=columns and [*columns]))


def _in_files(first: Sequence[pl.DataFrame], parts: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """*first* and *parts*, put together up to AT_MOST rows; nothing for no row."""
    waiting = [*first]
    for part in parts:
        waiting.append(part)
        if sum(rows.height for rows in waiting) >= AT_MOST:
            yield pl.concat(waiting)
            waiting = []
    if any(rows.height for rows in waiting):
        yield pl.concat(waiting)
