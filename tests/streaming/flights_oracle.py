"""Declares the topology `flights` for the oracle."""

from __future__ import annotations

from collections.abc import Iterable

from support.oracle import Aggregate, Hop, Join, Map, Operator, Oracle, Repartition, Sink, Source, Table
from support.oracle_parts import Batch, Fields, Message, Read, typed

FLIGHTS, WEATHER = "flight_events", "weather"
OBSERVED = ("temp_f", "wind_mph", "precip_in", "visibility_mi")
STATUS = ("carrier", "origin", "dest", "status", "delay_min")
TYPES: dict[str, dict[str, type]] = {
    FLIGHTS: {
        **dict.fromkeys(("flight", "carrier", "origin", "dest", "tailnum", "status"), str),
        **dict.fromkeys(("dep_delay_min", "arr_delay_min"), float),
        "event_time": int,
    },
    WEATHER: {"origin": str, **dict.fromkeys(OBSERVED, float), "event_time": int},
}


def fields_of(message: Message, newest_ms: int | None = None) -> Fields | str:
    """Returns a record's fields, or the reason for rejection."""
    return "null_value" if message.value is None else typed(message.value, TYPES[message.place.topic])


def updated(fields: Fields) -> Fields:
    arrived, departed = fields["arr_delay_min"], fields["dep_delay_min"]
    delay_min = departed if arrived is None else arrived
    return {
        **{name: fields[name] for name in ("flight", "carrier", "origin", "dest", "status")},
        "delay_min": delay_min,
    }


def delays(flights: list[Fields]) -> list[float]:
    return [flight["delay_min"] for flight in flights if flight["delay_min"] is not None]


def band(flights: list[Fields]) -> Fields:
    minutes = delays(flights)
    average = sum(minutes) / len(minutes) if len(minutes) >= 3 else None
    if average is None:
        return {"delay_band": "too few"}
    return {"delay_band": "severe" if average >= 45 else "late" if average >= 15 else "on time"}


def status_of(messages: Iterable[Message], batches: Iterable[Batch], *, bound_ms: int, idle_after_ms: int) -> Oracle:
    """Computes the sub-topology `status` after *batches* of *messages*."""
    log = {message.place: message for message in messages}
    time = {"bound_ms": bound_ms, "idle_after_ms": idle_after_ms, "messages": log, "parse": fields_of}
    weather = Table(name="weather_now", input=WEATHER, key="origin", columns=OBSERVED)
    operators: list[Operator] = [
        Source(name=WEATHER, **time),
        weather,
        Source(name=FLIGHTS, late_after_ms=0, **time),
        Map(name="flight_updates", input=FLIGHTS, select=updated, where=lambda fields: fields["status"] is not None),
        Table(name="flight_status", input="flight_updates", key="flight", columns=STATUS),
        Join(name="flight_weather", input="flight_status", table=weather),
        Sink(name="flight_board", input="flight_weather"),
        Repartition(
            name="by_carrier",
            input="flight_weather",
            id="flight",
            key=("carrier", "origin"),
            columns=("status", "delay_min"),
        ),
    ]
    return Oracle(operators, batches)


def carriers_of(status: Oracle) -> Oracle:
    """Computes the sub-topology `carriers`, in one batch."""
    by_carrier = status["by_carrier"]
    operators: list[Operator] = [
        Hop(name="by_carrier_source", handed=by_carrier.handed, watermarks=status.watermarks),
        Aggregate(name="carrier_state", input="by_carrier_source", key=("carrier", "origin"), result=band),
        Sink(name="carrier_delays", input="carrier_state"),
    ]
    whole = Read("by_carrier_source", 0, 0, max(status.watermarks) + 1)
    return Oracle(operators, [Batch(0, [whole])])
