"""Writes a driver's heartbeats to a Delta table, by which a silent stream can later be told from a dead one."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.control.folder import Heartbeat, StreamState
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.tables.catalog import HEARTBEATS
from tidemark.semantics.liveness import LIMITS, EvidenceKind, StoreKind
from tidemark.semantics.skew import Skew
from tidemark.storage.delta.compactor import FACTS_EVERY, REPLACED_FOR_S, Compactor
from tidemark.storage.delta.log import SHORT_LOG
from tidemark.storage.delta.tables import Appender, create
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

EVERY_MS = LIMITS[EvidenceKind.ROWS, StoreKind.DISK].every_ms
MOST_OFFSETS = 10_000
TOGETHER_S = LIMITS[EvidenceKind.ROWS, StoreKind.OBJECT_STORE].every_ms / 1_000
"""Rows of so many seconds are written together in an object store."""


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """An estimate of the offset of a host's clock.

    Attributes:
        host: the host whose clock was read.
        estimated_at_ms: when it was estimated, by the driver's clock, epoch ms.
        skew: the estimate.
        samples: how many records of a broker, or reports of tasks, it is made of.
        reference: BROKERS, or the host whose clock it refers to.
    """

    host: str
    estimated_at_ms: int
    skew: Skew
    samples: int
    reference: str


class ClockOffsets:
    """Keeps estimates of clocks until the next heartbeat takes them.

    Threads of one driver add them. Where no heartbeat is written, only the newest MOST_OFFSETS are kept.
    """

    def __init__(self) -> None:
        self._waiting: deque[ClockOffset] = deque(maxlen=MOST_OFFSETS)

    def add(self, *offsets: ClockOffset) -> None:
        """Keeps *offsets* for the next heartbeat."""
        self._waiting.extend(offsets)

    def taken(self) -> list[ClockOffset]:
        """Returns what was added since the last call, in this order."""
        offsets: list[ClockOffset] = []
        # A deque is safe where one thread adds while another takes.
        while self._waiting:
            offsets.append(self._waiting.popleft())
        return offsets


class Heartbeats:
    """Appends beats of a sub-topology to its table `heartbeats` in *home*.

    The first beat of each state is written, and then a beat every EVERY_MS by the clock of the beats. In an object
    store the beats of TOGETHER_S seconds are written together. If a write fails, that is logged and the rows are lost,
    because the stream matters more.
    """

    def __init__(self, home: Path, *, topology: str, sub_topology: str) -> None:
        self._path = home / HEARTBEATS.name
        self._same = {"topology": topology, "sub_topology": sub_topology}
        self._together_s = TOGETHER_S if isinstance(home, ObjectPath) else 0.0
        self._appender = Appender(self._path)
        self._compactor = Compactor(self._appender, every=FACTS_EVERY, replaced_for_s=REPLACED_FOR_S)
        self._is_created = False
        self._waiting: list[dict[str, object]] = []
        self._written_s = float("-inf")
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
            batch_started_at_ms: when the current batch began, epoch ms, or None between batches.
            usage: measures further columns; called only if the beat is due.
        """
        if not self.is_due(beat.state, beat.at_ms):
            return
        is_news = self._kept is None or self._kept.state is not beat.state
        self._kept = beat
        columns = {"thread_id": thread_id, "batch_started_at": batch_started_at_ms, **usage()}
        self._waiting.append(beat.columns | columns)
        # Changes of state do not wait for other rows.
        if is_news or time.monotonic() - self._written_s >= self._together_s:
            self._write()

    def is_due(self, state: StreamState, at_ms: int) -> bool:
        """Returns True if a beat of *state* at *at_ms* (epoch ms) becomes a row."""
        kept = self._kept
        # A negative distance means that the clock was set back: then the beat is written.
        return kept is None or kept.state is not state or not 0 <= at_ms - kept.at_ms < EVERY_MS

    def write_for(self, last: Heartbeat) -> None:
        """Adds *last* to the next rows: the last beat of a driver that was killed before it could write this row."""
        self._waiting.append(last.columns)

    def _write(self) -> None:
        """Writes the rows that wait."""
        rows, self._waiting, self._written_s = self._waiting, [], time.monotonic()
        try:
            if not self._is_created:
                create(self._path, arrow_schema(HEARTBEATS), description=HEARTBEATS.row, log=SHORT_LOG)
                self._is_created = True
            self._appender.append(rows_of(HEARTBEATS, rows, **self._same))
            self._compactor.committed(self._path)
            self._compactor.compact()
        except Exception:
            log.exception("%s: cannot write rows", self._path)
