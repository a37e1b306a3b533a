"""The layout of a warehouse.

| path in the warehouse | content |
|---|---|
| `streams/<topology>/<sub_topology>/<table>` | a table of the one driver that writes it |
| `reports/<topology>/<table>` | a table of the topology's batch jobs; of watched tables the topology is `watch` |
| `reports/<topology>/html/` | pages about intervals |
| `control/<topology>/<sub_topology>/` | checkpoint, journal, lease, heartbeat, drain request |
| `control/<topology>/.driver/<host>/` | the process that runs the topology's streams, and its log |
| `control/.drivers/<name>/<host>/` | the same for a driver that several topologies name |
| `control/<topology>/.reports/` | the lease of the batch jobs, in an object store |
| `control/<topology>/.repairs/` | the lock of repairs; in an object store their lease |

A warehouse is a folder, or one in an object store: see `tidemark.storage.location`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import InvalidArgument

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A name that can be the name of a folder."""
_LONGEST = 100
"""So many letters of a name fit into the name of a folder beside a digest."""
_WITH_DIGEST = re.compile(r".*-[0-9a-f]{16}")
WATCH = "watch"
"""Stands for a topology where tables are about watched Delta tables."""
CHANGES_OF = "changes_of_"
"""Prefix of the name of a table with rows to be merged.

The table of current rows may not show these rows yet.
"""


def usable(name: str) -> str:
    """Returns *name* if a topology, query, operator or hop can have it.

    Raises:
        InvalidArgument: none can.
    """
    if not NAME.fullmatch(name):
        msg = f"a name must consist of letters, digits, '_', '-' and '.', got {name!r}; choose another name"
        raise InvalidArgument(msg)
    return name


def folder_name(name: str) -> str:
    """Returns the name of a folder for the query *name*, which Spark lets have any characters.

    A name always gets the same folder, and no two names share a folder: a name that no folder can have gets a digest,
    and so does a name that looks as if it had a digest.

    >>> folder_name("orders"), folder_name("Café/2 go"), folder_name("заказы")
    ('orders', 'Cafe_2_go-86536ea017b1b819', 'query-c359203e8db39396')
    """
    if NAME.fullmatch(name) and len(name) <= _LONGEST and not _WITH_DIGEST.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:16]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.findall(r"[A-Za-z0-9]+", plain)
    return f"{'_'.join(words)[:_LONGEST] or 'query'}-{digest}"


@dataclass(frozen=True)
class Layout:
    """Paths of one warehouse; nothing is read or created."""

    warehouse: Path

    def stream(self, topology: str, sub_topology: str) -> Path:
        """Returns the folder of the tables that the driver of *sub_topology* writes."""
        return self.warehouse / "streams" / topology / sub_topology

    def stream_table(self, topology: str, sub_topology: str, table: str) -> Path:
        """Returns the Delta table *table* of the driver of *sub_topology*."""
        return self.stream(topology, sub_topology) / table

    def hop(self, topology: str, sub_topology: str, repartition: str) -> Path:
        """Returns the table in which *repartition* passes updates on."""
        return self.stream_table(topology, sub_topology, f"hop_{repartition}")

    def reports(self, topology: str) -> Path:
        """Returns the folder of the tables of the batch jobs of *topology*."""
        return self.warehouse / "reports" / topology

    def report_table(self, topology: str, table: str) -> Path:
        """Returns the Delta table *table* of the batch jobs of *topology*."""
        return self.reports(topology) / table

    def report_pages(self, topology: str) -> Path:
        """Returns the folder of *topology*'s pages, an HTML file per interval."""
        return self.reports(topology) / "html"

    def report_control(self, topology: str) -> Path:
        """Returns the folder with the lease of the batch jobs of *topology*."""
        return self.control(topology, ".reports")

    def repair_control(self, topology: str) -> Path:
        """Returns the folder with the lock of repairs of *topology*."""
        return self.control(topology, ".repairs")

    def driver(self, topology: str, driver: str | None) -> Path:
        """Returns the folder of the driver processes, one per host.

        The processes run *topology*, or if it names a *driver*, all topologies that name the same one.
        """
        return self.control(topology, ".driver") if driver is None else self.control(".drivers", driver)

    def control(self, topology: str, sub_topology: str) -> Path:
        """Returns the folder through which a driver and its operators communicate."""
        return self.warehouse / "control" / topology / sub_topology
