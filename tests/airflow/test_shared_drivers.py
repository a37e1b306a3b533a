"""Streams of one process are launched, drained and replaced separately.

Stand-ins are streams.
"""

import asyncio
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import StreamState
from tidemark.errors import TidemarkError
from tidemark.local.stack import Home
from tidemark.model.topology import load
from tidemark.reports.what_if.estimates import distances_of
from tidemark.semantics.liveness import RightToKill
from tidemark.stream.driver.waking import Hops
from tidemark_airflow.operators.driver import NAME, Driver, DriverVerdict
from tidemark_airflow.operators.stream import StreamOperator, StreamTrigger, Supervision

HERE = Path(__file__).parent
FLIGHTS = HERE.parents[1] / "jobs" / "topologies" / "flights.toml"
RIGHT_TO_KILL = RightToKill(silent_s=1.0, starting_s=5.0, working_s=2.0, draining_s=1.0)


class Streams:
    """Streams of `flights` in the warehouse *home*, and their tasks."""

    def __init__(self, home: Path) -> None:
        self.home, self.file = home, home / "flights.toml"
        home.mkdir()
        self.file.write_text(FLIGHTS.read_text())
        self.control = home / "control" / "flights"

    def driver(self, name: str) -> Driver:
        return Driver(self.control / name, RIGHT_TO_KILL, shared=self.control / ".driver")

    def task(self, name: str) -> StreamOperator:
        return StreamOperator(
            task_id=name,
            topology_file=self.file,
            sub_topology=name,
            warehouse=str(self.home),
            bootstrap="127.0.0.1:1",
            application=str(HERE / "stand_in.py"),
            supervision=Supervision(poll_s=0.05, first_look_s=0.05, restarts=1, right_to_kill=RIGHT_TO_KILL),
        )

    def behave(self, name: str, how: str) -> None:
        (self.control / name).mkdir(parents=True, exist_ok=True)
        (self.control / name / "behaviour").write_text(how)

    def launch(self, name: str) -> StreamTrigger:
        with pytest.raises(TaskDeferred) as raised:
            self.task(name).execute({})
        return raised.value.trigger

    def resume(self, name: str, trigger: StreamTrigger) -> StreamTrigger:
        """Resumes the fired task and returns its next trigger."""
        with pytest.raises(TaskDeferred) as raised:
            self.task(name).resume({}, fired(trigger))
        return raised.value.trigger

    def running(self, name: str) -> int:
        """Waits for the newest launch's heartbeat and returns its pid."""
        driver = self.driver(name)

        def runs() -> bool:
            beat = driver.heartbeat()
            return beat is not None and beat.state is StreamState.RUNNING and driver.control.is_held()

        process.wait_until(runs, f"a running driver of {name}", 10)
        beat = driver.heartbeat()
        assert beat is not None
        return beat.pid

    def drain(self, name: str) -> None:
        self.driver(name).control.request_drain(by="ann", now_ms=wall_clock_ms())

    def epoch(self, name: str) -> int:
        """How many drivers the stream has had."""
        return self.driver(name).control.epoch()

    @property
    def process(self) -> process.Process | None:
        return process.find(self.driver("status").process_home, NAME)


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    folders = [str(HERE / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    found = Streams(tmp_path / "warehouse")
    yield found
    for driver in Home(tmp_path).drivers():
        process.stop(driver, NAME, grace_s=0)


def fired(trigger: StreamTrigger) -> dict[str, str]:
    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError

    return asyncio.run(asyncio.wait_for(first(), 10))


def test_streams_share_a_process_that_ends_with_the_last_of_them(streams: Streams) -> None:
    first, second = streams.launch("status"), streams.launch("carriers")
    assert streams.running("status") == streams.running("carriers")
    streams.drain("status")
    assert fired(first) == {"verdict": "drained"}
    streams.task("status").resume({}, {"verdict": "drained"})
    assert streams.driver("carriers").verdict(now_ms=wall_clock_ms()) is DriverVerdict.ALIVE
    streams.drain("carriers")
    assert fired(second) == {"verdict": "drained"}
    process.wait_until(lambda: streams.process is None, "the end of the process", 10)


def test_a_stream_that_fails_is_launched_again_beside_the_others(streams: Streams) -> None:
    streams.behave("status", "fail later")
    failed = streams.launch("status")
    streams.launch("carriers")
    pid = streams.running("carriers")
    streams.behave("status", "")
    streams.resume("status", failed)
    assert streams.running("status") == streams.running("carriers") == pid
    assert (streams.epoch("status"), streams.epoch("carriers")) == (2, 1)


def test_a_hanging_stream_ends_the_process_and_is_named(streams: Streams) -> None:
    streams.behave("status", "stuck")
    stuck, beside = streams.launch("status"), streams.launch("carriers")
    pid = streams.running("carriers")
    assert fired(stuck) == {"verdict": "stuck"}
    streams.behave("status", "")
    streams.resume("status", stuck)
    assert fired(beside) == {"verdict": "dead"}
    streams.resume("carriers", beside)
    failures = streams.driver("carriers").failures()
    assert failures is not None
    assert failures.kind == "carriers is dead: flights/status hung, and the process that ran both was killed for it"
    assert streams.running("status") == streams.running("carriers") != pid


def test_an_undrained_stream_is_not_killed_while_others_run(streams: Streams) -> None:
    streams.behave("status", "ignore drain")
    cleared = streams.launch("status")
    streams.launch("carriers")
    pid = streams.running("status")
    with pytest.raises(TidemarkError, match="where its process runs other streams, too, it ends after its batch"):
        asyncio.run(cleared.on_kill())
    assert streams.running("carriers") == pid
    assert streams.driver("carriers").verdict(now_ms=wall_clock_ms()) is DriverVerdict.ALIVE


def test_another_command_drains_the_process_and_starts_a_new_one(streams: Streams) -> None:
    """Each stream's task launches it again, as when `[spark]` changes."""
    streams.launch("status")
    beside = streams.launch("carriers")
    pid = streams.running("carriers")
    streams.running("status")
    streams.file.write_text(f'{streams.file.read_text()}\n[spark]\ndriver_memory = "2g"\n')
    streams.launch("status")
    assert fired(beside) == {"verdict": "drained"}
    streams.resume("carriers", beside)
    assert streams.running("status") == streams.running("carriers") != pid


def test_topologies_with_the_same_driver_share_its_process(streams: Streams) -> None:
    streams.file.write_text(f'driver = "small"\n{streams.file.read_text()}')
    streams.launch("status")
    pid = streams.running("status")
    found = process.find(streams.home / "control" / ".drivers" / "small" / platform.node(), NAME)
    assert found is not None
    assert found.pid == pid


def test_a_stream_may_have_a_process_of_its_own(streams: Streams) -> None:
    streams.file.write_text(f'driver = "own"\n{streams.file.read_text()}')
    streams.launch("status")
    streams.launch("carriers")
    assert streams.running("status") != streams.running("carriers")
    assert streams.process is None


@pytest.mark.parametrize(
    ("head", "spark", "is_alone"),
    [
        ("", "", False),
        ('driver = "small"', 'deploy = "client"', False),
        ('driver = "own"', "", True),
        ("", 'master = "yarn"\ndeploy = "cluster"', True),
    ],
)
def test_estimates_know_which_streams_their_writers_wake(
    streams: Streams, head: str, spark: str, *, is_alone: bool
) -> None:
    streams.file.write_text(f"{head}\n{streams.file.read_text()}\n[spark]\n{spark}\n")
    topology = load(streams.file)
    hops = Hops(is_shared=streams.task("carriers")._shared() is not None)
    woken = {sub.name: hops.wakes(sub) for sub in topology.sub_topologies}
    assert woken == {"status": False, "carriers": not is_alone}
    assert {name: ms == 0 for name, ms in distances_of(topology).items()} == woken
