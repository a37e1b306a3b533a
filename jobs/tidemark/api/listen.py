"""Writes down what Spark reports of every query of a session, without any change to the queries."""

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

from tidemark.api.progress import batch_row, watermark_ms
from tidemark.api.query import Query, Writer
from tidemark.clock import wall_clock_ms
from tidemark.kernels.schemas import rows_of
from tidemark.place import location
from tidemark.spec.layout import NAME, Layout
from tidemark.spec.tables import BATCHES, WATERMARKS

log = logging.getLogger("tidemark.api")

FLUSH_S = 30.0
"""So long `close` waits for Spark to report the end of queries that have ended."""

_listened_to: set[Query] = set()
"""The queries of this process whose `batches` a listener writes, so that `measured` leaves them alone."""


def is_listened_to(query: Query) -> bool:
    """Whether a listener of this process writes the `batches` of *query*."""
    return query in _listened_to


def listen(spark: SparkSession, *, warehouse: str | Path, topology: str) -> Listener:
    """Have every query of the session *spark* recorded from now on, until the listener that comes back is closed."""
    listener = Listener(spark, Layout(location(warehouse)), topology)
    spark.streams.addListener(listener)
    return listener


class Listener(StreamingQueryListener):
    """Writes `batches` and `watermarks` of every query of one session.

    Purpose: batch times, watermark and backlog (`latest_offset` − `until_offset` in `batches.sources`) of queries that
    nobody wants to touch.

    How it works: Spark calls from the thread that serves all its listeners, so a call only puts its news into a queue;
    a thread of the listener's own writes them down. A query is filed as the sub-topology of its name, or of its id
    where it has no name, or one that cannot be a folder's. A batch that was told of before, by `measured` or before a
    restart, is not told of again.

    What it does not do: fail a query. What cannot be written is logged.

    Known limitation: Spark reports a batch once, after it; a process that dies in between leaves no row of it. Two
    processes must not run queries of one name.
    """

    def __init__(self, spark: SparkSession, layout: Layout, topology: str) -> None:
        self._session, self._layout, self._topology = spark, layout, topology
        self._news: SimpleQueue[str | None] = SimpleQueue()
        self._running: set[str] = set()
        self._heard_of: set[Query] = set()
        self._ended = threading.Condition()
        self._writers: dict[Query, Writer] = {}
        self._watermarks: dict[Query, int | None] = {}
        self._thread = threading.Thread(target=self._write_all, name="tidemark-listener", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark before `start()` returns."""
        self._running.add(str(event.runId))
        self._heard_of.add(self._query(event.name, str(event.id)))
        _listened_to.update(self._heard_of)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark some time after each batch."""
        self._news.put(event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Called by Spark after the last progress of a query."""
        with self._ended:
            self._running.discard(str(event.runId))
            self._ended.notify_all()

    def close(self) -> None:
        """Write down what Spark has to say of queries that have ended, and listen no more."""
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
                self._write(json.loads(news))
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
        if query not in self._writers:
            self._writers[query] = Writer(query, "listener", wall_clock_ms)
        self._writers[query].append(tables, batch_id)
        self._watermarks[query] = now_ms
