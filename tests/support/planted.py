"""Faults that tests plant into a `World`: each is data, and knows whose fault it is.

`whose` is the owner and its detail, as in `account/owners/`. Seconds are those of the play; a fault lasts from
`since_s` to `until_s` of true time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.play import NOON, ms
from support.world import Fault, Sent, World
from support.world_drivers import Driver
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.stream.driver.heartbeats import Heartbeats

Whose = tuple[str, str]
FOR_EVER = math.inf
ROUND_S = 10
"""All keys are sent within this time."""


def _lasts(at_ms: int, since_s: float, until_s: float) -> bool:
    return since_s * 1_000 <= at_ms - NOON < until_s * 1_000


@dataclass(frozen=True)
class Slow(Fault):
    """An owner of a stream's time takes `by_ms` longer each time, or only the first `times`.

    It is an operator, a target (a table, a topic, `journal`; "" is each of them: a slow disk), the broker (reading),
    Spark (planning), or slots, which are held by the stream `detail`.
    """

    owner: str
    detail: str
    by_ms: int
    since_s: float
    until_s: float = FOR_EVER
    times: float = FOR_EVER
    sub: str | None = None

    @property
    def whose(self) -> Whose:
        return self.owner, self.detail

    def extra_ms(self, driver: Driver, owner: str, detail: str) -> int:
        is_meant = owner == self.owner and self.detail in {"", detail} and self.sub in {None, driver.sub}
        had = len(driver.world.planted[self])
        return self.by_ms if is_meant and had < self.times and _lasts(driver.now_ms, self.since_s, self.until_s) else 0


@dataclass(frozen=True)
class Stopped(Fault):
    """A signal stops the process of `sub` for a while; records go on arriving, and the boot clock goes on."""

    sub: str
    at_s: float
    for_ms: int

    @property
    def whose(self) -> Whose:
        return "pause", f"play/{self.sub}"

    def begin(self, world: World) -> None:
        world.planted[self] = [self.for_ms]

    def stops(self, sub: str) -> Iterable[tuple[int, int]]:
        return [(ms(self.at_s), self.for_ms)] if sub == self.sub else []


@dataclass(frozen=True)
class Killed(Fault):
    """The driver of `sub` is killed, and the next one looks for records after `for_ms`; infinite: there is none."""

    sub: str
    at_s: float
    for_ms: float = FOR_EVER

    @property
    def whose(self) -> Whose:
        return "absence", f"play/{self.sub}"

    def begin(self, world: World) -> None:
        world.planted[self] = [] if self.for_ms == FOR_EVER else [round(self.for_ms)]

    def kills(self, sub: str) -> Iterable[tuple[int, int]]:
        return [(ms(self.at_s), round(min(self.for_ms, 10**9)))] if sub == self.sub else []


@dataclass(frozen=True)
class Drained(Fault):
    """The driver of `sub` ends as it should between two batches, and the next one looks for records after `for_ms`."""

    sub: str
    at_s: float
    for_ms: int

    @property
    def whose(self) -> Whose:
        return "absence", f"play/{self.sub}"

    def kills(self, sub: str) -> Iterable[tuple[int, int]]:
        return [(ms(self.at_s), self.for_ms)] if sub == self.sub else []

    def end(self, world: World, at_s: float) -> None:
        drained = Heartbeat(state=StreamState.DRAINED, epoch=1, launch_id="", at_ms=ms(self.at_s), pid=1)
        running = replace(drained, state=StreamState.RUNNING, epoch=2, at_ms=ms(at_s - 1))
        history = Heartbeats(world.layout.stream("play", self.sub), topology="play", sub_topology=self.sub)
        for beat in (drained, running):
            history.write_if_due(beat, thread_id="t", batch_started_at_ms=None)


@dataclass(frozen=True)
class NewPartition(Fault):
    """Each topic gets one more partition, whose first records are those of `at_s`."""

    at_s: float

    def begin(self, world: World) -> None:
        world.partitions += 1

    def sends(self, world: World, sent: Sent) -> Iterable[Sent]:
        if sent.partition or sent.sent_ms < ms(self.at_s):
            return [sent]
        return [sent, replace(sent, partition=world.partitions - 1, key=f"z{sent.key}", event_ms=sent.event_ms - 10)]


@dataclass(frozen=True)
class Stepped(Fault):
    """The wall clock of the host of `sub` steps by `by_ms`; other hosts measure it, or nobody does."""

    sub: str
    at_s: float
    by_ms: int
    is_measured: bool = True

    @property
    def whose(self) -> Whose:
        return "clock", f"host-{self.sub}"

    def begin(self, world: World) -> None:
        world.planted[self] = [self.by_ms]
        was = world.hosts[self.sub]
        steps = (*was.steps, (ms(self.at_s), self.by_ms))
        world.hosts[self.sub] = replace(was, steps=steps, is_measured=self.is_measured)


@dataclass(frozen=True)
class OfRecords(Fault):
    """Something that happens to what is sent to `source`, to `partition` or to all (None)."""

    is_of_records = True
    partition: int | None
    since_s: float
    until_s: float = field(default=FOR_EVER, kw_only=True)
    source: str = field(default="events", kw_only=True)

    @property
    def whose(self) -> Whose:
        return "producer", f"{self.source}/{self.partition}"

    def sends(self, world: World, sent: Sent) -> Iterable[Sent]:
        is_meant = sent.source == self.source and self.partition in {None, sent.partition}
        if not is_meant or not _lasts(sent.sent_ms, self.since_s, self.until_s):
            return [sent]
        changed = [*self.changed(sent)]
        self.note(world, sent, changed)
        return changed

    def changed(self, sent: Sent) -> Iterable[Sent]:
        """Returns what is sent in place of *sent*."""
        return [sent]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        """Notes what was planted; records, unless it is overridden."""
        world.planted[self].append(1)


@dataclass(frozen=True)
class Late(OfRecords):
    """Records arrive so much later than usual."""

    is_of_records = False
    by_ms: int = field(kw_only=True)

    def changed(self, sent: Sent) -> Iterable[Sent]:
        return [replace(sent, arrived_ms=sent.arrived_ms + self.by_ms)]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        world.planted[self].append(self.by_ms)


@dataclass(frozen=True)
class WrongClock(OfRecords):
    """The producer's clock is ahead, or below 0 behind."""

    is_of_records = False
    ahead_ms: int = field(kw_only=True)

    def changed(self, sent: Sent) -> Iterable[Sent]:
        return [replace(sent, event_ms=sent.event_ms + self.ahead_ms)]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        world.planted[self].append(-self.ahead_ms)


