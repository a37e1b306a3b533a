"""Recomputes the topology `flights` from Kafka's records in plain Python.

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from streaming.oracle_parts import (
    PLAUSIBLE_MS,
    Batch,
    EmitOnChange,
    Fields,
    Late,
    Message,
    Place,
    Reached,
    Read,
    SourceTime,
    text,
)

FLIGHTS, WEATHER = "flight_events", "weather"
OBSERVED = ("temp_f", "wind_mph", "precip_in", "visibility_mi")
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


@dataclass
class Carrier:
    """State of one carrier at one airport."""

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
        self._log = {message.place: message for message in messages}
        self._time = {topic: SourceTime(bound_ms, idle_after_ms) for topic in (FLIGHTS, WEATHER)}
        self._observations: dict[str, list[tuple[int, Fields]]] = defaultdict(list)
        self.quarantined: list[Place] = []
        self.late: list[Late] = []
        self.times: list[dict[tuple[str, int | None], Reached]] = []  # after each batch; partition None: the source
        self.flight_status = EmitOnChange()
        self.weather_now = EmitOnChange()
        self.by_carrier = EmitOnChange()
        self.carrier_state = EmitOnChange("value_only")
        self.board: list[tuple[Fields, int, Place]] = []
        self.carriers: dict[str, Carrier] = defaultdict(Carrier)
        for batch in batches:
            self._run(batch)

    @property
    def watermark_ms(self) -> int | None:
        """Returns the watermark of `flight_events`, combined, and of its readers."""
        return self._time[FLIGHTS].watermark_ms

    def usable(self, read: Read) -> Iterator[tuple[Place, Fields]]:
        """The records of *read* that can be used, in order."""
        for place in read.places():
            fields = fields_of(self._log[place])
            if fields is not None:
                yield place, fields

    def _run(self, batch: Batch) -> None:
        for read in sorted(batch.reads, key=lambda read: (read.topic == FLIGHTS, read.partition)):
            usable = dict(self.usable(read))
            self.quarantined += (place for place in read.places() if place not in usable)
            for place, fields in usable.items():
                (self._flight if read.topic == FLIGHTS else self._weather)(place, fields)
            timestamps_ms = [fields["event_time"] for fields in usable.values()]
            self._time[read.topic].listen(read, timestamps_ms, batch.decided_at_ms)
        self.times.append(
            {(topic, n): reached for topic, time in self._time.items() for n, reached in time.move().items()}
        )

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


def fields_of(message: Message) -> Fields | None:
    """Returns a record's fields; None if unusable.

    Numbers are floats where the topology has double.
    """
    if message.value is None:
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
