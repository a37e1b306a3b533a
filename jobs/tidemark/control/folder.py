"""Reads and writes the control folder of one stream.

Purpose: a driver and the processes that supervise it communicate through files, which `FILES` in `files.py` lists. No
server is needed: launches, heartbeats, drains (requests to stop) and leases work wherever the warehouse is reachable.

The folder and its locks belong to one user, see `tidemark.storage.locks`. Each driver gets a number, the epoch, that is
higher than all before. Before each write a driver checks that no newer driver has started. So a driver that was
suspended, and wakes up after another has taken over, writes nothing more.

In an object store there is no flock(2): `tidemark.control.lease` replaces the two locks and `epoch`. A driver there
sends heartbeats less often, and reads requests again only when there is news (`tidemark.control.news`).
Known limitation: flock(2) excludes drivers of one host only. If two drivers start at once on two hosts, the one that
claims the epoch continues; if they start one after the other, the newer one does.
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
"""Bytes of a page. A heartbeat fills whole pages, so that the next one can be written over it on a full disk."""
BEATS_EVERY_MS = LIMITS[EvidenceKind.CONTROL, StoreKind.DISK].every_ms
"""Longest time between beats on a disk."""


def store_of(home: Path) -> StoreKind:
    """Returns what kind of store the folder *home* lies in."""
    return StoreKind.OBJECT_STORE if isinstance(home, ObjectPath) else StoreKind.DISK


def beats_every_ms(home: Path) -> int:
    """Returns the longest time between two heartbeats of a driver; in an object store each of them is a request."""
    return LIMITS[EvidenceKind.CONTROL, store_of(home)].every_ms


class StreamState(StrEnum):
    """The state of a driver, as its heartbeat has it."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINED = "drained"
    ROTATED = "rotated"
    FINISHED = "finished"
    """The driver ran a job that ends by itself."""
    FAILED = "failed"


