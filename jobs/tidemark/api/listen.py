"""Records what Spark reports of every query of a session.

The queries are not changed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidemark.api.progress import batch_row, latency_row, watermark_ms
from tidemark.api.query import Query, Writer
from tidemark.clock import wall_clock_ms
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import NAME, Layout
from tidemark.model.tables.catalog import BATCHES, OPERATOR_LATENCY, WATERMARKS
from tidemark.storage.location import location

log = logging.getLogger("tidemark.api")

FLUSH_S = 30.0
"""Longest wait of `close` for the end of ended queries.

Spark reports it late.
"""

_listened_to: set[Query] = set()
"""Queries of this process whose `batches` a listener writes.

`measured` does not write them.
"""


def is_listened_to(query: Query) -> bool:
    """Returns True if a listener of this process writes `batches` of *query*."""
    return query in _listened_to


def listen(spark: SparkSession, *, warehouse: str | Path, topology: str) -> Listener:
    """Records every query of the session *spark* until the listener is closed."""
    listener = Listener(spark, Layout(location(warehouse)), topology)
    spark.streams.addListener(listener)
    return listener


class Listener(StreamingQueryListener):
    """Writes `batches`, `watermarks` and latency of every query of one session.

    Purpose: batch times and phases, watermark, state and backlog (`latest_offset` − `until_offset` in
    `batches.sources`) of queries whose code stays as it is. Of a query with a watermark also the smallest, the largest
    and the mean latency of a batch, in `operator_latency`; Spark reports no quantiles, so there are none.

    `newest` has the newest progress of each query, by its sub-topology.

    How it works: Spark calls from the thread that serves all its listeners, so a call only puts its event into a queue;
    a thread of the listener's own writes the events. A query is filed as the sub-topology of its name, or of its id
    where it has no name, or one that cannot be a folder's. A batch that was recorded before, by `measured` or before a
    restart, is not recorded again.

    What it does not do: fail a query. Errors in writing are logged.

    Known limitation: Spark reports a batch once, after it; a process that dies in between leaves no row of it. Two
    processes must not run queries of one name.
    """

    def __init__(self, spark: SparkSession, layout: Layout, topology: str) -> None:
        self._session, self._layout, self._topology = spark, layout, topology
        self._news: SimpleQueue[str | None] = SimpleQueue()
        self.newest: dict[str, Mapping[str, Any]] = {}
        self._running: set[str] = set()
        self._heard_of: set[Query] = set()
        self._ended = threading.Condition()
        self._writers: dict[Query, Writer] = {}
        self._watermarks: dict[Query, int | None] = {}
        self._thread = threading.Thread(target=self._write_all, name="tidemark-listener", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Adds the query; Spark calls this before `start()` returns."""
        self._running.add(str(event.runId))
        self._heard_of.add(self._query(event.name, str(event.id)))
        _listened_to.update(self._heard_of)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Queues the progress; Spark calls this some time after each batch."""
        self._news.put(event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Removes the query; Spark calls this after its last progress."""
        with self._ended:
            self._running.discard(str(event.runId))
            self._ended.notify_all()

    def close(self) -> None:
        """Writes the last events of queries that have ended, and stops listening."""
        with self._ended:
            self._ended.wait_for(self._has_heard_all, timeout=FLUSH_S)
        self._session.streams.removeListener(self)
        _listened_to.difference_update(self._heard_of)
        self._news.put(None)
        self._thread.join()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_heard_all(self) -> bool:
        active = {str(query.runId) for query in self._session.streams.active}
        return active >= self._running

    def _query(self, name: str | None, query_id: str) -> Query:
        return Query(self._layout, self._topology, name if name and NAME.fullmatch(name) else query_id)

    def _write_all(self) -> None:
        while (news := self._news.get()) is not None:
            try:
                progress = json.loads(news)
                self.newest[self._query(progress["name"], progress["id"]).name] = progress
                self._write(progress)
            except Exception:
                log.exception("not recorded: %s", news)

    def _write(self, progress: Mapping[str, Any]) -> None:
        query = self._query(progress["name"], progress["id"])
        batch_id, now_ms = progress["batchId"], watermark_ms(progress)
        batch = batch_row(progress)
        tables = {BATCHES.name: rows_of(BATCHES, [batch], **query.same(batch_id))}
        if now_ms != self._watermarks.get(query):
            mark = {"watermark": now_ms, "decided_at": batch["started_at"]}
            tables[WATERMARKS.name] = rows_of(WATERMARKS, [mark], **query.same(batch_id))
        if latency := latency_row(progress, operator=query.name):
            latency["thread_id"] = self._session.sparkContext.applicationId
            tables[OPERATOR_LATENCY.name] = rows_of(OPERATOR_LATENCY, [latency], **query.same(batch_id))
        if query not in self._writers:
            self._writers[query] = Writer(query, "listener", wall_clock_ms)
        self._writers[query].append(tables, batch_id)
        self._watermarks[query] = now_ms
