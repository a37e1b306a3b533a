"""The lease of a warehouse's tables in an object store, where no lock tells whether their writer lives.

Purpose: of all processes on all hosts one writes, and one that was taken for dead and wakes up writes nothing more.
How it works: `epochs/<number>` in a control folder can be made only once, so each epoch has one holder, and the newest
is the only one who may write. It has the lease as long as it gives signs of life: a driver by its heartbeat, others by
writing their epoch again. Whoever wants the lease of one who has fallen silent waits until it has been silent for long.
Between the look at the newest epoch and the write that follows lies an instant; what is then written twice is refused
by the journal and by the log of each Delta table, both of which are written with `If-None-Match: *`.
Clock: epoch ms UTC of each host; they may be apart by much less than SILENT_AFTER_MS.
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
from tidemark.errors import InvalidArgument
from tidemark.place import put_once, replace

POLL_S = 1.0
RENEWED_EVERY_S = 10.0
KEPT = 3
"""Epochs: older ones are forgotten."""


class Held(Exception):
    """Raised when another one has the lease, and says how that was seen."""


class Lease:
    """The lease that the control folder *home* gives.

    *last_beat* is the epoch of the newest heartbeat there, and when it was (epoch ms); None: there is none.
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
        """The epoch of the new holder; waits while nobody knows whether the one before is dead.

        Raises Held when it lives, and InvalidArgument when the store makes an object twice: nothing is safe there.
        """
        seen = None
        while (alive_ms := self._alive_ms(silent_after_ms)) is not None:
            if seen not in {None, alive_ms}:
                msg = "another one still gives signs of life"
                raise Held(msg)
            seen = alive_ms
            self._sleep_s(POLL_S)
        epoch = self.epoch() + 1
        try:
            put_once(self._path(epoch), self._sign().encode())
        except FileExistsError:
            msg = "another one is starting right now"
            raise Held(msg) from None
        self._refuse_unless_made_once(epoch)
        for number in self._numbers()[:-KEPT]:
            self._path(number).unlink(missing_ok=True)
        return epoch

    def epoch(self) -> int:
        """That of the newest holder; 0 before the first."""
        return max(self._numbers(), default=0)

    def is_held(self, silent_after_ms: int) -> bool:
        """Whether the newest holder has neither given the lease back nor been silent for so long."""
        return self._alive_ms(silent_after_ms) is not None

    @contextmanager
    def renewed(self, epoch: int) -> Iterator[None]:
        """Give signs of life for the holder of *epoch* meanwhile; then it is released."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(RENEWED_EVERY_S):
                with suppress(OSError):  # there are several in the time after which one is silent
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
        """Give it back: nobody needs to wait."""
        replace(self._path(epoch), self._sign(released=True))

    def _alive_ms(self, silent_after_ms: int) -> int | None:
        """When the holder was heard of last; None when nobody has the lease."""
        epoch = self.epoch()
        if not epoch:
            return None
        sign: dict[str, Any] = json.loads(self._path(epoch).read_bytes())
        beat = self._last_beat()
        heard_ms = max(sign["at_ms"], beat[1] if beat and beat[0] == epoch else 0)
        return None if sign["released"] or self._clock() - heard_ms >= silent_after_ms else heard_ms

    def _refuse_unless_made_once(self, epoch: int) -> None:
        try:
            put_once(self._path(epoch), self._sign().encode())
        except FileExistsError:
            return
        msg = f"{self._epochs}: a store refuses to make an object twice, and this one does not; use one that does"
        raise InvalidArgument(msg)

    def _sign(self, *, released: bool = False) -> str:
        return json.dumps({"at_ms": self._clock(), "released": released})

    def _numbers(self) -> list[int]:
        return sorted(int(path.name) for path in self._epochs.iterdir() if path.name.isdecimal())

    def _path(self, epoch: int) -> Path:
        return self._epochs / f"{epoch:020d}"
