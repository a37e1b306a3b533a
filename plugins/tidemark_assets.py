"""Delta tables as Airflow assets, on which DAGs of other teams can be scheduled.

An asset is named after its table: `tidemark/<topology>/<table>`, or `tidemark/<topology>/<sub_topology>/<table>` where
a stream writes it.
Where the warehouse is, a run learns and a DAG file does not, so the URI is `x-tidemark://…`, and events have the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetWatcher, Context, Variable
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidemark.place import location
from tidemark.spec import tables
from tidemark.spec.layout import Layout
from tidemark.spec.topology import Topology
from tidemark_spark import BatchJob

WRITES = {
    "rollup": (tables.LATENCY_BUCKET_ROLLUP, tables.LATENCY_ROLLUP),
    "critical_path": (
        *(tables.CRITICAL_PATHS, tables.CRITICAL_PATH_STEPS, tables.CRITICAL_PATH_LEAVES),
        tables.WINDOW_PARTS,
    ),
    "check_sla": (tables.SLA_RESULTS, tables.DQ_RESULTS, tables.INCIDENTS),
    "maintain": (tables.TABLE_FILES,),
}
"""The tables into which each batch job puts rows."""


def table_asset(topology: str, table: str, *, sub_topology: str | None = None, **more: Any) -> Asset:
    """The asset of a table that the batch jobs of *topology* write, or the stream of *sub_topology* does."""
    place = "/".join(part for part in (topology, sub_topology, table) if part)
    return Asset(name=f"tidemark/{place}", uri=f"x-tidemark://{place}", **more)


def stream_table(
    topology: str, sub_topology: str, table: str, *, at_most_every: timedelta = timedelta(minutes=1)
) -> Asset:
    """The asset of a table that a stream writes, with a watcher: it is updated when there are commits, but no oftener.

    To be used in the schedule of a DAG: Airflow watches for those alone.
    """
    trigger = TableTrigger(
        topology=topology, sub_topology=sub_topology, table=table, every_s=at_most_every.total_seconds()
    )
    watcher = AssetWatcher(name=f"{topology}/{sub_topology}/{table}", trigger=trigger)
    return table_asset(topology, table, sub_topology=sub_topology, watchers=[watcher])


def table_state(path: Path) -> dict[str, Any] | None:
    """`path`, `version`, `rows`, `files` and `bytes` of the Delta table at *path*, by its log; None without one."""
    from deltalake import DeltaTable  # as what follows, it costs more than parsing a DAG may

    from tidemark.cli.inventory import stored

    if not DeltaTable.is_deltatable(str(path)):
        return None
    found = stored(path.name, path, str(path))
    return {name: getattr(found, name) for name in ("version", "rows", "files", "bytes")} | {"path": str(path)}


class TopologyJob(BatchJob):
    """Runs a batch job of *topology*, and updates the assets of those of its tables that have a new version then.

    *arguments* follow `--warehouse` and `--topology`. An event's extra is what `table_state` says of the table.
    """

    template_fields: Sequence[str] = (*BatchJob.template_fields, "warehouse")

    def __init__(
        self, *, job: str, topology: Topology, warehouse: str, arguments: Sequence[str] = (), **kwargs: Any
    ) -> None:
        self.tables = [table.name for table in WRITES[job]]
        super().__init__(
            task_id=job,
            job=job,
            spark=topology.spark,
            application_args=["--warehouse", warehouse, "--topology", topology.name, *arguments],
            outlets=[table_asset(topology.name, table) for table in self.tables],
            **kwargs,
        )
        self.topology = topology.name
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Run it to its end, then tell."""
        before = self._states()
        super().execute(context)
        updated = {table: state for table, state in self._states().items() if state != before[table]}
        self.outlets = [
            table_asset(self.topology, table) for table in updated
        ]  # what Airflow updates at the task's end
        for asset, state in zip(self.outlets, updated.values(), strict=True):
            context["outlet_events"][asset].extra.update(state)

    def _states(self) -> dict[str, Any]:
        layout = Layout(location(self.warehouse))
        return {table: table_state(layout.report_table(self.topology, table)) for table in self.tables}


class TableTrigger(BaseEventTrigger):
    """Fires when a table of a stream has another version than when it fired last, which Airflow remembers.

    The event's payload is what `table_state` says of it. Every *every_s* seconds it looks.
    """

    def __init__(self, *, topology: str, sub_topology: str, table: str, every_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self._kwargs = {"topology": topology, "sub_topology": sub_topology, "table": table, "every_s": every_s}
        self._place = (topology, sub_topology, table)
        self._every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How the triggerer makes this trigger again, also after a restart."""
        return "tidemark_assets.TableTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """An event for what was committed since the last one."""
        warehouse = await sync_to_async(Variable.get)("tidemark_warehouse")
        path = Layout(location(warehouse)).stream_table(*self._place)
        store = self.asset_state_store
        seen = await store.aget("version", default=None) if store is not None else None
        while True:
            state = await asyncio.to_thread(table_state, path)
            if state is not None and state["version"] != seen:
                yield TriggerEvent(state)  # type: ignore[no-untyped-call]  # as above
                seen = state["version"]
                if store is not None:
                    await store.aset("version", seen)
            await asyncio.sleep(self._every_s)
