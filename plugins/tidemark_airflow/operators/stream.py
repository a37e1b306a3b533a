"""Launches and supervises a stream from Airflow without a worker slot.

Purpose: a Structured Streaming driver has no end, while a task has one and holds a slot until then.

How it works: on a worker, `StreamOperator` launches the driver in a session of its own, or adopts the one that lives,
and defers. In the triggerer, `StreamTrigger` reads the control folder until the driver makes no progress any more. Back
on a worker, a drained driver is success; one that has rotated is followed by the next; a dead, failed, silent or stuck
one is launched again, until it has failed so often in a row, in one way and without finishing a batch, that it would
fail again. A driver that runs an older topology file is drained when the task runs again, and followed by a new one.

Known limitation: Airflow (3.2: the trigger itself) calls `on_kill` of a trigger only when a triggerer runs it at that
moment. The driver of a task that was cleared meanwhile is drained by the next try. If the task was marked while no
triggerer ran, its driver is drained when one starts (see `orphans`). Nobody drains it if the task was marked in the
second between its deferral and the first look of a triggerer.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from airflow.configuration import conf
from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from tidemark.clock import wall_clock_ms
from tidemark.control.folder import digest
from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import flags
from tidemark.model.project.layout import Layout, usable
from tidemark.model.project.spark_settings import SparkSettings
from tidemark.model.topology import OWN, Time, Topology, load, on_processing_time
from tidemark.safe_text import one_message
from tidemark.selection import names_in
from tidemark.semantics.liveness import RightToKill
from tidemark.semantics.repairs import RepairOutcome
from tidemark.storage.location import location
from tidemark_airflow.operators.decisions import (
    CAN_ASK,
    DRAINED,
    GONE,
    UNSCHEDULED,
    AnswerTrigger,
    ask,
    command_in,
    is_paused,
)
from tidemark_airflow.operators.driver import BY_CHANGE, Driver, DriverVerdict, Launch
from tidemark_airflow.operators.pods import launch_command
from tidemark_airflow.operators.spark import (
    DriverHook,
    airflow_secrets,
    hide_secrets,
    job_environment,
    kafka_clusters,
    noted_run,
    script,
)
from tidemark_airflow.operators.store import warehouse_at

STREAM = script("stream")
"""The program that runs streams of topologies."""
BY_USER = "airflow: the task was cleared or marked"
RETRIES = 5
"""Tries that may end by an accident of Airflow's; failures of drivers are counted over all tries."""
_HANGS = (DriverVerdict.STALE, DriverVerdict.STUCK)
_DONE = (DriverVerdict.DRAINED, DriverVerdict.FINISHED)
_BROKEN = (DriverVerdict.DEAD, DriverVerdict.FAILED)
_LASTING = ("Unsound:", "DataLost:", "InvalidSpec:", "UnreadableFile:", "UnknownCheckpointFormat:", "OtherFormat:")
"""Errors that a person must resolve: another driver would meet them."""
RELAUNCHES = (DRAINED, GONE, RepairOutcome.APPLIED, RepairOutcome.CHANGED)
"""Answers after which the stream is launched again.

After CHANGED and GONE the error may be gone. If it is not, another question follows.
"""
_REMEDY = "correct that, then clear the task"


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """How a driver is looked at, when it may be killed, and how often it is launched again after the same failure.

    The first look comes after `first_look_s`, and further ones every `poll_s`.
    """

    poll_s: float = 5.0
    # Airflow (3.3) takes a task that resumes before the scheduler has recorded its deferral for one that ended
    # silently. The scheduler learns of the deferral when the task's supervisor looks, which may be
    # `workers.min_heartbeat_interval` later.
    first_look_s: float = field(default_factory=lambda: conf.getint("workers", "min_heartbeat_interval") + 5.0)
    restarts: int = 3
    right_to_kill: RightToKill = field(default_factory=RightToKill)


