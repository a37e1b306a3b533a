"""Starts Tidemark on one machine step by step, tells what it does, and waits for what Airflow and the streams do.

It reads the wall clock and the state folder; what it has to say goes to *say*, a line at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemark.control import Control, StreamState
from tidemark.embedded import process, stack
from tidemark.embedded.airflow_api import ENDED, AirflowApi
from tidemark.embedded.stack import ROOT, Home
from tidemark.errors import TidemarkError
from tidemark.layout import Layout
from tidemark.topology import Topology, load

TOPOLOGY = ROOT / "jobs" / "topologies" / "flights.toml"
PARSED_WITHIN_S = 60.0
RUNNING_WITHIN_S = 120.0
TELL_EVERY_S = 10.0
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
        """The DAG of the topology for *part*: streams, reports or alerts."""
        return f"tidemark_{self.topology.name}_{part}"

    def start(self) -> tuple[str, AirflowApi]:
        """Kafka's address and Airflow's API, once both are up and the DAGs are known."""
        with self.step("starting Kafka"):
            bootstrap = stack.start_broker(self.home, self.topology)
        with self.step("starting Airflow"):
            airflow = stack.start_airflow(self.home, bootstrap=bootstrap)
            self.wait(lambda: airflow.has_dag(self.dag("alerts")), "the DAGs", PARSED_WITHIN_S)
        return bootstrap, airflow

    def launch_streams(self, airflow: AirflowApi, slow: Sequence[str]) -> str:
        """The id of the run of the streams' DAG, once every stream runs."""
        dag_id = self.dag("streams")
        run_id = airflow.trigger(dag_id, {"slow": list(slow)})
        airflow.unpause(dag_id)

        def all_run() -> bool:
            self._check_run(airflow, dag_id, run_id)
            beats = [control.heartbeat() for control in self.controls()]
            held = all(control.is_held() for control in self.controls())
            return held and all(beat is not None and beat.state is StreamState.RUNNING for beat in beats)

        with self.step("launching the streams"):
            self.wait(all_run, "running streams", RUNNING_WITHIN_S, tell=self.progress)
        return run_id

    def wait_for_run(self, airflow: AirflowApi, dag_id: str, run_id: str, within_s: float) -> None:
        """Return when the run has succeeded; where it fails show the logs of its tasks and raise TidemarkError."""

        def tell() -> str:
            states = airflow.task_states(dag_id, run_id)
            return ", ".join(f"{task}: {state or 'waiting'}" for task, state in states.items())

        def ended() -> bool:
            self._check_run(airflow, dag_id, run_id)
            return airflow.run_state(dag_id, run_id) in ENDED

        self.wait(ended, f"the end of {dag_id}", within_s, tell=tell)

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
        told_at = time.monotonic()

        def holds() -> bool:
            nonlocal told_at
            if tell is not None and time.monotonic() - told_at >= TELL_EVERY_S:
                told_at = time.monotonic()
                self.say(f"  {tell()}")
            return condition()

        process.wait_until(holds, what, within_s)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say that *what* is being done, and how long it took."""
        self.say(f"▸ {what} …")
        began = time.monotonic()
        yield
        self.say(f"  done in {time.monotonic() - began:.1f} s")

    def _check_run(self, airflow: AirflowApi, dag_id: str, run_id: str) -> None:
        if airflow.run_state(dag_id, run_id) != "failed":
            return
        failed = [task for task, state in airflow.task_states(dag_id, run_id).items() if state == "failed"]
        for task in failed:
            self.say(f"\nThe end of the log of {dag_id}.{task}:")
            self.say("\n".join(airflow.log(dag_id, run_id, task)[-LOG_LINES:]))
        msg = f"every DAG run must succeed: {run_id} of {dag_id} failed at {', '.join(failed)}, see the log above"
        raise TidemarkError(msg)
