"""Records what Spark reports of every query of a session, without a change to the queries."""

from __future__ import annotations

import json
import logging
import platform
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, NamedTuple

from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.api.groups import QueryGroup
from tidemark.api.observed import Observed, observed_in
from tidemark.api.progress import (
    BatchContext,
    QueryLook,
    Reads,
    address_written,
    addresses_read,
    batch_row,
    clock_row,
    ended_ms,
    event_ms,
    first_read,
    looked_ms,
    named_addresses,
    operator_rows,
    partition_rows,
    reads_of,
    record_rows,
    result_rows,
    watermark_ms,
    window_rows,
)
from tidemark.api.query import FactsWriter, Query, is_written_about
from tidemark.clock import to_boot_ms, wall_clock_ms
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout, folder_name
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.model.tables.catalog import BATCHES, OPERATOR_BATCHES, OPERATOR_WINDOWS, PARTITION_BATCHES, TABLES
from tidemark.model.topology import WINDOW_OF_JOBS_MS, consumer_group
from tidemark.recorded_jobs.queries import FILE, RecordedQuery, read_query, write_query
from tidemark.selection import present
from tidemark.storage.location import location
from tidemark.storage.locks import ForeignOwner

log = logging.getLogger("tidemark.api")

FLUSH_S = 30.0
"""Longest time that `close` waits for Spark to report the end of queries that have ended."""
GROUP_S = 10.0
"""The rows of so many seconds are written together."""
MOST_WAITING = 10_000
"""Most rows of a table, and most reports about a query, that wait while the warehouse cannot be reached."""
MOST_LOOKS = 1_000
"""Most looks for new records that are kept of a query while some of the records that they saw are unread."""
_TRIGGER = re.compile(r"ProcessingTimeTrigger\((\d+)\)")

_listened_to: set[Query] = set()
"""Queries of this process whose rows of `batches` a listener writes, so that `measured` must not."""


def is_listened_to(query: Query) -> bool:
    """Returns True if a listener of this process writes `batches` of *query*."""
    return query in _listened_to


def listen(
    spark: SparkSession, *, warehouse: str | Path, topology: str, consumer_groups: str | None = None
) -> Listener:
    """Records every query that the session *spark* runs until the returned listener is closed.

    Call this before queries start; `with listen(…):` closes the listener at the end of the block.

    Args:
        spark: the session.
        warehouse: folder or bucket of Tidemark's tables.
        topology: name under which reports show the queries.
        consumer_groups: prefix of consumer groups, for example `tidemark`: the offsets of each query are then written
            into the group `tidemark-TOPOLOGY-QUERY`, so that Kafka's own tools show its lag. None to write none.

    Raises:
        InvalidArgument: the name of the topology cannot be used.
    """
    listener = Listener(spark, Layout(location(warehouse)), topology, consumer_groups=consumer_groups)
    spark.streams.addListener(listener)
    return listener


class Report(NamedTuple):
    """What Spark reported of a query.

    Attributes:
        spark: Spark's JSON: the progress of a batch, or only `id`, `runId` and `timestamp`.
        to_boot_ms: boot clock − wall clock of the host when the listener was called.
        has_looked: at `timestamp` the query looked for records, and found nothing new.
    """

    spark: Mapping[str, Any]
    to_boot_ms: int
    has_looked: bool = False


