"""Reads and writes reports from the driver, through delta-rs (ring 2).

A small commit takes delta-rs some 10 ms, where Spark's first Delta write in a fresh JVM takes 3 to 5 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from tidemark import delta
from tidemark.datasets import dataset_of
from tidemark.delta import again_after_others
from tidemark.errors import InvalidRow
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.spec.checks import CHECKS
from tidemark.spec.intervals import Interval, utc
from tidemark.spec.tables import Table

BROKEN = "failed validation check"
"""What delta-rs says of rows that it does not take."""


def replace_rows(rows: pl.DataFrame | list[dict[str, Any]], table: Table, path: Path, *, where: str) -> None:
    """Put *rows* in place of those for which the predicate *where* is true, in one commit.

    Doing it twice changes nothing. Raises InvalidRow, and nothing is written, for a row for which *where* is false or
    which breaks one of the table's CHECKS.
    """
    again_after_others(lambda: replace_in(opened(table, path), rows, table, where=where))


def replace_in(
    stored: DeltaTable,
    rows: pl.DataFrame | list[dict[str, Any]],
    table: Table,
    *,
    where: str,
    marks: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """As `replace_rows`, but raises CommitFailedError when somebody wrote such rows after *stored* was opened.

    Or *marks*: transactions of Delta, version by application, that the commit leaves in the log.
    """
    properties = CommitProperties(app_transactions=[Transaction(app, version) for app, version in marks.items()])
    try:
        write_deltalake(stored, rows_of(table, rows), mode="overwrite", predicate=where, commit_properties=properties)
    except DeltaError as error:
        if BROKEN not in str(error):
            raise
        held = "\n".join(f"  {name}: {check}" for name, check in CHECKS.get(table.name, {}).items())
        msg = f"{table.name}: rows are in ({where}) and hold its checks; nothing was written.\n{held}\n{error}"
        raise InvalidRow(msg) from error


def opened(table: Table, path: Path) -> DeltaTable:
    """The *table* at *path* as it is now; it is created when there is none."""
    checks = CHECKS.get(table.name, {})
    delta.create(path, arrow_schema(table), description=table.row, checks=checks, partitioned_by=table.partitioned_by)
    return DeltaTable(str(path))


def lies_in(column: str, interval: Interval) -> pc.Expression:
    """The timestamp *column* lies in *interval*."""
    at = pc.field(column)
    return (at >= utc(interval.start_ms)) & (at < utc(interval.end_ms))


def rows_in(
    stored: DeltaTable, where: pc.Expression | None = None, *, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """The rows of *stored*, as it was when it was opened, for which *where* is true; other files are not opened.

    None: all; of *columns* likewise.
    """
    return pl.DataFrame(dataset_of(stored).to_table(columns=columns and [*columns], filter=where))
