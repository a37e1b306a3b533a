"""Where things lie in a warehouse.

<warehouse>/streams/<topology>/<sub_topology>/<table>    one writing driver each
<warehouse>/reports/<topology>/<table>                   written by the batch jobs of that topology
<warehouse>/reports/<topology>/html/                     pages about intervals, for people
<warehouse>/control/<topology>/<sub_topology>/           checkpoint, journal, lease, heartbeat, drain request
<warehouse>/control/<topology>/.reports/                 in an object store the lease of the batch jobs

A warehouse is a folder, or one in an object store: see `tidemark.place`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidArgument

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A name that can be that of a folder."""


def usable(name: str) -> str:
    """*name*, if it can be that of a topology, a query, an operator or a hop; raises InvalidArgument."""
    if not NAME.fullmatch(name):
        msg = f"a name is made of letters, digits, '_', '-' and '.', got {name!r}; choose another one"
        raise InvalidArgument(msg)
    return name


@dataclass(frozen=True)
class Layout:
    """Paths of one warehouse; nothing is read or created."""

    warehouse: Path

    def stream(self, topology: str, sub_topology: str) -> Path:
        """The folder of the Delta tables that the driver of *sub_topology* writes."""
        return self.warehouse / "streams" / topology / sub_topology

    def stream_table(self, topology: str, sub_topology: str, table: str) -> Path:
        """The Delta table *table* that the driver of *sub_topology* writes."""
        return self.stream(topology, sub_topology) / table

    def hop(self, topology: str, sub_topology: str, repartition: str) -> Path:
        """The Delta table by which *repartition* hands its updates to the next sub-topology."""
        return self.stream_table(topology, sub_topology, f"hop_{repartition}")

    def reports(self, topology: str) -> Path:
        """The folder of the Delta tables that the batch jobs write for *topology*."""
        return self.warehouse / "reports" / topology

    def report_table(self, topology: str, table: str) -> Path:
        """The Delta table *table* that the batch jobs write for *topology*."""
        return self.reports(topology) / table

    def report_pages(self, topology: str) -> Path:
        """The folder of the pages about *topology*, one HTML file per interval."""
        return self.reports(topology) / "html"

    def report_control(self, topology: str) -> Path:
        """The folder that says which batch job of *topology* writes, where one at a time may."""
        return self.control(topology, ".reports")

    def control(self, topology: str, sub_topology: str) -> Path:
        """The folder through which a driver and its operators talk."""
        return self.warehouse / "control" / topology / sub_topology
