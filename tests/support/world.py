"""A world in which the drivers of a topology live, with producers, brokers, hosts and clocks that faults can move.

There is one true time, which is that of the brokers. Streams are played one after the other (`world_drivers`), those
behind a hop last: a reader sees what its writer had committed by its own look.

Instants are true epoch ms unless a clock is named; seconds are those of the play, after noon.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, Self
from unittest.mock import patch

from support.play import Play, Row, ms
from support.world_drivers import Driver
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.semantics.skew import Skew
from tidemark.storage.delta import log
from tidemark.stream.decide import decision


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What everything usually takes, ms."""

    look: int = 20
    plan: int = 40
    read: int = 30
    work: int = 10
    per_record: float = 0
    """Work of each operator on each record that the stream reads."""
    journal: int = 10
    write: int = 20
    spark: int = 20


@dataclass
class Host:
    """A host, whose wall clock is ahead by `ahead_ms` and by all `steps` (instant, ms) before.

    Its boot clock never steps.
    """

    name: str
    ahead_ms: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    is_measured: bool = True
    booted_ms: int = ms(-3_600)

    def wall_ms(self, at_ms: int) -> int:
        return at_ms + self.ahead_ms + sum(by_ms for step_ms, by_ms in self.steps if step_ms <= at_ms)

    def boot_ms(self, at_ms: int) -> int:
        return at_ms - self.booted_ms

    def skew(self, at_ms: int) -> Skew | None:
        """Returns how far the wall clock is off at that instant; None: nobody measures it."""
        return Skew(offset_ms=at_ms - self.wall_ms(at_ms), error_ms=3) if self.is_measured else None


