"""Delta tables are assets whose events carry version and rows.

A writer emits no event for a table that did not change.
"""

import asyncio
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import Variable
from airflow.triggers.base import TriggerEvent
from deltalake import DeltaTable, write_deltalake

from tidemark.model.project.layout import Layout
from tidemark.model.topology import load
from tidemark_airflow.dags.settings import TOPOLOGIES
from tidemark_airflow.operators.assets import TableTrigger, TopologyJob, stream_table, table_asset, table_state
from tidemark_airflow.operators.spark import BatchJob

FLIGHTS = load(TOPOLOGIES / "flights.toml")


def write(path: Path, *values: int) -> None:
    write_deltalake(path, pa.table({"v": values}), mode="append")


def test_a_table_has_one_asset_whoever_names_it() -> None:
    report, board = table_asset("flights", "critical_paths"), table_asset("flights", "changes", sub_topology="status")
    assert (report.name, report.uri) == ("tidemark/flights/critical_paths", "x-tidemark://flights/critical_paths")
    assert (board.name, board.uri) == ("tidemark/flights/status/changes", "x-tidemark://flights/status/changes")
    watched = stream_table("flights", "status", "changes")
    assert (watched.name, watched.uri) == (board.name, board.uri)


def test_the_state_of_a_table_is_what_its_log_says(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert table_state(path) is None
    write(path, 1, 2)
    write(path, 3)
    (data, *_) = (Path(file) for file in DeltaTable(path).file_uris())
    data.write_bytes(b"no data file is read" * (data.stat().st_size // 20))
    state = table_state(path)
    assert state is not None
    assert (state["version"], state["rows"], state["files"], state["path"]) == (1, 3, 2, str(path))


def test_a_job_updates_the_assets_of_the_tables_that_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    for table in ("critical_paths", "critical_path_steps"):
        write(layout.report_table("flights", table), 1)

    def run(job: TopologyJob, context: Any) -> None:
        write(layout.report_table("flights", "critical_paths"), 2, 3)
        write(layout.report_table("flights", "window_parts"), 4)

    monkeypatch.setattr(BatchJob, "execute", run)
    job = TopologyJob(job="critical_path", topology=FLIGHTS, warehouse=str(tmp_path))
    assert len(job.outlets) == 3
    events: dict[Any, Any] = defaultdict(lambda: SimpleNamespace(extra={}))
    job.execute({"outlet_events": events})
    assert [asset.name for asset in job.outlets] == [
        "tidemark/flights/critical_paths",
        "tidemark/flights/window_parts",
    ]
    told = {asset.name: (event.extra["version"], event.extra["rows"]) for asset, event in events.items()}
    assert told == {"tidemark/flights/critical_paths": (1, 3), "tidemark/flights/window_parts": (0, 1)}


class Remembered:
    """A store of values that Airflow keeps for an asset."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


def test_a_stream_table_reports_commits_once_across_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variable, "get", lambda name: {"tidemark_warehouse": str(tmp_path)}[name])
    path, store = Layout(tmp_path).stream_table("flights", "status", "changes"), Remembered()

    def started() -> Any:
        (watcher,) = stream_table("flights", "status", "changes").watchers
        trigger = TableTrigger(**{**watcher.trigger.serialize()[1], "every_s": 0.01})
        trigger.asset_state_store = store
        return trigger.run()

    async def next_version(events: Any) -> int:
        event: TriggerEvent = await asyncio.wait_for(anext(events), 10)
        return int(event.payload["version"])

    async def watch() -> None:
        events = started()
        waiting = asyncio.create_task(next_version(events))  # there is no table yet
        await asyncio.sleep(0.05)
        write(path, 1)
        assert await waiting == 0
        again = asyncio.create_task(next_version(events))
        await asyncio.sleep(0.05)
        write(path, 2)
        assert await again == 1
        last = asyncio.create_task(next_version(events))  # it remembers before it looks again
        await asyncio.sleep(0.05)
        last.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(next_version(started()), 0.2)

    asyncio.run(watch())


def test_a_stream_table_is_polled_once_a_minute_by_default() -> None:
    (watcher,) = stream_table("flights", "status", "changes").watchers
    assert watcher.trigger.serialize() == (
        "tidemark_airflow.operators.assets.TableTrigger",
        {"topology": "flights", "sub_topology": "status", "table": "changes", "every_s": 60.0},
    )
