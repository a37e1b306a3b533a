"""Answers SQL over the tables of a warehouse, with rows that are still in journals."""

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
"""Answers SQL. Each table is read in one version: the newest one when the first query asked for it."""

FINISHED = "(FROM batches WHERE topology = $1 AND finished_at <= make_timestamptz($2 * 1000)) AS batches"
"""SQL: the batches of the topology $1 that had finished at the instant $2 (epoch ms), and therefore count."""


def answers_over(
    warehouse: Path,
    topology: str | None = None,
    *,
    only: Container[Path] | None = None,
    memory: str | None = None,
    stored: StoredTables | None = None,
    given: Mapping[str, pl.DataFrame] = MappingProxyType({}),
) -> Tables:
    """Returns an object that answers SQL over the tables of a warehouse.

    Args:
        warehouse: the folder of the warehouse.
        topology: the tables of other topologies look empty; None reads those of all.
        only: the tables at other paths look empty; None reads all.
        memory: the most memory that a query uses, as DuckDB writes it, for example 512MB; None stands for 2GB.
        stored: tables that were opened already, so that several answers come from the same versions.
        given: rows that stand in for those of a table, by its name.
    """
    # Most readers of facts ask no SQL, and importing DuckDB takes as long as a short command.
    from tidemark.query.sql import MEMORY, Warehouse

    return Warehouse(warehouse, topology=topology, only=only, memory=memory or MEMORY, stored=stored, given=given)
