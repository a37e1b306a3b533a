"""Reads and writes the control folder of one stream.

Purpose: launch, heartbeat, drain and lease without a process to ask, so that it works wherever the warehouse is seen.
The driver and the processes that supervise it communicate through its files, which `FILES` in `files.py` lists.

The folder and its locks are their owner's alone, see `tidemark.storage.locks`. A driver checks before each write that
`epoch` is still its own. A driver that was stopped, and wakes up after another has taken over, writes nothing more.

In an object store there is no flock(2): `tidemark.control.lease` replaces the two locks and `epoch`. A driver beats
seldom there, and asks again only when there is news (`tidemark.control.news`).
Known limitation: flock(2) excludes drivers of one host only. Of two drivers that start at once on two hosts the one
with the epoch continues; of two that start one after the other the newer one does.
Clock: `now_ms` is the caller's, epoch ms UTC.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidemark.control.files import parsed, read, refuse_folder, sealed, unsealed
from tidemark.control.lease import Lease, LeaseHeld
from tidemark.control.news import news_of
from tidemark.errors import Contradiction, TidemarkError
from tidemark.semantics.liveness import LIMITS, SILENT_AFTER_MS, EvidenceKind, StoreKind
from tidemark.semantics.segments import Gap, Segment
from tidemark.storage.location import replace, replace_unsynced
from tidemark.storage.locks import holder, open_lock, own_folder, take_lock
from tidemark.storage.object_path import ObjectPath

T = TypeVar("T")

PROBE_S = 1.0
PAGE = 4_096
"""Bytes of a page; a heartbeat fills whole pages.

So the next one has the same length, and can be written over it on a full disk.
"""
BEATS_EVERY_MS = LIMITS[EvidenceKind.CONTROL, StoreKind.DISK].every_ms
"""Longest time between beats on a disk."""


def store_of(home: Path) -> StoreKind:
    """Returns what kind of store the folder *home* lies in."""
    return StoreKind.OBJECT_STORE if isinstance(home, ObjectPath) else StoreKind.DISK


def beats_every_ms(home: Path) -> int:
    """Returns the longest time between two beats of a driver.

    Its control folder is *home*. In an object store each beat is a request, so a driver without news beats seldom.
    """
    return LIMITS[EvidenceKind.CONTROL, store_of(home)].every_ms


class StreamState(StrEnum):
    """The state of a driver, as its heartbeat has it."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINED = "drained"
    ROTATED = "rotated"
    FINISHED = "finished"
    """It ran a job, which ended by itself."""
    FAILED = "failed"


KILLED = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""States of the last heartbeat of a driver that was killed.

