"""Starts Tidemark on one machine step by step, and reports progress.

It waits for Airflow and the streams. It reads the wall clock and the state folder; lines for people go to *say*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import Control
from tidemark.control.liveness import liveness_of
from tidemark.errors import TidemarkError
from tidemark.local import broker, stack
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.local.stack import Home
from tidemark.model.project.extras import can_publish
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology, load
from tidemark.semantics.liveness import Liveness

TOPOLOGY = Project(CHECKOUT).topologies / "flights.toml"
PARTS = ("streams", "reports", "sla_check", "daily", "completeness")
"""The DAGs of a topology: docs/airflow.md."""
EXAMPLE = "complete_flights"
"""The DAG of `dags/examples` that runs for each complete interval."""
PARSED_WITHIN_S = 120.0
RUNNING_WITHIN_S = 300.0
NOTICED_WITHIN_S = 120.0
TELL_EVERY_S = 10.0
POLL_S = 0.5
LOG_LINES = 40

Say = Callable[[str], None]


@dataclass(frozen=True)
class Conductor:
    """Conducts the installation at *home*, which runs *topology*."""

    home: Home
    topology: Topology
    say: Say

    @classmethod
    def of(cls, home: Path, say: Say) -> Conductor:
        """Returns the conductor of *home*, which runs the topology `flights`."""
        return cls(Home(home.resolve()), load(TOPOLOGY), say)

    def dag(self, part: str) -> str:
        """Returns the DAG of the topology for *part* of the work."""
        return dag_id(self.topology.name, part)

    def start(self) -> tuple[str, AirflowApi]:
        """Starts Kafka and Airflow; returns, once they are up, address and API.

        Airflow has the example, too, if its tasks can publish intervals.
        """
        # The address is fixed before the broker starts, so that Airflow can start beside it.
        bootstrap = broker.address(self.home.broker)
        with self.step("starting Kafka and Airflow"), ThreadPoolExecutor(1) as pool:
            kafka = pool.submit(stack.start_broker, self.home, self.topology)
            airflow = stack.start_airflow(self.home, bootstrap=bootstrap, examples=can_publish())
            needed = (self.dag("sla_check"), *([EXAMPLE] if can_publish() else ()))
            self.wait(lambda: all(map(airflow.has_dag, needed)), "the DAGs", PARSED_WITHIN_S)
            return kafka.result(), airflow

    def launch_streams(
        self, airflow: AirflowApi, slow: Sequence[str], *, first_report: bool = True, warm: bool = True
    ) -> str:
        """Launches the streams and waits for them; returns their DAG run.

        A run that has not ended is used, else a new one is triggered.

        Args:
            airflow: its API.
            slow: operators to slow down.
            first_report: a new run requests a report on its first minutes.
            warm: wait for the first batch, which takes seconds while JVM and Python are cold.
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
        """Returns the id of a run of the streams' DAG.

        A run that has not ended is used, else a new one with *conf* is triggered.
        """
        open_runs = self._going_on(airflow)
        return open_runs[0] if open_runs else airflow.trigger(self.dag("streams"), conf)

    def still_going_on(self, airflow: AirflowApi, run_id: str, conf: dict[str, Any]) -> str:
        """Returns *run_id*, or a new run if that one has ended.

        It ends when it finds its streams drained.

        A new run has *conf*.

        Raises:
            TidemarkError: the run failed.
        """
        ended = self._state(airflow, self.dag("streams"), run_id) == SUCCESS
        return airflow.trigger(self.dag("streams"), conf) if ended else run_id

    def all_run(self, *, warm: bool = True) -> bool:
        """Returns True if every driver runs and, with *warm*, finished a batch."""
        return all(_runs(control, warm=warm) for control in self.controls())

    def restart(self, airflow: AirflowApi, sub_topology: str) -> None:
        """Replaces *sub_topology*'s driver through Airflow; returns when the new one runs."""
        dag_id = self.dag("streams")
        run_id = next(iter(airflow.runs(dag_id)), None)
        name = self.topology.name
        if run_id is None or airflow.is_paused(dag_id):
            problem = "was never started here" if run_id is None else f"has a paused DAG, {dag_id}"
            msg = f"{name} cannot be restarted, because it {problem}; run `tidemark up {name} --unpause`"
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
        """Ends the streams between two batches, and waits until Airflow noticed."""
        stack.drain(stack.controls_in(self.home.warehouse, [self.topology.name]), by=by)
        wait_for_drained(airflow, [self.topology.name])

    def wait_for_run(self, airflow: AirflowApi, dag_id: str, run_id: str, within_s: float) -> None:
        """Returns when the run has succeeded.

        Args:
            airflow: its API.
            dag_id: the DAG of the run.
            run_id: the run.
            within_s: most time to wait.

        Raises:
            TidemarkError: it failed, and the logs of its tasks are shown; or it did not end in time.
        """

        def tell() -> str:
            states = airflow.task_states(dag_id, run_id)
            return ", ".join(f"{task}: {state or 'waiting'}" for task, state in states.items())

        def succeeded() -> bool:
            return self._state(airflow, dag_id, run_id) == SUCCESS

        self.wait(succeeded, f"the end of {dag_id}", within_s, tell=tell)

    def controls(self) -> list[Control]:
        """Returns the control folders of the topology's streams."""
        layout = Layout(self.home.warehouse)
        return [Control(layout.control(self.topology.name, sub.name)) for sub in self.topology.sub_topologies]

    def progress(self) -> str:
        """Returns one line on all streams."""
        return "; ".join(f"{control.home.name}: {_progress(control)}" for control in self.controls())

    def wait(
        self, condition: Callable[[], bool], what: str, within_s: float, *, tell: Callable[[], str] | None = None
    ) -> None:
        """Waits until *condition* holds, and reports with *tell* meanwhile.

        Args:
            condition: is polled.
            what: its name in the error.
            within_s: most time to wait.
            tell: returns a line of progress; None: no progress is reported.

        Raises:
            TidemarkError: it does not hold after *within_s*.
        """
        began, is_due = time.monotonic(), once_every(TELL_EVERY_S)
        while not condition():
            if time.monotonic() - began >= within_s:
                msg = f"waiting for {what}: timeout after {within_s:g} s; look at the logs in {self.home.path}"
                raise TidemarkError(msg)
            if tell is not None and is_due():
                self.say(f"  {tell()}")
            time.sleep(POLL_S)

    def step(self, what: str) -> AbstractContextManager[None]:
        """Reports that *what* is being done, and how long it took."""
        return step(self.say, what)

    def _going_on(self, airflow: AirflowApi) -> list[str]:
        """Returns the runs of the streams' DAG that have not ended."""
        return [run_id for run_id, state in airflow.runs(self.dag("streams")).items() if state not in ENDED]

    def _state(self, airflow: AirflowApi, dag_id: str, run_id: str) -> str:
        """Returns the state of a run.

        Raises:
            TidemarkError: it failed; the logs of its tasks are shown.
        """
        state = airflow.run_state(dag_id, run_id)
        if state != "failed":
            return state
        failed = [task for task, end in airflow.task_states(dag_id, run_id).items() if end == "failed"]
        for task in failed:
            self.say(f"\nThe end of the log of {dag_id}.{task}:")
            self.say("\n".join(airflow.log(dag_id, run_id, task)[-LOG_LINES:]))
        msg = f"the run {run_id} of the DAG {dag_id} failed in {', '.join(failed)}; see the log above"
        raise TidemarkError(msg)