KILLED = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""The states that a killed driver may leave in its last heartbeat; one that ends by itself leaves another state."""


class AlreadyRunning(TidemarkError):
    """Raised when a stream already has a driver that holds its lease."""


class LeaseLost(Contradiction):
    """Raised before a driver writes although a newer one has the lease."""


class TimeTold(NamedTuple):
    """What a heartbeat says of the driver's time from `from_ms` until `until_ms`, by the boot clock.

    `gaps` are the long gaps between two beats of its pulse. `segments` say what the main thread did since the newest
    row of a batch; the last one was still running.
    """

    from_ms: int
    until_ms: int
    gaps: tuple[Gap, ...] = ()
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A driver's state at `at_ms` (epoch ms UTC of its host).

    Attributes:
        state: the state.
        epoch: the number of its lease.
        launch_id: id of its launch.
        at_ms: when this was written.
        pid: its process.
        batch_id: the last finished batch, or -1 before the first.
        offsets: the offsets at the end of that batch, by `source/partition`.
        reason: why it failed, or what keeps it from working at present, such as a full disk.
        doing: its current step.
        since_ms: when that step began.
        batches: how many batches it has finished, including empty ones.
        digest: identifies the content of the topology file that it runs.
        host: its host.
        launched_by: the task or command that started it.
        drained_by: who asked it to end, if it has ended because of that.
        adopted_by: the task that supervises it now, if that is not the one that started it.
        predecessor_killed_by: who killed the driver before it.
        told: what it did since the newest row of `heartbeats`, or since its start.
        is_row: True if this heartbeat becomes a row of `heartbeats`.
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
        """The columns of a row of `heartbeats`, instants in epoch ms."""
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
    """A person's decision to skip lost offsets of a partition of a source.

    The record at `from_offset` is gone, and the stream continues at `until_offset`. If the topic was recreated,
    `topic_id` is the id of the new topic, and `from_offset` an offset of the earlier one.
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
    """A person's decision to skip a record that is in the topic but cannot be processed.

    The record is part of the planned batch `batch_id`. Once that batch is decided this permits nothing any more, so it
    does no harm if the topic is recreated.
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
    """An operator that began, without states or progress, after the batch `after`; -1 if it began with the stream."""

    name: str
    after: int = -1

    def begins_behind(self, batch_id: int) -> bool:
        """Returns True if no batch up to *batch_id* has run the operator since it began."""
        return batch_id <= self.after


@dataclass(frozen=True, kw_only=True)
class TopologyChange(Begun):
    """A change of the topology file: after the batch `after` an operator means, or a source reads, something else.

    Attributes:
        line: what has changed in the topology file, in words.
        begins: True if the operator or source begins, or begins anew; False if the source ends, or goes on otherwise.
        read_by: the operators of the stream that read it, directly or not, or that did so until it ended.
    """

    line: str
    begins: bool = True
    read_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ListedSource(Begun):
    """A source, in a list that has the order of the offsets in Spark's checkpoint.

    Attributes:
        place: the topic, table, folder or hop that it reads, as text.
        topic: the one topic that it reads, or has read at first: its input partitions are the partitions of the topic.
            None if it has read several topics from the beginning, or none.
        told: its `starting_offsets` when the broker was asked for `starts`; None if it was not asked.
        starts: if it begins at other offsets than the earliest, the topic, partition and first offset of each
            partition. None if it begins at the earliest, or if the broker was not asked yet.
        formerly: the names that it had before, the newest first. The newest batch may know it by any of them.
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
    """A person's decision to set the time of a partition of a source back.

    The newest record of the partition then counts as one of `to_ms` (record time, epoch ms). The driver does this once
    for each `id`, when it has read up to `from_offset`.
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
    """A person's decision that an aggregate accepts late records, although their windows are closed.

    `late` has, for each record, the batch in which it was late, its partition and its offset. The driver does this once
    for each `id`.
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
        """Takes the lease, the right to write for the stream, for the life of this process; returns its epoch.

        The epoch is one higher than any before. In an object store this waits until a silent holder has been silent for
        *silent_after_ms*, and then takes over.

        Args:
            take_over_at_ms: the clock now (epoch ms), to take over from a driver that lives but has been silent for
                *silent_after_ms*. That driver keeps its lock on a file that is no longer in the folder.
            silent_after_ms: time without a heartbeat after which a driver counts as silent.

        Raises:
            AlreadyRunning: another driver lives.
            UnreadableFile: a folder has the name of a lock.
        """
        if self._lease is not None:
            self._epoch = self._acquired(self._lease, silent_after_ms)
            return self._epoch
        own_folder(self.home)
        refuse_folder(self.home, "acquire.lock", "driver.lock", "epoch")
        # If two processes replaced the lock of a silent driver at once, each would hold another file.
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
        """Returns the epoch of the newest driver, or 0 before the first."""
        if self._lease is not None:
            return self._answer("epoch", self._lease.epoch)
        # The newest claim is at least the epoch in the file, so it can replace a damaged file.
        return self._written_epoch() or max(self._claims(), default=0)

    def _written_epoch(self) -> int:
        """Returns the number in the file `epoch`, or 0 without the file or if it is damaged."""
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
        """Checks the lease by asking the object store, even without news.

        If a driver was suspended, the store may refuse its write before the driver has looked for news.
        """
        if self._news is not None:
            self._news.forget()
        self.check_lease(epoch)

    def is_held(self, *, dead_epoch: int | None = None) -> bool:
        """Returns True if a driver lives.

        In an object store the driver's signs of life decide. There the caller can say that it knows the driver of
        *dead_epoch* to be dead.
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
        """Gives the lease back, so that another driver can have it at once."""
        self._unlock()
        if self._lease is not None and self._epoch is not None:
            # Without this write the next driver would have to wait until this one has been silent for long.
            with suppress(OSError):
                self._lease.release(self._epoch)

    def release_for(self, dead_epoch: int) -> None:
        """Gives the lease of *dead_epoch* back for its driver, which the caller knows to be dead.

        On a disk the driver's lock has ended with it.
        """
        if self._lease is not None:
            self._lease.release(dead_epoch)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Holds the lease during the context, so that no driver can start.

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
        """Holds the lease of an object store during the context: only one process may write a table there.

        Raises AlreadyRunning if another process still has the lease after *patience_s*.
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
            # A full disk refuses a new file, so the heartbeat is written over the last one, whose space it needs.
            if self._lease is not None:
                raise
            _overwrite(self.home / "heartbeat.json", whole_pages)

    def heartbeat(self) -> Heartbeat | None:
        """Returns the newest heartbeat, or None before the first, or if it is damaged."""
        beat = self._read_heartbeat()
        # On a full disk the driver overwrites the file in place, so half a beat is followed by a whole one.
        return self._read_heartbeat() if beat is None and self._lease is None else beat

    def _read_heartbeat(self) -> Heartbeat | None:
        return read(self.home, "heartbeat.json", partial(parsed, Heartbeat))

    def request_drain(self, *, by: str, now_ms: int) -> None:
        """Asks the driver to finish its batch and then to end, unless somebody has asked before."""
        own_folder(self.home)
        if not self.drain_requested():
            replace(self.home / "drain.json", json.dumps({"by": by, "at_ms": now_ms}))
            self._spread_news()

    def drain_requested(self) -> bool:
        """Returns True if the driver was asked to end."""
        return self._answer("drain", (self.home / "drain.json").is_file)

    def drained_by(self) -> str | None:
        """Returns who asked the driver to end, or None if nobody did."""
        by = read(self.home, "drain.json", lambda request: str(request["by"]))
        # A request counts even if its file is damaged.
        return "unknown: drain.json is damaged" if by is None and (self.home / "drain.json").is_file() else by

    def forget_drain(self) -> None:
        """Withdraws a drain request, before the next driver is launched."""
        (self.home / "drain.json").unlink(missing_ok=True)
        self._spread_news()

    def accept_loss(self, loss: AcceptedLoss) -> None:
        """Permits the driver to skip the offsets of *loss*, once.

        This permits nothing once the stream is at another offset, or the topic has another id.
        """
        own_folder(self.home)
        losses = [asdict(accepted) for accepted in (*self._losses(), loss)]
        replace(self.home / "loss.json", sealed(self.home, "loss.json", losses))

    def accepted_loss(self) -> dict[tuple[str, int, int | str], int]:
        """Returns the offsets at which the stream may continue.

        A key is the source, the partition, and the offset that the stream would read next, or the id of a recreated
        topic.
        """
        accepted: dict[tuple[str, int, int | str], int] = {}
        for loss in self._losses():
            accepted[loss.source, loss.partition, loss.topic_id or loss.from_offset] = loss.until_offset
        return accepted

    def request_time_reset(self, reset: TimeReset) -> None:
        """Asks the driver to carry out *reset* with its next batch."""
        own_folder(self.home)
        resets = [asdict(requested) for requested in (*self.time_resets(), reset)]
        replace(self.home / "time_resets.json", sealed(self.home, "time_resets.json", resets))
        # Without a driver the next one carries it out with its first batch.
        self._spread_news()

    def time_resets(self) -> list[TimeReset]:
        """Returns all requested time resets, oldest first. The stream's progress knows which of them are done."""

        def ask() -> list[TimeReset]:
            return unsealed(self.home, "time_resets.json", partial(_parsed_list, TimeReset)) or []

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
        """Returns the ids of all requested reopenings, sorted. The stream's progress knows which of them are done."""
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
        """Notes that the late records of the request *id_* are recorded in `requeued`.

        From then on the request may be removed once it is carried out.
        """
        replace(self.home / f"reopen_{id_}.written", "")
        self._spread_news()

    def remove_reopening(self, id_: str) -> bool:
        """Removes the request *id_* if its late records are recorded; returns True if it was removed."""
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
        """Returns the task that has adopted the driver of *launch_id* last, or None if it was never adopted."""
        adopted = self._answer("adoption", lambda: read(self.home, "adopted.json", _texts))
        return adopted.get("by") if adopted and adopted.get("launch_id") == launch_id else None

    def kill_for(self, launch_id: str, stream: str, *, by: str = "") -> None:
        """Records that *by* kills the process of *launch_id* because *stream*, another stream of the process, hangs.

        *stream* is empty if the driver of *launch_id* itself hangs.
        """
        replace(self.home / "killed.json", json.dumps({"launch_id": launch_id, "stream": stream, "by": by}))

    def killed_by(self, launch_id: str) -> str | None:
        """Returns who killed the driver of *launch_id*, if a task did."""
        return self._killed(launch_id).get("by") or None

    def killed_for(self, launch_id: str) -> str | None:
        """Returns the other stream because of which the process of *launch_id* was killed, if there was one."""
        return self._killed(launch_id).get("stream") or None

    def _killed(self, launch_id: str) -> dict[str, str]:
        """Returns what `killed.json` says of *launch_id*, or an empty dictionary if it says nothing."""
        killed = read(self.home, "killed.json", _texts) or {}
        return killed if killed.get("launch_id") == launch_id else {}

    def accept_record(self, record: AcceptedRecord) -> None:
        """Permits the driver to skip *record*, as long as the batch that has it is not decided."""
        own_folder(self.home)
        records = [asdict(accepted) for accepted in (*self.accepted_records(), record)]
        replace(self.home / "accepted_records.json", sealed(self.home, "accepted_records.json", records))

    def accepted_records(self) -> list[AcceptedRecord]:
        """Returns all records that may be skipped, also of batches that were decided since."""
        return unsealed(self.home, "accepted_records.json", partial(_parsed_list, AcceptedRecord)) or []

    def failed_batch(self, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
        """Returns the batch over which drivers failed, as *parse* reads it, or None if there is none."""
        return unsealed(self.home, "failed_batch.json", parse)

    def keep_failed_batch(self, now: Mapping[str, Any]) -> None:
        """Stores the failed batch *now* in place of the earlier one."""
        replace(self.home / "failed_batch.json", sealed(self.home, "failed_batch.json", now))

    def meanings(self) -> dict[str, str]:
        """Returns what the topology file says about each thing that the stream keeps, as of the newest driver.

        The keys are those of `OperatorStep.meaning`. The result is empty before the first driver.
        """
        return unsealed(self.home, "meanings.json", _texts) or {}

    def keep_meanings(self, now: Mapping[str, str]) -> None:
        """Stores the meanings *now*; earlier ones of other keys stay."""
        replace(self.home / "meanings.json", sealed(self.home, "meanings.json", {**self.meanings(), **now}))

    def sources(self) -> list[ListedSource]:
        """Returns the sources of the stream in the order of its checkpoint, none before the first driver."""
        return unsealed(self.home, SOURCES, partial(_parsed_list, ListedSource)) or []

    def keep_sources(self, now: Sequence[ListedSource]) -> None:
        """Stores the sources *now* in place of the earlier ones."""
        replace(self.home / SOURCES, sealed(self.home, SOURCES, [asdict(source) for source in now]))

    def source_changes(self) -> list[TopologyChange]:
        """Returns the changes of sources that the newest batch may not have recorded, oldest first."""
        return read(self.home, SOURCE_CHANGES, partial(_parsed_list, TopologyChange)) or []

    def keep_source_changes(self, now: Sequence[TopologyChange]) -> None:
        """Stores the changes *now* in place of the earlier ones."""
        replace(self.home / SOURCE_CHANGES, json.dumps([asdict(change) for change in now]))

    def begun(self) -> list[TopologyChange]:
        """Returns the operators that began anew, oldest first."""
        return unsealed(self.home, "begun.json", partial(_parsed_list, TopologyChange)) or []

    def begun_behind(self, batch_id: int) -> set[str]:
        """Returns the operators that began anew and that no batch up to *batch_id* has run since."""
        return {operator.name for operator in self.begun() if operator.begins_behind(batch_id)}

    def begin_anew(self, operators: Iterable[TopologyChange], now: Mapping[str, str] | None = None) -> None:
        """Records that *operators* begin anew, each after its batch.

        *now* replaces the stored meanings, unless it is None.
        """
        # An interrupted call is repeated, and then no longer knows the former meaning: so its first record stays.
        before, new = self.begun(), [*operators]
        first_after = min((operator.after for operator in new), default=-1)
        by_name = {(each.name, each.after): each for each in [*new, *before] if each.after >= first_after}
        begun = [*by_name.values()]
        if begun != before:
            records = [asdict(operator) for operator in begun]
            replace(self.home / "begun.json", sealed(self.home, "begun.json", records))
        if now is None:
            return
        replace(self.home / "meanings.json", sealed(self.home, "meanings.json", dict(now)))

    def lineage_sent(self) -> dict[str, Any] | None:
        """Returns the last event that was sent to OpenLineage, or None before the first."""
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
        """Claims the epoch after the newest one, and returns it. A claim excludes drivers on other hosts, too."""
        claims = self._claims()
        # A driver that died after its claim has not written its epoch to the file `epoch`.
        epoch = max([self._written_epoch(), *claims]) + 1
        # A lock that another host holds may not be visible here. But a file can be created only once, on NFS, too.
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
            now_ms: the clock (epoch ms), or None if a take-over is not wanted.
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
        # An earlier driver that wakes up has to see this before the new one writes anything.
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
        return unsealed(self.home, "loss.json", partial(_parsed_list, AcceptedLoss)) or []


def _parsed_list(cls: type[T], items: Iterable[Mapping[str, Any]]) -> list[T]:
    return [parsed(cls, item) for item in items]


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
