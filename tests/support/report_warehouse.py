"""A warehouse in which tests write tables as a stream would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deltalake import DeltaTable, write_deltalake

from tidemark.graph import in_order
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import Level
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import Table
from tidemark.model.topology import SubTopology, Topology
from tidemark.storage.delta.tables import create

WINDOW_MS = 5_000


class CheckJob(Protocol):
    """Runs the job `check_sla` for an instant."""

    def __call__(self, warehouse: Path, topology: Path | str, at: str, run_id: str) -> None: ...


@dataclass(frozen=True)
class TestWarehouse:
    """Tables of `t` in a folder; missing columns are null.

    Instants are epoch ms.
    """

    __test__ = False
    layout: Layout

    def write(self, table: Table, rows: list[Mapping[str, Any]], sub_topology: str = "s", topology: str = "t") -> None:
        path = self.layout.report_table(topology, table.name)
        if table.written_by == "stream":
            path = self.layout.stream_table(topology, sub_topology, table.name)
            rows = [{"topology": topology, "sub_topology": sub_topology, **row} for row in rows]
        create(path, arrow_schema(table))
        write_deltalake(path, rows_of(table, [dict(row) for row in rows]), mode="append")

    def report(self, table: Table, topology: str = "t") -> list[dict[str, Any]]:
        """All rows of a report, sorted by their text."""
        path = self.layout.report_table(topology, table.name)
        return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=str)


def reading(upstreams: Mapping[str, Sequence[str]]) -> Topology:
    """The topology `t`, whose operators read each other like that."""
    operators = (Map(name=o, inputs=tuple(upstreams.get(o, ())), select={}) for o in in_order(upstreams))
    sub = SubTopology("s", tuple(operators))
    return Topology(name="t", level=Level.INFO, window_ms=WINDOW_MS, trigger_ms=1_000, sub_topologies=(sub,))
