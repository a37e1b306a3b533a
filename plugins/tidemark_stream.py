"""A stream that Airflow launches and looks after, without a worker slot held for as long as it runs.

Purpose: a Structured Streaming driver has no end, a task has one and holds a slot until then.

How it works: on a worker, `StreamOperator` launches the driver in a session of its own, or adopts the one that lives,
and defers. In the triggerer, `StreamTrigger` reads the control folder until the driver is not alive any more. Back on
a worker, a drained driver is success; one that has rotated is followed by the next; a dead, stale or failed one is
launched again until the restarts are used up.

What it does not do: restart a stream whose driver runs but whose batches do not get on.

Known limitation: `on_kill` of a trigger needs a triggerer that runs at that moment (Airflow 3.3).
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument
from tidemark.spec.layout import Layout
from tidemark.spec.topology import Topology, load
from tidemark_driver import Driver, Launch, Patience, Verdict
from tidemark_spark import JARS, PROPERTIES, DriverHook, script

BY_USER = "airflow: the task was cleared or marked"


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """How closely a stream is watched, and how often it may be launched again."""

    poll_s: float = 2.0
    restarts: int = 3
    patience: Patience = field(default_factory=Patience)


class StreamTrigger(BaseTrigger):
    """Fires once, when the driver of *launch_id* in the control folder *home* is not alive any more."""

    def __init__(self, *, home: str, launch_id: str, poll_s: float, patience: dict[str, float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self._kwargs = {"home": home, "launch_id": launch_id, "poll_s": poll_s, "patience": patience}
        self._driver = Driver(Path(home), Patience(**patience))
        self._launch_id = launch_id
        self._poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How the triggerer makes this trigger again, also after a restart."""
        return "tidemark_stream.StreamTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: the verdict."""
        while (verdict := await asyncio.to_thread(self._verdict)) is Verdict.ALIVE:
            await asyncio.sleep(self._poll_s)
        yield TriggerEvent({"verdict": verdict.value})  # type: ignore[no-untyped-call]  # as above

    async def on_kill(self) -> None:
        """Somebody cleared or marked the deferred task: drain, then kill, and see that it is gone."""
        self.log.info("draining %s, asked for by clearing or marking the task", self._kwargs["home"])
        await asyncio.to_thread(self._driver.stop, self._launch_id, by=BY_USER, now_ms=wall_clock_ms())
        self.log.info("no driver of launch %s runs any more", self._launch_id)

    def _verdict(self) -> Verdict:
        return self._driver.verdict(now_ms=wall_clock_ms())


