"""Runs an unchanged PySpark job as a supervised stream.

Purpose: a job that knows nothing of Tidemark has a lease, heartbeats, a drain and records like a stream of a topology.

How it works: the job's file runs as `__main__` in this process. Only the two methods by which PySpark starts a query
are wrapped: before the first query of a session starts, a `Listener` is added to that session. A thread looks at the
queries every second: it gives their progress to the heartbeat, and stops them after their batches when a drain is
requested.

What it does not do: keep a second writer's output apart. Spark's checkpoint is the only record of what a query has
done, see docs/any-stream.md. Queries of Spark Connect, and those that Java code starts, are not seen.
Clock: the driver's, epoch ms UTC.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidemark.api.listen import Listener
from tidemark.api.observe import start_observed
from tidemark.api.progress import load_of, offsets_of
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import AlreadyRunning, Control, LeaseLost, StreamState, digest
from tidemark.errors import TidemarkError
from tidemark.model.project.layout import Layout, folder_name, usable
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.topology import JobLaunch, of_jobs
from tidemark.recorded_jobs.queries import write_launch
from tidemark.semantics.sla import BurnRate
from tidemark.storage.delta.format import stamp_warehouse
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.driver.launch import LaunchOptions, take_lease
from tidemark.stream.driver.reason import MOST_OF_A_REASON, in_short
from tidemark.stream.pulse import Pulse

log = logging.getLogger("tidemark.application")

LOOK_S = 1.0
"""Seconds between two looks at the queries."""
DRAIN_LOOK_S = 0.1
"""Seconds between two looks while queries are being stopped.

A query that runs one batch right after the other can be stopped only in the moment between them.
"""
STARTED_AGAIN_WITHIN_S = 30.0
"""A job may start a failed query again within so many seconds; after that the whole job counts as failed."""
ENDS_WITHIN_S = 10.0
"""Seconds that the rest of the job has after its queries were stopped, before its process is ended."""
TEXTS_KEPT = 20
"""So many of the newest writes to stderr are kept; together they contain its last line."""


class ApplicationOptions(LaunchOptions):
    """The command line of an application, as its parser fills it in.

    Attributes:
        application: the Python file of the job.
        argument: the arguments of the job.
        topology: the name under which its tables and its control folder are.
        sub_topology: the name of the job there.
        consumer_groups: prefix of the names of its queries' consumer groups; None to write no offsets into groups.
        observe: the TIMESTAMP columns by which latencies are counted, of each query the first; None: none are.
    """

    application: Path
    argument: list[str]
    topology: str
    sub_topology: str
    consumer_groups: str | None = None
    observe: Sequence[str] | None = None


def run_application(options: ApplicationOptions) -> int:
    """Runs the job to its end and returns its exit status; 3 if another driver has its lease.

    The function does not return but ends the process if the job goes on although its queries were stopped, one of them
    failed, or the lease was lost.
    """
    running, layout = digest(options.application), Layout(options.warehouse)
    topology, name = usable(options.topology), usable(options.sub_topology)
    control = Control(layout.control(topology, name))
    if (epoch := take_lease(control, options)) is None:
        return 3
    launch = JobLaunch(
        application=str(options.application),
        arguments=tuple(options.argument),
        launched_by=options.launched_by,
        consumer_groups=options.consumer_groups or "",
        observe=tuple(options.observe or ()),
    )
    stamp_warehouse(layout.warehouse)
    write_launch(layout, topology, name, launch)
    history = Heartbeats(layout.stream(topology, name), topology=topology, sub_topology=name)
    pulse = Pulse(control, history, epoch, options.launch_id, digest=running, launched_by=options.launched_by)
    limits_ms = promised_limits_ms(topology) if options.observe else {}
    queries = ApplicationQueries(control, pulse, layout, options, limits_ms)
    with queries.watched():
        with last_line_of_stderr() as last_line:
            reason = _run_file(options.application, options.argument, last_line)
        failure = queries.wind_up()
    status = queries.end(reason or failure)
    if queries.outlive_the_job():
        os._exit(status)  # they must not write when another driver has the lease
    return status


def promised_limits_ms(topology: str) -> dict[str, set[int]]:
    """Returns the limits of latency that SLAs of the project declare now, ms, by subject."""
    limits_ms: dict[str, set[int]] = {}
    try:
        slas = known_slas(of_jobs(topology))  # also of queries that are not recorded yet
    except TidemarkError as error:
        log.warning("no limits of latency are known: %s", error)
        return limits_ms
    for spec in slas.specs:
        if isinstance(spec.limits, BurnRate):
            limits_ms.setdefault(spec.subject, set()).add(spec.limits.objective.threshold_ms)
    return limits_ms


@contextmanager
def last_line_of_stderr() -> Iterator[Callable[[], str]]:
    """Yields a function that returns Python's last line on stderr."""
    stream, written = sys.stderr, deque[str](maxlen=TEXTS_KEPT)
    write = stream.write

    def keep(text: str) -> int:
        written.append(text)
        return write(text)

    # The object itself stays, since handlers of logging may have it.
    stream.write = keep  # type: ignore[method-assign]
    try:
        yield lambda: next(iter("".join(written).strip().splitlines()[-1:]), "")
    finally:
        stream.write = write  # type: ignore[method-assign]