A driver that ends on request leaves another state.
"""


class AlreadyRunning(TidemarkError):
    """Raised when a stream already has a driver that holds its lease."""


class LeaseLost(Contradiction):
    """Raised before a driver writes although a newer one has the lease."""


class TimeTold(NamedTuple):
    """What a driver tells of its time from `from_ms` until `until_ms`, boot.

    `gaps` are those of its pulse, and `segments` what the main thread did that no entry of the journal has; the last
    one still ran.
    """

    from_ms: int
    until_ms: int
    gaps: tuple[Gap, ...] = ()
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A driver's state at `at_ms` (epoch ms UTC of its host).

    `batch_id` is the last finished batch (-1: none yet), and `offsets` its end per `source/partition`. `doing` is the
    driver's current step, which began at `since_ms`. `batches` counts its finished batches, including empty ones.
    `digest` identifies the content of the topology file that it runs, on `host`. `launched_by` is the task or command
    that started it, `adopted_by` the task that supervises it since, `drained_by` who asked a drained driver to end, and
    `predecessor_killed_by` who killed the driver before it. `told` is what it tells of the time since the newest row of
    `heartbeats`, or since its start; `is_row` says that this beat becomes such a row.
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
    launched_by: str = ""
    drained_by: str | None = None
    adopted_by: str | None = None
    predecessor_killed_by: str | None = None
    told: TimeTold | None = None
    is_row: bool = False

    @property
    def is_in_batch(self) -> bool:
        """True if the driver works on a batch, which began at `since_ms`."""
        return self.doing.startswith("batch")

    @property
    def columns(self) -> dict[str, object]:
        """What a row of `heartbeats` has of it, instants in epoch ms."""
        told = self.told
        return {
            "beat_at": self.at_ms,
            "state": self.state.value,
            "epoch": self.epoch,
            "batch_id": self.batch_id,
            "step_began_at": self.since_ms,
            "reason": self.reason,
            "host": self.host or None,
            "file_digest": self.digest or None,
            "launched_by": self.launched_by or None,
            "drained_by": self.drained_by,
            "adopted_by": self.adopted_by,
            "predecessor_killed_by": self.predecessor_killed_by,
            "pulse_from_boot_ms": told and told.from_ms,
            "pulse_boot_ms": told and told.until_ms,
            "gaps": [gap._asdict() for gap in told.gaps] or None if told else None,
            "segments": [segment._asdict() for segment in told.segments] or None if told else None,
        }


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss:
    """The decision to skip lost offsets of a partition of *source*.

    The record at `from_offset` is gone; the stream continues at `until_offset`. If a topic was recreated, `topic_id` is
    that of the new topic, and `from_offset` an offset of the earlier one.
    """

    source: str
    partition: int
    from_offset: int
    until_offset: int
    by: str
    reason: str
    at_ms: int
    topic_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class AcceptedRecord:
    """The decision not to read a present record, by Kafka's topic, partition and offset.

    It is one of the planned batch `batch_id`. Once that is decided the decision has no effect any more, so it permits
    nothing if the topic is recreated.
    """

    topic: str
    partition: int
    offset: int
    batch_id: int
    by: str
    reason: str
    at_ms: int


SOURCES, SOURCE_CHANGES = "sources.json", "source_changes.json"
"""Files with the sources of a stream, and with the changes of them that the next batch records."""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The operator *name* began, without former states or progress, after the batch `after`; -1: with the stream."""

    name: str
    after: int = -1

    def begins_behind(self, batch_id: int) -> bool:
        """Returns True if no batch up to *batch_id* has run it."""
        return batch_id <= self.after


