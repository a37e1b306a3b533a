"""Leases the tables of a warehouse in an object store to one writer.

Purpose: an object store has no locks that end with their process. Yet of all processes on all hosts only one may write,
and one that was taken for dead, and wakes up, must write nothing more.
How it works: the object `epochs/<number>` in a control folder can be made only once, so each epoch has one holder, and
only the newest holder may write. It has the lease as long as it gives signs of life: a driver by its heartbeat, other
processes by writing their epoch again. Whoever wants the lease of a silent holder waits until it has been silent for
long. There is an instant between reading the newest epoch and the write that follows. If two processes write in it, the
journal and the log of each Delta table refuse the second write: both are written with `If-None-Match: *`.
Clock: epoch ms UTC of each host. The clocks may differ by much less than SILENT_AFTER_MS.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.files import read
from tidemark.errors import InvalidArgument
from tidemark.storage.location import put_once, replace

POLL_S = 1.0
RENEWED_EVERY_S = 10.0
KEPT = 3
"""Newest epochs whose files are kept."""


class LeaseHeld(Exception):
    """Raised when another process has the lease; the message says why."""


class Lease:
    """Takes and gives back the lease of the control folder *home*.

    *last_beat* returns the epoch and the time (epoch ms) of the newest heartbeat there, or None if there is none.
    """

    def __init__(
        self,
        home: Path,
        last_beat: Callable[[], tuple[int, int] | None],
        *,
        clock: Clock = wall_clock_ms,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._epochs, self._last_beat, self._clock, self._sleep_s = home / "epochs", last_beat, clock, sleep_s

    def acquire(self, silent_after_ms: int) -> int:
        """Takes the lease and returns its epoch.

        While it is not clear if the present holder lives, this waits until the holder gives a sign of life, or has been
        silent for *silent_after_ms*.

        Raises:
            LeaseHeld: the present holder lives, or another process is taking the lease.
            InvalidArgument: the store makes an object twice, so a lease is not safe there.
        """
        # Two different signs of life prove that the holder lives. One proves only that it lived at that instant.
        last_alive_ms = None
        while (alive_ms := self._alive_ms(silent_after_ms)) is not None:
            if last_alive_ms not in {None, alive_ms}:
                msg = "another process with this lease is still alive"
                raise LeaseHeld(msg)
            last_alive_ms = alive_ms
            self._sleep_s(POLL_S)
        epoch = self.epoch() + 1
        try:
            put_once(self._path(epoch), self._sign().encode())
        except FileExistsError:
            msg = "another process is taking this lease"
            raise LeaseHeld(msg) from None
        self._refuse_unless_made_once(epoch)
        for number in self._numbers()[:-KEPT]:
            self._path(number).unlink(missing_ok=True)
        return epoch

    def epoch(self) -> int:
        """Returns the epoch of the newest holder, or 0 before the first."""
        return max(self._numbers(), default=0)

    def is_held(self, silent_after_ms: int) -> bool:
        """Returns True if the newest holder has neither released the lease nor been silent for *silent_after_ms*."""
        return self._alive_ms(silent_after_ms) is not None

    @contextmanager
    def renewed(self, epoch: int) -> Iterator[None]:
        """Gives signs of life for *epoch* during the context, and then gives the lease back."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(RENEWED_EVERY_S):
                # A lost sign does no harm: several fit into the time after which a holder counts as silent.
                with suppress(OSError):
                    replace(self._path(epoch), self._sign())

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.release(epoch)

    def release(self, epoch: int) -> None:
        """Gives the lease of *epoch* back, so that the next holder need not wait."""
        replace(self._path(epoch), self._sign(released=True))

    def _alive_ms(self, silent_after_ms: int) -> int | None:
        """Returns the last sign of life of the holder (epoch ms), or None if there is no holder any more."""
        epoch = self.epoch()
        if not epoch:
            return None
        # If the holder's file is damaged, only its heartbeat counts, until it writes the file again.
        at_ms, released = read(self._epochs, self._path(epoch).name, _at_and_released) or (0, False)
        beat = self._last_beat()
        heard_ms = max(at_ms, beat[1] if beat and beat[0] == epoch else 0)
        return None if released or self._clock() - heard_ms >= silent_after_ms else heard_ms

    def _refuse_unless_made_once(self, epoch: int) -> None:
        # Some stores ignore `If-None-Match`, and accept this second put.
        try:
            put_once(self._path(epoch), self._sign().encode())
        except FileExistsError:
            return
        msg = (
            f"{self._epochs}: this object store overwrites an object that must be written only once; use another store"
        )
        raise InvalidArgument(msg)

    def _sign(self, *, released: bool = False) -> str:
        return json.dumps({"at_ms": self._clock(), "released": released})

    def _numbers(self) -> list[int]:
        return sorted(int(path.name) for path in self._epochs.iterdir() if path.name.isdecimal())

    def _path(self, epoch: int) -> Path:
        return self._epochs / f"{epoch:020d}"


def _at_and_released(sign: Any) -> tuple[int, bool]:
    return int(sign["at_ms"]), bool(sign["released"])
