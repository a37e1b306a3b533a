"""Shares a real, partly killed Airflow and stand-in drivers between supervision tests.

A driver is looked for in three ways: its heartbeat, its lock, and the processes of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.driver_folder import processes_of
from tidemark.control.folder import StreamState
from tidemark.local import airflow
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.semantics.liveness import RightToKill
from tidemark_airflow.operators.driver import NAME, Driver

RIGHT_TO_KILL = RightToKill(silent_s=3.0, starting_s=20.0, working_s=5.0, draining_s=3.0)
RIGHT_TO_KILL_WITH_SPARK = RightToKill(silent_s=15.0, starting_s=90.0, working_s=90.0, draining_s=30.0)
RIGHT_TO_KILL_ON_YARN = RightToKill(silent_s=20.0, starting_s=400.0, working_s=400.0, draining_s=60.0)
WITHIN_S = 120.0
RETURNED_WITHIN_S = 20.0
HEARD = {"WORKERS__MIN_HEARTBEAT_INTERVAL": "1"}
"""Seconds until a scheduler sees a deferral; the default is 5."""
AIRFLOW_POLL_S = 0.5
"""The shortest time between two requests to Airflow, which cost CPU."""
FIRST_LOOK_S = 4.0
NUMBERS = """
name = "numbers"
trigger = "1 s"
[operators.numbers]
kind = "source"
files = "inbox"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 s"
[operators.kept]
kind = "sink"
input = "numbers"
table = "kept"
"""
"""Reads files of numbers, and keeps them."""


@dataclass(frozen=True)
class Kind:
    """A stream's DAG with its one task, topology and driver program.

    A driver on this host *is_shared* by the streams of a topology.
    """

    dag: str
    topology: str
    task: str
    program: str
    right_to_kill: RightToKill
    is_shared: bool = True


STAND_IN = Kind("stand_in", "flights", "status", "stand_in.py", RIGHT_TO_KILL)
SPARK = Kind("spark", "numbers", "numbers", "stream.py", RIGHT_TO_KILL_WITH_SPARK)
YARN = Kind("yarn", "numbers", "numbers", "stream.py", RIGHT_TO_KILL_ON_YARN, is_shared=False)


@dataclass(frozen=True)
class Stage:
    """An Airflow with the DAGs of *kinds*, from the folder *dags*.

    Topologies are in *home*, or in its folder `topologies` if it *is_project*.
    """

    home: Path
    settings: Mapping[str, str]
    streams: list[Supervised] = field(default_factory=list)
    kinds: tuple[Kind, ...] = (STAND_IN, SPARK)
    dags: Path = CHECKOUT / "tests" / "airflow" / "dags"
    is_project: bool = False

    def start(self) -> AirflowApi:
        """Start what does not run."""
        dags = self.home / "root"
        if not dags.exists():
            dags.mkdir(parents=True)
            (dags / "dags").symlink_to(self.dags)
            (dags / "plugins").symlink_to(CHECKOUT / "plugins")
            if STAND_IN in self.kinds:
                shutil.copy(CHECKOUT / "jobs" / "topologies" / "flights.toml", self.topology(STAND_IN))
            if SPARK in self.kinds:
                self.topology(SPARK).write_text(NUMBERS)
        os.environ["TIDEMARK_TESTS"] = str(CHECKOUT / "tests")
        os.environ["TIDEMARK_TEST_TOPOLOGIES"] = str(self.topology(self.kinds[0]).parent)
        project = Project(self.home) if self.is_project else None
        settings = {**HEARD, **self.settings}
        parts = airflow.start(self.home / "airflow", root=dags, project=project, variables={}, settings=settings)
        _api.cache_clear()  # its port may be another one
        api = airflow.wait_until_healthy(self.home / "airflow", parts)
        for kind in self.kinds:
            wait_for(lambda dag=kind.dag: api.has_dag(dag), "the DAGs", WITHIN_S)  # type: ignore[misc]
            api.unpause(kind.dag)
        return api

    def topology(self, kind: Kind) -> Path:
        """The topology file of streams of *kind*."""
        return (self.home / "topologies" if self.is_project else self.home) / f"{kind.topology}.toml"

    def kill(self, *components: str) -> None:
        """`kill -9` of *components* of Airflow, their children not."""
        for name in components:
            component = process.find(self.home / "airflow", name)
            assert component is not None
            os.kill(component.pid, signal.SIGKILL)
            process.wait_until(lambda component=component: not process.is_alive(component), f"the end of {name}", 10)  # type: ignore[misc]

    @property
    def api(self) -> AirflowApi:
        return _api(self.home / "airflow")


@cache
def _api(home: Path) -> AirflowApi:
    """Returns the one login of all requests."""
    return airflow.api(home)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Waits until *condition*, which asks Airflow, holds."""
    process.wait_until(condition, what, timeout_s, poll_s=AIRFLOW_POLL_S)


