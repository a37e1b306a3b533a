"""Delta tables as Airflow assets, on which other teams can schedule DAGs.

An asset is named after its table: `tidemark/<topology>/<table>`, or `tidemark/<topology>/<sub_topology>/<table>` where
a stream writes it. Its URI is `x-tidemark://…`, and events have the path of the table. The asset of a table's complete
intervals has `/complete` after that, and its events have the start of an interval as partition key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow.sdk import Asset, AssetWatcher, BaseOperator, Context, Variable
from airflow.sdk.exceptions import AirflowSkipException
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidemark.clock import wall_clock_ms
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    EXPECTATION_RESULTS,
    INCIDENTS,
    LATENCY_ROLLUP,
    MAINTENANCE,
    SLA_RESULTS,
    WINDOW_PARTS,
)
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark_airflow.operators.spark import BatchJob
from tidemark_airflow.operators.store import warehouse_at

WRITES = {
    "rollup": (LATENCY_ROLLUP,),
    "critical_path": (CRITICAL_PATHS, CRITICAL_PATH_STEPS, WINDOW_PARTS),
    "check_sla": (SLA_RESULTS, EXPECTATION_RESULTS, INCIDENTS),
    "maintain": (MAINTENANCE,),
}
"""The tables that each batch job writes."""
AGAIN: Mapping[str, Any] = MappingProxyType({"retries": 5, "retry_delay": timedelta(seconds=10)})
"""Tries of a task that only an accident of Airflow's can end."""
MOST_EVENTS = 100
"""Only the newest events of an asset are asked for the DAGs that read it."""


def table_asset(topology: str, table: str, *, sub_topology: str | None = None, **more: Any) -> Asset:
    """Returns the asset of a table that the batch jobs of *topology* write, or the stream *sub_topology*."""
    name = "/".join(part for part in (topology, sub_topology, table) if part)
    # The URI has no path of the warehouse, because only a run learns it, and a DAG file does not.
    return Asset(name=f"tidemark/{name}", uri=f"x-tidemark://{name}", **more)


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


def complete_table(topology: str, sub_topology: str, table: str) -> Asset:
    """Returns the asset of a table's complete intervals, for partitioned schedules.

    The asset has an event for each interval that the watermark has passed, and another one when a late record reopens
    the interval. *table* is the table of an operator with the key `complete`, as `completeness` names it.
    """
    return table_asset(topology, f"{table}/complete", sub_topology=sub_topology)


def waiting_dags(layout: Layout, topology: str, stream: str) -> frozenset[str]:
    """Returns the DAGs that wait for new commits of *stream*: those that the newest events of its assets have started.

    A DAG that never ran is not known. Only a task of Airflow can ask this.
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
    """Returns `path`, `version`, `rows`, `files` and `bytes` of the Delta table at *path*, or None if there is none.

    They are read from the table's log.
    """
    from tidemark.query.inventory import size_of_table  # this import costs more than parsing a DAG may
    from tidemark.storage.warehouse import is_table

    if not is_table(path):
        return None
    table = size_of_table(path.name, path, str(path))
    return {name: getattr(table, name) for name in ("version", "rows", "files", "bytes")} | {"path": str(path)}


class TopologyJob(BatchJob):
    """Runs a batch job of *topology*, and updates the assets of the tables that it has changed.

    *arguments* follow `--warehouse` and `--topology`. The extra of an event is the `table_state` of the table.
    """

    template_fields: Sequence[str] = (*BatchJob.template_fields, "warehouse")

    def __init__(
        self, *, job: str, topology: Topology, warehouse: str, arguments: Sequence[str] = (), **kwargs: Any
    ) -> None:
        self.tables = names_in(WRITES[job])
        super().__init__(
            **{"task_id": job, **kwargs},
            job=job,
            spark=topology.spark,
            application_args=["--warehouse", warehouse, "--topology", topology.name, *arguments],
            outlets=[table_asset(topology.name, table) for table in self.tables],
        )
        self.topology = topology.name
        self.warehouse = warehouse

    def execute(self, context: Context) -> None:
        """Runs the job to its end, then updates the assets."""
        before = self._states()
        super().execute(context)
        self.update_assets(context, before)

    def update_assets(self, context: Context, before: Mapping[str, Any]) -> None:
        """Updates the assets of tables with another state than *before*."""
        updated = {table: state for table, state in self._states().items() if state and state != before.get(table)}
        # Airflow updates the outlets at the task's end.
        self.outlets = [table_asset(self.topology, table) for table in updated]
        for asset, state in zip(self.outlets, updated.values(), strict=True):
            context["outlet_events"][asset].extra.update(state)

    def _states(self) -> dict[str, Any]:
        layout = Layout(warehouse_at(self.warehouse))
        return {table: table_state(layout.report_table(self.topology, table)) for table in self.tables}


class TableTrigger(BaseEventTrigger):
    """Looks every *every_s* seconds, and fires when a table of a stream has a new version.

    Airflow stores the version for which the trigger fired last. The payload of the event is the `table_state`.
    """

    def __init__(self, *, topology: str, sub_topology: str, table: str, every_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self._kwargs = {"topology": topology, "sub_topology": sub_topology, "table": table, "every_s": every_s}
        self._names = (topology, sub_topology, table)
        self._every_s = every_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark_airflow.operators.assets.TableTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event for all commits since the last one."""
        warehouse = await sync_to_async(Variable.get)("tidemark_warehouse")
        path = Layout(await sync_to_async(warehouse_at)(warehouse)).stream_table(*self._names)
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


