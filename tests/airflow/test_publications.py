"""Complete intervals become partitioned events: each once, whatever is killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from deltalake import write_deltalake

from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import COMPLETENESS
from tidemark.model.topology import load
from tidemark.query.sql import Warehouse
from tidemark_airflow.dags.settings import TOPOLOGIES
from tidemark_airflow.operators import assets
from tidemark_airflow.operators.assets import IntervalTrigger, OneRunPerInterval, PublishIntervals, complete_table

FLIGHTS = load(TOPOLOGIES / "flights.toml")
MIDNIGHT, HOUR = 1_372_291_200_000, 3_600_000  # 2013-06-27 00:00 UTC
LOOKS = {"poll_s": 0.01, "first_look_s": 0.0}


class Killed(Exception):
    """The process of a task is gone."""


class Airflow:
    """Airflow with the DAG that publishes, and how it ends a task.

    The events of a task are created in the transaction that makes it succeed.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout, self.batch, self.runs = Layout(home), 0, 0
        self.states: dict[str, str] = {}
        self.events: list[tuple[str, int]] = []
        self.extras: list[dict[str, Any]] = []
        monkeypatch.setattr(assets, "task_state", lambda dag, task, run: self.states.get(run))

    def complete(self, hour: int, *, reopened: bool = False, table: str = "flight_board") -> None:
        """Writes the row of a batch that completes or reopens an interval."""
        start = MIDNIGHT + hour * HOUR
        row = {
            "topology": "flights", "sub_topology": "status", "batch_id": self.batch, "operator": table, "table": table,
            "interval_start": start, "interval_end": start + HOUR, "decided_at": start + 2 * HOUR, "records": 10,
            "emitted": 5, "waited_ms": 0, "by_idleness": False,
            "reopened_at": start + 3 * HOUR if reopened else None, "cause": "late_record" if reopened else None,
        }  # fmt: skip
        write_deltalake(
            self.layout.stream_table("flights", "status", COMPLETENESS.name),
            rows_of(COMPLETENESS, [row]),
            mode="append",
        )
        self.batch += 1

    def run(self, *, killed: str = "", again: str | None = None) -> TaskDeferred | None:
        """Runs the task of a new run, or of *again*.

        It ends, defers, or is *killed*, which is its state then.
        """
        self.runs += again is None
        run_id = again or f"run {self.runs}"
        self.states[run_id] = "running"
        task = PublishIntervals(task_id="publish", topology=FLIGHTS, warehouse=str(self.layout.warehouse), **LOOKS)
        told = OutletEventAccessors()
        ti = type("Ti", (), {"dag_id": "dag", "task_id": "publish", "run_id": run_id})
        try:
            task.execute({"run_id": run_id, "ti": ti, "outlet_events": told})
        except TaskDeferred as deferred:
            self.states[run_id] = "deferred"
            return deferred
        if killed:
            self.states[run_id] = killed
            return None
        for asset in task.outlets:
            for key in sorted(told[asset].partition_keys):  # a set
                extra = told[asset].extra["intervals"][key]
                self.events.append((key, extra["reopenings"]))
                self.extras.append({"asset": asset.name, **extra})
        self.states[run_id] = "success"
        return None

    def recorded(self) -> list[tuple[str, int]]:
        text = "SELECT interval_start, reopenings FROM published_intervals ORDER BY ALL"
        return [(start.isoformat(), n) for start, n in Warehouse(self.layout.warehouse).ask(text).rows]


def key(hour: int) -> str:
    return f"2013-06-{27 + hour // 24}T{hour % 24:02}:00:00+00:00"


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(tmp_path, monkeypatch)


def test_a_complete_interval_is_one_event_with_its_start_as_key(airflow: Airflow) -> None:
    airflow.complete(14)
    airflow.run()
    assert airflow.events == [("2013-06-27T14:00:00+00:00", 0)]
    assert airflow.extras == [
        {
            "asset": "tidemark/flights/status/flight_board/complete",
            "end": "2013-06-27T15:00:00+00:00",
            "complete_at": "2013-06-27T16:00:00+00:00",
            "records": 10,
            "by_idleness": False,
            "reopenings": 0,
            "cause": None,
        }
    ]
    assert airflow.run() is not None  # defers
    assert airflow.events == airflow.recorded() == [(key(14), 0)]


def test_a_reopened_interval_is_published_once_more(airflow: Airflow) -> None:
    airflow.complete(0)
    airflow.complete(1)
    airflow.run()
    airflow.complete(0, reopened=True)
    airflow.complete(0, reopened=True)  # both before the next look
    airflow.run()
    assert airflow.run() is not None
    assert sorted(airflow.events) == [(key(0), 0), (key(0), 2), (key(1), 0)]
    assert airflow.extras[-1]["cause"] == "late_record"