@dataclass(frozen=True, kw_only=True)
class TopologyChange(Begun):
    """The operator *name* has another meaning, or the source another place or name, behind the batch `after`.

    Attributes:
        line: what the topology file has changed, in words.
        begins: whether it begins, or begins anew; False: the source ends, or goes on in another way.
        read_by: the operators of the stream that read it, directly or not; of a source that ends, until then.
    """

    line: str
    begins: bool = True
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ListedSource(Begun):
    """A source in the order in which Spark's checkpoint has its offsets.

    Attributes:
        place: the topic, table, folder or hop that it reads, as text.
        topic: the one topic that it reads, or read at first: its input partitions are those of the topic. None: it has
            read several from the beginning, or none.
        told: its `starting_offsets` when the broker was asked for `starts`; None: it was not.
        starts: of a source that begins at other offsets than the earliest: topic, partition and the offset at which
            each begins. None: at the earliest, or it is not asked yet.
        formerly: the names that it had, the newest first; the newest batch may know it by any of them.
        read_by: the operators of the stream that read it, directly or not.
    """

    place: str
    topic: str | None = None
    told: str | None = None
    starts: tuple[tuple[str, int, int], ...] | None = None
    formerly: tuple[str, ...] = ()
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimeReset:
    """The decision to set the time of a partition of *source* back.

    Its newest record then counts as a record of `to_ms` (record time, epoch ms). The driver carries the reset out
    once, by its `id`, when it has read up to `from_offset`.
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
class WindowReopening:
    """The decision that the aggregate *operator* accepts *late* records.

    Their windows were closed. Each record is identified by the batch in which it was late, its partition and its
    offset. The driver carries the reopening out once, by its `id`.
    """

    id: str
    operator: str
    late: tuple[tuple[int, int, int], ...]
    at_ms: int


def digest(topology_file: Path) -> str:
    """Returns a digest that identifies the content of *topology_file*."""
    return hashlib.sha256(topology_file.read_bytes()).hexdigest()[:16]


class Control:
    """Reads and writes the control folder *home* of a stream."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: int | None = None
        self._lease = Lease(home, self._last_beat) if isinstance(home, ObjectPath) else None
        self._news = news_of(home) if isinstance(home, ObjectPath) else None
        self._epoch: int | None = None

    def acquire(self, *, take_over_at_ms: int | None = None, silent_after_ms: int = SILENT_AFTER_MS) -> int:
        """Takes the lease for the life of this process; returns its epoch.

        The epoch is one higher than any before. In an object store it waits until a silent holder has been silent for
        *silent_after_ms*, and then takes over.

        Args:
            take_over_at_ms: the clock now (epoch ms), to take over from a driver that lives but has been silent for
                *silent_after_ms*. That driver keeps its lock on a file that is no longer in the folder.
            silent_after_ms: time without a heartbeat after which a driver counts as silent.

        Raises:
            AlreadyRunning: another driver lives.
            UnreadableFile: a folder lies in the place of a lock.
        """
        if self._lease is not None:
            self._epoch = self._acquired(self._lease, silent_after_ms)
            return self._epoch
        own_folder(self.home)
        refuse_folder(self.home, "acquire.lock", "driver.lock", "epoch")
        # Two processes that replaced the lock of a silent driver would each hold a file of its own.
        with self._acquiring():
            lock = open_lock(self.home / "driver.lock")
            # `is_held` of another process holds the lock for an instant, so the first refusal proves nothing.
            if not take_lock(lock, within_s=PROBE_S):
                by = holder(lock)
                os.close(lock)
                self._refuse_to_take_over(take_over_at_ms, silent_after_ms, by)
                lock = self._new_lock()
            self._lock = lock
            epoch = self._claimed()
            replace(self.home / "epoch", str(epoch))
        return epoch

    def epoch(self) -> int:
        """Returns the epoch of the newest driver; 0 before the first."""
        if self._lease is not None:
            return self._answer("epoch", self._lease.epoch)
        # The newest claim is at least the epoch in the file, so it does where the file is damaged.
        return self._written_epoch() or max(self._claims(), default=0)

    def _written_epoch(self) -> int:
        """Returns the number in the file `epoch`; 0 if there is none, or if it is damaged."""
        return read(self.home, "epoch", int) or 0

    def check_lease(self, epoch: int) -> None:
        """Raises LeaseLost unless *epoch* is that of the newest driver."""
        if (newest := self.epoch()) != epoch:
            msg = (
                f"{self.home}: another driver has taken over this stream with epoch {newest}; this driver, with epoch "
                f"{epoch}, must not write any more, and ends"
            )
            raise LeaseLost(msg)

    def check_lease_anew(self, epoch: int) -> None:
        """Checks the lease after asking the object store, even without news.

        The store may refuse a write of a driver that was suspended before the driver reads the news.
        """
        if self._news is not None:
            self._news.forget()
        self.check_lease(epoch)

    def is_held(self, *, dead_epoch: int | None = None) -> bool:
        """Returns True if a driver lives.

        In an object store the driver's signs of life decide, and the caller may know that the driver of *dead_epoch* is
        dead.
        """
        if self._lease is not None:
            return self._lease.epoch() != dead_epoch and self._lease.is_held(SILENT_AFTER_MS)
        try:
            # The pid in the file proves nothing: another process may have it by now.
            lock = os.open(self.home / "driver.lock", os.O_RDWR)
        except (FileNotFoundError, IsADirectoryError):
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)  # gives back the lock that this look took
        return False

    def release(self) -> None:
        """Gives the lease back: another driver may have it at once."""
        self._unlock()
        if self._lease is not None and self._epoch is not None:
            # Without this write the next driver waits until this one has been silent for long.
            with suppress(OSError):
                self._lease.release(self._epoch)

    def release_for(self, dead_epoch: int) -> None:
        """Gives the lease of *dead_epoch* back in place of its driver.

        The caller knows that this driver is dead. On a disk its lock ended with it.
        """
        if self._lease is not None:
            self._lease.release(dead_epoch)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Holds the lease during the context, in place of a driver.

        Yields a check that raises LeaseLost once another process has taken over. Raises AlreadyRunning if a driver
        lives.
        """
        epoch = self.acquire()
        try:
            with self._lease.renewed(epoch) if self._lease else nullcontext():
                yield partial(self.check_lease, epoch)
        finally:
            self._unlock()

    @contextmanager
    def held_alone(self, *, patience_s: float = 0.0) -> Iterator[None]:
        """Holds the lease of an object store during the context.

        In an object store a table has one writing process. Raises AlreadyRunning if another process still has the lease
        after *patience_s*.
        """
        # On a disk several processes may write a table.
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
        """Publishes *heartbeat* in place of the last one."""
        own_folder(self.home)
        text = json.dumps(asdict(heartbeat))
        whole_pages = text.ljust(PAGE * (1 + len(text) // PAGE))
        try:
            replace_unsynced(self.home / "heartbeat.json", whole_pages)
        except OSError:
            # A full disk refuses a new file, so the beat is written over the last one, whose space it needs.
            if self._lease is not None:
                raise
            _overwrite(self.home / "heartbeat.json", whole_pages)

    def heartbeat(self) -> Heartbeat | None:
        """Returns the newest heartbeat; None before the first, and if it is damaged."""
        beat = self._read_heartbeat()
        # On a full disk the driver overwrites the file in place, so half a beat is followed by a whole one.
        return self._read_heartbeat() if beat is None and self._lease is None else beat

    def _read_heartbeat(self) -> Heartbeat | None:
        return read(self.home, "heartbeat.json", partial(parsed, Heartbeat))

    def request_drain(self, *, by: str, now_ms: int) -> None:
        """Asks the driver to finish its batch and end, once."""
        own_folder(self.home)
        if not self.drain_requested():
            replace(self.home / "drain.json", json.dumps({"by": by, "at_ms": now_ms}))
            self._spread_news()

    def drain_requested(self) -> bool:
        """Returns True if the driver was asked to end."""
        return self._answer("drain", (self.home / "drain.json").is_file)

    def drained_by(self) -> str | None:
        """Returns who asked the driver to end; None without a request."""
        by = read(self.home, "drain.json", lambda request: str(request["by"]))
        # A request counts whatever its file says.
        return "unknown: drain.json is damaged" if by is None and (self.home / "drain.json").is_file() else by

    def forget_drain(self) -> None:
        """Withdraws a drain request, before the next driver is launched."""
        (self.home / "drain.json").unlink(missing_ok=True)
        self._spread_news()

    def accept_loss(self, loss: AcceptedLoss) -> None:
        """Lets the driver skip *loss*, once.

        It skips only from the offset at which the stream was when the loss was accepted, or to the topic of that id.
        """
        own_folder(self.home)
        losses = [asdict(each) for each in (*self._losses(), loss)]
        replace(self.home / "loss.json", sealed(self.home, "loss.json", losses))

    def accepted_loss(self) -> dict[tuple[str, int, int | str], int]:
        """Returns the offsets at which the stream may continue.

        Keys are the source, the partition, and the offset at which the stream is, or the id of a recreated topic.
        """
        accepted: dict[tuple[str, int, int | str], int] = {}
        for loss in self._losses():
            place = loss.topic_id or loss.from_offset
            accepted[loss.source, loss.partition, place] = loss.until_offset
        return accepted

    def request_time_reset(self, reset: TimeReset) -> None:
        """Asks the driver to carry out *reset* with its next batch."""
        own_folder(self.home)
        resets = [asdict(each) for each in (*self.time_resets(), reset)]
        replace(self.home / "time_resets.json", sealed(self.home, "time_resets.json", resets))
        # Without a driver the next one carries it out with its first batch.
        self._spread_news()

    def time_resets(self) -> list[TimeReset]:
        """Returns all requested time resets, oldest first.

        The stream's progress has the ones that are done.
        """

        def ask() -> list[TimeReset]:
            resets = unsealed(self.home, "time_resets.json", lambda all_: [parsed(TimeReset, each) for each in all_])
            return resets or []

        return self._answer("time resets", ask)

    def request_reopening(self, reopening: WindowReopening) -> None:
        """Asks the driver to carry out *reopening* with its next batch.

        If no driver runs, the next one does so with its first batch.
        """
        own_folder(self.home)
        name = f"reopen_{reopening.id}.json"
        replace(self.home / name, sealed(self.home, name, asdict(reopening)))
        self._spread_news()

    def reopenings(self) -> list[str]:
        """Returns the ids of all requested reopenings, sorted.

        The stream's progress has the ones that are done.
        """
        paths = self._answer("reopenings", lambda: [*self.home.glob("reopen_*.json")])
        return sorted(path.stem.removeprefix("reopen_") for path in paths)

    def request_names(self, epoch: int) -> tuple[str, ...]:
        """Returns the names of all requests to the driver of *epoch*.

        These are ids of reopenings and of time resets, and `end` if the driver is to end: a drain was requested, or
        another driver has started.
        """
        resets = [reset.id for reset in self.time_resets()]
        # Another driver has started, or a drain was requested.
        ends = ["end"] if self.drain_requested() or self.epoch() != epoch else []
        return (*self.reopenings(), *resets, *ends)

    def reopening(self, id_: str) -> WindowReopening:
        """Returns the reopening that was requested under *id_*."""
        reopening = unsealed(self.home, f"reopen_{id_}.json", partial(parsed, WindowReopening))
        if reopening is None:
            raise FileNotFoundError(self.home / f"reopen_{id_}.json")
        return reopening

    def reopening_written_down(self, id_: str) -> None:
        """Allows to remove the request under *id_* once it is carried out.

        The caller has recorded the late records that the request names.
        """
        replace(self.home / f"reopen_{id_}.written", "")
        self._spread_news()

    def remove_reopening(self, id_: str) -> bool:
        """Removes the request *id_* if that is allowed; returns True if so."""
        written = self.home / f"reopen_{id_}.written"
        if not self._answer(written.name, written.is_file):
            return False
        # In this order: a crash in between leaves a permission without a request, which has no effect.
        (self.home / f"reopen_{id_}.json").unlink(missing_ok=True)
        written.unlink(missing_ok=True)
        self._spread_news()
        return True

    def adopt(self, launch_id: str, *, by: str) -> None:
        """Records that *by* supervises the driver of *launch_id* now."""
        replace(self.home / "adopted.json", json.dumps({"launch_id": launch_id, "by": by}))
        self._spread_news()

    def adopted_by(self, launch_id: str) -> str | None:
        """Returns who adopted the driver of *launch_id* last, if it was adopted."""
        adopted = self._answer("adoption", lambda: read(self.home, "adopted.json", _texts))
        return adopted.get("by") if adopted and adopted.get("launch_id") == launch_id else None

    def kill_for(self, launch_id: str, stream: str, *, by: str = "") -> None:
        """Records that *by* kills *launch_id* because of *stream*.

        *stream* is another stream of the same process, and hangs. Empty: the killed driver itself does.
        """
        replace(self.home / "killed.json", json.dumps({"launch_id": launch_id, "stream": stream, "by": by}))

    def killed_by(self, launch_id: str) -> str | None:
        """Returns who killed the driver of *launch_id*, if a task did."""
        return self._killed(launch_id).get("by") or None

    def killed_for(self, launch_id: str) -> str | None:
        """Returns the stream that hung when the process of *launch_id* was killed.

        None: the process was not killed because of another stream.
        """
        return self._killed(launch_id).get("stream") or None

    def _killed(self, launch_id: str) -> dict[str, str]:
        """Returns what `killed.json` says of *launch_id*; empty: nothing."""
        killed = read(self.home, "killed.json", _texts) or {}
        return killed if killed.get("launch_id") == launch_id else {}

    def accept_record(self, record: AcceptedRecord) -> None:
        """Lets the driver skip a present *record*, while the batch that has it is not decided."""
        own_folder(self.home)
        records = [asdict(each) for each in (*self.accepted_records(), record)]
        replace(self.home / "accepted_records.json", sealed(self.home, "accepted_records.json", records))

    def accepted_records(self) -> list[AcceptedRecord]:
        """Returns all present records that a person gave up, also of batches that were decided since."""
        records = unsealed(
            self.home, "accepted_records.json", lambda all_: [parsed(AcceptedRecord, each) for each in all_]
        )
        return records or []

    def failed_batch(self, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
        """Returns the stored batch that drivers did not decide as *parse* reads it; None if there was none."""
        return unsealed(self.home, "failed_batch.json", parse)

    def keep_failed_batch(self, now: Mapping[str, Any]) -> None:
        """Stores the failed batch *now* in place of the earlier one."""
        replace(self.home / "failed_batch.json", sealed(self.home, "failed_batch.json", now))

    def meanings(self) -> dict[str, str]:
        """Returns the stored meanings, empty before a driver of this version."""
        return unsealed(self.home, "meanings.json", _texts) or {}

    def keep_meanings(self, now: Mapping[str, str]) -> None:
        """Stores the meanings *now*; earlier ones of other keys stay."""
        replace(self.home / "meanings.json", sealed(self.home, "meanings.json", {**self.meanings(), **now}))

    def sources(self) -> list[ListedSource]:
        """Returns the sources of the stream in the order of its checkpoint; empty before its first driver."""
        listed = unsealed(self.home, SOURCES, lambda all_: [parsed(ListedSource, each) for each in all_])
        return listed or []

    def keep_sources(self, now: Sequence[ListedSource]) -> None:
        """Stores the sources *now* in place of the earlier ones."""
        replace(self.home / SOURCES, sealed(self.home, SOURCES, [asdict(each) for each in now]))

    def source_changes(self) -> list[TopologyChange]:
        """Returns the changes of sources that the newest batch may not have recorded, oldest first."""
        all_ = read(self.home, SOURCE_CHANGES, lambda all_: [parsed(TopologyChange, each) for each in all_])
        return all_ or []

    def keep_source_changes(self, now: Sequence[TopologyChange]) -> None:
        """Stores the changes *now* in place of the earlier ones."""
        replace(self.home / SOURCE_CHANGES, json.dumps([asdict(each) for each in now]))

    def begun(self) -> list[TopologyChange]:
        """Returns the operators that began anew, oldest first."""
        all_ = unsealed(self.home, "begun.json", lambda all_: [parsed(TopologyChange, each) for each in all_])
        return all_ or []

    def begun_behind(self, batch_id: int) -> set[str]:
        """Returns the operators that began anew and that no batch up to *batch_id* has run since."""
        return {each.name for each in self.begun() if each.begins_behind(batch_id)}

    def begin_anew(self, operators: Iterable[TopologyChange], now: Mapping[str, str] | None = None) -> None:
        """Lets *operators* begin, each behind its batch.

        Their meanings become *now*. None leaves the stored meanings as they are.
        """
        # What was interrupted is done again, and then no longer knows the former meaning: the first line stays.
        before, of_now = self.begun(), [*operators]
        reached = min((each.after for each in of_now), default=-1)
        once = {(each.name, each.after): each for each in [*of_now, *before] if each.after >= reached}
        begun = [*once.values()]
        if begun != before:
            replace(self.home / "begun.json", sealed(self.home, "begun.json", [asdict(each) for each in begun]))
        if now is None:
            return
        replace(self.home / "meanings.json", sealed(self.home, "meanings.json", dict(now)))

    def lineage_sent(self) -> dict[str, Any] | None:
        """Returns the last event that was sent to OpenLineage; None: none was."""
        return read(self.home, "lineage.json", _object)

    def keep_lineage_sent(self, event: Mapping[str, Any]) -> None:
        """Stores the last event that was sent to OpenLineage."""
        own_folder(self.home)
        replace(self.home / "lineage.json", json.dumps(event))

    @contextmanager
    def _acquiring(self) -> Iterator[None]:
        lock = open_lock(self.home / "acquire.lock")
        try:
            if not take_lock(lock, within_s=PROBE_S):
                msg = (
                    f"{self.home}: another driver of this stream is starting ({holder(lock)}); wait for it, or drain it"
                )
                raise AlreadyRunning(msg)
            yield
        finally:
            os.close(lock)

    def _claimed(self) -> int:
        """Claims the epoch after the newest one, against other hosts, too."""
        claims = self._claims()
        # A driver that died after its claim has not written its epoch to the file `epoch`.
        epoch = max([self._written_epoch(), *claims]) + 1
        # The lock of another host may not be visible here; an exclusive create is, on NFS too.
        msg = f"{self.home}: another driver of this stream has just taken epoch {epoch}; wait for it, or drain it"
        try:
            (self.home / f"epoch.claim.{epoch}").touch(exist_ok=False)
        except FileExistsError:
            raise AlreadyRunning(msg) from None
        if self._written_epoch() >= epoch:  # another driver took it so long ago that its claim was removed
            raise AlreadyRunning(msg)
        for older in sorted(claims)[:-1]:
            claims[older].unlink(missing_ok=True)
        return epoch

    def _claims(self) -> dict[int, Path]:
        """Returns the claims of epochs, by their numbers."""
        names = ((claim.name.rpartition(".")[2], claim) for claim in self.home.glob("epoch.claim.*"))
        return {int(number): claim for number, claim in names if number.isdecimal()}

    def _refuse_to_take_over(self, now_ms: int | None, silent_after_ms: int, by: str) -> None:
        """Refuses to take over from a driver that may still write.

        Args:
            now_ms: the clock (epoch ms); None: a take-over is not wanted.
            silent_after_ms: age of the newest heartbeat from which a driver may be taken over.
            by: the holder of the lock, for the message.

        Raises:
            AlreadyRunning: unless *now_ms* is given and the holder has been silent for long enough by then.
        """
        if now_ms is None:
            msg = f"{self.home}: another driver of this stream holds driver.lock ({by}); drain it first"
            raise AlreadyRunning(msg)
        beat = self.heartbeat()
        has_beaten = beat is not None and beat.epoch == self.epoch()
        if beat is None or not has_beaten or now_ms - beat.at_ms < silent_after_ms:
            msg = (
                f"{self.home}: another driver of this stream holds driver.lock ({by}) and "
                f"{'still sends heartbeats' if has_beaten else 'has not sent a heartbeat yet'}; drain it, or take over "
                f"when it has been silent for {silent_after_ms // 1_000} s"
            )
            raise AlreadyRunning(msg)

    def _acquired(self, lease: Lease, silent_after_ms: int) -> int:
        try:
            epoch = lease.acquire(silent_after_ms)
        except LeaseHeld as held:
            msg = f"{self.home}: {held}, and only one process writes these tables; drain it, or wait for its end"
            raise AlreadyRunning(msg) from None
        # Before anything is written: an earlier driver that wakes up sees it, and stops.
        self._spread_news()
        return epoch

    def _answer(self, name: str, ask: Callable[[], T]) -> T:
        return ask() if self._news is None else self._news.answer(name, ask)

    def _spread_news(self) -> None:
        if self._news is not None:
            self._news.spread()

    def _last_beat(self) -> tuple[int, int] | None:
        beat = self.heartbeat()
        return (beat.epoch, beat.at_ms) if beat else None

    def _new_lock(self) -> int:
        """Replaces another driver's `driver.lock` by a new one; returns its descriptor."""
        new_file = self.home / f".driver.lock.{os.getpid()}"
        lock = open_lock(new_file)
        take_lock(lock, within_s=PROBE_S)  # no other process opens a file of this name
        new_file.replace(self.home / "driver.lock")
        return lock

    def _losses(self) -> list[AcceptedLoss]:
        return unsealed(self.home, "loss.json", lambda all_: [parsed(AcceptedLoss, each) for each in all_]) or []


def _texts(content: Mapping[str, Any]) -> dict[str, str]:
    """Returns *content*, an object of JSON whose values are texts."""
    return {name: _text(value) for name, value in content.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"must be a text, got {value!r:.100}"
        raise TypeError(msg)
    return value


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        msg = f"must be an object of JSON, got {content!r:.100}"
        raise TypeError(msg)
    return content


def _overwrite(path: Path, text: str) -> None:
    """Overwrites a file with *text*, in one write.

    Raises OSError unless the file at *path* has as many bytes as *text*.
    """
    # A file of the same length needs no new block, which a full disk would refuse.
    content = text.encode()
    if path.stat().st_size != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    file = os.open(path, os.O_WRONLY)  # not truncated, so the file keeps its blocks on a full disk
    try:
        os.write(file, content)
    finally:
        os.close(file)
