"""Starts Tidemark on one machine step by step, tells what it does, and waits for what Airflow and the streams do.

It reads the wall clock and the state folder; what it has to say goes to *say*, a line at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.control import Control, StreamState
from tidemark.embedded import broker, process, stack
from tidemark.embedded.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.embedded.stack import Home
from tidemark.errors import TidemarkError
from tidemark.spec.layout import Layout
from tidemark.spec.project import CHECKOUT, Project
from tidemark.spec.topology import Topology, load

TOPOLOGY = Project(CHECKOUT).topologies / "flights.toml"
PARTS = ("streams", "reports", "sla_check", "maintenance", "daily_reports")
"""What a topology has a DAG for: docs/airflow.md."""
PARSED_WITHIN_S = 120.0
RUNNING_WITHIN_S = 300.0
NOTICED_WITHIN_S = 120.0
TELL_EVERY_S = 10.0
POLL_S = 0.5
LOG_LINES = 40

Say = Callable[[str], None]


@dataclass(frozen=True)
class Conductor:
    """What it conducts: the installation at *home*, running *topology*."""

    home: Home
    topology: Topology
    say: Say

    @classmethod
    def of(cls, home: Path, say: Say) -> Conductor:
        """The conductor of the installation at *home*, which runs the topology `flights`."""
        return cls(Home(home.resolve()), load(TOPOLOGY), say)

    def dag(self, part: str) -> str:
        """The DAG of the topology for *part* of the work."""
        return dag_id(self.topology.name, part)

    def start(self) -> tuple[str, AirflowApi]:
        """Kafka's address and Airflow's API, once both are up and the DAGs are known."""
        bootstrap = broker.address(self.home.broker)
        with self.step("starting Kafka and Airflow"), ThreadPoolExecutor(1) as pool:
            kafka = pool.submit(stack.start_broker, self.home, self.topology)
            airflow = stack.start_airflow(self.home, bootstrap=bootstrap)
            self.wait(lambda: airflow.has_dag(self.dag("sla_check")), "the DAGs", PARSED_WITHIN_S)
            return kafka.result(), airflow

    def launch_streams(
        self, airflow: AirflowApi, slow: Sequence[str], *, first_report: bool = True, warm: bool = True
    ) -> str:
        """The id of the run of the streams' DAG, once every stream runs: of one that is going on, or of a new one.

        With *first_report* a new one asks for a report on its first minutes. Without *warm* the first batch, which
        takes seconds while JVM and Python are cold, may still be to come.
        """
        conf = {"slow": list(slow), "first_report": first_report}
        run_id = self.trigger_streams(airflow, conf)
        airflow.unpause(self.dag("streams"))

        def run() -> bool:
            nonlocal run_id
            run_id = self.still_going_on(airflow, run_id, conf)
            return self.all_run(warm=warm)

        with self.step("launching the streams"):
            self.wait(run, "running streams", RUNNING_WITHIN_S, tell=self.progress)
        return run_id

    def trigger_streams(self, airflow: AirflowApi, conf: dict[str, Any]) -> str:
        """The id of the run of the streams' DAG: of one that is going on, or of a new one with *conf*."""
        going_on = self._going_on(airflow)
        return going_on[0] if going_on else airflow.trigger(self.dag("streams"), conf)

    def still_going_on(self, airflow: AirflowApi, run_id: str, conf: dict[str, Any]) -> str:
        """*run_id*, or that of a new run with *conf* in its place if it went on only to find its streams drained.

        Raises TidemarkError where it has failed.
        """
        ended = self._state(airflow, self.dag("streams"), run_id) == SUCCESS
        return airflow.trigger(self.dag("streams"), conf) if ended else run_id

    def all_run(self, *, warm: bool = True) -> bool:
        """Return whether every driver runs and, with *warm*, has finished a batch."""
        return all(_runs(control, warm=warm) for control in self.controls())

    def restart(self, airflow: AirflowApi, sub_topology: str) -> None:
        """Have Airflow end the driver of *sub_topology* and start another one; returns when that runs."""
        dag_id = self.dag("streams")
        run_id = next(iter(airflow.runs(dag_id)), None)
        name = self.topology.name
        if run_id is None or airflow.is_paused(dag_id):
            seen = "was never started here" if run_id is None else f"has a paused DAG, {dag_id}"
            msg = f"a stream that is restarted runs or has run, and {name} {seen}; run `tidemark up {name} --unpause`"
            raise TidemarkError(msg)
        (control,) = (control for control in self.controls() if control.home.name == sub_topology)
        before = control.heartbeat()
        airflow.clear(dag_id, run_id, sub_topology)

        def is_new() -> bool:
            self._state(airflow, dag_id, run_id)
            beat = control.heartbeat()
            return _runs(control) and beat is not None and (before is None or beat.launch_id != before.launch_id)

        self.wait(is_new, f"a new driver of {name}/{sub_topology}", RUNNING_WITHIN_S, tell=self.progress)

    def drain(self, airflow: AirflowApi, *, by: str) -> None:
        """End the streams between two batches, and let Airflow take notice."""
        stack.drain(self.home, by=by, topologies=[self.topology.name])
        wait_for_drained(airflow, [self.topology.name])

    def wait_for_run(self, airflow: AirflowApi, dag_id: str, run_id: str, within_s: float) -> None:
        """Return when the run has succeeded; where it fails show the logs of its tasks and raise TidemarkError."""

        def tell() -> str:
            states = airflow.task_states(dag_id, run_id)
            return ", ".join(f"{task}: {state or 'waiting'}" for task, state in states.items())

        def succeeded() -> bool:
            return self._state(airflow, dag_id, run_id) == SUCCESS

        self.wait(succeeded, f"the end of {dag_id}", within_s, tell=tell)

    def controls(self) -> list[Control]:
        """The control folders of the topology's streams."""
        layout = Layout(self.home.warehouse)
        return [Control(layout.control(self.topology.name, sub.name)) for sub in self.topology.sub_topologies]

    def progress(self) -> str:
        """One line on all streams."""
        beats = {control.home.name: control.heartbeat() for control in self.controls()}
        words = {
            name: f"{beat.state}, batch {beat.batch_id}" if beat else "not started" for name, beat in beats.items()
        }
        return "; ".join(f"{name}: {word}" for name, word in words.items())

    def wait(
        self, condition: Callable[[], bool], what: str, within_s: float, *, tell: Callable[[], str] | None = None
    ) -> None:
        """Wait until *condition* holds, saying now and then what *tell* returns; TidemarkError after *within_s*."""
        began, is_due = time.monotonic(), once_every(TELL_EVERY_S)
        while not condition():
            if time.monotonic() - began >= within_s:
                msg = f"{what} must come within {within_s:g} s: it did not; look at the logs in {self.home.path}"
                raise TidemarkError(msg)
            if tell is not None and is_due():
                self.say(f"  {tell()}")
            time.sleep(POLL_S)

    def step(self, what: str) -> AbstractContextManager[None]:
        """Say that *what* is being done, and how long it took."""
        return step(self.say, what)

    def _going_on(self, airflow: AirflowApi) -> list[str]:
        """The runs of the streams' DAG that have not ended."""
        return [run_id for run_id, state in airflow.runs(self.dag("streams")).items() if state not in ENDED]

    def _state(self, airflow: AirflowApi, dag_id: str, run_id: str) -> str:
        """The state of a run; where it has failed show the logs of its tasks and raise TidemarkError."""
        state = airflow.run_state(dag_id, run_id)
        if state != "failed":
            return state
        failed = [task for task, end in airflow.task_states(dag_id, run_id).items() if end == "failed"]
        for task in failed:
            self.say(f"\nThe end of the log of {dag_id}.{task}:")
            self.say("\n".join(airflow.log(dag_id, run_id, task)[-LOG_LINES:]))
        msg = f"every DAG run must succeed: {run_id} of {dag_id} failed at {', '.join(failed)}, see the log above"
        raise TidemarkError(msg)