def test_many_intervals_are_published_in_parts(airflow: Airflow) -> None:
    for hour in range(30):
        airflow.complete(hour)
    airflow.run()
    assert sorted(airflow.events) == [(key(hour), 0) for hour in range(24)]
    airflow.run()
    assert sorted(airflow.events) == [(key(hour), 0) for hour in range(30)]


@pytest.mark.parametrize("state", ["failed", "up_for_retry", "running"])
def test_a_run_that_was_killed_before_its_end_published_nothing(airflow: Airflow, state: str) -> None:
    airflow.complete(0)
    airflow.run(killed=state)
    assert (airflow.events, airflow.recorded()) == ([], [(key(0), 0)])
    airflow.run(again="run 1" if state == "up_for_retry" else None)
    assert airflow.events == airflow.recorded() == [(key(0), 0)]


def test_a_cleared_run_publishes_its_intervals_again(airflow: Airflow) -> None:
    for hour in range(3):
        airflow.complete(hour)
        airflow.run(killed="failed" if hour == 2 else "")
    airflow.run(again="run 1")  # that of hour 0
    # Hour 2 was not published before.
    assert airflow.events == [(key(0), 0), (key(1), 0), (key(0), 0), (key(2), 0)]
    assert airflow.run() is not None
    assert airflow.recorded() == [(key(hour), 0) for hour in range(3)]


def test_a_deleted_run_has_published(airflow: Airflow) -> None:
    airflow.complete(0)
    airflow.run()
    airflow.states.clear()
    assert airflow.run() is not None
    assert airflow.recorded() == [(key(0), 0)]


def test_a_table_without_the_key_is_not_published(airflow: Airflow) -> None:
    airflow.complete(0, table="flight_status")  # had the key before
    assert airflow.run() is not None
    assert airflow.events == []


@pytest.mark.parametrize("hours", [8, pytest.param(48, marks=pytest.mark.long)])
def test_kills_lose_and_repeat_no_interval(airflow: Airflow, hours: int) -> None:
    """Reopens an hour in three, and kills a run in two."""
    dice = random.Random(hours)
    expected: Counter[str] = Counter()
    for hour in range(hours):
        airflow.complete(hour)
        expected[key(hour)] += 1
        while dice.random() < 0.5:
            airflow.run(killed=dice.choice(["failed", "up_for_retry", "running"]))
        airflow.run()
        if dice.random() < 0.33:
            late = dice.randrange(hour + 1)
            airflow.complete(late, reopened=True)
            expected[key(late)] += 1
            airflow.run()
    assert airflow.run() is not None
    assert Counter(start for start, _ in airflow.events) == expected
    assert sorted(airflow.events) == airflow.recorded()


def test_the_trigger_fires_at_the_next_commit(airflow: Airflow) -> None:
    deferred = airflow.run()
    assert deferred is not None
    assert (deferred.method_name, deferred.trigger.serialize()[1]["seen"]) == ("resume", {"status": -1})

    async def fired() -> Any:
        trigger = IntervalTrigger(**deferred.trigger.serialize()[1])
        waiting = asyncio.create_task(anext(trigger.run()))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        airflow.complete(0)
        return (await asyncio.wait_for(waiting, 10)).payload

    assert asyncio.run(fired()) == {"versions": {"status": 0}}


class Kept(dict[str, str]):
    """Values that Airflow keeps for an asset."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


def test_a_reopened_interval_clears_its_run_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[tuple[str, str]] = []
    states = {"a": "success", "b": "success"}
    monkeypatch.setattr(assets, "task_state", lambda dag, task, run: states.get(run))
    monkeypatch.setattr(assets, "clear_run", lambda dag, run: cleared.append((dag, run)))
    board = complete_table("flights", "status", "flight_board")
    task, kept = OneRunPerInterval(asset=board), Kept()

    def run(run_id: str, hour: int | None) -> None:
        dag_run = type(
            "Run", (), {"dag_id": "others", "run_id": run_id, "partition_key": None if hour is None else key(hour)}
        )
        task.execute({"dag_run": dag_run, "asset_state_store": {board: kept}})

    run("a", 0)
    run("b", 1)
    run("manual", None)
    with pytest.raises(AirflowSkipException, match="a was cleared"):
        run("c", 0)
    run("a", 0)  # it runs again
    assert cleared == [("others", "a")]
    states.clear()  # the runs were deleted
    run("d", 0)
    assert cleared == [("others", "a")]
    assert kept == {f"others {key(0)}": "d", f"others {key(1)}": "b"}


def test_a_killed_worker_does_not_end_the_run_of_an_interval() -> None:
    board = complete_table("flights", "status", "flight_board")
    assert OneRunPerInterval(asset=board).retries == 5
    with DAG("others", default_args={"retries": 0}):
        assert OneRunPerInterval(asset=board).retries == 0
