"""A warehouse in which tests lay down the tables that a stream would have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, write_deltalake

from tidemark.delta import create
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.spec.layout import Layout
from tidemark.spec.tables import Table


@dataclass(frozen=True)
class TestWarehouse:
    """Tables of the topology `t` in a folder; instants are epoch ms, a column that is not given is null."""

    __test__ = False
    layout: Layout

    def write(self, table: Table, rows: list[Mapping[str, Any]], sub_topology: str = "s") -> None:
        path = self.layout.report_table("t", table.name)
        if table.written_by == "stream":
            path = self.layout.stream_table("t", sub_topology, table.name)
            rows = [{"topology": "t", "sub_topology": sub_topology, **row} for row in rows]
        create(path, arrow_schema(table))
        write_deltalake(path, rows_of(table, [dict(row) for row in rows]), mode="append")

    def report(self, table: Table) -> list[dict[str, Any]]:
        """All rows of a report, sorted by their text."""
        path = self.layout.report_table("t", table.name)
        return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=str)
