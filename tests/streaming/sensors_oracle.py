"""Recomputes the topology `sensors` from Kafka's records in plain Python.

As `oracle.py`: standard library only, one record after the other, and of the engine's tables `batches` alone.
Instants are epoch ms, UTC; texts are JSON as the tables have it. Lists and counts are by batch id where they say so.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from streaming.oracle_parts import (
    Batch,
    EmitOnChange,
    Fields,
    Late,
    Message,
    Place,
    Reached,
    Read,
    SourceTime,
    Update,
    is_closed,
    rounded,
    text,
    typed,
)

BOUND_MS, IDLE_AFTER_MS = 2_000, 5_000
GAP_MS, ALLOWED_LATENESS_MS = 5_000, 10_000
LATE_AFTER_MS = GAP_MS + ALLOWED_LATENESS_MS  # what no session would take any more is late at the source
TYPES = {"temp_c": float, "battery": int, "event_time": int}
PAYLOAD = ("temp_c", "battery", "other")


class Reading(NamedTuple):
    """A valid temperature, and its turn among all."""

    timestamp_ms: int
    turn: int
    temp_c: float


@dataclass
class Session:
    """Readings of one device in arrival order, and the last one's place."""

    readings: list[Reading]
    place: Place

    @property
    def start_ms(self) -> int:
        return min(reading.timestamp_ms for reading in self.readings)

    @property
    def end_ms(self) -> int:
        return max(reading.timestamp_ms for reading in self.readings) + GAP_MS

    def touches(self, timestamp_ms: int) -> bool:
        """Returns true if a reading belongs to it, by the gap.

        It is at most the gap away.
        """
        return self.start_ms - GAP_MS <= timestamp_ms <= self.end_ms

    def result(self, device: str) -> Update:
        temps = [reading.temp_c for reading in self.readings]
        value = {
            "readings": len(temps),
            "coldest": min(temps),
            "warmest": max(temps),
            "mean_c": rounded(sum(temps) / len(temps), 6),
            "risen_c": rounded(max(self.readings).temp_c - min(self.readings).temp_c, 6),
            "window_end": self.end_ms,
        }
        key = text({"device": device, "window_start": self.start_ms})
        return Update(key, text(value), self.end_ms - 1, None, self.place.partition, self.place.offset)


