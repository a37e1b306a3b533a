"""What the topology `flights` makes of the records in Kafka, calculated once more, in plain Python.

Purpose: the flow test compares the engine's tables with this. So it shares nothing with the engine, neither code nor
style: standard library only, every rule written out, one record after the other through the whole topology.

How it works: of the engine's tables it is given `batches` alone, for what no calculation can know: which offsets a
batch read, and the instant for which it was decided. All else follows from the records.

What it does not do: anything that the topology `flights` does not need. A flight never changes its carrier or airport,
so what the repartition takes back and what it adds always belong to one group.

Instants are epoch ms, UTC; texts are JSON as the tables have it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FLIGHTS, WEATHER = "flight_events", "weather"
OBSERVED = ("temp_f", "wind_mph", "precip_in", "visibility_mi")
PLAUSIBLE_MS = range(946_684_800_000, 4_102_444_800_000)  # 2000-01-01 to before 2100-01-01
TYPES: Mapping[str, Mapping[str, type]] = {
    FLIGHTS: {
        **dict.fromkeys(("flight", "carrier", "origin", "dest", "tailnum", "status"), str),
        **dict.fromkeys(("dep_delay_min", "arr_delay_min"), float),
        "event_time": int,
    },
    WEATHER: {
        "origin": str,
        **dict.fromkeys(OBSERVED, float),
        "event_time": int,
    },
}

Fields = dict[str, Any]


class Place(NamedTuple):
    """Where a record lies in Kafka."""

    topic: str
    partition: int
    offset: int


class Message(NamedTuple):
    """A record as Kafka has it."""

    place: Place
    key: bytes | None
    value: bytes | None


class Read(NamedTuple):
    """What a batch read of one partition: offsets from (inclusive) until (exclusive), the broker's end if asked."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    latest_offset: int | None


class Batch(NamedTuple):
    """A batch that changed anything."""

    decided_at_ms: int
    reads: Sequence[Read]


class Update(NamedTuple):
    """An update that was sent on: what became of which key, when in record time, and because of which record."""

    key: str
    value: str
    timestamp_ms: int
    old_timestamp_ms: int | None
    partition: int
    offset: int


class Late(NamedTuple):
    """A record that came at or behind the watermark."""

    place: Place
    timestamp_ms: int
    watermark_ms: int


@dataclass
class EmitOnChange:
    """One operator's stored values, and what it sent on and what it did not."""

    value_only: bool = False
    stored: dict[str, tuple[str, int]] = field(default_factory=dict)
    sent: list[Update] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def offer(self, key: str, value: str, timestamp_ms: int, place: Place) -> bool:
        """Whether the update is sent on, and so stored: an equal value is not, if strictly newer or *value_only*."""
        old_value, old_ms = self.stored.get(key, (None, None))
        if value == old_value and (self.value_only or (old_ms is not None and timestamp_ms > old_ms)):
            self.skipped[key] += 1
            return False
        self.stored[key] = (value, timestamp_ms)
        self.sent.append(Update(key, value, timestamp_ms, old_ms, place.partition, place.offset))
        return True


@dataclass
class Partition:
    """How far time has come in one partition, and when a batch last had records of it."""

    heard_at_ms: int
    newest_ms: int = 0  # 0: no usable record yet
    activity: str = "active"


class Reached(NamedTuple):
    """What a batch leaves of a partition or a whole source: its watermark, and active, idle or backlogged."""

    watermark_ms: int | None
    activity: str


@dataclass
class Carrier:
    """One carrier at one airport."""

    flights: int = 0
    departed: int = 0
    delay_min: float = 0.0
    newest_ms: int = 0

    def add(self, delay_min: float | None, sign: int) -> None:
        self.flights += sign
        if delay_min is not None:
            self.departed += sign
            self.delay_min += sign * delay_min

    def band(self) -> str:
        if self.departed < 3:
            return "too few"
        average = self.delay_min / self.departed
        return "severe" if average >= 45 else "late" if average >= 15 else "on time"


