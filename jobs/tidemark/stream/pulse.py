"""Writes the heartbeat of a driver."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from tidemark.clock import wall_clock_ms
from tidemark.control.folder import KILLED, Control, Heartbeat, StreamState, TimeTold, beats_every_ms
from tidemark.model.settings.intervals import utc
from tidemark.semantics.segments import Gap
from tidemark.storage.disk import Disk
from tidemark.stream.driver.heartbeats import ClockOffset, ClockOffsets, Heartbeats
from tidemark.stream.driver.usage import bytes_in, usage_of
from tidemark.stream.journal.timeline import Timeline

log = logging.getLogger("tidemark.stream")

BEAT_S = 1.0
PULSE_S = 0.25
GAP_MS = 1_000
"""A stretch of this length between two beats of the pulse is told: the process may have been paused."""
NEWS_WITHIN_MS = 10_000
"""Shortest time between two beats in an object store."""
Rows = Callable[[], Sequence[Mapping[str, object]]]
"""Returns a list for a column of `heartbeats`."""


class Troubled(Protocol):
    """Waits for something outside while that is in trouble."""

    trouble: str | None


class Followed(Protocol):
    """Runs batches, and says how far it has come."""

    batch_started_at_ms: int | None
    load: Mapping[str, int | float | None]

    @property
    def reached(self) -> tuple[int, dict[str, int]]:
        """The last finished batch, or -1 before the first, and up to which offset it read each `source/partition`."""


class Pulse:
    """Beats each PULSE_S in a thread, and writes the driver's heartbeat once a second.

    The query runs beside it, and says through the methods what the driver is doing. In an object store a beat follows
    the last one after 20 s, or after NEWS_WITHIN_MS if there is news. A driver that has lost its lease stops beating:
    the newer driver speaks for the stream. If the driver before was killed, its last beat becomes a row of the history.

    Attributes:
        timeline: records what the main thread does.
        epoch: the driver's lease.
        clock_offsets: gets estimates of clocks, which the next heartbeat in the table has.
    """

    def __init__(
        self,
        control: Control,
        history: Heartbeats,
        epoch: int,
        launch_id: str,
        *,
        disk: Disk | None = None,
        digest: str = "",
        launched_by: str = "",
    ) -> None:
        self.epoch, self.clock_offsets, self.timeline = epoch, ClockOffsets(), Timeline()
        self._control, self._history, self._launch_id, self._digest = control, history, launch_id, digest
        # Jobs that repeat no write have no trouble to tell.
        self._launched_by, self._disk = launched_by, disk or Disk(lambda: None)
        # The first beat replaces that of the driver before.
        before = control.heartbeat()
        self._predecessor_killed_by = control.killed_by(before.launch_id) if before else None
        if before and before.state in KILLED and before.told and not before.is_row:
            history.write_for(before)
        self._told_ms = self._beat_ms = self.timeline.clock()
        self._gaps: list[Gap] = []
        self._cpu_s = time.process_time()
        self._doing, self._since_ms, self.batches = "starting", wall_clock_ms(), 0
        self._usage = usage_of(os.getpid())
        self._engine: Followed | None = None
        self._troubled: Sequence[Troubled] = ()
        self._thread_id: str | None = None
        self._open_transactions: Rows = list
        self._is_heard = True
        self._every_ms = beats_every_ms(control.home)
        self._beaten: tuple[int, Hashable] = (0, None)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._try_to_beat(StreamState.STARTING, self._disk.past)
        self._thread.start()

    def follow(
        self,
        engine: Followed,
        troubled: Sequence[Troubled],
        thread_id: str,
        *,
        open_transactions: Rows = list,
    ) -> None:
        """Begins to report the progress of the running stream.

        Its heartbeat has the trouble of the disk, or of the first of *troubled* that has one, and the
        *open_transactions* of its topics.
        """
        self._thread_id, self._troubled, self._engine = thread_id, troubled, engine
        self._open_transactions = open_transactions
        self.does("waiting for its first batch")

    def begin(self, batch_id: int) -> None:
        """Records that the driver works on a batch from now on."""
        self.does(f"batch {batch_id}")

    def finish(self, batch_id: int) -> None:
        """Counts a finished batch; the driver waits for the next."""
        self.batches += 1
        self.does(f"waiting for a batch after {batch_id}")

    @property
    def is_in_batch(self) -> bool:
        """True while the driver works on a batch."""
        return self._doing.startswith("batch")

    def does(self, what: str, since_ms: int | None = None) -> None:
        """Records the driver's current step, which began now or at *since_ms*."""
        self._doing, self._since_ms = what, wall_clock_ms() if since_ms is None else since_ms

    def waits(self, now_ms: int) -> None:
        """Restarts the clock of the current step at *now_ms* (epoch ms)."""
        # No batch runs and none is due then, so the step does not count as slow.
        self._since_ms = now_ms

    def end(self, state: StreamState, *, reason: str | None = None) -> None:
        """Writes the last beat, and then gives the lease back."""
        # The thread ends first, so that no beat follows the last one.
        self._over.set()
        self._thread.join()
        self._pulse()
        self._try_to_beat(state, reason or self._disk.in_past_tense)
        # The lease is given back after the beat, so that the next driver finds how this one ended.
        self._control.release()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._over.wait(PULSE_S):
            self._pulse()
            # The heartbeat is looked at once a second, give or take half a beat of the pulse.
            if time.monotonic() - looked_s < BEAT_S - PULSE_S / 2:
                continue
            looked_s = time.monotonic()
            trouble = next((each.trouble for each in (self._disk, *self._troubled) if each.trouble), None)
            if trouble:
                # The wait is no slow step: a supervisor would kill the driver for it when the trouble is over.
                self.waits(wall_clock_ms())
            state = StreamState.RUNNING if self._engine else StreamState.STARTING
            # What has ended explains why results are late, until the work that waited is done.
            reason = trouble or self._disk.past
            news, now_ms = (state, reason, self.batches), wall_clock_ms()
            beaten_ms, last_news = self._beaten
            every_ms = self._every_ms if news == last_news else min(self._every_ms, NEWS_WITHIN_MS)
            # The next look is a second away, so a beat that is due within half a second is sent now. After the clock
            # was set back the difference is negative, and a large one calls for a beat, too.
            if abs(now_ms - beaten_ms) >= every_ms - BEAT_S * 500:
                self._beaten = now_ms, news
                self._try_to_beat(state, reason)

    def _pulse(self) -> None:
        """Notes the stretch since the last beat if it is long."""
        now_ms, cpu_s = self.timeline.clock(), time.process_time()
        if now_ms - self._beat_ms >= GAP_MS:
            self._gaps.append(Gap(self._beat_ms, now_ms, round((cpu_s - self._cpu_s) * 1_000)))
        self._beat_ms, self._cpu_s = now_ms, cpu_s

    def _try_to_beat(self, state: StreamState, reason: str | None) -> None:
        """Writes a beat if the disk takes it; logs the first failure."""
        try:
            self._beat(state, reason)
        except OSError as error:
            if self._is_heard:
                log.warning("cannot write the heartbeat: %s", error)
            self._is_heard = False
        else:
            self._is_heard = True

    def _beat(self, state: StreamState, reason: str | None) -> None:
        # A newer driver's heartbeat must not be overwritten.
        if self._control.epoch() != self.epoch:
            return
        batch_id, offsets = self._engine.reached if self._engine else (-1, {})
        adopted_by = self._control.adopted_by(self._launch_id)
        at_ms, until_ms, gaps = wall_clock_ms(), self.timeline.clock(), [*self._gaps]
        is_row = self._history.is_due(state, at_ms)
        beat = Heartbeat(
            state=state,
            epoch=self.epoch,
            launch_id=self._launch_id,
            at_ms=at_ms,
            pid=os.getpid(),
            batch_id=batch_id,
            offsets=offsets,
            reason=reason,
            doing=self._doing,
            since_ms=self._since_ms,
            batches=self.batches,
            digest=self._digest,
            host=platform.node(),
            launched_by=self._launched_by,
            drained_by=self._control.drained_by() if state is StreamState.DRAINED else None,
            adopted_by=None if adopted_by == self._launched_by else adopted_by,
            predecessor_killed_by=self._predecessor_killed_by,
            told=TimeTold(self._told_ms, until_ms, tuple(gaps), self.timeline.open()),
            is_row=is_row,
        )
        self._control.beat(beat)
        if is_row:
            self._told_ms, self._gaps = until_ms, []
        batch_started_at_ms = self._engine.batch_started_at_ms if self._engine else None
        self._history.write_if_due(
            beat, thread_id=self._thread_id, batch_started_at_ms=batch_started_at_ms, usage=self._measured
        )

    def _measured(self) -> dict[str, object]:
        """Returns the driver's use of its host, and its load."""
        folders = [bytes_in(self._control.home / name) for name in ("checkpoint", "journal")]
        # A folder without a size leaves the sum unknown.
        checkpoint = {"checkpoint_bytes": None if None in folders else sum(size or 0 for size in folders)}
        load = self._engine.load if self._engine else {}
        lists = {
            "open_transactions": [*self._open_transactions()],
            "clock_offsets": [*map(_row_of, self.clock_offsets.taken())],
        }
        return {**self._usage.now(), **checkpoint, **load, **{name: rows or None for name, rows in lists.items()}}


def _row_of(offset: ClockOffset) -> dict[str, object]:
    return {
        "host": offset.host,
        "estimated_at": utc(offset.estimated_at_ms),
        "offset_ms": offset.skew.offset_ms,
        "error_ms": offset.skew.error_ms,
        "samples": offset.samples,
        "reference": offset.reference,
    }