class PublishIntervals(BaseOperator):
    """Publishes complete intervals of *topology*'s tables as partitioned events.

    Purpose: a DAG of another team runs for exactly one interval of a table, as soon as it is complete.

    How it works: the task defers until there are intervals to publish. It records them and succeeds, and with that
    Airflow creates the events. So the rows of a run whose task did not succeed are removed by the next one, and nothing
    is published twice or never. The DAG has to start a next run at once.

    To clear a run that has published, or to mark the newest of them as failed, publishes its intervals again.

    Known limitation: to mark a run as succeeded while it publishes may lose its intervals.

    Args:
        topology: the topology of the tables, of which at least one has the key `complete`.
        warehouse: the folder or bucket of its tables.
        poll_s: seconds between looks at the tables.
        first_look_s: seconds before the first look, see `Supervision`.
        kwargs: arguments of BaseOperator.
    """

    template_fields: Sequence[str] = ("warehouse",)

    def __init__(
        self, *, topology: Topology, warehouse: str, poll_s: float, first_look_s: float, **kwargs: Any
    ) -> None:
        self.assets = {
            (sub.name, operator.table_name): complete_table(topology.name, sub.name, operator.table_name)
            for sub in topology.sub_topologies
            for operator in sub.operators
            if operator.complete
        }
        super().__init__(outlets=[*self.assets.values()], **kwargs)
        self.topology = topology.name
        self.warehouse = warehouse
        self.looks = {"poll_s": poll_s, "first_look_s": first_look_s}

    def execute(self, context: Context) -> None:
        """Publishes the intervals that are due, or defers until there are some."""
        from tidemark.facts.publications import completeness_versions, due_intervals  # parsers of DAGs need no DuckDB
        from tidemark.reports.publications import record_publication

        layout, run_id = Layout(warehouse_at(self.warehouse)), str(context["run_id"])
        # Before the rows are read: a later version wakes the task again.
        seen = completeness_versions(layout, self.topology, {stream for stream, _ in self.assets})
        self._forget_failed(layout, context)
        due = due_intervals(layout, self.topology)
        due = [each for each in due if (each["sub_topology"], each["table"]) in self.assets]
        if not due:
            self.defer(
                trigger=IntervalTrigger(warehouse=self.warehouse, topology=self.topology, seen=seen, **self.looks),
                method_name="resume",
            )
        record_publication(layout, self.topology, due, run_id=run_id, at_ms=wall_clock_ms())
        self.outlets = []
        for table, asset in self.assets.items():
            intervals: dict[str, Any] = {
                _key(row): _extra(row) for row in due if (row["sub_topology"], row["table"]) == table
            }
            if intervals:
                # Airflow updates the outlets at the task's end.
                self.outlets.append(asset)
                context["outlet_events"][asset].extra["intervals"] = intervals
                context["outlet_events"][asset].add_partitions([*intervals])
                self.log.info("publishing of %s: %s", asset.name, ", ".join(intervals))

    def resume(self, context: Context, event: Mapping[str, Any]) -> None:
        """Publishes the intervals that have become due."""
        self.execute(context)

    def _forget_failed(self, layout: Layout, context: Context) -> None:
        """Removes publications whose tasks failed from the record: the newest one, and earlier tries of this run.

        A run that was cleared has only tries that count as failed.
        """
        from tidemark.facts.publications import publishing_runs
        from tidemark.reports.publications import record_publication

        ti, runs = context["ti"], publishing_runs(layout, self.topology)
        for run_id in {ti.run_id, *runs[-1:]}.intersection(runs):
            state = "tried again" if run_id == ti.run_id else task_state(ti.dag_id, ti.task_id, run_id)
            # A run that is not there any more was deleted after its end.
            if state not in (None, "success"):
                self.log.warning("%s did not succeed (%s), so its intervals are published again", run_id, state)
                record_publication(layout, self.topology, [], run_id=run_id, at_ms=wall_clock_ms())