class Listener(StreamingQueryListener):
    """Writes the batches of every query of one session into Tidemark's tables. Created by `listen`.

    Purpose: batch times and phases, outcomes, watermark, state and backlog (`latest_offset` − `until_offset` in
    `partition_batches`) of queries whose code stays as it is. Of a query with a watermark also the smallest, the
    largest and the mean latency of a batch, in `operator_batches`, and the streaming windows that it has finished;
    Spark reports no quantiles, so there are none. What a query reads and writes is described in its control folder.

    How it works: Spark calls from the thread that serves all its listeners, so a call only puts its event into a queue;
    a thread of the listener writes the events of GROUP_S together. A query is filed as the sub-topology of its name
    (`folder_name`). Without a name it is filed under JOB_1, JOB_2 … of its *job*, or under its id if it has no job. A
    batch that was recorded before, by `measured` or before a restart, is not recorded again. Batches of a new
    checkpoint are numbered on from the newest recorded one.

    What it does not do: fail a query. Errors in writing are logged; if the warehouse could not be reached, the rows are
    written later.

    Clocks: Spark's timestamps and lengths are those of the JVM's wall clock. When Spark calls, the listener reads how
    far the host's boot clock, which is never set, is from its wall clock.

    Known limitation: Spark reports a batch once, after it; a process that dies leaves no row of its last GROUP_S. Two
    processes must not run queries of one name.

    Args:
        spark: the session.
        layout: paths of the tables.
        topology: name under which reports show the queries.
        job: name of the job that runs the queries, for those without a name; empty without a job.
        file: the job's Python file; empty without a job.
        lease_of: returns the number of a query's lease by its name; None for a query without a lease.
        consumer_groups: prefix of consumer groups into which offsets are written (`tidemark.api.groups`); None to write
            none.

    Attributes:
        newest: Spark's newest progress of each query, by its sub-topology.
    """

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        topology: str,
        *,
        job: str = "",
        file: str = "",
        lease_of: Callable[[str], int | None] = lambda _: None,
        consumer_groups: str | None = None,
    ) -> None:
        self._session, self._layout, self._topology = spark, layout, topology
        self._job, self._file, self._lease_of = job, file, lease_of
        self._group_prefix = consumer_groups
        self._groups: dict[str, QueryGroup] = {}
        self._reports: SimpleQueue[Report | None] = SimpleQueue()
        self.newest: dict[str, Mapping[str, Any]] = {}
        self._running: set[str] = set()
        self._heard_of: set[Query] = set()
        self._ended = threading.Condition()
        self._plans: dict[str, Any] = {}
        self._unnamed: dict[str, str] = {}
        self._naming = threading.Lock()
        self._records: dict[Query, QueryRecord] = {}
        self._thread = threading.Thread(target=self._write_all, name="tidemark-listener", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Adds the query; Spark calls this before `start()` returns."""
        run = str(event.runId)
        self._running.add(run)
        if self._job and not event.name:
            with self._naming:
                self._unnamed[run] = self._free_name()
        with suppress(Exception):  # then its sink and its trigger are not known
            self._plans[run] = self._session._jsparkSession.streams().get(str(event.id)).streamingQuery()
        self._heard_of.add(self._query(event.name, str(event.id), run))
        _listened_to.update(self._heard_of)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Queues the progress; Spark calls this some time after each batch."""
        self._reports.put(Report(json.loads(event.progress.json), to_boot_ms()))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Queues that a query has looked for records in vain; Spark calls this every 10 s."""
        idle = {"id": str(event.id), "runId": str(event.runId), "timestamp": event.timestamp}
        self._reports.put(Report(idle, to_boot_ms(), has_looked=True))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Removes the query; Spark calls this after its last progress."""
        # Of a query whose first batch failed there is no other report.
        ended = {"id": str(event.id), "runId": str(event.runId), "timestamp": iso(wall_clock_ms())}
        self._reports.put(Report(ended, to_boot_ms()))
        with self._ended:
            self._running.discard(str(event.runId))
            self._ended.notify_all()

    def close(self) -> None:
        """Writes the last rows of queries that have ended, and stops listening.

        Spark reports the end of a query late; this waits for it for FLUSH_S at most.
        """
        with self._ended:
            self._ended.wait_for(self._has_heard_all, timeout=FLUSH_S)
        self._session.streams.removeListener(self)
        _listened_to.difference_update(self._heard_of)
        self._reports.put(None)
        self._thread.join()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _jlistener(self) -> Any:
        """The object of the JVM that calls the listener, in place of the one that PySpark would make."""
        jvm = self._session._jvm
        assert jvm is not None
        return jvm.PythonStreamingQueryListenerWrapper(_AsJson(self))

    def _has_heard_all(self) -> bool:
        active = {str(query.runId) for query in self._session.streams.active}
        return active >= self._running

    def name_of(self, query: StreamingQuery) -> str:
        """Returns the sub-topology of *query*, which has started."""
        return self._query(query.name, str(query.id), str(query.runId)).name

    def _query(self, name: str | None, query_id: str, run: str) -> Query:
        filed_as = folder_name(name) if name else self._unnamed.get(run, query_id)
        return Query(self._layout, self._topology, filed_as)

    def _free_name(self) -> str:
        """Returns a name for a query of the job that has none.

        The id would be no name, because a query without a checkpoint has a new one at each start.
        """
        # Spark reports the end of a query some time after it.
        active = {str(query.runId) for query in self._session.streams.active}
        names_in_use = {name for run, name in self._unnamed.items() if run in active}
        return next(name for n in count(1) if (name := f"{self._job}_{n}") not in names_in_use)

    def _write_all(self) -> None:
        is_open, due_s = True, 0.0
        while is_open:
            report = None
            try:
                # The first batch is written at once, and so are the last ones.
                report = self._reports.get(timeout=max(due_s - time.monotonic(), 0.01) if self._waiting() else None)
                is_open = report is not None
                if report is not None:
                    self._add(report)
            except Empty:
                pass
            except Exception:
                log.exception("not recorded: %s", report)
            if self._waiting() and (time.monotonic() >= due_s or not is_open):
                due_s = time.monotonic() + GROUP_S
                for record in self._records.values():
                    record.flush()
                for group in self._groups.values():
                    _attempt(group.write)
        for group in self._groups.values():
            _attempt(group.end)

    def _waiting(self) -> bool:
        return any(record.waits for record in [*self._records.values()])

    def _add(self, report: Report) -> None:
        spark = report.spark
        query = self._query(spark.get("name"), spark["id"], spark["runId"])
        plan = self._plans.get(spark["runId"])
        self._note_offsets(report, query, plan)
        if "batchId" in spark:
            self.newest[query.name] = spark
        elif plan is None:  # the run is recorded already, or began before the listener
            for record in self._records.values():
                if report.has_looked and record.run == spark["runId"]:
                    record.looked_in_vain(instant_ms(spark["timestamp"]) + report.to_boot_ms)
            return
        else:
            # Spark names the query only in a progress, and this one has had no batch yet.
            query = self._query(plan.name(), spark["id"], spark["runId"])
        if query not in self._records:
            self._records[query] = QueryRecord(query, self._job, self._file)
        record = self._records[query]
        thread_id, lease = self._session.sparkContext.applicationId, self._lease_of(query.name)
        record.add(spark, plan, to_boot_ms=report.to_boot_ms, thread_id=thread_id, lease=lease)
        if record.run == spark["runId"]:
            self._plans.pop(spark["runId"], None)

    def _note_offsets(self, report: Report, query: Query, plan: Any) -> None:
        """Notes the offsets that *report* has for the consumer group of its run, and writes them when
        the run pauses.
        """
        name = consumer_group(self._group_prefix, self._topology, query.name)
        if name is None:
            return
        run = report.spark["runId"]
        if "batchId" in report.spark:
            if plan is not None and run not in self._groups:
                self._groups[run] = QueryGroup(self._session._jvm, name, plan)
            if run in self._groups:  # a run that began before the listener has no plan here
                self._groups[run].note(report.spark)
        elif run in self._groups:
            _attempt(self._groups[run].write if report.has_looked else self._groups.pop(run).end)


def _attempt(write: Callable[[], None]) -> None:
    """Calls *write* of a consumer group and logs its errors, which must not keep rows from being recorded."""
    try:
        write()
    except Exception:
        log.exception("the offsets of a query are not written into its consumer group")


class _AsJson(JStreamingQueryListener):
    """Hands the progress of a batch to a listener as Spark's JSON.

    PySpark's own class asks the JVM for each field, with a hundred calls and more for a batch.
    """

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        """Hands an event over; Spark calls this some time after each batch."""
        progress: Any = SimpleNamespace(json=jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent(progress))


class _Waiting(NamedTuple):
    """A report that has no rows yet, because the warehouse could not be read: the arguments of `QueryRecord.add`."""

    spark: Mapping[str, Any]
    plan: Any
    to_boot_ms: int
    thread_id: str
    lease: int | None


class QueryRecord:
    """Turns what Spark reports of one *query* into rows, and keeps them until they can be written.

    Args:
        query: the query.
        job: name of the job that runs it; empty without a job.
        file: the job's Python file; empty without a job.
    """

    def __init__(self, query: Query, job: str, file: str) -> None:
        self._query, self._job, self._file = query, job, file
        self.run = ""
        self._description: RecordedQuery | None = None
        self._on_disk: RecordedQuery | None = None
        self._has_changed = False
        self._plan: Any = None
        self._writer: FactsWriter | None = None
        self._reports: deque[_Waiting] = deque(maxlen=MOST_WAITING)
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._read_before: dict[str, int] = {}
        self._watermark_ms: int | None = None
        self._oldest_ms: int | None = None
        self._first_batch: int | None = None
        self._ended_ms: int | None = None
        self._looks: deque[QueryLook] = deque(maxlen=MOST_LOOKS)
        self._ends: dict[tuple[str, int], int] = {}

    @property
    def waits(self) -> bool:
        """True if rows, reports or a description wait for the warehouse."""
        return bool(self._rows or self._reports) or self._has_changed

    def add(
        self, spark: Mapping[str, Any], plan: Any, *, to_boot_ms: int, thread_id: str, lease: int | None = None
    ) -> None:
        """Adds the rows of a report. The first report of a run begins it.

        While the warehouse cannot be read, the newest MOST_WAITING reports wait.

        Args:
            spark: Spark's progress of a batch, or only `id`, `runId` and `timestamp` before the first batch.
            plan: Spark's object of the run; None if it is not known.
            to_boot_ms: boot clock − wall clock of the host, read when Spark reported.
            thread_id: the column `thread_id` of `operator_batches`.
            lease: number of the lease of the query's job; None without one.
        """
        self._reports.append(_Waiting(spark, plan, to_boot_ms, thread_id, lease))
        self._catch_up()

    def looked_in_vain(self, at_ms: int) -> None:
        """Notes that the query looked for records at *at_ms*, boot clock, and found nothing new."""
        if not self._reports:  # while reports wait it is not known what was read before
            if self._looks and self._looks[-1].batch_id is None:
                self._looks.pop()
            self._looks.append(QueryLook(None, at_ms, dict(self._ends)))

    def _catch_up(self) -> None:
        while self._reports:
            waiting = self._reports[0]
            spark = waiting.spark
            try:
                if self.run != spark["runId"]:
                    self._begin(spark, waiting.plan)
                if "batchId" in spark:
                    self._add_batch(waiting)
            except (OSError, DeltaError):
                log.exception("not recorded yet: batches of %s", self._query.name)
                return
            except Exception:
                log.exception("not recorded: %s", spark)
            self._reports.popleft()

    def _begin(self, spark: Mapping[str, Any], plan: Any) -> None:
        """Begins to record a run, of which *spark* is the first report.

        Raises:
            OSError: the warehouse cannot be read.
        """
        self._write()
        writer, before, query_id = FactsWriter(self._query, "listener", wall_clock_ms), None, spark["id"]
        try:
            before = read_query(self._query.control / FILE)
        except InvalidSpec as error:
            log.warning("%s; its batches are numbered on", error)
            query_id = ""
        described = before or RecordedQuery(name=self._query.name, query_id=query_id)
        if described.query_id != spark["id"]:
            at_ms, next_batch = instant_ms(spark["timestamp"]), writer.newest(BATCHES.name) + 1
            again = {"query_id": spark["id"], "first_batch": next_batch, "began_again_ms": at_ms}
            described = replace(described, **again, sources={})
            self._rows.clear()  # their numbers are given anew
        self._on_disk, self._plan, self._writer = before, plan, writer
        self._read_before, self._watermark_ms, self._oldest_ms = {}, None, None
        self._first_batch, self._ended_ms, self._ends = None, None, {}
        self._looks.clear()
        self._description = replace(described, job=self._job, application=self._file, trigger_ms=_trigger_ms(plan))
        self.run = spark["runId"]
        if "batchId" not in spark:
            with suppress(Exception):  # Spark has not planned it yet
                descriptions = [plan.sources().apply(n).toString() for n in range(plan.sources().size())]
                self._describe([{"description": description} for description in descriptions], "")

    def _add_batch(self, waiting: _Waiting) -> None:
        progress = waiting.spark
        self._describe(progress["sources"], progress["sink"]["description"])
        observed = observed_in(progress)
        self._note_limits(observed, progress["numInputRows"])
        query = self._description
        assert query is not None
        name, batch_id = self._query.name, query.first_batch + progress["batchId"]
        operators = {address: operator for operator, address in query.sources.items()}
        reads = reads_of(progress, operators, self._read_before)
        for source, n in reads.records.items():
            self._read_before[source] = self._read_before.get(source, 0) + n
        context = self._context(batch_id, waiting)
        batch, now_ms = {**batch_row(progress), **clock_row(progress, context)}, watermark_ms(progress)
        partitions = partition_rows(reads.partitions)
        # Spark has one watermark for a query, which counts for each of its sources.
        moved = [None, *query.sources] if now_ms != self._watermark_ms else []
        combined: dict[str | None, dict[str, Any]] = {source: {} for source in moved}
        if records := record_rows(progress, reads, context, self._looks):
            combined.setdefault(reads.source, {}).update(reads=records, first_read=first_read(batch_id))
        partitions += [{"source": source, "watermark": now_ms, **row} for source, row in combined.items()]
        after_ms = max(present((self._oldest_ms, self._watermark_ms)), default=None)
        windows = window_rows(
            progress, query.sources, name, after_ms=after_ms, window_ms=WINDOW_OF_JOBS_MS, host=platform.node()
        )
        self._watermark_ms, self._oldest_ms = now_ms, self._oldest_ms or event_ms(progress, "min")
        self._remember(progress, context, reads)
        by_boot = {"finished_boot_ms": ended_ms(progress, context), "finished_epoch": context.driver}
        results = {"results": result_rows(progress, context) or None}
        rows = {
            BATCHES.name: [batch],
            PARTITION_BATCHES.name: [{**row, "decided_at": batch["decided_at"]} for row in partitions],
            OPERATOR_BATCHES.name: [
                {
                    **row,
                    "decided_at": batch["decided_at"],
                    "thread_id": waiting.thread_id,
                    **(by_boot if "finished_at" in row else {}),
                    **(results if row["operator"] == name else {}),
                }
                for row in operator_rows(progress, reads.records, name, observed)
                if not is_written_about(self._query, row["operator"])
            ],
            OPERATOR_WINDOWS.name: [
                {
                    **window,
                    "decided_at": batch["decided_at"],
                    "finished_boot_ms": window["ewt_at"] + context.to_boot_ms,
                    "finished_epoch": context.driver,
                }
                for window in windows
            ],
        }
        for table, table_rows in rows.items():
            self._rows.setdefault(table, []).extend({**row, "batch_id": batch_id} for row in table_rows)

    def _context(self, batch_id: int, waiting: _Waiting) -> BatchContext:
        if self._first_batch is None:
            self._first_batch = batch_id
        return BatchContext(
            batch_id,
            driver=self._first_batch if waiting.lease is None else waiting.lease,
            to_boot_ms=waiting.to_boot_ms,
            idle_from_ms=self._ended_ms,
            excluded_ms=self._looks[-1].at_ms if self._looks else None,
        )

    def _remember(self, progress: Mapping[str, Any], context: BatchContext, reads: Reads) -> None:
        """Keeps what the rows of the next batch of this run depend on."""
        self._ended_ms = ended_ms(progress, context)
        self._ends |= {(read["source"], read["partition"]): read["until_offset"] for read in reads.partitions}
        if (at_ms := looked_ms(progress, context)) is not None:
            saw = {
                (read["source"], read["partition"]): read["latest_offset"]
                for read in reads.partitions
                if read["latest_offset"] is not None
            }
            self._looks.append(QueryLook(context.batch_id, at_ms, saw))
        # Later batches read nothing that this look saw, so older looks say nothing more about them.
        last = max((n for n, look in enumerate(self._looks) if _is_read(look, self._ends)), default=0)
        for _ in range(last):
            self._looks.popleft()

    def flush(self) -> None:
        """Writes the rows that wait.

        While the warehouse cannot be written, the newest MOST_WAITING rows of each table go on waiting.
        """
        self._catch_up()
        self._write()

    def _write(self) -> None:
        rows, self._rows = self._rows, {}
        same = {"topology": self._query.topology, "sub_topology": self._query.name}
        try:
            if self._has_changed:
                assert self._description is not None
                # First: without it, batches of a new checkpoint would be numbered anew after a restart.
                write_query(self._query.layout, self._query.topology, self._description)
                self._on_disk, self._has_changed = self._description, False
            for table, table_rows in rows.items():
                assert self._writer is not None
                newest = self._writer.newest(table)
                new = [row for row in table_rows if row["batch_id"] > newest]
                if new:
                    batch_id = max(row["batch_id"] for row in new)
                    self._writer.append({table: rows_of(TABLES[table], new, **same)}, batch_id)
        except (OSError, DeltaError, ForeignOwner):
            log.exception("not recorded yet: batches of %s", self._query.name)
            # The next write skips the rows of tables that were written already.
            self._rows = {table: table_rows[-MOST_WAITING:] for table, table_rows in rows.items()}
        except Exception:
            log.exception("not recorded: batches of %s", self._query.name)

    def _describe(self, sources: Any, sink: str) -> None:
        """Adds what the query reads and writes to its description."""
        query = self._description
        assert query is not None
        addresses = chain.from_iterable(addresses_read(sources))
        operators = named_addresses(self._query.name, [*query.sources.values(), *addresses])
        output = address_written(sink) or (_topic_written(self._plan) if sink else "")
        self._description = replace(query, sources=operators, sink=output or query.sink)
        self._has_changed = self._description != self._on_disk

    def _note_limits(self, observed: Observed | None, records: int) -> None:
        """Notes in the description which limits of latency are counted. A batch without *records* does not tell."""
        query = self._description
        assert query is not None
        if observed is not None or records:
            limits = None if observed is None else tuple(sorted(observed.over))
            self._description = replace(query, observed_limits_ms=limits)
            self._has_changed = self._description != self._on_disk


def _is_read(look: QueryLook, ends: Mapping[tuple[str, int], int]) -> bool:
    """Returns True if every record that *look* saw has been read.

    *ends* has, by source and partition, the offset up to which was read; *look* saw all of these partitions.
    """
    return look.ends.keys() >= ends.keys() and all(look.ends[partition] <= end for partition, end in ends.items())


def _trigger_ms(plan: Any) -> int:
    """Returns the interval of the trigger of *plan* in ms; 0 if it has none, or it is unknown."""
    with suppress(Exception):  # such as a JVM that has ended
        if match := _TRIGGER.match(str(plan.trigger())):
            return int(match[1])
    return 0


def _topic_written(plan: Any) -> str:
    """Returns the topic that *plan* writes, as `topic:NAME`; empty if it writes none."""
    with suppress(Exception):  # such as a plan of another version of Spark
        topic = plan.logicalPlan().writeOptions().get("topic")
        return f"topic:{topic.get()}" if topic.isDefined() else ""
    return ""
