"""Answers SQL over facts, those that only a journal has included."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemark.query.stored_tables import StoredTables

if TYPE_CHECKING:
    import polars as pl

    from tidemark.query.sql import Warehouse

Row = dict[str, Any]
Tables: TypeAlias = "Warehouse"
"""What answers SQL. It reads a table in the version that its first query over the table has found."""

FINISHED = "(FROM batches WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)) AS batches"
"""SQL: the batches of the topology $1 that count at the instant $2 (epoch ms). A batch does from `finished_at` on."""


def answers_over(
    warehouse: Path,
    topology: str | None = None,
    *,
    only: Container[Path] | None = None,
    memory: str | None = None,
    stored: StoredTables | None = None,
    given: Mapping[str, pl.DataFrame] = MappingProxyType({}),
) -> Tables:
    """Returns what answers SQL over the tables of *warehouse*.

    With a *topology*, or places *only*, the tables of others look empty. Queries use at most *memory* (a size of
    DuckDB, for example 512MB; None: 2GB). They are about the tables that were *stored* when others asked; None: as they
    are now. Tables with rows that are *given*, by name, have those alone.
    """
    # Most readers of rows ask no SQL, and to import DuckDB takes as long as to tell of a topology.
    from tidemark.query.sql import MEMORY, Warehouse

    return Warehouse(warehouse, topology=topology, only=only, memory=memory or MEMORY, stored=stored, given=given)
