"""The driver of one stream: launched or adopted, judged, drained, and stopped hard where it must be.

Purpose: the operator (worker) and its trigger (triggerer) are different processes at different times, perhaps on
different hosts; all that they know of a driver lies in the stream's control folder, see `tidemark.control`.

How it works: to the files of that folder it adds `driver.pid.json` and `driver.log` (see `embedded.process`),
`launch.json`, which names the launch whose heartbeats count, `drain.told`, once a task has succeeded on a drain,
`failures.json`, which counts failures in a row whichever try of a task sees them, and `launch.lock`, held while
somebody launches or kills, so that two workers of one host cannot launch at once and nobody kills a driver younger than
the one that was meant. Of a driver on this host lock and process are asked, of one elsewhere its heartbeat alone. A
driver elsewhere that is silent is taken over: whoever gets the next epoch is the one that writes.

Known limitation: a driver elsewhere can be drained but not killed from here. Clock: epoch ms UTC, the caller's; those
of several hosts must agree to within a few seconds.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from tidemark import place
from tidemark.clock import wall_clock_ms
from tidemark.control import Control, Heartbeat, StreamState, known
from tidemark.embedded import process
from tidemark.errors import TidemarkError
from tidemark.inert import inert
from tidemark.locks import locked, own_folder

NAME = "driver"
POLL_S = 0.1
TERMINATED_WITHIN_S = 5.0
LAUNCHED_WITHIN_S = 60.0
"""Somebody else who launches or kills, and waits for a drain besides, takes no longer."""
TAIL_LINES = 40
BY_CHANGE = "airflow: the topology file has changed"


class Verdict(StrEnum):
    """What a driver is, from outside."""

    ALIVE = "alive"
    STALE = "stale"
    """It does not beat."""
    STUCK = "stuck"
    """It beats, and what it does has taken too long."""
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
    """How long, in seconds, a driver may take: between heartbeats, to its start, for a batch, and to end when asked to.

    Between two batches it may wait as long as for a batch: ticks make batches in silence, too.
    """

    stale_after_s: float = 30.0
    start_within_s: float = 180.0
    stuck_after_s: float = 1_800.0
    drain_within_s: float = 15.0


@dataclass(frozen=True)
class Launch:
    """The newest launch of a stream, or its adoption: its id, and when; from which host, with what topology file.

    `is_remote`: in cluster mode, where the process that was started here may end and the driver live.
    """

    launch_id: str
    at_ms: int
    host: str = ""
    digest: str = ""
    is_remote: bool = False


@dataclass(frozen=True)
class Failures:
    """How often in a row, `n`, drivers have failed in one way, `kind`; the newest was that of `launch_id`.

    `told`: a task has failed on them, and they are not counted on.
    """

    launch_id: str
    kind: str
    n: int
    told: bool = False


class Driver:
    """What can be done from *host*, by default this one, about the driver whose control folder is *home*."""

    def __init__(self, home: Path, patience: Patience, *, host: str | None = None) -> None:
        self.home = home
        self.control = Control(home)
        self._patience = patience
        self._host = platform.node() if host is None else host
        self._told = home / "drain.told"

    def ensure(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        launch_id: str,
        *,
        now_ms: int,
        digest: str = "",
        is_remote: bool = False,
    ) -> Launch:
        """The launch that runs afterwards: a living driver's, or a new one of *command* under *launch_id*.

        A driver that runs another topology file than that of *digest* is asked to drain. One that was asked to is not
        adopted but waited for, and killed when it takes too long.
        """
        with self._launching():
            adopted = self._adopt(now_ms)
            if adopted is not None and not self.control.drain_requested():
                if self._digest(adopted) == digest:
                    return adopted
                self.control.request_drain(by=BY_CHANGE, now_ms=now_ms)
            if self.control.drain_requested():
                self._await_end()
            self._kill()
            self.control.forget_drain()
            self._told.unlink(missing_ok=True)
            launch = self._remember(Launch(launch_id, now_ms, self._host, digest, is_remote))
            process.launch(NAME, [*command, *self._take_over()], home=self.home, env=env)
        return launch

    def verdict(self, *, now_ms: int) -> Verdict:
        """What the driver of the newest launch is, by its heartbeat, and by its lock where that can be seen."""
        launch = self.launch()
        if launch is None:
            return Verdict.DEAD
        is_here = launch.host in (self._host, "") and not launch.is_remote
        has_process = not is_here or process.find(self.home, NAME) is not None
        beat = self.control.heartbeat()  # after its process was looked for: one that has ended has beaten before
        if beat is None or beat.launch_id != launch.launch_id:
            return _within(now_ms - launch.at_ms, self._patience.start_within_s) if has_process else Verdict.DEAD
        has_ended = not self.control.is_held() if self._is_here(beat) else beat.state in _ENDED
        if has_ended:
            return _ENDED.get(beat.state, Verdict.DEAD)
        if (pulse := _within(now_ms - beat.at_ms, self._patience.stale_after_s)) is Verdict.STALE:
            return pulse
        return Verdict.STUCK if self._is_stuck(beat) else Verdict.ALIVE

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
        """End the driver of *launch_id* at once; one elsewhere that is silent is left to be taken over."""
        with self._launching():
            if self._is_newest(launch_id):
                self._kill(grace_s=0)

    def launch(self) -> Launch | None:
        """The newest launch; None when there was none."""
        try:
            return Launch(**known(Launch, json.loads((self.home / "launch.json").read_text())))
        except FileNotFoundError:
            return None

    def heartbeat(self) -> Heartbeat | None:
        """The newest one of the newest launch; None when that has not beaten."""
        launch, beat = self.launch(), self.control.heartbeat()
        return beat if launch is not None and beat is not None and beat.launch_id == launch.launch_id else None

    def drained_by(self) -> str | None:
        """Who asked the driver to drain; None when nobody did."""
        try:
            by: str = json.loads((self.home / "drain.json").read_text())["by"]
        except FileNotFoundError:
            return None
        return by

    def untold_drain(self) -> str | None:
        """Who asked for a drain on which no task has succeeded yet; None when nobody did."""
        return None if self._told.exists() else self.drained_by()

    def tell_drain(self) -> None:
        """Note that a task has succeeded on the drain that was asked for."""
        self._told.touch()

    def count_failure(self, kind: str, *, got_on: bool) -> int:
        """How often in a row drivers have failed in one way, the newest launch in *kind*: it counts once.

        One that had *got_on* ends a row.
        """
        before, launch = self.failures(), self.launch()
        launch_id = launch.launch_id if launch is not None else ""
        if before is not None and before.launch_id == launch_id:
            return before.n
        follows = before is not None and before.kind == kind and not before.told and not got_on
        failures = Failures(launch_id, kind, before.n + 1 if before is not None and follows else 1)
        self._write("failures.json", failures)
        return failures.n

    def failures(self) -> Failures | None:
        """Those that were counted last; None before the first."""
        try:
            return Failures(**known(Failures, json.loads((self.home / "failures.json").read_text())))
        except FileNotFoundError:
            return None

    def failure_is_told(self) -> bool:
        """Whether a task has failed on how the newest launch ended."""
        failures, launch = self.failures(), self.launch()
        return bool(failures and launch and failures.told and failures.launch_id == launch.launch_id)

    def forget_failures(self) -> None:
        """End a row of failures: the stream got on, or starts anew."""
        (self.home / "failures.json").unlink(missing_ok=True)

    def tell_failures(self) -> None:
        """Note that a task has failed on those that were counted last."""
        if (failures := self.failures()) is not None:
            self._write("failures.json", replace(failures, told=True))

    def log_tail(self) -> str:
        """The last lines that the driver, or in cluster mode spark-submit, wrote to its log."""
        log = self.home / f"{NAME}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return inert("\n".join(lines[-TAIL_LINES:]))

    def _adopt(self, now_ms: int) -> Launch | None:
        """The launch of the driver that lives or is about to; one started by hand becomes the newest launch."""
        if self.verdict(now_ms=now_ms) is Verdict.ALIVE:
            return self.launch()
        beat = self.control.heartbeat()
        if beat is None or beat.state in _ENDED or self.heartbeat() is not None or self._runs_what_we_launched():
            return None
        if self._lives():
            return self._remember(Launch(beat.launch_id, now_ms, beat.host, beat.digest))
        return None

    def _digest(self, launch: Launch) -> str:
        """That of the topology file which the driver of *launch* runs, or is about to."""
        beat = self.heartbeat()
        return launch.digest if beat is None else beat.digest

    def _is_here(self, beat: Heartbeat) -> bool:
        return beat.host in (self._host, "")

    def _is_stuck(self, beat: Heartbeat) -> bool:
        """Whether it has been doing the same for too long; one that waits for its disk says so, and may."""
        if beat.since_ms is None or beat.reason is not None or beat.state in _ENDED:
            return False
        is_starting = beat.state is StreamState.STARTING
        limit_s = self._patience.start_within_s if is_starting else self._patience.stuck_after_s
        return beat.at_ms - beat.since_ms > limit_s * 1_000

    def _await_end(self, launch_id: str | None = None) -> None:
        """Return when no driver runs, when *launch_id* is not the newest any more, or out of patience."""
        deadline = time.monotonic() + self._patience.drain_within_s
        while self._runs() and time.monotonic() < deadline:
            if launch_id is not None and not self._is_newest(launch_id):
                return
            time.sleep(POLL_S)

    def _runs(self) -> bool:
        return self._lives() or self._runs_what_we_launched()

    def _runs_what_we_launched(self) -> bool:
        launch = self.launch()
        return launch is not None and launch.host in (self._host, "") and process.find(self.home, NAME) is not None

    def _lives(self) -> bool:
        """Whether a driver holds the lock here, or beats elsewhere."""
        beat = self.control.heartbeat()
        if beat is None or self._is_here(beat):
            return self.control.is_held()
        age_ms = wall_clock_ms() - beat.at_ms
        return beat.state not in _ENDED and age_ms <= self._patience.stale_after_s * 1_000

    def _take_over(self) -> tuple[str, ...]:
        """What the next driver is told where the last one is elsewhere: it is silent, or it would not be replaced."""
        beat = self.control.heartbeat()
        is_elsewhere = beat is not None and not self._is_here(beat) and beat.state not in _ENDED
        return ("--take-over", "--silent-after", f"{self._patience.stale_after_s:g}") if is_elsewhere else ()

    def _kill(self, grace_s: float = TERMINATED_WITHIN_S) -> None:
        """End what was launched from here and verify that no driver runs."""
        launch, beat = self.launch(), self.control.heartbeat()
        if launch is None or launch.host in (self._host, ""):
            process.stop(self.home, NAME, grace_s=grace_s)
        if self._lives():
            msg = (
                f"{self.home}: a stream has one driver, and one that cannot be ended from {self._host} runs "
                f"(pid {beat.pid if beat else 'unknown'} on {(beat and beat.host) or 'this host'}); end it by hand: "
                "kill -9 there, yarn application -kill, or kubectl delete pod"
            )
            raise TidemarkError(msg)

    def _is_newest(self, launch_id: str) -> bool:
        launch = self.launch()
        return launch is not None and launch.launch_id == launch_id

    def _remember(self, launch: Launch) -> Launch:
        self._write("launch.json", launch)
        return launch

    def _write(self, name: str, content: Launch | Failures) -> None:
        place.replace(self.home / name, json.dumps(asdict(content)))

    @contextmanager
    def _launching(self) -> Iterator[None]:
        own_folder(self.home)
        with locked(self.home / "launch.lock", within_s=LAUNCHED_WITHIN_S + self._patience.drain_within_s):
            yield


def _within(age_ms: int, limit_s: float) -> Verdict:
    return Verdict.ALIVE if age_ms <= limit_s * 1000 else Verdict.STALE
