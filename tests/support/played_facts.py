"""The facts that the drivers of a world could have recorded, in the frames of `account/facts.py`.

They come from what was played, not from the warehouse: the account of time can be asked about a play before a driver
records all of them, and what a driver records can be compared with them. Records that a plan left behind are not told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import polars as pl

from support.world import World
from support.world_drivers import Driver, Stretch
from tidemark.account import facts as frames
from tidemark.account.facts import AccountFacts

Key = tuple[str, int | None, int]
"""Input, partition and event time of a record."""
Rows = dict[str, list[dict[str, Any]]]
HEARTBEAT_MS = 1_000
"""A driver tells of its life this often."""


def played_facts(world: World) -> AccountFacts:
    """Returns the facts of *world* until now."""
    rows: Rows = defaultdict(list)
    for driver in world.drivers.values():
        for epoch, life in enumerate(_lives(driver), start=1):
            _tell_of_life(rows, driver, epoch, life)
        _tell_of_reads(rows, driver)
        for place in driver.outputs:
            _tell_of_results(rows, world, driver, place)
    return AccountFacts(**{name: pl.DataFrame(of, schema=getattr(frames, name.upper())) for name, of in rows.items()})


def _lives(driver: Driver) -> list[list[Stretch]]:
    """Returns the life of each driver of the stream, one after the other."""
    lives: list[list[Stretch]] = [[]]
    for stretch in driver.life:
        if stretch.owner != "absence":
            lives[-1].append(stretch)
        elif lives[-1]:
            lives.append([])
    return [life for life in lives if life]


def _decided(driver: Driver) -> list[tuple[int, int, int]]:
    """Returns the batches that have an entry in the journal: what changes nothing has none."""
    written_ms = [each.ended_ms for each in driver.life if (each.owner, each.detail) == ("target", "journal")]
    return [batch for batch in driver.batches if any(batch[1] < at_ms <= batch[2] for at_ms in written_ms)]


def _tell_of_life(rows: Rows, driver: Driver, epoch: int, life: list[Stretch]) -> None:
    host, same = driver.host, {"stream": driver.name, "driver": epoch}
    began_ms, ended_ms = life[0].began_ms, life[-1].ended_ms
    is_last = epoch == driver.epoch
    beats = [began_ms, *range(began_ms - began_ms % HEARTBEAT_MS + HEARTBEAT_MS, ended_ms + 1, HEARTBEAT_MS)]
    still = [each for each in life if each.owner == "pause"]
    beats = [at for at in beats if not any(each.began_ms < at < each.ended_ms for each in still)]
    if is_last and beats[-1] < ended_ms:
        beats.append(ended_ms)
    decided = _decided(driver)
    ends = [ended for _, _, ended in decided]
    owned = life[0]
    for stretch in life:
        # A pause of the process is inside of what its main thread was doing.
        owned = owned if stretch.owner == "pause" else stretch
        until_ms = min(stretch.ended_ms, max(beats[-1], ends[-1] if ends else 0))
        n = bisect_right(ends, stretch.began_ms)
        batch_id = decided[n][0] if n < len(decided) else len(driver.batches)
        if stretch.began_ms < until_ms:
            instants = {"began_ms": host.boot_ms(stretch.began_ms), "ended_ms": host.boot_ms(until_ms)}
            rows["segments"].append(
                same | instants | {"batch_id": batch_id, "owner": owned.owner, "detail": owned.detail}
            )
    for before_ms, at_ms in pairwise(beats):
        gaps = [dict(zip(("began_ms", "ended_ms"), gap, strict=True)) for gap in driver.pulse_gaps(before_ms, at_ms)]
        rows["heartbeats"].append(
            same
            | {"host": host.name, "began_ms": host.boot_ms(before_ms), "ended_ms": host.boot_ms(at_ms)}
            | {"wall_ms": host.wall_ms(at_ms), "gaps": [gap | {"cpu_ms": 0} for gap in gaps]}
        )
        if skew := host.skew(at_ms):
            measured = {"at_ms": host.boot_ms(at_ms), "offset_ms": skew.offset_ms, "error_ms": skew.error_ms}
            rows["clocks"].append(same | {"host": host.name} | measured)
    for number, looked_ms, ended in decided:
        if began_ms <= looked_ms and ended <= ended_ms:
            look = next(each for each in driver.looks if each.at_ms == looked_ms)
            is_first = look.excluded_ms is None or look.excluded_ms < began_ms
            rows["batches"].append(
                same
                | {"batch_id": number, "host": host.name, "wall_ms": host.wall_ms(looked_ms)}
                | {"boot_ms": host.boot_ms(looked_ms), "looked_ms": host.boot_ms(looked_ms)}
                | {"excluded_ms": None if is_first else host.boot_ms(look.excluded_ms or 0)}
            )


def _tell_of_reads(rows: Rows, driver: Driver) -> None:
    seen: set[tuple[object, ...]] = set()
    hop = next(iter(driver.hops.values()), None)
    numbers = _numbers(driver)
    of_writer = _numbers(driver.world.drivers[hop.upstream]) if hop else {}
    for batch_id, key, sent, written in _read(driver):
        if (batch_id, *key) in seen:
            continue
        seen.add((batch_id, *key))
        source, partition, event_ms = key
        is_of_hop = written is not None
        # Only a look that saw the record beyond the last stable offset tells of a transaction.
        in_transaction = sent.readable_ms is not None and any(
            sent.arrived_ms <= look.at_ms < sent.readable_ms for look in driver.looks
        )
        rows["reads"].append(
            {
                "stream": driver.name, "batch_id": batch_id, "input": source, "partition": partition,
                "row": numbers[batch_id, *key].of_partition, "event_ms": event_ms, "newest_ms": event_ms, "n": 1,
                "arrived_ms": None if is_of_hop else driver.world.stamp_ms(sent),
                "arrival_error_ms": None if is_of_hop else 0,
                "in_transaction": in_transaction and not is_of_hop, "left_by": None,
                "writer": f"{driver.world.topology.name}/{hop.upstream}" if hop and is_of_hop else None,
                "writer_place": hop.name if hop and is_of_hop else None,
                "writer_batch": written and written[0],
                "writer_row": written and of_writer[written].of_batch,
            }
        )  # fmt: skip


class Numbers(NamedTuple):
    """The row of a record among those of its batch, and among those of its partition there."""

    of_batch: int
    of_partition: int


def _numbers(driver: Driver) -> dict[tuple[int, str, int | None, int], Numbers]:
    """Returns the rows of what each batch read, by batch, input, partition and event time."""
    of_batch, of_partition = Counter[int](), Counter[tuple[int, str, int | None]]()
    numbers: dict[tuple[int, str, int | None, int], Numbers] = {}
    for batch_id, key, _, _ in _read(driver):
        if (batch_id, *key) not in numbers:
            numbers[batch_id, *key] = Numbers(of_batch[batch_id], of_partition[batch_id, *key[:2]])
            of_batch[batch_id] += 1
            of_partition[batch_id, *key[:2]] += 1
    return numbers


def _read(driver: Driver) -> Iterator[tuple[int, Key, Any, tuple[int, str, int | None, int] | None]]:
    """Yields what batches read: batch, input, partition and event time, the record, and batch and key of its writer."""
    for batch_id, records in driver.reads.items():
        for sent in records:
            yield batch_id, (sent.source, sent.partition, sent.event_ms), sent, None
    for source in driver.hops.values():
        writer = driver.world.drivers[source.upstream]
        numbers, ends = [*driver.hop_ends], [*driver.hop_ends.values()]
        for written, key, sent, _ in _read(writer):
            n = bisect_right(ends, written)
            if n < len(numbers):
                yield numbers[n], (source.name, None, key[2]), sent, (written, *key)


def _tell_of_results(rows: Rows, world: World, driver: Driver, place: str) -> None:
    hop = next((source for name, source in _read_by(world) if name == place), None)
    visible, numbers = dict(driver.visible[place]), _numbers(driver)
    for batch_id, source, partition, event_ms in dict.fromkeys((batch, *key) for batch, key, _, _ in _read(driver)):
        at_ms = visible.get(batch_id)
        if at_ms is not None:
            epoch = 1 + sum(each.owner == "absence" and each.ended_ms <= at_ms for each in driver.life)
            rows["results"].append(
                {
                    "stream": driver.name, "batch_id": batch_id, "driver": epoch, "place": hop.name if hop else place,
                    "visible_ms": driver.host.wall_ms(at_ms), "visible_boot_ms": driver.host.boot_ms(at_ms),
                    "row": numbers[batch_id, source, partition, event_ms].of_batch,
                    "read_batch": batch_id, "input": source, "partition": partition,
                    "read_row": numbers[batch_id, source, partition, event_ms].of_partition,
                    "event_ms": event_ms, "n": 1,
                }
            )  # fmt: skip


def _read_by(world: World) -> Iterator[tuple[str, Any]]:
    for driver in world.drivers.values():
        yield from driver.hops.items()
