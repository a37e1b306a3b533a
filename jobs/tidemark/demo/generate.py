"""Generates the feed of airports and aircraft for a range of days.

Each record has when it happened and when it was sent. It is deterministic: the same flights, settings and seed give the
same records. Instants are epoch ms UTC of 2013; only the feed delay is in real milliseconds, because networks do not
speed up with a replay. A `ReplayClock` maps the former to now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random

from tidemark.demo.feed_record import AIRPORTS, FLIGHT_EVENTS, WEATHER, FeedFault, FeedRecord, RecordKind
from tidemark.demo.flights import MINUTE_MS, Flight, FlightStatus, Weather, status_changes
from tidemark.errors import InvalidArgument

DELAY_MEAN_MS = 250
DELAY_LIMIT_MS = 1_500
REPEAT_WITHIN_MS = 20 * MINUTE_MS
OFFLINE_MS = (120 * MINUTE_MS, 360 * MINUTE_MS)
DEPARTURE_KNOWN = (FlightStatus.DEPARTED, FlightStatus.ARRIVED)
NO_AIRCRAFT = ""


@dataclass(frozen=True, kw_only=True)
class FeedSettings:
    """Disorder of the feed: shares (0 to 1), and bad records."""

    seed: int = 7
    offline_share: float = 0.0
    repeat_share: float = 0.0
    bad_records: int = 0

    def __post_init__(self) -> None:
        for name in ("offline_share", "repeat_share"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"{name} must be from 0 to 1: got {getattr(self, name)}; 0.01 is one in a hundred"
                raise InvalidArgument(msg)
        if self.bad_records < 0:
            msg = f"bad_records must not be negative: got {self.bad_records}; 0 injects none"
            raise InvalidArgument(msg)


def feed(
    flights: Sequence[Flight], weather: Sequence[Weather], *, range_start_ms: int, settings: FeedSettings
) -> list[FeedRecord]:
    """Returns records about *flights* and *weather*, in the order of sending.

    A flight that was announced before *range_start_ms* is announced then. Bad records are additional copies, and change
    nothing about the others.
    """
    ordered = sorted(flights, key=lambda flight: (flight.scheduled_at_ms, flight.flight_id))
    # A generator per purpose: another share of repeats does not change which aircraft are offline.
    repeats, offline, delays = (Random(f"{settings.seed} {use}") for use in ("repeats", "offline", "delays"))
    statuses: list[FeedRecord] = []
    for flight in ordered:
        statuses += _with_repeats(_statuses(flight, range_start_ms), settings.repeat_share, repeats)
    statuses = _held_back(statuses, settings.offline_share, offline)
    records = sorted(_delay([*statuses, *map(_observation, weather)], delays), key=_sending_order)
    return sorted([*records, *_bad_records(records, settings.bad_records)], key=_sending_order)


def _statuses(flight: Flight, range_start_ms: int) -> list[FeedRecord]:
    records: list[FeedRecord] = []
    for change in status_changes(flight):
        at_ms = max(change.happened_at_ms, range_start_ms)
        fields: dict[str, str | float | None] = {
            "flight": flight.flight_id,
            "carrier": flight.carrier,
            "origin": flight.origin,
            "dest": flight.dest,
            "tailnum": flight.tailnum,
            "status": change.status,
            "dep_delay_min": flight.dep_delay_min if change.status in DEPARTURE_KNOWN else None,
            "arr_delay_min": flight.arr_delay_min if change.status is FlightStatus.ARRIVED else None,
        }
        record = FeedRecord(
            topic=FLIGHT_EVENTS,
            partition=AIRPORTS.index(flight.origin),
            key=flight.flight_id,
            kind=RecordKind.STATUS,
            happened_at_ms=at_ms,
            sent_at_ms=at_ms,
            fields=fields,
        )
        records.append(record)
    return records


def _observation(weather: Weather) -> FeedRecord:
    return FeedRecord(
        topic=WEATHER,
        partition=0,
        key=weather.origin,
        kind=RecordKind.WEATHER,
        happened_at_ms=weather.observed_at_ms,
        sent_at_ms=weather.observed_at_ms,
        fields={
            "origin": weather.origin,
            "temp_f": weather.temp_f,
            "wind_mph": weather.wind_mph,
            "precip_in": weather.precip_in,
            "visibility_mi": weather.visibility_mi,
        },
    )


def _with_repeats(statuses: list[FeedRecord], share: float, random: Random) -> list[FeedRecord]:
    """Adds repeats of a *share* of one flight's statuses.

    Each comes before the next status happens.
    """
    repeats: list[FeedRecord] = []
    for status, following in zip(statuses, [*statuses[1:], None], strict=True):
        if random.random() < share:
            repeats.append(_repeat(status, following, random))
    return statuses + repeats


def _repeat(status: FeedRecord, following: FeedRecord | None, random: Random) -> FeedRecord:
    room_ms = REPEAT_WITHIN_MS if following is None else following.happened_at_ms - status.happened_at_ms
    later_ms = max(1, round(min(room_ms, REPEAT_WITHIN_MS) * random.uniform(0.1, 0.9)))
    at_ms = status.happened_at_ms + later_ms
    return replace(status, kind=RecordKind.REPEAT, happened_at_ms=at_ms, sent_at_ms=at_ms)


def _held_back(records: list[FeedRecord], share: float, random: Random) -> list[FeedRecord]:
    """Takes a *share* of the aircraft offline for a window of hours.

    They send what happened in the window at its end.
    """
    happened: dict[str, list[int]] = defaultdict(list)
    for record in records:
        happened[_aircraft(record)].append(record.happened_at_ms)
    happened.pop(NO_AIRCRAFT, None)
    number = max(1, round(share * len(happened))) if share and happened else 0
    offline = {}
    # Sorted, so that the same seed chooses the same aircraft.
    for aircraft in random.sample(sorted(happened), number):
        start_ms = random.choice(happened[aircraft])
        offline[aircraft] = range(start_ms, start_ms + random.randint(*OFFLINE_MS))
    never = range(0)
    sent: list[FeedRecord] = []
    for record in records:
        window = offline.get(_aircraft(record), never)
        sent.append(replace(record, sent_at_ms=window.stop) if record.happened_at_ms in window else record)
    return sent


def _aircraft(record: FeedRecord) -> str:
    return str(record.fields.get("tailnum") or NO_AIRCRAFT)


def _delay(records: Sequence[FeedRecord], random: Random) -> list[FeedRecord]:
    """Gives each of *records* a feed delay.

    An aircraft that reconnects sends all it has in one burst, without delay.
    """
    # Drawn for every record, so that another share of offline aircraft leaves the delays of the others.
    delayed: list[FeedRecord] = []
    for record in records:
        delay_ms = min(DELAY_LIMIT_MS, round(random.expovariate(1 / DELAY_MEAN_MS)))
        delayed.append(record if record.was_held_back else replace(record, delay_ms=delay_ms))
    return delayed


def _bad_records(records: Sequence[FeedRecord], number: int) -> list[FeedRecord]:
    """Returns *number* broken flight records, evenly spread, fault after fault."""
    sound = [record for record in records if record.topic == FLIGHT_EVENTS]
    bad: list[FeedRecord] = []
    for place, fault in zip(range(number), cycle(FeedFault), strict=False):
        # The middle record of each of *number* equal parts.
        record = sound[(2 * place + 1) * len(sound) // (2 * number)]
        bad.append(replace(record, kind=RecordKind.BAD, fault=fault))
    return bad


def _sending_order(record: FeedRecord) -> tuple[int, int, str, str]:
    return record.sent_at_ms, record.happened_at_ms, record.topic, record.key