@dataclass(frozen=True)
class Traffic:
    """What producers send to a source: `each` records to each partition every `every_s`, which arrive `usual_ms` later.

    The first ones are sent `after_s` after noon. The field `value` goes up. Keys are `a0`, `a1` and so on in partition
    0, and `b0` and so on in partition 1.
    """

    source: str = "events"
    partitions: int = 2
    every_s: float = 10
    each: int = 3
    usual_ms: int = 200
    value: str = "amount"
    after_s: float = 0

    def between(self, since_ms: int, until_ms: int) -> Iterator[Sent]:
        """Yields what is sent after *since_ms*, up to *until_ms*."""
        every_ms, first_ms = round(self.every_s * 1_000), ms(self.after_s)
        rounds = max(0, (since_ms - first_ms) // every_ms + 1)
        for at_ms in range(first_ms + rounds * every_ms, until_ms + 1, every_ms):
            for partition in range(self.partitions):
                for n in range(self.each):
                    key, amount = f"{chr(97 + partition)}{n}", (at_ms - ms(0)) / 1_000 + n / 100 + 100
                    arrived_ms = at_ms + self.usual_ms
                    event_ms = at_ms - n * self.partitions - partition  # no two records have one time
                    yield Sent(self.source, partition, at_ms, event_ms, arrived_ms, key, {self.value: amount})


@dataclass(frozen=True)
class Sent:
    """A record: sent at `sent_ms` with the time `event_ms` of its producer's clock.

    It arrives at `arrived_ms`, and can be read from `readable_ms` on (None: at once). A record that cannot be used has
    a `reason` and its bytes.
    """

    source: str
    partition: int
    sent_ms: int
    event_ms: int
    arrived_ms: int
    key: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    readable_ms: int | None = None
    reason: str | None = None
    value: bytes | None = None
    headers: tuple[Mapping[str, Any], ...] = ()


class Fault:
    """Something that happens in a world, from an instant on.

    A fault overrides what it changes. `World.planted` has what it did each time: so many ms, or 1 for each record if
    it `is_of_records`.
    """

    is_of_records: ClassVar[bool] = False

    def begin(self, world: World) -> None:
        """Changes the world when the fault is planted."""

    @property
    def whose(self) -> tuple[str, str]:
        """The owner, and its detail, to whom what happens belongs."""
        raise NotImplementedError

    def end(self, world: World, at_s: float) -> None:
        """Changes what is in the warehouse before it is judged at that second."""

    def sends(self, world: World, sent: Sent) -> Iterable[Sent]:
        """Returns what is sent in place of a record."""
        return [sent]

    def extra_ms(self, driver: Driver, owner: str, detail: str) -> int:
        """Returns how much longer *owner* takes than usual, now."""
        return 0

    def stops(self, sub: str) -> Iterable[tuple[int, int]]:
        """Returns when the process of *sub* is stopped by a signal, and for how long."""
        return ()

    def kills(self, sub: str) -> Iterable[tuple[int, int]]:
        """Returns when the driver of *sub* is killed, and how long after that the next one looks for records."""
        return ()


class World:
    """A topology in the warehouse *home*, whose drivers begin at noon, or at *starts_s* by sub-topology.

    Attributes:
        planted: by fault, what it added each time.
        hosts: the host of each stream's driver, by sub-topology.
        partitions: of each topic.
    """

    def __init__(
        self,
        toml: str,
        home: Path,
        *,
        traffic: Sequence[Traffic] = (Traffic(),),
        costs: Costs = Costs(),
        starts_s: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.toml, self.home, self.traffic, self.costs = toml, home, tuple(traffic), costs
        self.play = Play(toml, home, facts_every_ms=60_000)
        self.topology, self.layout = self.play.topology, Layout(home)
        self.partitions = max((each.partitions for each in traffic), default=1)
        self.hosts = {sub.name: Host(f"host-{sub.name}") for sub in self.topology.sub_topologies}
        self.faults: tuple[Fault, ...] = ()
        self.planted: dict[Fault, list[int]] = defaultdict(list)
        self.on_way: list[Sent] = []
        self.arrived: dict[tuple[str, int], list[tuple[Sent, Row]]] = defaultdict(list)
        self.sent_ms = self.now_ms = ms(0)
        self.drivers = {
            sub.name: Driver(self, sub.name, ms(starts_s.get(sub.name, 0))) for sub in self.topology.sub_topologies
        }

    def copy(self, home: Path) -> World:
        """Returns the world as far as it has come, in the warehouse *home*, with engines that start again."""
        shutil.copytree(self.home, home)
        world = World(self.toml, home, traffic=self.traffic, costs=self.costs)
        world.play = self.play.copy(home)
        world.on_way, world.sent_ms, world.now_ms = [*self.on_way], self.sent_ms, self.now_ms
        world.arrived = defaultdict(list, {place: [*records] for place, records in self.arrived.items()})
        world.drivers = {name: driver.copy(world) for name, driver in self.drivers.items()}
        return world

    def plant(self, *faults: Fault) -> Self:
        """Lets *faults* happen from now on."""
        self.faults += faults
        for fault in faults:
            fault.begin(self)
        return self

    def run(self, until_s: float) -> None:
        """Lets everything happen until that second. What a driver has begun and not finished by then is lost."""
        until_ms = ms(until_s)
        self._send(until_ms)
        sleeping = patch.object(decision, "time", SimpleNamespace(sleep=self._sleep))
        # Delta's log has the time of a commit by the clock of the host that made it.
        logging = patch.object(log, "wall_clock_ms", lambda: self._running.host.wall_ms(self._running.now_ms))
        with sleeping, logging:
            for driver in self.drivers.values():
                self._running = driver
                driver.run(until_ms)
        self.now_ms = until_ms

    def _sleep(self, seconds: float) -> None:
        self._running.works()

    def _send(self, until_ms: int) -> None:
        """Puts into the topics what arrives until then, in the order of arrival."""
        new = [sent for each in self.traffic for sent in each.between(self.sent_ms, until_ms)]
        for fault in self.faults:
            new = [changed for sent in new for changed in fault.sends(self, sent)]
        self.on_way = sorted([*self.on_way, *new], key=lambda sent: (sent.arrived_ms, sent.partition, sent.sent_ms))
        while self.on_way and self.on_way[0].arrived_ms <= until_ms:
            sent = self.on_way.pop(0)
            self.arrived[self.topic(sent.source), sent.partition].append((sent, self._row(sent)))
        self.sent_ms = until_ms

    def topic(self, source: str) -> str:
        """Returns the topic of *source*."""
        operator = self.topology.operators[source]
        assert isinstance(operator, Source)
        return operator.topic or ""

    def _row(self, sent: Sent) -> Row:
        columns = self.topology.operators[sent.source].columns  # type: ignore[attr-defined]
        own = {"id": sent.key} if "id" in columns else {}
        row = self.play.row(sent.source, sent.event_ms, partition=sent.partition, key=sent.key, **own, **sent.fields)
        if sent.reason:
            row = {name: row[name] for name in ("source", "partition", "offset")}
            row |= {"value": sent.value or b"\xff", "reason": sent.reason}
        row |= {"stamped_ms": self.stamp_ms(sent)}
        return row | ({"headers": [*sent.headers]} if sent.headers else {})

    def end(self, topic: str, partition: int, at_ms: int) -> int:
        """Returns the end offset of a partition at that instant."""
        return bisect_right(self.arrived[topic, partition], at_ms, key=lambda pair: pair[0].arrived_ms)

    def stable_end(self, topic: str, partition: int, at_ms: int) -> int:
        """Returns its last stable offset: that of the first record whose transaction is open."""
        records = self.arrived[topic, partition]
        end = self.end(topic, partition, at_ms)
        is_open = (n for n in range(end) if (records[n][0].readable_ms or 0) > at_ms)
        return next(is_open, end)

    def stamp_ms(self, sent: Sent) -> int:
        """Returns LogAppendTime: the broker's clock is the true time."""
        return sent.arrived_ms

    def extra_ms(self, driver: Driver, owner: str, detail: str) -> int:
        """Returns how much longer *owner* takes than usual, and notes it."""
        extra_ms = 0
        for fault in self.faults:
            if added_ms := fault.extra_ms(driver, owner, detail):
                self.planted[fault].append(added_ms)
                extra_ms += added_ms
        return extra_ms
