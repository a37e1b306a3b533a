"""Writes the history of a driver's heartbeats to a Delta table.

By this table a silent stream can later be distinguished from a dead one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tidemark.control.folder import Heartbeat
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.tables.catalog import HEARTBEATS, Table
from tidemark.storage.delta.tables import Appender, create
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

EVERY_MS = 15_000
TOGETHER_S = 200.0
"""Rows of so many seconds are written together in an object store.

It is less than the five minutes for which checks take a driver for alive after its newest row.
"""


class History:
    """Appends rows to a *table* that a driver writes apart from batches.

    The table is in *home*, the driver's folder of tables. Rows of *together_s* are written together, and those of
    TOGETHER_S in an object store. A failure is logged and the rows are lost, because the stream matters more.
    """

    def __init__(self, home: Path, table: Table, *, topology: str, sub_topology: str, together_s: float = 0.0) -> None:
        self._path, self._table = home / table.name, table
        self._same = {"topology": topology, "sub_topology": sub_topology}
        self._together_s = TOGETHER_S if isinstance(home, ObjectPath) else together_s
        self._appender: Appender | None = None
        self._waiting: list[dict[str, object]] = []
        self._written_s = float("-inf")

    def add(self, *rows: dict[str, object]) -> None:
        """Appends *rows*, which have instants as epoch ms."""
        self._waiting += rows
        if time.monotonic() - self._written_s >= self._together_s:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait."""
        rows, self._waiting, self._written_s = self._waiting, [], time.monotonic()
        if not rows:
            return
        try:
            if self._appender is None:
                create(self._path, arrow_schema(self._table), description=self._table.row)
                self._appender = Appender(self._path)
            self._appender.append(rows_of(self._table, rows, **self._same))
        except Exception:
            log.exception("%s: cannot write rows", self._path)


class Heartbeats:
    """Appends beats of a sub-topology to its table `heartbeats` in *home*.

    The first beat of each state is written, and then a beat every EVERY_MS by the clock of the beats.
    """

    def __init__(self, home: Path, *, topology: str, sub_topology: str) -> None:
        self._history = History(home, HEARTBEATS, topology=topology, sub_topology=sub_topology)
        self._kept: Heartbeat | None = None

    def write_if_due(
        self,
        beat: Heartbeat,
        *,
        thread_id: str | None,
        batch_started_at_ms: int | None,
        usage: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """Writes *beat* if it is due.

        Args:
            beat: the heartbeat.
            thread_id: the Spark application.
            batch_started_at_ms: when the current batch began, epoch ms. None: no batch runs.
            usage: measures further columns; called only if the beat is due.
        """
        kept = self._kept
        # A negative distance means that the clock was set back: then the beat is written.
        if kept is not None and kept.state is beat.state and 0 <= beat.at_ms - kept.at_ms < EVERY_MS:
            return
        is_news = kept is None or kept.state is not beat.state
        self._kept = beat
        self._history.add(
            {
                "at": beat.at_ms,
                "state": beat.state.value,
                "epoch": beat.epoch,
                "thread_id": thread_id,
                "batch_id": beat.batch_id,
                "batch_started_at": batch_started_at_ms,
                "since": beat.since_ms,
                "reason": beat.reason,
                "host": beat.host or None,
                "file_digest": beat.digest or None,
                "launched_by": beat.launched_by or None,
                "drained_by": beat.drained_by,
                "adopted_by": beat.adopted_by,
                "predecessor_killed_by": beat.predecessor_killed_by,
                **usage(),
            }
        )
        # Changes of state do not wait for other rows.
        if is_news:
            self._history.flush()
