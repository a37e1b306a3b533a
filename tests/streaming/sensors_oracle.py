"""Declares the topology `sensors` for the oracle."""

from __future__ import annotations

import json
from collections.abc import Iterable

from support.oracle import Map, Oracle, SessionAggregate, Sink, Source, Table
from support.oracle_parts import Batch, Fields, Message, rounded, text, typed

BOUND_MS, IDLE_AFTER_MS = 2_000, 5_000
GAP_MS, ALLOWED_LATENESS_MS = 5_000, 10_000
LATE_AFTER_MS = GAP_MS + ALLOWED_LATENESS_MS  # a record that no session would accept is late at the source
TYPES = {"temp_c": float, "battery": int, "event_time": int}


def sensors_of(messages: Iterable[Message], batches: Iterable[Batch]) -> Oracle:
    """Computes the results after *batches* of *messages*, placed in `readings`."""
    operators = [
        Source(
            name="readings",
            parse=fields_of,
            messages={message.place: message for message in messages},
            bound_ms=BOUND_MS,
            idle_after_ms=IDLE_AFTER_MS,
            late_after_ms=LATE_AFTER_MS,
        ),
        Table(
            name="device_now",
            input="readings",
            key="device",
            columns=("temp_c", "battery", "other"),
            rule="value_only",
        ),
        Sink(name="devices", input="device_now", key=("device",)),
        Map(
            name="valid_readings",
            input="readings",
            select=lambda reading: {name: reading[name] for name in ("device", "temp_c", "event_time")},
            where=lambda reading: reading["temp_c"] is not None and -60 <= reading["temp_c"] <= 120,
        ),
        SessionAggregate(
            name="device_sessions",
            input="valid_readings",
            key=("device",),
            size_ms=GAP_MS,
            allowed_lateness_ms=ALLOWED_LATENESS_MS,
            result=session,
        ),
        Sink(name="sessions", input="device_sessions"),
    ]
    return Oracle(operators, batches)


def session(readings: list[Fields]) -> Fields:
    """Returns the result of a session's *readings*, as they arrived."""
    temps = [reading["temp_c"] for reading in sorted(readings, key=lambda reading: reading["event_time"])]
    return {
        "readings": len(temps),
        "coldest": min(temps),
        "warmest": max(temps),
        "mean_c": rounded(sum(temps) / len(temps), 6),
        "risen_c": rounded(temps[-1] - temps[0], 6),
        "window_end": max(reading["event_time"] for reading in readings) + GAP_MS,
    }


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
