"""Writes reports from the driver, through delta-rs.

A small commit takes delta-rs some 10 ms, where Spark's first Delta write in a fresh JVM takes 3 to 5 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from tidemark.errors import InvalidRow
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.checks import CHECKS
from tidemark.model.tables.catalog import Table
from tidemark.storage.delta.datasets import local_folder
from tidemark.storage.delta.format import WRITER
from tidemark.storage.delta.log import make_commits_durable
from tidemark.storage.delta.tables import again_after_others, append, create

BROKEN = "failed validation check"
"""Text in delta-rs's error about rows that it rejects."""


def replace_rows(rows: pl.DataFrame | list[dict[str, Any]], table: Table, path: Path, *, where: str) -> None:
    """Replaces rows of the table at *path* in one commit.

    A second call with the same arguments changes nothing.

    Args:
        rows: the new rows.
        table: the declaration of the table, which is created if there is none.
        path: path of the table.
        where: SQL predicate that is true for all replaced and all new rows, and for no others.

    Raises:
        InvalidRow: *where* is false for a row, or a row breaks one of the table's CHECKS. Nothing is written.
    """
    # The table is opened again for each try, so a try sees the rows of the others.
    again_after_others(lambda: replace_in(open_report(table, path), rows, table, where=where))


def add_rows(rows: list[dict[str, Any]], table: Table, path: Path) -> None:
    """Adds *rows* to the table at *path*, which is created if needed."""
    open_report(table, path)
    append(path, rows_of(table, rows))


def replace_in(
    stored: DeltaTable,
    rows: pl.DataFrame | list[dict[str, Any]],
    table: Table,
    *,
    where: str | None,
    marks: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Replaces rows of the open table *stored* in one commit.

    Args:
        stored: the table, as it was when it was opened.
        rows: the new rows.
        table: the declaration of the table.
        where: SQL predicate that is true for all replaced and all new rows, and for no others; None: all are new.
        marks: transactions of Delta, version by application, that the commit leaves in the log.

    Raises:
        CommitFailedError: others wrote such rows, or one of *marks*, after *stored* was opened.
        InvalidRow: as in `replace_rows`.
    """
    transactions = [Transaction(app, version) for app, version in marks.items()]
    properties = CommitProperties(app_transactions=transactions, custom_metadata=WRITER)
    folder, since = local_folder(stored), stored.version()
    try:
        if where is None:
            write_deltalake(stored, rows_of(table, rows), mode="append", commit_properties=properties)
        else:
            new = rows_of(table, rows)
            write_deltalake(stored, new, mode="overwrite", predicate=where, commit_properties=properties)
    except DeltaError as error:
        if BROKEN not in str(error):
            raise
        listed_checks = "\n".join(f"  {name}: {check}" for name, check in CHECKS.get(table.name, {}).items())
        law = f"rows must be in ({where or 'true'}) and satisfy these checks"
        msg = f"{table.name}: {law}; nothing was written.\n{listed_checks}\n{error}"
        raise InvalidRow(msg) from error
    if folder is not None:
        make_commits_durable(folder, since=since)


def open_report(table: Table, path: Path) -> DeltaTable:
    """Opens *table* at *path*; creates it if there is none."""
    checks = CHECKS.get(table.name, {})
    schema = arrow_schema(table)
    return create(path, schema, description=table.row, checks=checks, partitioned_by=table.partitioned_by)
