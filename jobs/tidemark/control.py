"""The control folder of one stream: how its driver and whoever looks after it talk.

Purpose: launch, heartbeat, drain and lease without a process to ask, so that it works wherever the warehouse is seen.

| file | written by | says |
|---|---|---|
| `driver.lock` | the driver holds flock(2) on it as long as it lives | there is a driver |
| `acquire.lock` | held with flock(2) for the instant of acquiring | one acquires at a time |
| `epoch` | the driver that got the lock | how many drivers there have been: the newest lease |
| `heartbeat.json` | the driver, every second and at its end | state, epoch, batch, offsets, when |
| `drain.json` | whoever wants the stream to stop | who asked, and when |
| `loss.json` | `tidemark accept-loss` | offsets that may be passed over: who gave them up, and why |

A driver asks before each write whether `epoch` is still its own. One that was stopped and wakes up after another has
taken over writes nothing more.

Known limitation: flock(2) tells drivers of one host apart; of two on two hosts both may get the lease, and the journal
lets one of them decide a batch.
Clock: `now_ms` is the caller's, epoch ms UTC.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.errors import Contradiction, TidemarkError

PROBE_S = 1.0
PAGE = 4_096
"""Bytes: a heartbeat takes whole pages, so that the next one has the same length."""
SILENT_AFTER_MS = 60_000
"""A driver whose heartbeat is older may be taken over."""


class StreamState(StrEnum):
    """What a driver says of itself in its heartbeat."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINED = "drained"
    ROTATED = "rotated"
    FAILED = "failed"


class AlreadyRunning(TidemarkError):
    """Raised when a second driver asks for the lease of a stream that has one."""


class LeaseLost(Contradiction):
    """Raised when a driver is about to write and a newer one has the lease."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One beat. `batch_id` is the last finished batch (-1: none yet), `offsets` its end per `source/partition`."""

    state: StreamState
    epoch: int
    launch_id: str
    at_ms: int
    pid: int
    batch_id: int = -1
    offsets: dict[str, int] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss:
    """The decision to go on from `until_offset` in a partition of *source* of which `from_offset` is gone."""

    source: str
    partition: int
    from_offset: int
    until_offset: int
    by: str
    reason: str
    at_ms: int


class Control:
    """Reads and writes the control folder *home*."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: int | None = None

    def acquire(self, *, take_over_at_ms: int | None = None, silent_after_ms: int = SILENT_AFTER_MS) -> int:
        """Take the lease for the life of this process; its epoch, one higher than any before.

        With *take_over_at_ms*, the clock now, also from a driver that lives but has been silent for *silent_after_ms*:
        it keeps its lock on a file that nobody looks at any more. Raises AlreadyRunning when another driver lives.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with self._acquiring():
            lock = os.open(self.home / "driver.lock", os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(lock):
                os.close(lock)
                self._refuse_to_take_over(take_over_at_ms, silent_after_ms)
                lock = self._new_lock()
            self._lock = lock
            epoch = self.epoch() + 1
            _replace(self.home / "epoch", str(epoch))
        return epoch

    def epoch(self) -> int:
        """That of the newest driver; 0 before the first."""
        try:
            return int((self.home / "epoch").read_text())
        except FileNotFoundError:
            return 0

    def check_lease(self, epoch: int) -> None:
        """Raise LeaseLost unless *epoch* is that of the newest driver."""
        if (newest := self.epoch()) != epoch:
            msg = (
                f"{self.home}: only the newest driver of a stream writes; this one has epoch {epoch}, and the newest "
                f"is {newest}: another one has taken over, and this one ends"
            )
            raise LeaseLost(msg)

    def is_held(self) -> bool:
        """Whether a driver lives, asked of the lock and of no pid."""
        try:
            lock = os.open(self.home / "driver.lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def beat(self, heartbeat: Heartbeat) -> None:
        """Publish *heartbeat* in place of the one before; on a full disk, in the space that this one took."""
        self.home.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(heartbeat))
        whole_pages = text.ljust(PAGE * (1 + len(text) // PAGE))
        try:
            _replace(self.home / "heartbeat.json", whole_pages)
        except OSError:
            _overwrite(self.home / "heartbeat.json", whole_pages)

    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat; None when there was none."""
        try:
            fields = _read(self.home / "heartbeat.json")
        except json.JSONDecodeError:  # it was being overwritten
            fields = _read(self.home / "heartbeat.json")
        return Heartbeat(**{**fields, "state": StreamState(fields["state"])}) if fields else None

    def request_drain(self, *, by: str, now_ms: int) -> None:
        """Ask the driver to finish its batch and end; asking twice changes nothing."""
        self.home.mkdir(parents=True, exist_ok=True)
        if not self.drain_requested():
            _replace(self.home / "drain.json", json.dumps({"by": by, "at_ms": now_ms}))

    def drain_requested(self) -> bool:
        """Whether somebody asked the driver to end."""
        return (self.home / "drain.json").exists()

    def forget_drain(self) -> None:
        """Withdraw a drain request: done by whoever launches the next driver."""
        (self.home / "drain.json").unlink(missing_ok=True)

    def accept_loss(self, loss: AcceptedLoss) -> None:
        """Let the driver pass over *loss*, once: from where the stream was when it was accepted."""
        self.home.mkdir(parents=True, exist_ok=True)
        _replace(self.home / "loss.json", json.dumps([*self._losses(), asdict(loss)]))

    def accepted_loss(self) -> dict[tuple[str, int, int], int]:
        """Per source, partition and offset at which the stream is, the offset from which it may go on."""
        return {
            (loss["source"], loss["partition"], loss["from_offset"]): loss["until_offset"] for loss in self._losses()
        }

    @contextmanager
    def _acquiring(self) -> Iterator[None]:
        with (self.home / "acquire.lock").open("w") as lock:
            if not _locked(lock.fileno()):
                msg = f"{self.home}: one driver per stream, and another one is starting right now"
                raise AlreadyRunning(msg)
            yield

    def _refuse_to_take_over(self, now_ms: int | None, silent_after_ms: int) -> None:
        """Raise AlreadyRunning unless *now_ms* is given and the driver that holds the lock has been silent by then."""
        if now_ms is None:
            msg = f"{self.home}: one driver per stream, and another one holds driver.lock; drain that one first"
            raise AlreadyRunning(msg)
        beat = self.heartbeat()
        has_beaten = beat is not None and beat.epoch == self.epoch()
        if beat is None or not has_beaten or now_ms - beat.at_ms < silent_after_ms:
            msg = (
                f"{self.home}: a driver that has been silent for {silent_after_ms // 1_000} s may be taken over; the "
                f"one that holds driver.lock {'still beats' if has_beaten else 'has not beaten yet'}: drain that one"
            )
            raise AlreadyRunning(msg)

    def _new_lock(self) -> int:
        """A locked `driver.lock` in place of the one that another driver holds."""
        partial = self.home / f".driver.lock.{os.getpid()}"
        lock = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        partial.replace(self.home / "driver.lock")
        return lock

    def _losses(self) -> list[dict[str, Any]]:
        path = self.home / "loss.json"
        losses: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return losses


def _locked(lock: int) -> bool:
    """Whether the lock could be had within PROBE_S: `is_held` of another process takes it for an instant."""
    deadline = time.monotonic() + PROBE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(PROBE_S / 20)
        else:
            return True


def _replace(path: Path, text: str) -> None:
    """Write *text* so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _overwrite(path: Path, text: str) -> None:
    """Write *text* over what is at *path*, in one go; raises OSError unless that has as many bytes."""
    content = text.encode()
    if path.stat().st_size != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content