class Oracle:
    """Everything that the topology must have come to after *batches* of *messages*."""

    def __init__(
        self, messages: Iterable[Message], batches: Iterable[Batch], *, bound_ms: int, idle_after_ms: int
    ) -> None:
        self._bound_ms, self._idle_after_ms = bound_ms, idle_after_ms
        self._log = {message.place: message for message in messages}
        self._partitions: dict[str, dict[int, Partition]] = {FLIGHTS: {}, WEATHER: {}}
        self._observations: dict[str, list[tuple[int, Fields]]] = defaultdict(list)
        self.quarantined: list[Place] = []
        self.late: list[Late] = []
        self.times: list[dict[tuple[str, int | None], Reached]] = []  # after each batch; partition None: the source
        self.flight_status = EmitOnChange()
        self.weather_now = EmitOnChange()
        self.by_carrier = EmitOnChange()
        self.carrier_state = EmitOnChange(value_only=True)
        self.board: list[tuple[Fields, int, Place]] = []
        self.carriers: dict[str, Carrier] = defaultdict(Carrier)
        for batch in batches:
            self._run(batch)

    @property
    def watermark_ms(self) -> int | None:
        """Of `flight_events`, combined, and so of all that reads it."""
        return self._watermark_ms(FLIGHTS)

    def _watermark_ms(self, topic: str) -> int | None:
        return self.times[-1][topic, None].watermark_ms if self.times else None

    def usable(self, read: Read) -> Iterator[tuple[Place, Fields]]:
        """The records of *read* that can be used, in order."""
        for offset in range(read.from_offset, read.until_offset):
            place = Place(read.topic, read.partition, offset)
            fields = fields_of(self._log[place])
            if fields is not None:
                yield place, fields

    def _run(self, batch: Batch) -> None:
        for read in sorted(batch.reads, key=lambda read: (read.topic == FLIGHTS, read.partition)):
            usable = dict(self.usable(read))
            offsets = range(read.from_offset, read.until_offset)
            places = (Place(read.topic, read.partition, offset) for offset in offsets)
            self.quarantined += (place for place in places if place not in usable)
            for place, fields in usable.items():
                (self._flight if read.topic == FLIGHTS else self._weather)(place, fields)
            self._listen(read, [fields["event_time"] for fields in usable.values()], batch.decided_at_ms)
        self.times.append(self._reached(FLIGHTS) | self._reached(WEATHER))

    def _weather(self, place: Place, fields: Fields) -> None:
        value = {name: fields[name] for name in OBSERVED}
        if self.weather_now.offer(fields["origin"], text(value), fields["event_time"], place):
            self._observations[fields["origin"]].append((fields["event_time"], value))

    def _flight(self, place: Place, fields: Fields) -> None:
        timestamp_ms = fields["event_time"]
        if self.watermark_ms is not None and timestamp_ms <= self.watermark_ms:
            self.late.append(Late(place, timestamp_ms, self.watermark_ms))
            return
        arrived, departed = fields["arr_delay_min"], fields["dep_delay_min"]
        status = {name: fields[name] for name in ("carrier", "origin", "dest", "status")}
        status["delay_min"] = departed if arrived is None else arrived
        if self.flight_status.offer(fields["flight"], text(status), timestamp_ms, place):
            weather = self._weather_at(fields["origin"], timestamp_ms)
            self.board.append(({"flight": fields["flight"], **status, **weather}, timestamp_ms, place))
            self._repartition(fields["flight"], status, timestamp_ms, place)

    def _weather_at(self, origin: str, timestamp_ms: int) -> Fields:
        valid = [seen for seen in self._observations[origin] if seen[0] <= timestamp_ms]
        newest_ms = max((observed_ms for observed_ms, _ in valid), default=None)
        matching = [value for observed_ms, value in valid if observed_ms == newest_ms]
        return matching[-1] if matching else dict.fromkeys(OBSERVED)

    def _repartition(self, flight: str, status: Fields, timestamp_ms: int, place: Place) -> None:
        value = {name: status[name] for name in ("carrier", "origin", "status", "delay_min")}
        sent_before = self.by_carrier.stored.get(flight)
        if not self.by_carrier.offer(flight, text(value), timestamp_ms, place):
            return
        key = text({"carrier": status["carrier"], "origin": status["origin"]})
        carrier = self.carriers[key]
        if sent_before is not None:
            carrier.add(json.loads(sent_before[0])["delay_min"], -1)
        carrier.add(status["delay_min"], +1)
        carrier.newest_ms = max(carrier.newest_ms, timestamp_ms)
        self.carrier_state.offer(key, text({"delay_band": carrier.band()}), carrier.newest_ms, place)

    def _listen(self, read: Read, event_times_ms: list[int], decided_at_ms: int) -> None:
        partition = self._partitions[read.topic].setdefault(read.partition, Partition(decided_at_ms))
        partition.newest_ms = max([partition.newest_ms, *event_times_ms])
        partition.activity = "active"
        if read.until_offset > read.from_offset:
            partition.heard_at_ms = decided_at_ms
        elif read.latest_offset is None or read.latest_offset > read.until_offset:
            partition.activity = "backlogged"
        elif decided_at_ms - partition.heard_at_ms > self._idle_after_ms:
            partition.activity = "idle"

    def _reached(self, topic: str) -> dict[tuple[str, int | None], Reached]:
        """Each partition, and the source: the lowest of those that are not idle; when all are, the highest of all."""
        partitions = self._partitions[topic]
        awake = [partition.newest_ms for partition in partitions.values() if partition.activity != "idle"]
        leading_ms = min(awake) if awake else max(partition.newest_ms for partition in partitions.values())
        never_back = [ms for ms in (self._watermark_ms(topic), self._behind(leading_ms)) if ms is not None]
        return {
            (topic, None): Reached(max(never_back, default=None), "active" if awake else "idle"),
            **{(topic, n): Reached(self._behind(part.newest_ms), part.activity) for n, part in partitions.items()},
        }

    def _behind(self, newest_ms: int) -> int | None:
        return newest_ms - self._bound_ms - 1 if newest_ms else None


def fields_of(message: Message) -> Fields | None:
    """The fields of a record, numbers as floats where the topology says double; None when it cannot be used."""
    if message.key is None or message.value is None:
        return None
    try:
        content = json.loads(message.value.decode("utf-8"))
    except ValueError:  # not UTF-8, or not JSON
        return None
    if not isinstance(content, dict):
        return None
    fields: Fields = {}
    for name, kind in TYPES[message.place.topic].items():
        value = content.get(name)
        value = float(value) if kind is float and type(value) is int else value
        if value is not None and type(value) is not kind:
            return None
        fields[name] = value
    return fields if fields["event_time"] in PLAUSIBLE_MS else None


def text(fields: Fields) -> str:
    """*fields* as one JSON object without spaces."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
