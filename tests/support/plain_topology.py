"""Computes a topology of one source in plain Python, record by record.

It uses the standard library only.

Rules: fields lie inside objects, and the event time is seconds with a fraction, as a number or as text. Decimals are
summed exactly; their average has four digits more, rounded half up; a sum of nothing is null. 0.0 and −0.0 are one key.
A record counts towards its partition's time up to the decision time; one beyond MAX_AHEAD_MS is quarantined.
Only windows declare records late, by the watermark of the batch before. Keys matter only where an operator groups.
Instants are epoch ms, UTC.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from support.oracle_parts import EmitOnChange, Place, Read, SourceTime, is_closed, text

MAX_AHEAD_MS = 10_000
WINDOW_MS = 10_000
NEVER_MS = 10**15


CENT, AVERAGE = Decimal("0.01"), Decimal("0.000001")


class Event(NamedTuple):
    """A source record of a *partition*, with its JSON text.

    Its id and Kafka's key may be null. No operator here uses Kafka's key.
    """

    partition: int
    value: bytes


class Content(NamedTuple):
    """The fields of a record, read from its text."""

    at_ms: int
    id: str | None
    v: int
    seen: str
    fare: Decimal | None
    spot: float

    @classmethod
    def of(cls, value: bytes) -> Content:
        """Returns the content of a record."""
        record: dict[str, Any] = json.loads(value, parse_float=Decimal)
        data = record["data"]
        fare = None if data["fare"] is None else Decimal(data["fare"])
        at_ms = int(Decimal(data["occurredAt"]) * 1000)
        return cls(at_ms, record["user.id"], record["v"], record["seen"], fare, float(data["x.y"]))


def money(fares: Sequence[Decimal]) -> dict[str, str | None]:
    """Returns the sum and the average of *fares* as a table has them."""
    if not fares:
        return {"fare": None, "mean": None}
    total = sum(fares, Decimal(0))
    return {"fare": str(total.quantize(CENT)), "mean": str((total / len(fares)).quantize(AVERAGE, ROUND_HALF_UP))}


class Shape(NamedTuple):
    """A drawn topology: settings of its source and operators."""

    bound_ms: int
    idle_after_ms: int | None
    is_filtered: bool
    rule: str
    strategy: str
    allowed_lateness_ms: int
    is_behind_hop: bool


@dataclass
class PlainTopology:
    """Expected results of each operator of *shape*."""

    shape: Shape
    offsets: Counter[int] = field(default_factory=Counter)
    raw: list[Place] = field(default_factory=list)
    late: set[tuple[str, Place]] = field(default_factory=set)
    quarantined: set[tuple[Place, str]] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    fares: dict[str, list[Decimal]] = field(default_factory=lambda: defaultdict(list))
    spots: Counter[float] = field(default_factory=Counter)
    open: dict[tuple[str, int], list[Content]] = field(default_factory=lambda: defaultdict(list))
    closed: list[tuple[str, int, int, int, Decimal | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time = SourceTime(self.shape.bound_ms, self.shape.idle_after_ms or NEVER_MS)
        self.newest = EmitOnChange(self.shape.rule)
        self.sent: list[tuple[str, str, int]] = []

    def batch(self, events: Sequence[Event], decided_at_ms: int) -> None:
        """Take in what one batch read, decided at that instant."""
        for partition in (0, 1):
            arrived = [Content.of(event.value) for event in events if event.partition == partition]
            first = self.offsets[partition]
            self.offsets[partition] += len(arrived)
            moves = [
                min(event.at_ms, decided_at_ms)
                for offset, event in enumerate(arrived, first)
                if self._record(Place("events", partition, offset), event, decided_at_ms)
            ]
            end = self.offsets[partition]
            self.time.listen(Read("events", partition, first, end, end), moves, decided_at_ms)
        self.time.move()
        self._close()

    def _record(self, place: Place, event: Content, decided_at_ms: int) -> bool:
        """Returns true if *event* can be used."""
        if event.at_ms > decided_at_ms + MAX_AHEAD_MS:
            self.quarantined.add((place, "timestamp_in_future"))
            return False
        if self.shape.is_filtered and event.v == 0:
            return True
        self.raw.append(place)
        self.spots[event.spot] += 1
        if event.id is None:
            self.quarantined.add((place, "null_key"))
            return True
        value = text({"seen": event.seen})
        if self.shape.strategy == "on_update" or self.newest.offer(event.id, value, event.at_ms, place):
            self.sent.append((event.id, value, event.at_ms))
        self.counts[event.id] = self.counts.get(event.id, 0) + 1
        self.fares[event.id] += [] if event.fare is None else [event.fare]
        self._window(place, event)
        return True

    def _window(self, place: Place, event: Content) -> None:
        start_ms = event.at_ms // WINDOW_MS * WINDOW_MS
        if is_closed(start_ms + WINDOW_MS, self.shape.allowed_lateness_ms, self.time.watermark_ms):
            self.late.add(("per_window", place))
        else:
            self.open[event.id or "", start_ms].append(event)

    def _close(self) -> None:
        """Final results of the windows that the watermark has passed."""
        for (key, start_ms), records in sorted(self.open.items()):
            if is_closed(start_ms + WINDOW_MS, self.shape.allowed_lateness_ms, self.time.watermark_ms):
                fares = [record.fare for record in records if record.fare is not None]
                total = sum(fares, Decimal(0)) if fares else None
                self.closed.append((key, start_ms, len(records), sum(record.v for record in records), total))
                del self.open[key, start_ms]
