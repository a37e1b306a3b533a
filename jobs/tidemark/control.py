"""The control folder of one stream: how its driver and whoever looks after it talk.

Purpose: launch, heartbeat, drain and lease without a process to ask, so that it works wherever the warehouse is seen.

| file | written by | says |
|---|---|---|
| `driver.lock` | the driver holds flock(2) on it as long as it lives | there is a driver |
| `epoch` | the driver that got the lock | how many drivers there have been: the newest lease |
| `heartbeat.json` | the driver, every second and at its end | state, epoch, batch, offsets, when |
| `drain.json` | whoever wants the stream to stop | who asked, and when |
| `loss.json` | `tidemark accept-loss` | offsets that may be passed over: who gave them up, and why |

Known limitation: flock(2) tells drivers of one host apart; across hosts the epoch in every journal entry does.
Clock: `now_ms` is the caller's, epoch ms UTC.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.errors import TidemarkError

PROBE_S = 1.0


class StreamState(StrEnum):
    """What a driver says of itself in its heartbeat."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINED = "drained"
    FAILED = "failed"


class AlreadyRunning(TidemarkError):
    """Raised when a second driver asks for the lease of a stream that has one."""


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

    def acquire(self) -> int:
        """Take the lease for the life of this process; its epoch, one higher than any before.

        Raises AlreadyRunning when another driver lives.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.home / "driver.lock", os.O_RDWR | os.O_CREAT, 0o644)
        if not _locked(lock):
            os.close(lock)
            msg = f"{self.home}: one driver per stream, and another one holds driver.lock; drain that one first"
            raise AlreadyRunning(msg)
        self._lock = lock
        path = self.home / "epoch"
        epoch = int(path.read_text()) + 1 if path.exists() else 1
        _replace(path, str(epoch))
        return epoch

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
        """Publish *heartbeat* in place of the one before."""
        self.home.mkdir(parents=True, exist_ok=True)
        _replace(self.home / "heartbeat.json", json.dumps(asdict(heartbeat)))

    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat; None when there was none."""
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
    partial.write_text(text)
    partial.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return content