def parts_of(topology: Topology) -> list[str]:
    """Returns the PARTS that *topology* has.

    It has `completeness` only if one of its operators has the key `complete`, and no `streams` if jobs run its queries.
    """
    without = set() if can_publish() and topology.has_intervals else {"completeness"}
    without |= {"streams"} if topology.jobs or not topology.sub_topologies else set()
    return [part for part in PARTS if part not in without]


def once_every(interval_s: float) -> Callable[[], bool]:
    """Returns a condition that is true once in every *interval_s*.

    It uses the monotonic clock, and is first true after one interval.
    """
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
    """Reports *what* is being done, and how long it took."""
    say(f"▸ {what} …")
    began = time.monotonic()
    yield
    say(f"  done in {time.monotonic() - began:.1f} s")


def dag_id(topology: str, part: str) -> str:
    """Returns the DAG of *topology* for *part*, one of PARTS."""
    return f"tidemark_{topology}_{part}"


def wait_for_drained(airflow: AirflowApi, topologies: Collection[str]) -> None:
    """Returns when the DAG runs of *topologies* have ended.

    Their drivers ended before.
    """
    dags = [dag_id(name, "streams") for name in topologies]
    noticing = [dag for dag in dags if airflow.is_paused(dag) is False]  # a paused one takes no notice

    def is_over() -> bool:
        return all(ENDED.issuperset(airflow.runs(dag).values()) for dag in noticing)

    process.wait_until(is_over, "the end of the streams' runs", NOTICED_WITHIN_S)


def _progress(control: Control) -> str:
    """Returns the state of a driver, and its newest batch."""
    beat, state = control.heartbeat(), liveness_of(control.home, wall_clock_ms())
    if beat is None:
        return state.value
    return f"{state}, {'no batch yet' if beat.batch_id < 0 else f'batch {beat.batch_id}'}"


def _runs(control: Control, *, warm: bool = True) -> bool:
    """Returns True if a driver runs and, with *warm*, finished a batch."""
    # A driver that was killed a second ago still has a young heartbeat.
    is_running = control.is_held() and liveness_of(control.home, wall_clock_ms()) is Liveness.RUNNING
    # The checkpoint has a file in `commits` for each finished batch.
    return is_running and (not warm or any((control.home / "checkpoint" / "commits").glob("[0-9]*")))