def task_state(dag_id: str, task_id: str, run_id: str) -> str | None:
    """Returns the state of a task, or None if there is no such run. Only a task or a trigger can ask Airflow for it."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # parsers of DAGs do not need it

    states = RuntimeTaskInstance.get_task_states(dag_id, task_ids=[task_id], run_ids=[run_id]).get(run_id, {})
    # A task that was cleared has no state until it is scheduled.
    return str(states[task_id] or "none") if task_id in states else None


class IntervalTrigger(BaseTrigger):
    """Fires once, when `completeness` of a stream has another version.

    *seen* has the versions of `completeness_versions` that the task has read.
    """

    def __init__(
        self, *, warehouse: str, topology: str, seen: dict[str, int], poll_s: float, first_look_s: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        looks = {"poll_s": poll_s, "first_look_s": first_look_s}
        self._kwargs = {"warehouse": warehouse, "topology": topology, "seen": seen, **looks}
        self._warehouse, self._topology, self._seen = warehouse, topology, seen
        self._poll_s, self._first_look_s = poll_s, first_look_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark_airflow.operators.assets.IntervalTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: the new versions."""
        layout = Layout(await sync_to_async(warehouse_at)(self._warehouse))
        await asyncio.sleep(self._first_look_s)
        while (versions := await asyncio.to_thread(self._versions, layout)) == self._seen:
            await asyncio.sleep(self._poll_s)
        yield TriggerEvent({"versions": versions})  # type: ignore[no-untyped-call]  # as above

    def _versions(self, layout: Layout) -> dict[str, int]:
        from tidemark.facts.publications import completeness_versions  # parsers of DAGs do not need it

        try:
            return completeness_versions(layout, self._topology, self._seen)
        except OSError as error:
            self.log.warning("completeness of %s cannot be read: %s; it is looked at again", self._topology, error)
            return self._seen


class OneRunPerInterval(BaseOperator):
    """Keeps one run for each interval of *asset*, as the first task of a DAG.

    The first run of an interval continues. When the interval is reopened, the new run clears the first one, which
    computes the interval again, and skips the rest of itself. A run without a partition key continues.

    Known limitation: if a worker is killed just after it has cleared the first run, the next try clears it again.
    """

    def __init__(self, *, asset: Asset, task_id: str = "one_run_per_interval", **kwargs: Any) -> None:
        # If a worker is killed here, no other run computes this interval.
        kwargs["default_args"] = {**AGAIN, **kwargs.get("default_args", {})}
        super().__init__(task_id=task_id, inlets=[asset], **kwargs)
        self.asset = asset

    def execute(self, context: Context) -> None:
        """Clears the first run of the interval and skips, or continues."""
        run = context["dag_run"]
        if run.partition_key is None:
            return
        store, key = context["asset_state_store"][self.asset], f"{run.dag_id} {run.partition_key}"
        first = store.get(key)
        if first in (None, run.run_id) or task_state(run.dag_id, self.task_id, str(first)) is None:
            store.set(key, run.run_id)
            return
        clear_run(run.dag_id, str(first))
        msg = f"the interval {run.partition_key} was reopened, and its run {first} was cleared"
        raise AirflowSkipException(msg)


def clear_run(dag_id: str, run_id: str) -> None:
    """Clears a run that exists. Only a task of Airflow can do this."""
    # A running task has these modules.
    from airflow.sdk.execution_time.comms import TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, reset_dag_run=True))


def _key(row: Mapping[str, Any]) -> str:
    start: datetime = row["interval_start"]
    return start.isoformat()


def _extra(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the event of an interval says, as JSON values."""
    return {
        "end": row["interval_end"].isoformat(),
        "complete_at": row["complete_at"].isoformat(),
        **{name: row[name] for name in ("records", "by_idleness", "reopenings", "cause")},
    }