@contextmanager
def staged(home: Path, settings: Mapping[str, str] = airflow.NO_MORE, **more: Any) -> Iterator[Stage]:
    """A running stage in *home*, which leaves no process.

    *more* are its other fields.
    """
    stage = Stage(home, settings, **more)
    try:
        stage.start()
        yield stage
    finally:
        airflow.stop(home / "airflow")
        for stream in stage.streams:
            stream.end()  # whose test failed: Airflow has launched another driver


class Supervised:
    """A stream of *kind* of its own, in the warehouse *home*."""

    def __init__(self, stage: Stage, home: Path, kind: Kind = STAND_IN) -> None:
        self.stage, self.warehouse, self.kind = stage, home, kind
        control = home / "control" / kind.topology
        self.driver = Driver(
            control / kind.task, kind.right_to_kill, shared=control / ".driver" if kind.is_shared else None
        )
        self.driver.home.mkdir(parents=True)
        stage.streams.append(self)

    def trigger(self) -> str:
        """The id of a new DAG run that looks after the stream."""
        return self.stage.api.trigger(self.kind.dag, {"warehouse": str(self.warehouse)})

    def run(self) -> str:
        """Triggers a run; returns its id once the triggerer has it.

        The deferral comes earlier.
        """
        run_id = self.trigger()
        self.wait_for(run_id, "deferred")
        logs = self.stage.home / "airflow" / "logs" / f"dag_id={self.kind.dag}" / f"run_id={run_id}"
        process.wait_until(lambda: any(logs.rglob("*.trigger.*.log")), "a trigger", WITHIN_S)
        return run_id

    def clear(self, run_id: str) -> None:
        self.stage.api.clear(self.kind.dag, run_id, self.kind.task)

    def mark(self, run_id: str, state: str) -> None:
        self.stage.api.mark(self.kind.dag, run_id, self.kind.task, state)

    def log(self, run_id: str) -> str:
        return "\n".join(self.stage.api.log(self.kind.dag, run_id, self.kind.task))

    def behave(self, how: str) -> None:
        """Have stand-ins that are launched from now on behave so."""
        (self.driver.home / "behaviour").write_text(how)

    def put(self, *numbers: int) -> None:
        """Have the source of the stream read *numbers*."""
        inbox = self.warehouse / "inbox"
        inbox.mkdir(exist_ok=True)
        partial = inbox / f".{numbers[0]}.json"
        partial.write_text("".join(json.dumps({"n": n, "at": 1_400_000_000_000 + n}) + "\n" for n in numbers))
        partial.rename(inbox / f"{numbers[0]}.json")

    def wait_for(self, run_id: str, state: str) -> None:
        wait_for(lambda: self.state(run_id) == state, f"the state {state}", WITHIN_S)

    def state(self, run_id: str) -> str | None:
        return self.stage.api.task_states(self.kind.dag, run_id)[self.kind.task]

    def running(self, *, but: int = 0) -> int:
        """Returns the driver's pid, not *but*, once its newest launch beats."""

        def runs() -> bool:
            beat = self.driver.heartbeat()
            return beat is not None and beat.state is StreamState.RUNNING and self.drivers() == [beat.pid] != [but]

        process.wait_until(runs, "one running driver", WITHIN_S)
        return self.drivers()[0]

    def drivers(self) -> list[int]:
        """Returns the pids of all drivers of this stream, by any starter."""
        pids = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # no process, or it has ended
                program, *words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                is_ours = any(word.startswith(f"{processes_of(self.warehouse)}/") for word in words)
                if "python" in program and is_ours and words[0].endswith(self.kind.program):
                    pids.append(int(entry.name))
        return pids

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send *number* to the running driver; its pid."""
        pid = self.running()
        os.kill(pid, number)
        return pid

    def epoch(self) -> int:
        """How many drivers there have been."""
        return self.driver.control.epoch()

    def gone(self) -> None:
        """Wait until there is no driver."""
        process.wait_until(lambda: not self.drivers() and not self._is_found(), "the end of the driver", WITHIN_S)
        # In an object store the one who killed it gives its lease back right after; by itself it would end after 60 s.
        process.wait_until(lambda: not self.driver.control.is_held(), "a lease that was given back", RETURNED_WITHIN_S)

    def _is_found(self) -> bool:
        return process.find(self.driver.process_home, NAME) is not None

    def drain(self, *run_ids: str) -> None:
        """Drain the stream, on which its runs succeed and leave no driver."""
        self.driver.control.request_drain(by="ann", now_ms=wall_clock_ms())
        for run_id in run_ids:
            self.wait_for(run_id, "success")
        self.gone()

    def end(self) -> None:
        """Whatever happened, leave no driver."""
        process.stop(self.driver.process_home, NAME, grace_s=0)