class StreamTrigger(BaseTrigger):
    """Fires once, when the driver of *launch_id* is dead."""

    def __init__(
        self,
        *,
        home: str,
        launch_id: str,
        poll_s: float,
        first_look_s: float,
        right_to_kill: dict[str, float],
        shared: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers have no types
        self.home = home
        looks = {"poll_s": poll_s, "first_look_s": first_look_s}
        self._kwargs = {"home": home, "launch_id": launch_id, **looks, "right_to_kill": right_to_kill, "shared": shared}
        self._driver = Driver(location(home), RightToKill(**right_to_kill), shared=location(shared) if shared else None)
        self._launch_id = launch_id
        self._poll_s, self._first_look_s = poll_s, first_look_s
        self._is_unreadable = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns how the triggerer creates this trigger again."""
        return "tidemark_airflow.operators.stream.StreamTrigger", self._kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: the verdict.

        A control folder that cannot be read, for example in a store that does not answer, gives no verdict.
        """
        await sync_to_async(warehouse_at)(self.home)
        try:
            await asyncio.sleep(self._first_look_s)
            # In a thread: all triggers of a triggerer share one event loop, and a look may take long.
            while (verdict := await asyncio.to_thread(self._verdict)) is DriverVerdict.ALIVE:
                await asyncio.sleep(self._poll_s)
        except asyncio.CancelledError as cancelled:
            # Airflow 3.2 does not call `on_kill`. It cancels with a reason only when the triggerer itself ends.
            if not hasattr(BaseTrigger, "on_kill") and not cancelled.args and not await self._is_waited_for():
                await self.on_kill()
            raise
        yield TriggerEvent({"verdict": verdict.value})  # type: ignore[no-untyped-call]  # as above

    async def on_kill(self) -> None:
        """Stops the driver of a deferred task that was cleared or marked."""
        await sync_to_async(warehouse_at)(self.home)
        await asyncio.to_thread(self.stop, "the task was cleared or marked")

    async def _is_waited_for(self) -> bool:
        """Returns True if the task is still deferred, so that another triggerer takes it over."""
        # A triggerer needs this module, and parsers of DAGs do not.
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti: Any = self.task_instance
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
        return bool(states.get(ti.run_id, {}).get(ti.task_id) == "deferred")

    def stop(self, why: str) -> None:
        """Drains the driver, then kills it, and checks that it is gone."""
        self.log.info("draining %s, because %s", self.home, why)
        self._driver.stop(self._launch_id, by=BY_USER, now_ms=wall_clock_ms())
        self.log.info("no driver of launch %s runs any more", self._launch_id)

    def _verdict(self) -> DriverVerdict:
        try:
            verdict = self._driver.verdict(now_ms=wall_clock_ms())
        except OSError as error:
            # No other driver could be launched now, and each failure would use up a try of the task.
            if not self._is_unreadable:
                self.log.warning("%s cannot be read: %s; it is looked at again until it can", self.home, error)
            self._is_unreadable = True
            return DriverVerdict.ALIVE
        self._is_unreadable = False
        return verdict


class StreamOperator(BaseOperator):
    """Runs one sub-topology, or a PySpark job, until it is drained.

    Without a *topology_file*, *application* is the Python file of such a job, which gets *application_args*, and
    *spark_conf* its properties of Spark. The tables of its queries are under the name *topology*, by default that of
    the file, as *sub_topology* is. With *consumer_groups*, for example `tidemark`, the offsets of its queries are
    written into the consumer groups `tidemark-TOPOLOGY-QUERY`. With *observe*, the latencies of the records that its
    queries write are counted, of each query by the first of these TIMESTAMP columns. See docs/any-stream.md.

    *slow* has texts OPERATOR=MS with blanks between them; the sub-topology of an operator gets its text. After
    *rotate_after* batches a driver is followed by a new one. With *time* `processing` the driver is that of a separate
    stream, `TOPOLOGY_on_processing_time`, which has a control folder of its own. *decisions* is the DAG that asks
    people about a failure that only they can resolve. Without it the task fails.
    """

    template_fields: Sequence[str] = ("warehouse", "bootstrap", "slow", "time", "application_args")

    def __init__(
        self,
        *,
        warehouse: str,
        topology_file: Path | None = None,
        sub_topology: str = "",
        bootstrap: str = "",
        topology: str = "",
        application_args: Sequence[str] = (),
        spark_conf: Mapping[str, str] | None = None,
        consumer_groups: str | None = None,
        observe: Sequence[str] = (),
        slow: str = "",
        time: str = Time.EVENT.value,
        rotate_after: int | None = None,
        application: str = STREAM,
        conn_id: str = "spark_default",
        supervision: Supervision | None = None,
        decisions: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.decisions = decisions
        is_named = application != STREAM if topology_file is None else bool(sub_topology)
        if not is_named:
            msg = "name a topology_file and its sub_topology, or the application to run, for example my_job.py"
            raise InvalidArgument(msg)
        if isinstance(application_args, str):
            msg = f"application_args must be a list of arguments, got {application_args!r}; write, for example, "
            raise InvalidArgument(msg + '["--day", "1"]')
        if isinstance(observe, str):
            msg = f"observe must be a list of columns, got {observe!r}; write [{observe!r}]"
            raise InvalidArgument(msg)
        self.topology_file = topology_file
        self.sub_topology = usable(sub_topology or Path(application).stem)
        self.topology = usable(topology or Path(application).stem) if topology_file is None else topology
        self.application_args = application_args
        self.spark_conf = spark_conf or {}
        self.consumer_groups = consumer_groups
        self.observe = observe
        self.warehouse = warehouse
        self.bootstrap = bootstrap
        self.slow = slow
        self.time = time
        self.rotate_after = rotate_after
        self.application = application
        self.conn_id = conn_id
        self.supervision = supervision or Supervision()
        self._task_run = ""
        self._noted: Mapping[str, str] = {}

    def execute(self, context: Context) -> None:
        """Launches or adopts the driver, and defers.

        Before that the task handles what happened to the stream after Airflow lost the try before. A task that was
        cleared gets a new driver.
        """
        driver, ti = self._driver(), context.get("ti")
        self._remember_run(context, driver)
        is_first = ti is None or ti.try_number == ti.max_tries - (self.retries or 0) + 1  # of its run, or since a clear
        if is_first and ti is not None and ti.try_number > 1:
            _stop(driver, BY_USER)  # the triggerer may not have heard of it, or not have ended it yet
        if is_first or driver.drained_by() in (BY_USER, BY_CHANGE):
            driver.forget_failures()
            self._defer(driver, self._ensure(driver))
        if (by := driver.unreported_drain()) is not None:
            _stop(driver, by)
            self._succeed(driver)
            return
        verdict = driver.verdict(now_ms=wall_clock_ms())
        if driver.launch() is not None and verdict in _BROKEN and not driver.failure_is_reported():
            self._fail(driver, self._why(driver, verdict), context)
        self._defer(driver, self._ensure(driver))

    def resume(self, context: Context, event: dict[str, str]) -> None:
        """Succeeds after a drain, launches the next driver after a rotation, else launches it again or fails."""
        driver = self._driver()
        self._remember_run(context, driver)
        verdict = driver.verdict(now_ms=wall_clock_ms())  # another try may have acted since the event
        why = self._why(driver, verdict)
        if verdict in _HANGS and (launch := driver.launch()) is not None:
            driver.kill(launch.launch_id, by=f"{self._task_run}: {verdict.value}")
            verdict = driver.verdict(now_ms=wall_clock_ms())  # it may have drained and hung at its very end
        if verdict is DriverVerdict.ROTATED and driver.drained_by() is not None:
            verdict = DriverVerdict.DRAINED  # requested while no driver ran that could report it
        if verdict in _DONE and driver.drained_by() not in (BY_USER, BY_CHANGE):
            self._succeed(driver)
            return
        if verdict in (*_DONE, DriverVerdict.ROTATED):
            # Drained for an older try that was cleared, whose driver this try had adopted, or to run a newer file.
            driver.forget_failures()
        if verdict in (*_DONE, DriverVerdict.ROTATED, DriverVerdict.ALIVE):
            self._defer(driver, self._ensure(driver))
        self._fail(driver, why, context)

    def answered(self, context: Context, event: dict[str, Any]) -> None:
        """Launches the stream again after a decision, or fails without one.

        The task also fails if the DAG that asks is paused, and waits on for an answer that Airflow only delays.
        """
        driver = self._driver()
        self._remember_run(context, driver)
        answer = event["answer"]
        launch = driver.launch()
        if answer == UNSCHEDULED and launch is not None and self.decisions is not None:
            if is_paused(self.decisions):
                self._fail_unasked(driver, self._why(driver, driver.verdict(now_ms=wall_clock_ms())))
            self._wait_for_answer(driver, launch, until_ms=event["until_ms"])
        if answer == DRAINED and driver.drained_by() not in (BY_USER, BY_CHANGE):
            self._succeed(driver)
            return
        if answer in RELAUNCHES:
            driver.forget_failures()
            self._defer(driver, self._ensure(driver))
        driver.report_failures()
        verdict = driver.verdict(now_ms=wall_clock_ms())
        msg = f"a person was asked, and the answer is {answer}: {self._why(driver, verdict)}\n{_REMEDY}"
        raise AirflowFailException(msg)

    def _fail(self, driver: Driver, why: str, context: Context) -> NoReturn:
        """Launches the broken stream again and defers, or fails for good.

        *why* is the reason of the failure. If its remedy is a command that a person may approve, it waits for that.
        """
        self.log.error("stream %s: %s; %s", self.sub_topology, why, self._log_end(driver))
        beat = driver.heartbeat()
        n = driver.count_failure(kind(why), made_progress=beat is not None and beat.batches > 0)
        is_lasting = beat is not None and (beat.reason or "").startswith(_LASTING)
        if is_lasting or n > self.supervision.restarts:
            if is_lasting:
                self._ask(driver, why, context)
            driver.report_failures()
            often = "permanently" if is_lasting else f"{n} times in a row in the same way"
            msg = f"a stream that fails {often} is not launched again: {why}\n{_REMEDY}"
            raise AirflowFailException(msg)
        self._defer(driver, self._ensure(driver))

    def _ask(self, driver: Driver, why: str, context: Context) -> None:
        """Asks people about the command that resolves *why*, and defers.

        Returns if there is no such command, or Airflow cannot ask. Fails if the DAG that asks is paused.
        """
        command, launch = command_in(why, self._name()), driver.launch()
        if command is None or launch is None or self.decisions is None or not CAN_ASK or "ti" not in context:
            return
        question = self._question(launch)
        try:
            if not (paused := is_paused(self.decisions)):
                ask(self.decisions, question, {"command": command, "why": why, "stream": self.sub_topology})
        except Exception:
            self.log.exception("Airflow cannot ask people about it; does the DAG %s exist?", self.decisions)
            return
        if paused:
            self._fail_unasked(driver, why)
        self.log.info(
            "the run %s of the DAG %s asks for a decision about: tidemark %s", question, self.decisions, command
        )
        self._wait_for_answer(driver, launch)

    def _question(self, launch: Launch) -> str:
        """Returns the run that asks about the failure of *launch*."""
        return f"{self.sub_topology}__{launch.launch_id}"

    def _wait_for_answer(self, driver: Driver, launch: Launch, *, until_ms: int | None = None) -> NoReturn:
        """Defers until the question about *launch* has an answer."""
        trigger = AnswerTrigger(
            home=str(driver.home),
            dag_id=self.decisions or "",
            question=self._question(launch),
            poll_s=self.supervision.poll_s,
            first_look_s=self.supervision.first_look_s,
            until_ms=until_ms,
        )
        self.defer(trigger=trigger, method_name="answered")

    def _fail_unasked(self, driver: Driver, why: str) -> NoReturn:
        """Fails because the DAG that asks is paused."""
        driver.report_failures()
        msg = f"{why}\nthe DAG {self.decisions} is paused, so it asks no person: unpause it, then clear the task"
        raise AirflowFailException(msg)

    def _succeed(self, driver: Driver) -> None:
        by = driver.drained_by()
        end = "finished" if by is None else f"was drained by {by}"
        self.log.info("stream %s %s; %s", self.sub_topology, end, self._log_end(driver))
        driver.report_drain()
        driver.forget_failures()

    def _log_end(self, driver: Driver) -> str:
        """Returns the end of the driver's log, and where the whole log is, without the secrets of the topology."""
        if (topology := self._topology()) is not None:
            # Lines of Java's clients and of Spark are in the log as these wrote them.
            hide_secrets(topology)
        return driver.log_end()

    def on_kill(self) -> None:
        """Stops the driver of a task that is cleared while launching."""
        _stop(self._driver(), BY_USER)

    def _ensure(self, driver: Driver) -> Launch:
        if self.topology_file is None and not Path(self.application).is_file():
            msg = f"application: {self.application} is not a file on this host; name the Python file of a job"
            raise InvalidArgument(msg)
        launch_id = uuid.uuid4().hex
        command = launch_command(self._command(), launch_id, self.sub_topology)
        launch = driver.ensure(
            command,
            job_environment(self._spark()),
            launch_id,
            arguments=[*self._arguments(), "--launch-id", launch_id],
            now_ms=wall_clock_ms(),
            digest=digest(self.topology_file or Path(self.application)),
            is_remote=_is_remote(command),
            secrets=self._secrets,
            by=self._task_run,
        )
        word = "launched" if launch.launch_id == launch_id else "adopted"
        self.log.info(
            "%s the driver of %s; control folder: %s; log: %s", word, self.sub_topology, driver.home, driver.log_file
        )
        return launch

    def _defer(self, driver: Driver, launch: Launch) -> NoReturn:
        trigger = StreamTrigger(
            home=str(driver.home),
            launch_id=launch.launch_id,
            poll_s=self.supervision.poll_s,
            first_look_s=self.supervision.first_look_s,
            right_to_kill=asdict(self.supervision.right_to_kill),
            shared=str(driver.shared) if driver.shared else None,
        )
        self.defer(trigger=trigger, method_name="resume")

    def _remember_run(self, context: Context, driver: Driver) -> None:
        self._task_run = task_run(context)
        # The commits of a process that runs several streams are not all of one task.
        self._noted = {} if driver.shared else noted_run(context)

    def _driver(self) -> Driver:
        home = Layout(warehouse_at(self.warehouse)).control(self._name(), self.sub_topology)
        return Driver(home, self.supervision.right_to_kill, shared=self._shared())

    def _shared(self) -> Path | None:
        """Returns the folder of the processes that run several streams, or None if this stream has its own process."""
        if (topology := self._topology()) is None:
            return None  # a job may need its process for itself
        # In cluster mode this host cannot see whether a process lives that could run another stream.
        if not topology.shares_processes or _is_remote(self._command()):
            return None
        return Layout(location(self.warehouse)).driver(topology.name, topology.driver)

    def _topology(self) -> Topology | None:
        if self.topology_file is None:
            return None
        topology = load(self.topology_file)
        return on_processing_time(topology) if Time(self.time) is Time.PROCESSING else topology

    def _name(self) -> str:
        topology = self._topology()
        return topology.name if topology is not None else self.topology

    def _spark(self) -> SparkSettings:
        topology = self._topology()
        return topology.spark if topology is not None else SparkSettings(properties=self.spark_conf)

    def _command(self) -> list[str]:
        """Returns the command that starts the process."""
        return self._hook().command(script("application") if self.topology_file is None else self.application)

    def _hook(self) -> DriverHook:
        topology, name = self._topology(), f"{self._name()}-{self.sub_topology}"
        if topology is not None and topology.driver != OWN:
            name = topology.driver or topology.name
        return DriverHook(
            spark=self._spark(),
            conn_id=self.conn_id,
            name=f"tidemark-{name}",
            labels={"topology": self._name()},
            noted=self._noted,
        )

    def _arguments(self) -> list[str]:
        topology = self._topology()
        launched_by = ("--launched-by", self._task_run) if self._task_run else ()
        if topology is None or self.topology_file is None:
            of_job = [f"--argument={argument}" for argument in self.application_args]
            names = ("--warehouse", self.warehouse, "--topology", self._name(), "--sub-topology", self.sub_topology)
            groups = ("--consumer-groups", self.consumer_groups) if self.consumer_groups else ()
            observed = [f"--observe={column}" for column in self.observe]
            return ["--application", self.application, *of_job, *names, *groups, *observed, *launched_by]
        return [
            *("--warehouse", self.warehouse, "--topology", self._hook().file(self.topology_file)),
            *("--sub-topology", self.sub_topology, *flags(kafka_clusters(topology, self.bootstrap))),
            *launched_by,
            *(() if self.rotate_after is None else ("--rotate-after", str(self.rotate_after))),
            *(("--time", topology.time.value) if topology.time is Time.PROCESSING else ()),
            *slow_arguments(self.slow.split(), topology, self.sub_topology),
        ]

    def _secrets(self) -> dict[str, str]:
        """Returns the secrets of the topology that Airflow keeps."""
        topology = self._topology()
        return airflow_secrets(topology, kafka_clusters(topology, self.bootstrap)) if topology is not None else {}

    def _why(self, driver: Driver, verdict: DriverVerdict) -> str:
        """Returns the problem of the driver, for people."""
        if verdict is DriverVerdict.DEAD and (hung := driver.killed_for()):
            return f"{self.sub_topology} is dead: {hung} hung, and the process that ran both was killed for it"
        beat = driver.heartbeat()
        if beat is None:
            return f"{self.sub_topology} is {verdict.value}, and has sent no heartbeat yet"
        doing = f"it was doing: {beat.doing}" if beat.doing else "it gave no reason"
        return f"{self.sub_topology} is {verdict.value}: {one_message(beat.reason or doing)}"


def _is_remote(command: Sequence[str]) -> bool:
    return ("--deploy-mode", "cluster") in pairwise(command)


def _stop(driver: Driver, by: str) -> None:
    """Ends the driver of the newest launch, if there was one."""
    if (launch := driver.launch()) is not None:
        driver.stop(launch.launch_id, by=by, now_ms=wall_clock_ms())


def kind(why: str) -> str:
    """Returns the first line of *why* without numbers and ids, which differ between failures of one kind."""
    return re.sub(r"\b[0-9a-f]*\d[0-9a-f]*\b", "#", why.partition("\n")[0])


def slow_arguments(slow: Sequence[str], topology: Topology, sub_topology: str) -> list[str]:
    """Returns the `--slow` arguments of *sub_topology*.

    Raises:
        InvalidArgument: no sub-topology has the operator.
    """
    for pair in slow:
        if pair.partition("=")[0] not in topology.operators:
            msg = f"slow must name an operator of {topology.name}, got {pair!r}; known: {', '.join(topology.operators)}"
            raise InvalidArgument(msg)
    operators = {*names_in(topology.sub_topology(sub_topology).operators)}
    words: list[str] = []
    for pair in slow:
        if pair.partition("=")[0] in operators:
            words += ["--slow", pair]
    return words


def task_run(context: Context) -> str:
    """Returns DAG, run and try of the task in *context*."""
    ti = context.get("ti")
    return f"{ti.dag_id} {ti.run_id} try {ti.try_number}" if ti is not None else ""