class SensorsOracle:
    """Computes the results after *batches* of *messages*.

    *messages* are placed in `readings`.
    """

    def __init__(self, messages: Iterable[Message], batches: Iterable[Batch]) -> None:
        self._log = {message.place: message for message in messages}
        self._turn = 0
        self._newest_ms: dict[int, int] = {}  # by partition: among the records read so far
        self.time = SourceTime(BOUND_MS, IDLE_AFTER_MS)
        self.times: dict[int, dict[int | None, Reached]] = {}  # by batch; partition None: the source
        self.outcomes: dict[int, dict[str, Counter[str]]] = {}  # by batch and operator
        self.quarantined: list[tuple[Place, str]] = []
        self.late: dict[str, list[Late]] = {"readings": [], "device_sessions": []}
        self.device_now = EmitOnChange("value_only")
        self.devices: dict[str, Fields] = {}  # the sink: its row by device
        self.open: dict[str, list[Session]] = defaultdict(list)
        self.sessions: dict[int, list[Update]] = {}  # by batch: final results
        for batch in batches:
            self._run(batch)

    def _run(self, batch: Batch) -> None:
        self._batch_id = batch.batch_id
        self._count: dict[str, Counter[str]] = defaultdict(Counter)
        self._count["device_sessions"]["held_before"] = self._held()
        for read in sorted(batch.reads):
            self._read(read, batch.decided_at_ms)
        self.times[batch.batch_id] = self.time.move()
        self.sessions[batch.batch_id] = self._close()
        self._count["device_sessions"]["held_after"] = self._held()
        self.outcomes[batch.batch_id] = self._count

    def _held(self) -> int:
        return sum(len(sessions) for sessions in self.open.values())

    def _read(self, read: Read, decided_at_ms: int) -> None:
        count, timestamps_ms = self._count["readings"], []
        for place in read.places():
            count["records_in"] += 1
            found = fields_of(self._log[place], self._newest_ms.get(place.partition))
            if isinstance(found, str):
                self.quarantined.append((place, found))
                count["quarantined"] += 1
                continue
            timestamp_ms = found["event_time"]
            self._newest_ms[place.partition] = max(timestamp_ms, self._newest_ms.get(place.partition, timestamp_ms))
            timestamps_ms.append(timestamp_ms)
            watermark_ms = self.time.watermark_ms
            if set(found) == {"event_time"}:
                count["filtered"] += 1
            elif watermark_ms is not None and timestamp_ms + LATE_AFTER_MS <= watermark_ms:
                self.late["readings"].append(Late(place, timestamp_ms, watermark_ms))
                count["late"] += 1
            else:
                count["passed"] += 1
                self._table(place, found)
                self._valid(place, found)
        self.time.listen(read, timestamps_ms, decided_at_ms)

    def _table(self, place: Place, fields: Fields) -> None:
        """`device_now`, and the sink `devices`."""
        device, timestamp_ms = fields["device"], fields["event_time"]
        payload = None if fields["deleted"] else {name: fields[name] for name in PAYLOAD}
        emits = self.device_now.offer(device, None if payload is None else text(payload), timestamp_ms, place)
        self._count["device_now"]["records_in"] += 1
        self._count["device_now"]["emitted" if emits else "suppressed"] += 1
        if not emits:
            return
        self._count["devices"].update(("records_in", "passed"))
        if payload is None:
            del self.devices[device]
        else:
            row = {"device": device, **payload, "timestamp": timestamp_ms, "batch_id": self._batch_id}
            self.devices[device] = row

    def _valid(self, place: Place, fields: Fields) -> None:
        """`valid_readings`, which hands on what deletes a device; no session counts that."""
        self._count["valid_readings"]["records_in"] += 1
        if fields["deleted"]:
            self._count["valid_readings"]["passed"] += 1
            self._count["device_sessions"].update(("records_in", "filtered"))
            return
        if fields["temp_c"] is None or not -60 <= fields["temp_c"] <= 120:
            self._count["valid_readings"]["filtered"] += 1
            return
        self._count["valid_readings"]["passed"] += 1
        self._session(place, fields["device"], Reading(fields["event_time"], self._turn, fields["temp_c"]))
        self._turn += 1

    def _session(self, place: Place, device: str, reading: Reading) -> None:
        """Processes `device_sessions`: late, extended, or merged sessions.

        A reading is late when its session is closed.
        """
        count, watermark_ms = self._count["device_sessions"], self.time.watermark_ms
        count["records_in"] += 1
        joined = [session for session in self.open[device] if session.touches(reading.timestamp_ms)]
        if (
            not joined
            and watermark_ms is not None
            and is_closed(reading.timestamp_ms + GAP_MS, ALLOWED_LATENESS_MS, watermark_ms)
        ):
            at = place._replace(topic="device_sessions")
            self.late["device_sessions"].append(Late(at, reading.timestamp_ms, watermark_ms))
            count["late"] += 1
            return
        count["superseded"] += len(joined)
        readings = [known for session in joined for known in session.readings]
        apart = [session for session in self.open[device] if session not in joined]
        self.open[device] = [*apart, Session([*readings, reading], place)]

    def _close(self) -> list[Update]:
        """Returns final results of sessions that the watermark closes, by key.

        The sink `sessions` has them too.
        """
        results = []
        for device, sessions in self.open.items():
            closed = [s for s in sessions if is_closed(s.end_ms, ALLOWED_LATENESS_MS, self.time.watermark_ms)]
            results += [session.result(device) for session in closed]
            self.open[device] = [session for session in sessions if session not in closed]
        self._count["device_sessions"]["emitted"] = len(results)
        self._count["sessions"].update({"records_in": len(results), "passed": len(results)})
        return sorted(results)


def fields_of(message: Message, newest_ms: int | None = None) -> Fields | str:
    """Returns a record's fields with its device, or the rejection.

    The device is Kafka's key.

    A record without a value deletes its device, at *newest_ms*, the newest time before it in its partition. One
    without a key, and nothing but a time, keeps the partition alive: it has that alone.
    """
    if message.key is None:
        found = "null_key" if message.value is None else typed(message.value, TYPES)
        return found if isinstance(found, str) else {"event_time": found["event_time"]}  # the feed has no other
    try:
        device = message.key.decode("utf-8")
    except UnicodeDecodeError:
        return "invalid_key"
    if message.value is None:
        return (
            "missing_timestamp" if newest_ms is None else {"device": device, "deleted": True, "event_time": newest_ms}
        )
    found = typed(message.value, TYPES)
    if isinstance(found, str):
        return found
    other = {name: value for name, value in json.loads(message.value).items() if name not in TYPES}
    return {"device": device, "deleted": False, **found, "other": text(other) if other else None}