def once_every(interval_s: float) -> Callable[[], bool]:
    """Return a condition that is true once in every *interval_s* by the monotonic clock; the first time after one."""
    last_s = time.monotonic()

    def is_due() -> bool:
        nonlocal last_s
        if (now_s := time.monotonic()) - last_s < interval_s:
            return False
        last_s = now_s
        return True

    return is_due


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    """Have *say* tell that *what* is being done, and how long it took."""
    say(f"▸ {what} …")
    began = time.monotonic()
    yield
    say(f"  done in {time.monotonic() - began:.1f} s")


def dag_id(topology: str, part: str) -> str:
    """The DAG of *topology* for *part* of the work, one of PARTS."""
    return f"tidemark_{topology}_{part}"


def wait_for_drained(airflow: AirflowApi, topologies: Collection[str]) -> None:
    """Return when the runs of the streams of *topologies*, whose drivers have ended, have done so, too."""
    dags = [dag_id(name, "streams") for name in topologies]
    noticing = [dag for dag in dags if airflow.is_paused(dag) is False]  # a paused one takes no notice

    def is_over() -> bool:
        return all(state in ENDED for dag in noticing for state in airflow.runs(dag).values())

    process.wait_until(is_over, "the end of the streams' runs", NOTICED_WITHIN_S)


def _runs(control: Control, *, warm: bool = True) -> bool:
    """Return whether a driver runs and, with *warm*, has finished a batch."""
    beat = control.heartbeat()
    is_running = control.is_held() and beat is not None and beat.state is StreamState.RUNNING
    return is_running and (not warm or any((control.home / "checkpoint" / "commits").glob("[0-9]*")))
