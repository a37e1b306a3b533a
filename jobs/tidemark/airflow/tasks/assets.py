"""Delta tables as Airflow assets, on which other teams can schedule DAGs.

An asset is named after its table: `tidemark/<topology>/<table>`, or `tidemark/<topology>/<sub_topology>/<table>` where
a stream writes it. Its URI is `x-tidemark://…`, and events have the path of the table.
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

from tidemark.airflow.tasks.spark import BatchJob
from tidemark.airflow.tasks.store import warehouse_at
from tidemark.collecting import names_in
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_LEAVES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    DQ_RESULTS,
    INCIDENTS,
    LATENCY_BUCKET_ROLLUP,
    LATENCY_ROLLUP,
    SLA_RESULTS,
    TABLE_FILES,
    WINDOW_PARTS,
)
from tidemark.model.topology import Topology

WRITES = {
    "rollup": (LATENCY_BUCKET_ROLLUP, LATENCY_ROLLUP),
    "critical_path": (
        *(CRITICAL_PATHS, CRITICAL_PATH_STEPS, CRITICAL_PATH_LEAVES),
        WINDOW_PARTS,
    ),
    "check_sla": (SLA_RESULTS, DQ_RESULTS, INCIDENTS),
    "maintain": (TABLE_FILES,),
}
"""The tables that each batch job writes."""
MOST_EVENTS = 100
"""Number of newest events by which readers of assets are known."""


def table_asset(topology: str, table: str, *, sub_topology: str | None = None, **more: Any) -> Asset:
    """Returns the asset of a table.

    The batch jobs of *topology* write it, or the stream of *sub_topology*.
    """
    place = "/".join(part for part in (topology, sub_topology, table) if part)
    # Only a run learns the place of the warehouse, a DAG file does not.
    return Asset(name=f"tidemark/{place}", uri=f"x-tidemark://{place}", **more)


def stream_table(
    topology: str, sub_topology: str, table: str, *, at_most_every: timedelta = timedelta(minutes=1)
) -> Asset:
    """Returns the asset of a stream's table, for schedules.

    Args:
        topology: the topology.
        sub_topology: the stream.
        table: its table.
        at_most_every: the asset is updated after commits, but not more often.
    """
    trigger = TableTrigger(
        topology=topology, sub_topology=sub_topology, table=table, every_s=at_most_every.total_seconds()
    )
    # Airflow runs a watcher only for assets in schedules.
    watcher = AssetWatcher(name=f"{topology}/{sub_topology}/{table}", trigger=trigger)
    return table_asset(topology, table, sub_topology=sub_topology, watchers=[watcher])


def waiting_dags(layout: Layout, topology: str, stream: str) -> frozenset[str]:
    """Returns the DAGs that wait for new commits of *stream*.

    They are those that the newest events of the assets of its tables have started. A DAG that never ran is not known.
    Only a task of Airflow can ask this.
    """
    from airflow.sdk.execution_time.context import InletEventsAccessor  # parsers of DAGs need neither

    from tidemark.storage.warehouse import stream_tables

    dags: set[str] = set()
    for path in stream_tables(layout, topology, "*"):
        if path.parent.name == stream:
            asset = table_asset(topology, path.name, sub_topology=stream)
            events = InletEventsAccessor(asset.name, asset.uri).ascending(ascending=False).limit(MOST_EVENTS)
            dags |= {run.dag_id for event in events for run in event.created_dagruns}
    return frozenset(dags)


def table_state(path: Path) -> dict[str, Any] | None:
    """Returns the state of the Delta table at *path*, or None.

    It has `path`, `version`, `rows`, `files` and `bytes`, from the table's log.
    """
    from deltalake import DeltaTable  # this import and the next cost more than parsing a DAG may

    from tidemark.query.inventory import size_of_table

    if not DeltaTable.is_deltatable(str(path)):
        return None
    table = size_of_table(path.name, path, str(path))
    return {name: getattr(table, name) for name in ("version", "rows", "files", "bytes")} | {"path": str(path)}


class TopologyJob(BatchJob):
    """Runs a batch job of *topology*, and updates assets of changed tables.

    *arguments* follow `--warehouse` and `--topology`. An event's extra is the `table_state` of the table.
    """

    template_fields: Sequence[str] = (*BatchJob.template_fields, "warehouse")

    def __init__(
        self, *, job: str, topology: Topology, warehouse: str, arguments: Sequence[str] = (), **kwargs: Any
    ) -> None:
        self.tables = names_in(WRITES[job])
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
        """Runs the job to its end, then updates the assets."""
        before = self._states()
        super().execute(context)
        updated = {table: state for table, state in self._states().items() if state != before[table]}
        # Airflow updates the outlets at the task's end.
        self.outlets = [table_asset(self.topology, table) for table in updated]
        for asset, state in zip(self.outlets, updated.values(), strict=True):
            context["outlet_events"][asset].extra.update(state)

    def _states(self) -> dict[str, Any]:
        layout = Layout(warehouse_at(self.warehouse))
        return {table: table_state(layout.report_table(self.topology, table)) for table in self.tables}


class TableTrigger(BaseEventTrigger):
    """Fires when a table of a stream has a new version.

    Airflow stores the version for which it fired last. The event's payload is the `table_state`. It looks every
    *every_s* seconds.
    """

    def __init__(self, *, topology: str, sub_topology: str, table: str, every_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self._kwargs = {"topology": topology, "sub_topology": sub_topology, "table": table, "every_s": every_s}
        self._place = (topology, sub_topology, table)
        self._every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark.airflow.tasks.assets.TableTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event for all commits since the last one."""
        warehouse = await sync_to_async(Variable.get)("tidemark_warehouse")
        path = Layout(await sync_to_async(warehouse_at)(warehouse)).stream_table(*self._place)
        store = self.asset_state_store
        last_version = await store.aget("version", default=None) if store is not None else None
        while True:
            state = await asyncio.to_thread(table_state, path)
            if state is not None and state["version"] != last_version:
                yield TriggerEvent(state)  # type: ignore[no-untyped-call]  # as above
                last_version = state["version"]
                if store is not None:
                    await store.aset("version", last_version)
            await asyncio.sleep(self._every_s)