class StreamOperator(BaseOperator):
    """Runs one sub-topology until it is drained.

    *slow* is blank-separated OPERATOR=MS, each handed to the sub-topology that the operator belongs to. After
    *rotate_after* batches a driver is followed by a new one.
    """

    template_fields: Sequence[str] = ("warehouse", "bootstrap", "slow")

    def __init__(
        self,
        *,
        topology_file: Path,
        sub_topology: str,
        warehouse: str,
        bootstrap: str,
        slow: str = "",
        rotate_after: int | None = None,
        application: str = script("stream"),
        conn_id: str = "spark_default",
        supervision: Supervision | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology_file = topology_file
        self.sub_topology = sub_topology
        self.warehouse = warehouse
        self.bootstrap = bootstrap
        self.slow = slow
        self.rotate_after = rotate_after
        self.application = application
        self.conn_id = conn_id
        self.supervision = supervision or Supervision()

    def execute(self, context: Context) -> None:
        """Launch or adopt, and defer."""
        self._defer(self._ensure(), restarts=0)

    def resume(self, context: Context, event: dict[str, str], restarts: int) -> None:
        """Success where the driver was drained, the next driver where it has rotated; else launch it again, or fail."""
        driver, verdict = self._driver(), Verdict(event["verdict"])
        if verdict is Verdict.STALE and (launch := driver.launch()) is not None:
            driver.kill(launch.launch_id)
            verdict = driver.verdict(now_ms=wall_clock_ms())  # it may have drained and hung at its very end
        if verdict is Verdict.ROTATED and driver.drained_by() is not None:
            verdict = Verdict.DRAINED  # asked for while no driver ran that could have told
        if verdict is Verdict.DRAINED:
            if driver.drained_by() != BY_USER:
                self.log.info("stream %s was drained by %s", self.sub_topology, driver.drained_by())
                return
            # An earlier try was cleared and its trigger drained the driver that this try had adopted.
            self._defer(self._ensure(), restarts=restarts)
        if verdict is Verdict.ROTATED:
            self._defer(self._ensure(), restarts=restarts)
        self._report(driver, event["verdict"])
        if restarts >= self.supervision.restarts:
            why = self._reason(driver, verdict)
            msg = f"a stream is launched again {restarts} times at most: {why}; see its log above"
            raise AirflowFailException(msg)  # a retry of the task would start the count anew
        self._defer(self._ensure(), restarts=restarts + 1)

    def _ensure(self) -> Launch:
        driver, launch_id = self._driver(), uuid.uuid4().hex
        launch = driver.ensure(self._command(launch_id), driver_env(os.environ), launch_id, now_ms=wall_clock_ms())
        word = "launched" if launch.launch_id == launch_id else "adopted"
        self.log.info("%s the driver of %s; control folder and log: %s", word, self.sub_topology, driver.home)
        return launch

    def _defer(self, launch: Launch, *, restarts: int) -> NoReturn:
        trigger = StreamTrigger(
            home=str(self._driver().home),
            launch_id=launch.launch_id,
            poll_s=self.supervision.poll_s,
            patience=asdict(self.supervision.patience),
        )
        self.defer(trigger=trigger, method_name="resume", kwargs={"restarts": restarts})

    def _driver(self) -> Driver:
        home = Layout(Path(self.warehouse)).control(self._topology().name, self.sub_topology)
        return Driver(home, self.supervision.patience)

    def _topology(self) -> Topology:
        return load(self.topology_file)

    def _command(self, launch_id: str) -> list[str]:
        arguments = [
            *("--warehouse", self.warehouse, "--topology", str(self.topology_file)),
            *("--sub-topology", self.sub_topology, "--bootstrap", self.bootstrap, "--launch-id", launch_id),
            *(() if self.rotate_after is None else ("--rotate-after", str(self.rotate_after))),
            *slow_arguments(self.slow.split(), self._topology(), self.sub_topology),
        ]
        hook = DriverHook(
            conn_id=self.conn_id,
            name=f"tidemark-{self._topology().name}-{self.sub_topology}",
            jars=JARS,
            properties_file=PROPERTIES,
            application_args=arguments,
        )
        return hook.command(self.application)

    def _report(self, driver: Driver, verdict: str) -> None:
        self.log.error("stream %s is %s; the end of its log:\n%s", self.sub_topology, verdict, driver.log_tail())

    def _reason(self, driver: Driver, verdict: Verdict) -> str:
        beat = driver.control.heartbeat()
        return f"{self.sub_topology} is {verdict.value} again: {(beat and beat.reason) or 'it gave no reason'}"


def slow_arguments(slow: Sequence[str], topology: Topology, sub_topology: str) -> list[str]:
    """The `--slow` arguments of *sub_topology*; raises InvalidArgument for an operator that no sub-topology has."""
    for pair in slow:
        if pair.partition("=")[0] not in topology.operators:
            msg = f"slow names an operator of {topology.name}, got {pair!r}; known: {', '.join(topology.operators)}"
            raise InvalidArgument(msg)
    own = {operator.name for operator in topology.sub_topology(sub_topology).operators}
    return [word for pair in slow if pair.partition("=")[0] in own for word in ("--slow", pair)]


def driver_env(env: Mapping[str, str]) -> dict[str, str]:
    """*env* without Airflow's settings, connections and keys: a driver outlives the task and needs none of them."""
    return {name: value for name, value in env.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