@dataclass(frozen=True)
class Silent(OfRecords):
    """Nothing is sent."""

    @property
    def whose(self) -> Whose:
        return ("topic", self.source) if self.partition is None else ("next_record", f"{self.source}/{self.partition}")

    def changed(self, sent: Sent) -> Iterable[Sent]:
        return []


@dataclass(frozen=True)
class More(OfRecords):
    """Each record is sent `times` over, with keys of their own."""

    times: int = field(kw_only=True)

    @property
    def whose(self) -> Whose:
        return "topic_volume", self.source

    def changed(self, sent: Sent) -> Iterator[Sent]:
        for n in range(self.times):
            yield replace(sent, key=f"{sent.key}{n or ''}", event_ms=sent.event_ms - 10 * n)

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        world.planted[self] += [1] * (len(changed) - 1)


@dataclass(frozen=True)
class Reconnected(OfRecords):
    """A device sends `n` records beside the usual ones, once, all with one key.

    They are older than `youngest_ms` and up to `age_ms` old, evenly.
    """

    n: int = field(kw_only=True)
    age_ms: int = field(kw_only=True)
    youngest_ms: int = field(default=0, kw_only=True)
    key: str = field(kw_only=True)

    @property
    def whose(self) -> Whose:
        return "key", self.key

    def sends(self, world: World, sent: Sent) -> Iterable[Sent]:
        is_first = sent.sent_ms == ms(self.since_s) and sent.key[1:] == "0" and sent.partition == self.partition
        if not is_first or sent.source != self.source:
            return [sent]
        world.planted[self] += [1] * self.n
        span_ms = self.age_ms - self.youngest_ms
        ages = [self.youngest_ms + span_ms * (self.n - place) // self.n for place in range(self.n)]
        return [sent, *(replace(sent, event_ms=sent.sent_ms - age, key=self.key) for age in ages)]


@dataclass(frozen=True)
class InTransaction(OfRecords):
    """A transaction of the producer is open: its records arrive, and can be read from `until_s` on."""

    is_of_records = False

    @property
    def whose(self) -> Whose:
        return "open_transaction", f"{self.source}/{self.partition}"

    def changed(self, sent: Sent) -> Iterable[Sent]:
        return [replace(sent, readable_ms=ms(min(self.until_s, 10**6)))]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        world.planted[self].append((changed[0].readable_ms or 0) - sent.arrived_ms)


@dataclass(frozen=True)
class Unusable(OfRecords):
    """Every `every`th record of a round cannot be used."""

    reason: str = field(default="malformed_json", kw_only=True)
    value: bytes = field(default=b"\xff", kw_only=True)
    every: int = field(default=1, kw_only=True)

    def changed(self, sent: Sent) -> Iterable[Sent]:
        # Keys end with the number of the record in its round.
        if int(sent.key[1:] or 0) % self.every:
            return [sent]
        return [replace(sent, reason=self.reason, value=self.value)]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        if changed[0].reason:
            world.planted[self].append(1)


@dataclass(frozen=True)
class Fields(OfRecords):
    """Fields of records have other values than usual; where the first of each key `are_news`, those are not noted."""

    are_news: bool = field(default=True, kw_only=True)
    owner: str = field(kw_only=True)
    detail: str = field(kw_only=True)
    values: tuple[tuple[str, Any], ...] = field(kw_only=True)

    @property
    def whose(self) -> Whose:
        return self.owner, self.detail

    def changed(self, sent: Sent) -> Iterable[Sent]:
        return [replace(sent, fields={**sent.fields, **dict(self.values)})]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        if not self.are_news or sent.sent_ms >= ms(self.since_s + ROUND_S):
            super().note(world, sent, changed)


@dataclass(frozen=True)
class Repeated(OfRecords):
    """Each record has the id of one that was sent before; the first of each id, which are news, are not noted."""

    def changed(self, sent: Sent) -> Iterable[Sent]:
        header: Mapping[str, Any] = {
            "key": "tidemark-id",
            "value": f"shop/out/1/0/{ord(sent.key[0])}{sent.key[1:]}".encode(),
        }
        return [replace(sent, headers=(header,))]

    def note(self, world: World, sent: Sent, changed: list[Sent]) -> None:
        if sent.sent_ms >= ms(self.since_s + ROUND_S):
            super().note(world, sent, changed)


@dataclass(frozen=True)
class Told(Fault):
    """The driver of `sub` is killed at `at_s`; its last heartbeat has this `state` and `reason`."""

    sub: str
    at_s: float
    state: StreamState = StreamState.FAILED
    reason: str | None = "OSError: no route to host"
    last_s: float | None = None
    """When it was written; None: when the driver was killed."""

    @property
    def whose(self) -> Whose:
        return "absence", f"play/{self.sub}"

    def kills(self, sub: str) -> Iterable[tuple[int, int]]:
        return [(ms(self.at_s), 10**9)] if sub == self.sub else []

    def end(self, world: World, at_s: float) -> None:
        at_ms = ms(self.at_s if self.last_s is None else self.last_s)
        beat = Heartbeat(
            state=self.state, epoch=1, launch_id="", at_ms=at_ms, pid=1, since_ms=ms(self.at_s), reason=self.reason
        )
        Control(world.layout.control("play", self.sub)).beat(beat)
        history = Heartbeats(world.layout.stream("play", self.sub), topology="play", sub_topology=self.sub)
        history.write_if_due(beat, thread_id="t", batch_started_at_ms=None)


@dataclass(frozen=True)
class ShortOfMemory(Fault):
    """The last heartbeat of `sub` says that it takes 950 MiB, that 50 more are left, and that a batch runs since
    `since_s`.
    """

    sub: str
    since_s: float

    @property
    def whose(self) -> Whose:
        return "driver", f"play/{self.sub}"

    def end(self, world: World, at_s: float) -> None:
        beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(at_s - 1), pid=1)
        memory = {"memory_bytes": 950 * 2**20, "memory_free_bytes": 50 * 2**20, "state_bytes": 700 * 2**20}
        history = Heartbeats(world.layout.stream("play", self.sub), topology="play", sub_topology=self.sub)
        history.write_if_due(beat, thread_id="t", batch_started_at_ms=ms(self.since_s), usage=lambda: memory)


@dataclass(frozen=True)
class HalfWritten(Fault):
    """A request of a person to the stream `sub` is half written, so no driver of it starts."""

    sub: str

    @property
    def whose(self) -> Whose:
        return "absence", f"play/{self.sub}"

    def end(self, world: World, at_s: float) -> None:
        (world.layout.control("play", self.sub) / "loss.json").write_text('{"file": "play/re')


@dataclass(frozen=True)
class Tampered(Fault):
    """Somebody changes rows of the table `table` of `sub` before the check: `by` gets its path."""

    is_of_records = True
    sub: str
    table: str
    by: Callable[[Path], object]
    owner: str
    detail: str

    @property
    def whose(self) -> Whose:
        return self.owner, self.detail

    def end(self, world: World, at_s: float) -> None:
        world.drivers[self.sub].flush()
        self.by(world.layout.stream_table("play", self.sub, self.table))
        world.planted[self] = [1]
