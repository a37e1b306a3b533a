"""Feed of five devices over 40 s with all kinds of faults.

A seed gives the same feed.

Device `e` has a partition of its own and is silent for most of the time; the others pause for longer than the gap that
ends a session. `d` comes back with what it measured yesterday. `c` is deleted and reports again, `b` is deleted for
good. Instants are epoch ms; those in capitals are ms since the feed's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from streaming.sending import WriterPosition

TOPIC = "readings"
PARTITION = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}
PAUSE = {"b": (12_000, 19_000), "c": (20_000, 27_000), "d": (14_000, 22_000), "e": (6_000, 38_000)}
LENGTH, EVERY = 40_000, 500
NEW_FIRMWARE = 24_000  # from then on `a` reports its humidity too
SETTLED = 42_000  # the time to which every partition has come at the end
ALL_CLOSED = 80_000
HOUR = 3_600_000


def feed(start_ms: int, *, seed: int = 7) -> list[WriterPosition]:
    """Returns the feed in sending order; it ends with SETTLED partitions."""
    chance = Random(seed)
    found = [sent for device in PARTITION for sent in _readings(device, start_ms, chance)]
    found += _backlog(start_ms)
    found += _faults(start_ms)
    found += [_alive(start_ms + at, start_ms + at, 1) for at in (10_000, 20_000, 30_000)]
    found += [_deleted("c", start_ms + 20_000), _deleted("b", start_ms + 41_000, start_ms + 49_000)]
    found += [_deleted("a ghost", start_ms + 21_000)]
    found += [_alive(start_ms + SETTLED, start_ms + 50_000, partition) for partition in range(3)]
    return sorted(found, key=lambda sent: sent.at_ms)


def edge(watermark_ms: int) -> list[WriterPosition]:
    """Returns readings of new devices where rules change, at *watermark_ms*.

    No session takes the first any more, nor any reading as old; the session of the second has just closed; that of
    the third is open for one more millisecond; the fourth has two sessions until its last reading makes them one.
    """
    ages = [("late", 15_000), ("closed", 14_999), ("open", 14_998)]
    ages += [("joined", 7_000), ("joined", -1_000), ("joined", 3_000)]
    return [_reading(device, watermark_ms - age, watermark_ms, temp_c=20.0, battery=50) for device, age in ages]


def closing(start_ms: int) -> list[WriterPosition]:
    """Returns records that bring all partitions to ALL_CLOSED.

    Every session has closed then.
    """
    return [_alive(start_ms + ALL_CLOSED, start_ms + ALL_CLOSED, partition) for partition in range(3)]


def _readings(device: str, start_ms: int, chance: Random) -> Iterator[WriterPosition]:
    """Generates readings that mostly repeat.

    One in 25 is out of range, one is missing, one comes seconds late.
    """
    temp_c, battery = chance.randrange(30, 50) / 2, chance.randrange(60, 100)
    pause_from, pause_until = PAUSE.get(device, (0, 0))
    for at in range(0, LENGTH, EVERY):
        temp_c += chance.choice((-0.5, 0.5)) if chance.random() < 0.15 else 0
        battery -= chance.random() < 0.05
        happened_at = at + chance.randrange(400)
        if pause_from <= happened_at < pause_until:
            continue
        shown = chance.choices((temp_c, 999.5, None), (23, 1, 1))[0]
        is_slow = device != "e" and chance.random() < 0.04
        delay = chance.randrange(3_000, 8_000) if is_slow else chance.randrange(1_500)
        humidity = {"humidity": chance.choice((40, 40, 40, 41))} if device == "a" and at >= NEW_FIRMWARE else {}
        happened_at_ms = start_ms + happened_at
        yield _reading(device, happened_at_ms, happened_at_ms + delay, temp_c=shown, battery=battery, **humidity)


def _backlog(start_ms: int) -> list[WriterPosition]:
    sent_at_ms = start_ms + PAUSE["d"][1]
    return [_reading("d", start_ms - hours * HOUR, sent_at_ms, temp_c=18.5, battery=40) for hours in range(24, 0, -1)]


def _faults(start_ms: int) -> list[WriterPosition]:
    """Returns one unusable record per reason, two for the last."""
    at_ms = start_ms + 8_000
    sound = _reading("a", at_ms, at_ms, temp_c=20.0, battery=50)
    value = sound.value or b""
    return [
        sound._replace(key=None, value=None),
        sound._replace(key=b"\xff"),
        sound._replace(value=value.replace(b"{", b'{"note":"\xff",')),
        sound._replace(value=value[: len(value) // 2]),
        _reading("a", at_ms, at_ms, temp_c="warm", battery=50),
        sound._replace(value=b'{"temp_c":20.0,"battery":50}'),
        _reading("a", 0, at_ms, temp_c=20.0, battery=50),
        _reading("a", at_ms // 1_000, at_ms, temp_c=20.0, battery=50),
    ]


def _reading(device: str, happened_at_ms: int, sent_at_ms: int, **fields: Any) -> WriterPosition:
    value = json.dumps({**fields, "event_time": happened_at_ms}).encode()
    return WriterPosition(sent_at_ms, TOPIC, PARTITION.get(device, 0), device.encode(), value, happened_at_ms)


def _deleted(device: str, happened_at_ms: int, sent_at_ms: int | None = None) -> WriterPosition:
    at_ms = sent_at_ms or happened_at_ms
    return WriterPosition(at_ms, TOPIC, PARTITION.get(device, 0), device.encode(), None, happened_at_ms)


def _alive(happened_at_ms: int, sent_at_ms: int, partition: int) -> WriterPosition:
    value = json.dumps({"event_time": happened_at_ms}).encode()
    return WriterPosition(sent_at_ms, TOPIC, partition, None, value, happened_at_ms)
