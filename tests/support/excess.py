"""Whose time broke a promise, from what happened in a world.

Nothing here reads a fact that the product recorded, or shares code with its account of time: each result is followed
through the lives of the drivers, and compared with results that kept the promise before. Only records are followed:
windows are not, and of records that a plan left behind only the time is, not whose debts it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from support.planted import Whose
from support.world import Sent, World
from support.world_drivers import Driver
from tidemark.model.kinds.repartition import HopSource


@dataclass(frozen=True)
class Result:
    """A record at a place, and whose the time since its event time was; one that is not visible yet ages until now.

    `visible_ms` is true; the age is by the clock of the host that wrote it, as the product measures it.
    """

    sent: Sent
    visible_ms: int
    is_open: bool
    parts: Counter[Whose]

    @property
    def age_ms(self) -> int:
        return self.parts.total()


def results(world: World, place: str) -> list[Result]:
    """Returns the results of the records that have arrived by now, at the table, hop or topic *place*."""
    driver = next(each for each in world.drivers.values() if place in each.outputs)
    found = []
    for sent, steps, is_open in _followed(world, driver, place):
        until_ms, parts = steps[-1][2], _parts(sent, steps)
        parts["clock", driver.host.name] += driver.host.wall_ms(until_ms) - until_ms
        found.append(Result(sent, until_ms, is_open, parts))
    return found


Step = tuple[Driver, int, int]
"""A driver, and the time that a record spent there."""


def _parts(sent: Sent, steps: list[Step]) -> Counter[Whose]:
    partition, visible_ms = f"{sent.source}/{sent.partition}", steps[-1][2]
    if visible_ms < sent.event_ms:
        return Counter({("producer", partition): visible_ms - sent.event_ms})
    parts: Counter[Whose] = Counter()
    parts["producer", partition] = sent.arrived_ms - sent.event_ms
    parts["open_transaction", partition] = steps[0][1] - sent.arrived_ms
    for driver, since_ms, until_ms in steps:
        parts.update(_of_life(driver, since_ms, until_ms))
    return parts


def _followed(world: World, driver: Driver, place: str) -> Iterator[tuple[Sent, list[Step], bool]]:
    """Yields each record with its steps up to *place* of *driver*, and whether it has not got there yet."""
    visible = dict(driver.visible[place])
    if not driver.hops:
        read = [(sent, batch) for batch, records in driver.reads.items() for sent in records]
        unread = [
            (sent, -1)
            for place_, records in world.arrived.items()
            if place_[0] in driver.topics
            for sent, _ in records[driver.taken[place_] :]
            if driver.began_ms is None
        ]
        for sent, batch in [*read, *unread]:
            until_ms = visible.get(batch)
            yield sent, [(driver, _readable_ms(driver, sent), until_ms or world.now_ms)], until_ms is None
        return
    ((hop, source),) = driver.hops.items()
    assert isinstance(source, HopSource)
    writer = world.drivers[source.upstream]
    numbers, ends = zip(*sorted(driver.hop_ends.items()), strict=True) if driver.hop_ends else ((), ())
    written = dict(writer.visible[hop])
    for sent, steps, is_open in _followed(world, writer, hop):
        committed_ms = steps[-1][2]
        batch = next((b for b, at_ms in written.items() if at_ms == committed_ms), None)
        n = None if is_open or batch is None else bisect_right(ends, batch)
        until_ms = None if n is None or n >= len(numbers) else visible.get(numbers[n])
        own = [] if is_open else [(driver, committed_ms, until_ms or world.now_ms)]
        yield sent, [*steps, *own], is_open or until_ms is None


def _readable_ms(driver: Driver, sent: Sent) -> int:
    """Returns when a record could be read: when it arrived, or at the first look after its transaction.

    Of a transaction that no look has seen nobody knows.
    """
    looks = [look.at_ms for look in driver.looks if look.at_ms >= sent.arrived_ms]
    if sent.readable_ms is None or not looks or looks[0] >= sent.readable_ms:
        return sent.arrived_ms
    return next((at_ms for at_ms in looks if at_ms >= sent.readable_ms), driver.now_ms)


def _of_life(driver: Driver, since_ms: int, until_ms: int) -> Counter[Whose]:
    """Returns whose the time of *driver* was between two instants."""
    parts: Counter[Whose] = Counter()
    first = max(0, bisect_right(driver.life, since_ms, key=lambda stretch: stretch.began_ms) - 1)
    for stretch in driver.life[first:]:
        if stretch.began_ms >= until_ms:
            break
        spent_ms = min(stretch.ended_ms, until_ms) - max(stretch.began_ms, since_ms)
        if spent_ms > 0:
            parts[stretch.owner, stretch.detail] += spent_ms
    return parts


@dataclass(frozen=True)
class Excess:
    """The excess of an owner in the broken results that it touched."""

    largest_ms: int
    median_ms: float
    touched: int


def excess(found: list[Result], limit_ms: int, since_ms: int) -> dict[Whose, Excess]:
    """Returns by owner its excess in results that became visible after *since_ms*, later than *limit_ms*.

    What is usual is the median in results before that kept the promise; an owner touched a result if its excess is over
    100 ms and a tenth of its largest (the specification's rules 2 and 5).
    """
    kept = [each for each in found if not each.is_open and each.visible_ms <= since_ms and each.age_ms <= limit_ms]
    usual = {whose: median(each.parts[whose] for each in kept) for each in kept for whose in each.parts}
    of_owner: dict[Whose, list[float]] = defaultdict(list)
    for each in found:
        if each.visible_ms > since_ms and each.age_ms > limit_ms:
            for whose, part_ms in each.parts.items():
                of_owner[whose].append(max(0, part_ms - usual.get(whose, 0)))
    return {
        whose: Excess(round(max(all_ms)), median(touched), len(touched))
        for whose, all_ms in of_owner.items()
        if (touched := [each for each in all_ms if each > max(100, max(all_ms) / 10)])
    }


def is_tiled(driver: Driver) -> bool:
    """Returns whether the life of *driver* has neither a gap nor an overlap."""
    return all(one.ended_ms == other.began_ms for one, other in pairwise(driver.life))
