"""The control folder of one stream: how its driver and whoever looks after it talk.

Purpose: launch, heartbeat, drain and lease without a process to ask, so that it works wherever the warehouse is seen.

| file | written by | says |
|---|---|---|
| `driver.lock` | the driver holds flock(2) on it as long as it lives | there is a driver |
| `acquire.lock` | held with flock(2) for the instant of acquiring | one acquires at a time |
| `epoch` | the driver that got the lock | how many drivers there have been: the newest lease |
| `epoch.claim.N` | the same, before; its name can be taken once | who gets epoch N, also where no lock is seen |
| `heartbeat.json` | the driver, every second and at its end | state, epoch, batch, offsets, when |
| `drain.json` | whoever wants the stream to stop | who asked, and when |
| `meanings.json` | the driver, when it starts | what the things that it keeps mean, see `stream/meanings.py` |
| `deaths.json` | the driver, when one was killed with a batch | how often, and records of it that are passed over |
| `time_resets.json` | `tidemark reset-time` | partitions whose time goes back: to when, who asked, and why |
| `reopen_ID.json` | `tidemark requeue --late --reopen` | late records that an aggregate takes in again |
| `loss.json` | `tidemark accept-loss` | offsets that may be passed over: who gave them up, and why |

The folder and its locks are their owner's alone, see `tidemark.locks`.
A driver asks before each write whether `epoch` is still its own. One that was stopped and wakes up after another has
taken over writes nothing more.

In an object store there is no flock(2): `tidemark.lease` takes the place of the two locks and of `epoch`.
Known limitation: flock(2) tells drivers of one host apart. Of two that start at once on two hosts the one with the
epoch goes on; of two that start one after the other the newer one.
Clock: `now_ms` is the caller's, epoch ms UTC.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.errors import Contradiction, TidemarkError
from tidemark.lease import Held, Lease
from tidemark.locks import holder, opened, own_folder, taken
from tidemark.object_path import ObjectPath
from tidemark.place import replace

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


ALIVE = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""The states of a driver that goes on."""


class AlreadyRunning(TidemarkError):
    """Raised when a second driver asks for the lease of a stream that has one."""


class LeaseLost(Contradiction):
    """Raised when a driver is about to write and a newer one has the lease."""


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """One beat. `batch_id` is the last finished batch (-1: none yet), `offsets` its end per `source/partition`.

    `doing` says what the driver does since `since_ms`, and `batches` how many it has finished, silent ones, too.
    `digest` is that of the topology file that it runs, on `host`. Beats of older versions lack these.
    """

    state: StreamState
    epoch: int
    launch_id: str
    at_ms: int
    pid: int
    batch_id: int = -1
    offsets: dict[str, int] = field(default_factory=dict)
    reason: str | None = None
    doing: str = ""
    since_ms: int | None = None
    batches: int = 0
    digest: str = ""
    host: str = ""


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


@dataclass(frozen=True, kw_only=True)
class TimeReset:
    """The decision to set the time of a partition of *source* back: its newest record counts as one of `to_ms`.

    The driver carries it out once, by its `id`, when it has read up to `from_offset`.
    """

    id: str
    source: str
    partition: int
    to_ms: int
    from_offset: int
    by: str
    reason: str
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class Reopening:
    """The decision that the aggregate *operator* takes in *late* records again, though their windows were closed.

    Each is known by the batch in which it was late, its partition and its offset. The driver carries it out once, by
    its `id`.
    """

    id: str
    operator: str
    late: tuple[tuple[int, int, int], ...]
    at_ms: int


