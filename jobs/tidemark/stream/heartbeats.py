"""The history of a driver's heartbeats, as a Delta table: what tells a silent stream from a dead one afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from tidemark.control import Heartbeat
from tidemark.delta import append, create
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.spec.tables import HEARTBEATS, Table

log = logging.getLogger(__name__)

EVERY_MS = 15_000


class History:
    """Appends rows to a *table* that a driver writes beside its batches, in its folder *home* of tables.

    What it does not do: fail. A row that cannot be written is logged, for the stream matters more.
    """

    def __init__(self, home: Path, table: Table, *, topology: str, sub_topology: str) -> None:
        self._path, self._table = home / table.name, table
        self._same = {"topology": topology, "sub_topology": sub_topology}
        self._is_there = False

    def add(self, row: dict[str, object]) -> None:
        """Append *row*, instants as epoch ms."""
        try:
            if not self._is_there:
                create(self._path, arrow_schema(self._table), description=self._table.row)
                self._is_there = True
            # By its path: a table that stays open takes more memory with every commit.
            append(self._path, rows_of(self._table, [row], **self._same))
        except Exception:
            log.exception("%s: a row could not be written", self._path)


class Heartbeats:
    """Appends beats to the table `heartbeats` of a sub-topology, whose tables lie in *home*.

    Keeps the first beat of each state, and then one every EVERY_MS of the beats' clock.
    """

    def __init__(self, home: Path, *, topology: str, sub_topology: str) -> None:
        self._history = History(home, HEARTBEATS, topology=topology, sub_topology=sub_topology)
        self._kept: Heartbeat | None = None

    def tell(
        self,
        beat: Heartbeat,
        *,
        thread_id: str | None,
        batch_started_at_ms: int | None,
        usage: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """Keep *beat* if it is due, with the columns that *usage* measures then.

        *batch_started_at_ms* (epoch ms) is None when no batch runs.
        """
        kept = self._kept
        if kept is not None and kept.state is beat.state and 0 <= beat.at_ms - kept.at_ms < EVERY_MS:
            return
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
                **usage(),
            }
        )
