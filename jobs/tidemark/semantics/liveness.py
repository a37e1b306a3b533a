"""Says in one word what has become of a stream's driver.

A driver leaves evidence in two places: `heartbeat.json` in the control folder of the stream has its newest heartbeat,
and the table `heartbeats` a row of every few. The newer of the two gives the word. How old it may be depends on where
it lies, because an object store gets heartbeats seldom: LIMITS has that. Whether a task of Airflow may kill a driver is
another question, and RightToKill has its limits.
Clock: epoch ms; heartbeats have the clock of the driver's host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from tidemark.semantics.catching_up import HANGS_AFTER_MS


class Liveness(StrEnum):
    """What has become of the driver of a stream, the worst first.

    Attributes:
        meaning: what is known of a driver in this state, as a clause.
    """

    meaning: str

    FAILED = "failed", "the driver ended with an error, which is its reason"
    DEAD = "dead", "the driver ended without a last heartbeat, or for a next one that has not come for five minutes"
    STUCK = "stuck", "the driver holds its lease, and sends no heartbeat or works on one step for minutes"
    UNKNOWN = "unknown", "no heartbeat is young enough, and this user cannot see the lease; or the stream has none"
    NEVER_STARTED = "never_started", "there is neither a heartbeat nor a batch"
    STARTING = "starting", "the driver holds its lease, and has not started its query yet"
    ROTATED = "rotated", "the driver ended after a number of batches, and the next one is about to start"
    DRAINING = "draining", "the driver was asked to end, and finishes its batch"
    DRAINED = "drained", "the driver ended on request"
    FINISHED = "finished", "the job ended by itself, without an error"
    CATCHING_UP = "catching_up", "the driver runs, records wait unread, and it reads faster than they come in"
    RUNNING = "running", "the driver runs"

    def __new__(cls, word: str, meaning: str = "") -> Self:
        """Creates a member with its *meaning*."""
        member = str.__new__(cls, word)
        member._value_, member.meaning = word, meaning
        return member


class EvidenceKind(StrEnum):
    """Where a heartbeat was read."""

    CONTROL = "heartbeat.json"
    ROWS = "heartbeats"


class StoreKind(StrEnum):
    """Where the control folder and the tables of a stream lie."""

    DISK = "disk"
    OBJECT_STORE = "object store"


@dataclass(frozen=True, kw_only=True)
class SilenceLimits:
    """How old the newest heartbeat may be.

    Attributes:
        every_ms: the longest time between two heartbeats of a healthy driver, as a reader sees them.
        lease_after_ms: after a longer silence somebody must look who holds the lease; if nobody does, the driver is
            dead.
        silent_after_ms: after a longer silence a driver that still holds the lease is stuck.
    """

    every_ms: int
    lease_after_ms: int
    silent_after_ms: int


SILENT_AFTER_MS = 60_000
"""Age of a heartbeat in a control folder from which its driver may be taken over."""
LIMITS: Mapping[tuple[EvidenceKind, StoreKind], SilenceLimits] = MappingProxyType(
    {
        (EvidenceKind.CONTROL, StoreKind.DISK): SilenceLimits(
            every_ms=1_000, lease_after_ms=3_000, silent_after_ms=SILENT_AFTER_MS
        ),
        # Each look at a lease is a request there.
        (EvidenceKind.CONTROL, StoreKind.OBJECT_STORE): SilenceLimits(
            every_ms=20_000, lease_after_ms=SILENT_AFTER_MS, silent_after_ms=SILENT_AFTER_MS
        ),
        # Four rows.
        (EvidenceKind.ROWS, StoreKind.DISK): SilenceLimits(
            every_ms=15_000, lease_after_ms=60_000, silent_after_ms=60_000
        ),
        # Rows of 200 s are written together.
        (EvidenceKind.ROWS, StoreKind.OBJECT_STORE): SilenceLimits(
            every_ms=200_000, lease_after_ms=300_000, silent_after_ms=300_000
        ),
    }
)
"""The limits, by where a heartbeat was read and where the stream is stored."""
REPLACED_WITHIN_MS = HANGS_AFTER_MS
"""A stream whose driver rotated is dead if no next driver has started after this time."""
WITHOUT_BEATS_MS = 86_400_000
"""For so long after its last batch a stream without heartbeats may still have a driver. Its state is then unknown."""


@dataclass(frozen=True, kw_only=True)
class RightToKill:
    """How long a task of Airflow lets a driver be in a state before it kills or replaces the driver, in seconds."""

    silent_s: float = 30.0
    """Without a heartbeat. At least three times the longest time between two, which makes 60 s in an object store."""
    starting_s: float = 180.0
    """Without a first heartbeat after the launch, and after that without a query that has started."""
    working_s: float = 1_800.0
    """On one batch, or while one is due."""
    draining_s: float = 15.0
    """Still running after a drain was requested. In an object store, where drivers look every 20 s, 34 s."""


HAS_DRIVER = frozenset({Liveness.STARTING, Liveness.RUNNING, Liveness.CATCHING_UP, Liveness.DRAINING, Liveness.STUCK})
"""A driver lives, whatever it does."""
GOES_ON = HAS_DRIVER | {Liveness.ROTATED}
"""A driver lives, or the next one is about to start."""
WORKS = GOES_ON - {Liveness.STUCK}
"""A driver does what it should, or the next one is about to start."""
RUNS = frozenset({Liveness.RUNNING, Liveness.CATCHING_UP})
"""A driver lives, and reads."""
AT_REST = frozenset({Liveness.DRAINED, Liveness.FINISHED})
"""Its driver ended because somebody asked for that, or because its job was done: no other one is on its way."""
ENDED_WELL = frozenset({Liveness.DRAINED, Liveness.ROTATED, Liveness.FINISHED})
"""The last heartbeat says that the driver ended as it should."""
REPORTED_ALIVE = frozenset({Liveness.STARTING, Liveness.RUNNING})
"""What a heartbeat says of a driver that has not ended."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A heartbeat, as evidence.

    Attributes:
        kind: where the heartbeat was read.
        reported: the state that the driver reports in it.
        epoch: number of the driver's lease.
        at_ms: when the driver sent it.
        working_since_ms: since when the driver has worked on its batch, or on its start; None if it does neither.
        waits: the driver waits for something outside, such as brokers or a full disk.
        eta_at_ms: when the driver will have read all records; None if it does not catch up, or that is not known.
    """

    kind: EvidenceKind
    reported: Liveness
    epoch: int
    at_ms: int
    working_since_ms: int | None = None
    waits: bool = False
    eta_at_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class DriverEvidence:
    """All that is known of the driver of a stream at an instant.

    Attributes:
        store: where its control folder and its tables lie.
        control: the heartbeat in its control folder; None if there is none, or only one from after the instant.
        row: the newest row of `heartbeats`; None if there is none.
        may_read_control: False for a user without the right to read the control folder.
        is_held: whether a driver holds the lease; None if nobody looked.
        is_drain_requested: whether a drain was requested, and no driver has started since.
        has_batches: whether a batch of the stream has finished by then.
    """

    store: StoreKind
    control: Sign | None = None
    row: Sign | None = None
    may_read_control: bool = True
    is_held: bool | None = None
    is_drain_requested: bool = False
    has_batches: bool = False

    @property
    def newest(self) -> Sign | None:
        """The newer heartbeat; that of the control folder if both are equally old."""
        if self.control is None or self.row is None:
            return self.control or self.row
        return self.row if self.row.at_ms > self.control.at_ms else self.control


def liveness(evidence: DriverEvidence, at_ms: int) -> Liveness:
    """Returns what has become of a driver by *at_ms* (epoch ms), according to *evidence*."""
    newest = evidence.newest
    if newest is None:
        is_new = evidence.may_read_control and not evidence.has_batches
        return Liveness.NEVER_STARTED if is_new else Liveness.UNKNOWN
    if newest.reported is Liveness.ROTATED and at_ms - newest.at_ms > REPLACED_WITHIN_MS:
        return Liveness.DEAD
    if newest.reported not in REPORTED_ALIVE:
        return newest.reported
    if asks_for_lease(evidence, at_ms) and evidence.is_held is False:
        return Liveness.DEAD
    if is_silent(evidence, at_ms):
        return Liveness.UNKNOWN if evidence.is_held is None else Liveness.STUCK
    if _works_for_ms(newest) > HANGS_AFTER_MS:
        return Liveness.STUCK
    if evidence.is_drain_requested:
        return Liveness.DRAINING
    if newest.reported is Liveness.STARTING:
        return Liveness.STARTING
    return Liveness.CATCHING_UP if _catches_up(evidence, newest) else Liveness.RUNNING


def knows_sources(word: Liveness, age_ms: int) -> bool:
    """Returns True if what a driver last reported about its sources still holds.

    The report holds while the driver does what it should, and for REPLACED_WITHIN_MS after it ended as it should, in
    which the next driver may start. *age_ms* is the age of its newest heartbeat.
    """
    if word in ENDED_WELL:
        return age_ms <= REPLACED_WITHIN_MS
    return word in WORKS


def asks_for_lease(evidence: DriverEvidence, at_ms: int) -> bool:
    """Returns True if it matters at *at_ms* (epoch ms) whether the lease is held."""
    newest = evidence.newest
    if newest is None or newest.reported not in REPORTED_ALIVE:
        return False
    return at_ms - newest.at_ms > LIMITS[newest.kind, evidence.store].lease_after_ms


def is_silent(evidence: DriverEvidence, at_ms: int) -> bool:
    """Returns True if a driver that lives should have sent a heartbeat before *at_ms* (epoch ms)."""
    newest = evidence.newest
    if newest is None or newest.reported not in REPORTED_ALIVE:
        return False
    return at_ms - newest.at_ms > LIMITS[newest.kind, evidence.store].silent_after_ms


def _works_for_ms(newest: Sign) -> int:
    """Returns for how long the driver has worked on one step, ms.

    The result is 0 for a driver that works on nothing, and for one whose start waits for something outside.
    """
    is_excused = newest.reported is Liveness.STARTING and newest.waits
    since_ms = None if is_excused else newest.working_since_ms
    return 0 if since_ms is None else newest.at_ms - since_ms


def _catches_up(evidence: DriverEvidence, newest: Sign) -> bool:
    # A driver that waits for something outside made its estimate before that. The row may also be of another driver,
    # whose estimate says nothing about this one.
    row = evidence.row
    is_same_driver = row is not None and row.epoch == newest.epoch
    return row is not None and is_same_driver and row.eta_at_ms is not None and not newest.waits