def known(dataclass: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of *fields* that *dataclass* has: a file may be of a newer version, before a deploy was rolled back."""
    return {name: value for name, value in fields.items() if name in dataclass.__annotations__}


def digest(topology_file: Path) -> str:
    """What tells one content of *topology_file* from another."""
    return hashlib.sha256(topology_file.read_bytes()).hexdigest()[:16]


class Control:
    """Reads and writes the control folder *home*."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: int | None = None
        self._lease = Lease(home, self._last_beat) if isinstance(home, ObjectPath) else None
        self._epoch: int | None = None

    def acquire(self, *, take_over_at_ms: int | None = None, silent_after_ms: int = SILENT_AFTER_MS) -> int:
        """Take the lease for the life of this process; its epoch, one higher than any before.

        With *take_over_at_ms*, the clock now, also from a driver that lives but has been silent for *silent_after_ms*:
        it keeps its lock on a file that nobody looks at any more. Raises AlreadyRunning when another driver lives.
        In an object store one that is silent is waited for until it has been so for *silent_after_ms*, and taken over.
        """
        if self._lease is not None:
            self._epoch = self._acquired(self._lease, silent_after_ms)
            return self._epoch
        own_folder(self.home)
        with self._acquiring():
            lock = opened(self.home / "driver.lock")
            if not taken(lock, within_s=PROBE_S):  # `is_held` of another process takes it for an instant
                by = holder(lock)
                os.close(lock)
                self._refuse_to_take_over(take_over_at_ms, silent_after_ms, by)
                lock = self._new_lock()
            self._lock = lock
            epoch = self._claimed()
            replace(self.home / "epoch", str(epoch))
        return epoch

    def epoch(self) -> int:
        """That of the newest driver; 0 before the first."""
        if self._lease is not None:
            return self._lease.epoch()
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
        """Whether a driver lives, asked of the lock and of no pid; in an object store, of its signs of life."""
        if self._lease is not None:
            return self._lease.is_held(SILENT_AFTER_MS)
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

    def release(self) -> None:
        """Give the lease back at the end of this process; a lock is free without, and silence ends it, too."""
        if self._lease is not None and self._epoch is not None:
            with suppress(OSError):
                self._lease.release(self._epoch)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Hold the lease meanwhile, in place of a driver; raises AlreadyRunning when one lives.

        Yields a check that raises LeaseLost once another process has taken over.
        """
        epoch = self.acquire()
        try:
            with self._lease.renewed(epoch) if self._lease else nullcontext():
                yield partial(self.check_lease, epoch)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    @contextmanager
    def held_alone(self, *, patience_s: float = 0.0) -> Iterator[None]:
        """In an object store, where a table has one writing process, have the lease meanwhile; nothing on a disk.

        Raises AlreadyRunning when another one has it for *patience_s*.
        """
        if self._lease is None:
            yield
            return
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._epoch = self._acquired(self._lease, SILENT_AFTER_MS)
                break
            except AlreadyRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PROBE_S)
        with self._lease.renewed(self._epoch):
            yield

    def beat(self, heartbeat: Heartbeat) -> None:
        """Publish *heartbeat* in place of the one before; on a full disk, in the space that this one took."""
        own_folder(self.home)
        text = json.dumps(asdict(heartbeat))
        whole_pages = text.ljust(PAGE * (1 + len(text) // PAGE))
        try:
            replace(self.home / "heartbeat.json", whole_pages)
        except OSError:
            if self._lease is not None:
                raise
            _overwrite(self.home / "heartbeat.json", whole_pages)

    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat; None when there was none."""
        try:
            fields = _read(self.home / "heartbeat.json")
        except json.JSONDecodeError:  # it was being overwritten
            fields = _read(self.home / "heartbeat.json")
        if fields is None:
            return None
        return Heartbeat(**{**known(Heartbeat, fields), "state": StreamState(fields["state"])})

    def request_drain(self, *, by: str, now_ms: int) -> None:
        """Ask the driver to finish its batch and end; asking twice changes nothing."""
        own_folder(self.home)
        if not self.drain_requested():
            replace(self.home / "drain.json", json.dumps({"by": by, "at_ms": now_ms}))

    def drain_requested(self) -> bool:
        """Whether somebody asked the driver to end."""
        return (self.home / "drain.json").exists()

    def forget_drain(self) -> None:
        """Withdraw a drain request: done by whoever launches the next driver."""
        (self.home / "drain.json").unlink(missing_ok=True)

    def accept_loss(self, loss: AcceptedLoss) -> None:
        """Let the driver pass over *loss*, once: from where the stream was when it was accepted."""
        own_folder(self.home)
        replace(self.home / "loss.json", json.dumps([*self._losses(), asdict(loss)]))

    def accepted_loss(self) -> dict[tuple[str, int, int], int]:
        """Per source, partition and offset at which the stream is, the offset from which it may go on."""
        return {
            (loss["source"], loss["partition"], loss["from_offset"]): loss["until_offset"] for loss in self._losses()
        }

    def request_time_reset(self, reset: TimeReset) -> None:
        """Have the driver carry out *reset* with its next batch, or with its first one when it starts."""
        own_folder(self.home)
        resets = [asdict(one) for one in (*self.time_resets(), reset)]
        replace(self.home / "time_resets.json", json.dumps(resets))

    def time_resets(self) -> list[TimeReset]:
        """All that were asked for, oldest first; the progress knows which are done."""
        path = self.home / "time_resets.json"
        found = json.loads(path.read_text()) if path.exists() else []
        return [TimeReset(**known(TimeReset, fields)) for fields in found]

    def request_reopening(self, reopening: Reopening) -> None:
        """Have the driver carry out *reopening* with its next batch, or with its first one when it starts."""
        own_folder(self.home)
        replace(self.home / f"reopen_{reopening.id}.json", json.dumps(asdict(reopening)))

    def reopenings(self) -> list[str]:
        """The ids of all that were asked for; the progress knows which are done."""
        return sorted(path.stem.removeprefix("reopen_") for path in self.home.glob("reopen_*.json"))

    def reopening(self, id_: str) -> Reopening:
        """What was asked for under *id_*."""
        fields = known(Reopening, json.loads((self.home / f"reopen_{id_}.json").read_text()))
        return Reopening(**{**fields, "late": tuple((batch, part, offset) for batch, part, offset in fields["late"])})

    def reopening_written_down(self, id_: str) -> None:
        """Let the request under *id_* be removed once it is carried out: the records that it names are written down."""
        replace(self.home / f"reopen_{id_}.written", "")

    def remove_reopening(self, id_: str) -> bool:
        """Whether the request under *id_* may be removed; it is gone then."""
        written = self.home / f"reopen_{id_}.written"
        if not written.exists():
            return False
        (self.home / f"reopen_{id_}.json").unlink(missing_ok=True)
        written.unlink(missing_ok=True)
        return True

    def deaths(self) -> dict[str, Any]:
        """What was kept last of drivers that were killed with one batch; nothing if none was."""
        return _read(self.home / "deaths.json") or {}

    def keep_deaths(self, now: Mapping[str, Any]) -> None:
        """Keep *now* in place of what was kept."""
        replace(self.home / "deaths.json", json.dumps(now))

    def meanings(self) -> dict[str, str]:
        """What was kept last; nothing when that was by an older version or never."""
        return _read(self.home / "meanings.json") or {}

    def keep_meanings(self, now: Mapping[str, str]) -> None:
        """Keep those of *now*, beside those of what is gone."""
        replace(self.home / "meanings.json", json.dumps({**self.meanings(), **now}))

    @contextmanager
    def _acquiring(self) -> Iterator[None]:
        lock = opened(self.home / "acquire.lock")
        try:
            if not taken(lock, within_s=PROBE_S):
                msg = f"{self.home}: one driver per stream, and another one is starting right now ({holder(lock)})"
                raise AlreadyRunning(msg)
            yield
        finally:
            os.close(lock)

    def _claimed(self) -> int:
        """The epoch after the newest, which nobody else gets, on other hosts neither."""
        claims = {int(claim.name.rpartition(".")[2]): claim for claim in self.home.glob("epoch.claim.*")}
        epoch = max([self.epoch(), *claims]) + 1  # of one that was claimed and not used no file `epoch` tells
        taken = f"{self.home}: one driver per stream, and another one has taken epoch {epoch} this instant"
        try:
            (self.home / f"epoch.claim.{epoch}").touch(exist_ok=False)
        except FileExistsError:
            raise AlreadyRunning(taken) from None
        if self.epoch() >= epoch:  # so long ago that its claim has been removed
            raise AlreadyRunning(taken)
        for older in sorted(claims)[:-1]:
            claims[older].unlink(missing_ok=True)
        return epoch

    def _refuse_to_take_over(self, now_ms: int | None, silent_after_ms: int, by: str) -> None:
        """Raise AlreadyRunning unless *now_ms* is given and the driver that holds the lock has been silent by then."""
        if now_ms is None:
            msg = f"{self.home}: one driver per stream, and another one holds driver.lock ({by}); drain that one first"
            raise AlreadyRunning(msg)
        beat = self.heartbeat()
        has_beaten = beat is not None and beat.epoch == self.epoch()
        if beat is None or not has_beaten or now_ms - beat.at_ms < silent_after_ms:
            msg = (
                f"{self.home}: a driver that has been silent for {silent_after_ms // 1_000} s may be taken over; the "
                f"one that holds driver.lock ({by}) {'still beats' if has_beaten else 'has not beaten yet'}: drain "
                "that one"
            )
            raise AlreadyRunning(msg)

    def _acquired(self, lease: Lease, silent_after_ms: int) -> int:
        try:
            return lease.acquire(silent_after_ms)
        except Held as held:
            msg = f"{self.home}: one process writes to an object store, and {held}; drain or await that one"
            raise AlreadyRunning(msg) from None

    def _last_beat(self) -> tuple[int, int] | None:
        beat = self.heartbeat()
        return (beat.epoch, beat.at_ms) if beat else None

    def _new_lock(self) -> int:
        """A locked `driver.lock` in place of the one that another driver holds."""
        partial = self.home / f".driver.lock.{os.getpid()}"
        lock = opened(partial)
        taken(lock, within_s=PROBE_S)  # nobody else knows of it
        partial.replace(self.home / "driver.lock")
        return lock

    def _losses(self) -> list[dict[str, Any]]:
        path = self.home / "loss.json"
        losses: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        return losses


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
