"""The driver of one stream on this machine: launched or adopted, judged, drained, and stopped hard where it must be.

Purpose: the operator (worker) and its trigger (triggerer) are different processes at different times; all that they
know of a driver lies in the stream's control folder, see `tidemark.control`.

How it works: to the files of that folder it adds `driver.pid.json` and `driver.log` (see `embedded.process`),
`launch.json`, which names the launch whose heartbeats count, and `launch.lock`, held while somebody launches or kills,
so that two workers cannot launch at once and nobody kills a driver younger than the one that was meant.

Known limitation: worker, triggerer and driver share one machine. Clock: epoch ms UTC, the caller's.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tidemark.control import Control, StreamState
from tidemark.embedded import process
from tidemark.errors import TidemarkError

NAME = "driver"
POLL_S = 0.1
TERMINATED_WITHIN_S = 5.0
TAIL_LINES = 40


class Verdict(StrEnum):
    """What a driver is, from outside."""

    ALIVE = "alive"
    STALE = "stale"
    DEAD = "dead"
    DRAINED = "drained"
    ROTATED = "rotated"
    FAILED = "failed"


_ENDED = {
    StreamState.DRAINED: Verdict.DRAINED,
    StreamState.ROTATED: Verdict.ROTATED,
    StreamState.FAILED: Verdict.FAILED,
}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long, in seconds, a driver may take: between heartbeats, to its first one, and to end when asked to."""

    stale_after_s: float = 30.0
    start_within_s: float = 180.0
    drain_within_s: float = 15.0


@dataclass(frozen=True)
class Launch:
    """The newest launch of a stream, or its adoption: its id, and when."""

    launch_id: str
    at_ms: int


class Driver:
    """What can be done about the driver whose control folder is *home*."""

    def __init__(self, home: Path, patience: Patience) -> None:
        self.home = home
        self.control = Control(home)
        self._patience = patience

    def ensure(self, command: Sequence[str], env: Mapping[str, str], launch_id: str, *, now_ms: int) -> Launch:
        """The launch that runs afterwards: a living driver's, or a new one of *command* under *launch_id*.

        A driver that was asked to drain is not adopted but waited for, and killed when it takes too long.
        """
        with self._launching():
            if self.control.drain_requested():
                self._await_end()
            elif (adopted := self._adopt(now_ms)) is not None:
                return adopted
            self._kill()
            self.control.forget_drain()
            launch = self._remember(Launch(launch_id, now_ms))
            process.launch(NAME, command, home=self.home, env=env)
        return launch

    def verdict(self, *, now_ms: int) -> Verdict:
        """Whether the driver of the newest launch lives, by its heartbeat and its lock."""
        launch, beat = self.launch(), self.control.heartbeat()
        if launch is None:
            return Verdict.DEAD
        if beat is None or beat.launch_id != launch.launch_id:
            if process.find(self.home, NAME) is None:
                return Verdict.DEAD
            return _within(now_ms - launch.at_ms, self._patience.start_within_s)
        if self.control.is_held():
            return _within(now_ms - beat.at_ms, self._patience.stale_after_s)
        return _ENDED.get(beat.state, Verdict.DEAD)

    def stop(self, launch_id: str, *, by: str, now_ms: int) -> None:
        """Drain the driver of *launch_id*, kill it when that takes too long; a younger driver is left alone."""
        if not self._is_newest(launch_id):
            return
        self.control.request_drain(by=by, now_ms=now_ms)
        self._await_end(launch_id)
        with self._launching():
            if self._is_newest(launch_id):
                self._kill()

    def kill(self, launch_id: str) -> None:
        """End the driver of *launch_id* at once."""
        with self._launching():
            if self._is_newest(launch_id):
                self._kill(grace_s=0)

    def launch(self) -> Launch | None:
        """The newest launch; None when there was none."""
        try:
            return Launch(**json.loads((self.home / "launch.json").read_text()))
        except FileNotFoundError:
            return None

    def drained_by(self) -> str | None:
        """Who asked the driver to drain; None when nobody did."""
        try:
            by: str = json.loads((self.home / "drain.json").read_text())["by"]
        except FileNotFoundError:
            return None
        return by

    def log_tail(self) -> str:
        """The last lines that the driver wrote to its log."""
        log = self.home / f"{NAME}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-TAIL_LINES:])

    def _adopt(self, now_ms: int) -> Launch | None:
        """The launch of the driver that lives or is about to; one started by hand becomes the newest launch."""
        if process.find(self.home, NAME) is not None:
            return self.launch() if self.verdict(now_ms=now_ms) is Verdict.ALIVE else None
        beat = self.control.heartbeat()
        if self.control.is_held() and beat is not None and beat.state not in _ENDED:
            return self._remember(Launch(beat.launch_id, now_ms))
        return None

    def _await_end(self, launch_id: str | None = None) -> None:
        """Return when nobody holds the lock, when *launch_id* is not the newest any more, or out of patience."""
        deadline = time.monotonic() + self._patience.drain_within_s
        while self._runs() and time.monotonic() < deadline:
            if launch_id is not None and not self._is_newest(launch_id):
                return
            time.sleep(POLL_S)

    def _runs(self) -> bool:
        return self.control.is_held() or process.find(self.home, NAME) is not None

    def _kill(self, grace_s: float = TERMINATED_WITHIN_S) -> None:
        """End what was launched and verify that the lock is free."""
        process.stop(self.home, NAME, grace_s=grace_s)
        if self.control.is_held():
            beat = self.control.heartbeat()
            msg = (
                f"{self.home}: a stream has one driver, and one that was not launched from here holds driver.lock "
                f"(pid {beat.pid if beat else 'unknown'}); end it by hand"
            )
            raise TidemarkError(msg)

    def _is_newest(self, launch_id: str) -> bool:
        launch = self.launch()
        return launch is not None and launch.launch_id == launch_id

    def _remember(self, launch: Launch) -> Launch:
        partial = self.home / ".launch.json"
        partial.write_text(json.dumps(asdict(launch)))
        partial.replace(self.home / "launch.json")
        return launch

    @contextmanager
    def _launching(self) -> Iterator[None]:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "launch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _within(age_ms: int, limit_s: float) -> Verdict:
    return Verdict.ALIVE if age_ms <= limit_s * 1000 else Verdict.STALE