def _run_file(file: Path, arguments: Sequence[str], last_line: Callable[[], str]) -> str | None:
    """Runs *file* as `python FILE` would, with its folder first on the path; returns why it failed, or None.

    *last_line* returns the last line on stderr, which is the reason where a parser of arguments ends the job.
    """
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except Exception as error:
        log.exception("%s failed", file)
        return f"{type(error).__name__}: {error}"
    except SystemExit as end:
        # Another code than a number is a message itself.
        line = last_line() if isinstance(end.code, int) else ""
        reason = f"{file.name} ended with {end.code!r}{line and f'; its last line on stderr: {line}'}"
        return reason[:MOST_OF_A_REASON] if end.code else None
    return None


class QueryRun(NamedTuple):
    """One run of the query `name`; the job may start the query again, which makes another run."""

    name: str
    query: StreamingQuery


class ApplicationQueries:
    """The queries of a job in this process, as heartbeats report them.

    Args:
        control: the control folder of the job, of which this process has the lease.
        pulse: the heartbeat to report to.
        layout: paths of the job's tables.
        options: command line of the job.
        limits_ms: the limits of latency to observe, ms, by the name of a query.
    """

    def __init__(
        self,
        control: Control,
        pulse: Pulse,
        layout: Layout,
        options: ApplicationOptions,
        limits_ms: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> None:
        self._control, self._pulse, self._layout, self._options = control, pulse, layout, options
        self._limits_ms = limits_ms
        self._listeners: dict[str, Listener] = {}
        self._runs: dict[str, QueryRun] = {}
        self._heartbeats: dict[str, QueryHeartbeats] = {}
        self._stopping: set[str] = set()
        self._batches: dict[str, int] = {}
        self._since_ms: dict[str, int] = {}
        self._failed_s: dict[str, float] = {}
        self._stopped_s: float | None = None
        self._drained_from: Mapping[str, int] = {}
        self._starting, self._ending, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._status: int | None = None
        self._batch_id, self._offsets = -1, dict[str, int]()
        self.batch_started_at_ms: int | None = None
        self.load: Mapping[str, int | float | None] = {"checkpoint_bytes": None}

    @property
    def reached(self) -> tuple[int, dict[str, int]]:
        """The number of the batch that ended last, and the offset up to which each `topic/partition` was read."""
        return self._batch_id, self._offsets

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block every query that the job starts is registered here, and looked at every second."""
        originals = {name: getattr(DataStreamWriter, name) for name in ("start", "toTable")}
        for name, start in originals.items():
            setattr(DataStreamWriter, name, self._registering(start))
        thread = threading.Thread(target=self._run, name="tidemark-application", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            for name, start in originals.items():
                setattr(DataStreamWriter, name, start)

    def wind_up(self) -> str | None:
        """Waits until the job's threads have ended, as Python does at its end, and stops queries that still run.

        Queries go on while a thread of the job lives. If they went on longer, they would write without the lease.
        Returns the error of a query that failed and was not started again, or None.
        """
        this_thread = threading.current_thread()
        try:
            while self._active() and any(
                thread is not this_thread and not thread.daemon for thread in threading.enumerate()
            ):
                time.sleep(DRAIN_LOOK_S)
            for run, (name, query) in self._active().items():
                log.warning("the job has ended: its query %s is stopped", name)
                self._stop(run, query)
            until_s = time.monotonic() + ENDS_WITHIN_S
            while self._active() and time.monotonic() < until_s:
                time.sleep(DRAIN_LOOK_S)
            return next((failure for _, failure in self._failures(self._active())), None)
        except Exception:  # the job may have ended its JVM
            log.exception("cannot look at the queries of a job that has ended")
            return None

    def end(self, reason: str | None = None, *, status: int | None = None) -> int:
        """Writes the last rows and the last heartbeat, once; returns the exit status of the process.

        Args:
            reason: why the job failed; None if it was drained, or has ended by itself.
            status: the exit status to return; None for 1 after a failure, else 0.
        """
        with self._ending:
            if self._status is None:
                for listener in self._listeners.values():
                    try:
                        listener.close()
                    except Exception:
                        log.exception("the last batches may not be recorded")
                has_failed = reason is not None and self._stopped_s is None
                for beats in self._heartbeats.values():
                    beats.end(reason if has_failed else None)
                state = StreamState.FAILED if has_failed else _end_without_error(self._control)
                self._pulse.end(state, reason=in_short(reason or "") or None)
                self._status = int(has_failed) if status is None else status
            return self._status

    def outlive_the_job(self) -> bool:
        """Returns True if a query did not stop, for example in `foreachBatch`."""
        return bool(self._active())

    def _registering(self, start: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
        """Wraps PySpark's method *start*: a query gets a listener, a lease and heartbeats before it starts."""

        @wraps(start)
        def started(writer: DataStreamWriter, *args: Any, **kwargs: Any) -> StreamingQuery:
            if self._control.drain_requested():
                # A loop that starts its query again ends here.
                log.info("a drain is requested: no query is started any more")
                raise SystemExit(0)
            listener = self._listen(writer._spark)
            # `start` and `toTable` both have the name as their fifth argument.
            given = kwargs.get("queryName") or next(iter(args[4:5]), None) or _name_in_options(writer)
            beats = self._take_lease(folder_name(given)) if given and isinstance(given, str) else None
            try:
                query = self._start(partial(start, writer, *args, **kwargs), writer, given)
            except BaseException as error:
                if beats is not None:
                    beats.end(str(error))
                raise
            run = str(query.runId)
            self._runs[run] = QueryRun(query.name or str(query.id), query)
            try:
                beats = beats or self._take_lease(listener.name_of(query))
            except AlreadyRunning:
                query.stop()
                raise
            if beats is not None:
                beats.follow(query, run)
            return query

        return started

    def _start(self, start: Callable[[], StreamingQuery], writer: DataStreamWriter, name: object) -> StreamingQuery:
        """Starts the query of *writer* by *start*, observed if the job is to be; *name* is what the job calls it."""
        if not self._options.observe:
            return start()
        # A query without a name gets one after its start.
        named = [folder_name(name)] if name and isinstance(name, str) else [*self._limits_ms]
        limits_ms = {limit_ms for each in named for limit_ms in self._limits_ms.get(each, ())}
        return start_observed(
            start, writer, self._options.observe, sorted(limits_ms), name=str(name or "without a name")
        )

    def _listen(self, spark: SparkSession) -> Listener:
        # PySpark makes several objects for one session of the JVM, each of which has its own listeners.
        session, options = str(spark._jsparkSession.sessionUUID()), self._options
        with self._starting:
            if session not in self._listeners:
                listener = Listener(
                    spark,
                    self._layout,
                    options.topology,
                    job=options.sub_topology,
                    file=str(options.application),
                    lease_of=self._lease_of,
                    consumer_groups=options.consumer_groups,
                )
                spark.streams.addListener(listener)
                self._listeners[session] = listener
                self._pulse.follow(self, (), spark.sparkContext.applicationId)
            return self._listeners[session]

    def _lease_of(self, name: str) -> int | None:
        """Returns the number of the lease of the query *name*, or None before it is taken."""
        if name == self._options.sub_topology:
            return self._pulse.epoch
        beats = self._heartbeats.get(name)
        return None if beats is None else beats.epoch

    def _take_lease(self, name: str) -> QueryHeartbeats | None:
        """Takes the lease of the query *name*, and begins its heartbeats.

        Returns None for a query that needs no lease of its own: one with the name of the job shares the job's lease and
        heartbeats, and one that is running already has some.

        Raises:
            AlreadyRunning: another job runs a query of this name.
        """
        before = self._heartbeats.get(name)
        if name == self._options.sub_topology or (before is not None and before.lives):
            return None
        if before is not None:
            before.end()
        self._heartbeats[name] = QueryHeartbeats(name, self._layout, self._options)
        return self._heartbeats[name]

    def _run(self) -> None:
        while not self._over.wait(DRAIN_LOOK_S if self._stopped_s is not None else LOOK_S):
            try:
                problem = self._look(time.monotonic())
            except LeaseLost as error:
                log.error("%s", error)
                # At once: until the process ends, its queries write beside those of the newer driver.
                os._exit(3)
            except Exception:
                log.exception("cannot look at the queries")
                continue
            if problem is not None:
                # The job may wait in any call, and catch any exception: only its process can be ended.
                os._exit(self.end(problem or None))

    def _look(self, now_s: float) -> str | None:
        """Reports the queries; returns why the process must end, "" after a drain, or None while it may go on."""
        self._control.check_lease(self._pulse.epoch)
        active = self._active()
        for beats in [*self._heartbeats.values()]:
            beats.look(active)
        try:
            self._report(active)
        except Exception:  # a progress of an unknown form must not hinder a drain
            log.exception("cannot report the queries")
        if self._control.drain_requested():
            return self._drain(active, now_s)
        return self._lasting_failure(active, now_s)

    def _active(self) -> dict[str, QueryRun]:
        return {run_id: run for run_id, run in [*self._runs.items()] if _is_active(run.query)}

    def _report(self, active: Mapping[str, QueryRun]) -> None:
        """Puts what the *active* queries have done, and do now, into the heartbeats of the queries and of the job."""
        now_ms, newest = wall_clock_ms(), dict[str, Mapping[str, Any]]()
        for listener in [*self._listeners.values()]:
            newest |= listener.newest
        # Each question to the JVM costs a tenth of a millisecond and more, so it is asked once for both heartbeats.
        busy = {run for run, (_, query) in active.items() if query.status["isTriggerActive"]}
        for name, beats in [*self._heartbeats.items()]:
            beats.report(newest.get(name), busy, now_ms)
        self._offsets = offsets_of(newest.values())
        self.load = {"checkpoint_bytes": None, **load_of(newest.values())}
        before, self._batches = self._batches, {progress["runId"]: progress["batchId"] for progress in newest.values()}
        moved = {run: batch_id for run, batch_id in self._batches.items() if before.get(run) != batch_id}
        for batch_id in moved.values():
            self._batch_id = batch_id
            self._pulse.finish(batch_id)
        in_a_batch = busy - moved.keys()
        self._since_ms = {run: self._since_ms.get(run, now_ms) if run in in_a_batch else now_ms for run in active}
        if self._since_ms:
            slowest = min(self._since_ms, key=lambda run: self._since_ms[run])
            doing = f"batch {self._batches.get(slowest, -1) + 1} of {active[slowest].name}"
            self._pulse.does(doing, self._since_ms[slowest])
        else:
            self._pulse.does("no query is running", now_ms)

    def _drain(self, active: Mapping[str, QueryRun], now_s: float) -> str | None:
        """Stops each query that is between two batches; returns "" once the process must end, or None.

        A query that runs one batch right after the other is stopped after the first that ends.
        """
        if self._stopped_s is None:
            log.info("drain requested: stopping %s queries after their batches", len(active))
            self._stopped_s, self._drained_from = now_s, dict(self._batches)
        for run, (_, query) in active.items():
            if self._drained_from.get(run) != self._batches.get(run) or not query.status["isTriggerActive"]:
                self._stop(run, query)
                self._stopped_s = now_s
        return "" if not active and now_s - self._stopped_s > ENDS_WITHIN_S else None

    def _stop(self, run: str, query: StreamingQuery) -> None:
        """Stops *query* in a thread of its own, because a `foreachBatch` function may go on for long."""
        if run not in self._stopping:
            self._stopping.add(run)
            threading.Thread(target=query.stop, name=f"tidemark-stop-{run}", daemon=True).start()

    def _lasting_failure(self, active: Container[str], now_s: float) -> str | None:
        """Returns the error of a query that failed and was not started again in time, or None."""
        failures = dict(self._failures(active))
        self._failed_s = {run: self._failed_s.get(run, now_s) for run in failures}
        lasting = (run for run, since_s in self._failed_s.items() if now_s - since_s > STARTED_AGAIN_WITHIN_S)
        return next((failures[run] for run in lasting), None)

    def _failures(self, active: Container[str]) -> Iterator[tuple[str, str]]:
        """Yields run and error of each query that has failed and was not started again."""
        runs = [*self._runs.items()]
        last_started = {query_run.name: run for run, query_run in runs}
        for run, (name, query) in runs:
            # A run that was started since *active* was made is looked at next time.
            if run in active or _is_active(query):
                continue
            error = _error_of(query)
            if error is None or last_started[name] != run:
                self._runs.pop(run, None)
            else:
                yield run, f"query {name} failed: {error}"


class QueryHeartbeats:
    """The lease and the heartbeats of one query of a job.

    Lease and heartbeats are in a control folder for the query's *name*, so that commands see the query as a stream.

    Args:
        name: name of the query, in the form in which a folder can have it.
        layout: paths of the job's tables.
        options: command line of the job.

    Raises:
        AlreadyRunning: another job runs a query of this name.
    """

    def __init__(self, name: str, layout: Layout, options: ApplicationOptions) -> None:
        self._query: StreamingQuery | None = None
        self._control_of_job = Control(layout.control(options.topology, options.sub_topology))
        self._run = ""
        self._control = control = Control(layout.control(options.topology, name))
        if (epoch := take_lease(control, options)) is None:
            msg = (
                f"{options.topology}/{name}: another job runs a query of this name; give one of them another queryName"
            )
            raise AlreadyRunning(msg)
        history = Heartbeats(layout.stream(options.topology, name), topology=options.topology, sub_topology=name)
        self._pulse = Pulse(control, history, epoch, options.launch_id, launched_by=options.launched_by)
        self.batch_started_at_ms: int | None = None
        self.load: Mapping[str, int | float | None] = {"checkpoint_bytes": None}
        self.reached: tuple[int, dict[str, int]] = (-1, {})
        self._is_over = False

    @property
    def epoch(self) -> int:
        """The number of the query's lease."""
        return self._pulse.epoch

    @property
    def lives(self) -> bool:
        """True before the query starts and while it runs."""
        return not self._is_over and (self._query is None or _is_active(self._query))

    def follow(self, query: StreamingQuery, run: str) -> None:
        """Begins to report *query*, which has started as *run*."""
        self._run, self._query = run, query
        self._pulse.follow(self, (), query.id)

    def report(self, newest: Mapping[str, Any] | None, busy: Container[str], now_ms: int) -> None:
        """Puts the newest batch that ended, and the one that runs, into the heartbeat.

        Args:
            newest: Spark's progress of the newest batch; None before the first.
            busy: the runs that work on a batch.
            now_ms: the driver's clock.
        """
        if self._query is None:
            return
        batch_id, _ = self.reached
        if newest is not None and newest["runId"] == self._run:
            self.load = {"checkpoint_bytes": None, **load_of([newest])}
            self.reached = newest["batchId"], offsets_of([newest])
        if newest is not None and self.reached[0] != batch_id:
            self.batch_started_at_ms = None
            self._pulse.finish(self.reached[0])
        if self._run not in busy:
            self.batch_started_at_ms = None
            self._pulse.waits(now_ms)
        elif self.batch_started_at_ms is None:
            self.batch_started_at_ms = now_ms
            self._pulse.begin(self.reached[0] + 1)

    def look(self, active: Container[str]) -> None:
        """Writes the last heartbeat if the query's run is no longer *active*.

        Raises:
            LeaseLost: another job has taken the query's name over.
        """
        if self._run not in active and not self.lives:
            self.end()
            return
        try:
            self._control.check_lease(self._pulse.epoch)
        except LeaseLost:
            if not self._is_over:  # meanwhile, by another thread
                raise

    def end(self, reason: str | None = None) -> None:
        """Writes the last heartbeat, once, and gives the lease back.

        *reason* is why the job failed; an error of the query itself is written in its place.
        """
        if not self._is_over:
            self._is_over = True
            error = (_error_of(self._query) if self._query is not None else None) or reason
            state = _end_without_error(self._control_of_job) if error is None else StreamState.FAILED
            self._pulse.end(state, reason=None if error is None else in_short(str(error)))


def _end_without_error(job: Control) -> StreamState:
    """Returns the last state of a *job*, or of one of its queries, that has not failed."""
    return StreamState.DRAINED if job.drain_requested() else StreamState.FINISHED


def _name_in_options(writer: DataStreamWriter) -> str | None:
    """Returns the query's name that was given to *writer* by `queryName`, `option` or `options`, or None."""
    with suppress(Exception):  # such as a Spark of another form: then the name is known after the start
        # PySpark and Spark can set the options of a writer, and not read them.
        options = writer._jwrite.getClass().getDeclaredField("extraOptions")
        options.setAccessible(True)
        name = options.get(writer._jwrite).get("queryName")
        return str(name.get()) if name.isDefined() else None
    return None


def _is_active(query: StreamingQuery) -> bool:
    """Returns True if *query* runs; a query whose JVM the job has ended does not."""
    try:
        return bool(query.isActive)
    except Exception:
        return False


def _error_of(query: StreamingQuery) -> Exception | None:
    """Returns the error of *query*, or None if it has none or its JVM has ended."""
    try:
        return query.exception()
    except Exception:
        return None
