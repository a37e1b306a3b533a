"""The feed of some flights and two real days: records, times, faults."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from tidemark.demo.feed_record import FeedFault, FeedRecord, RecordKind, ReplayClock, encode
from tidemark.demo.flights import Flight, Weather, midnight_ms
from tidemark.demo.generate import FeedSettings, feed
from tidemark.demo.nycflights import FlightData, load
from tidemark.demo.publish import moved_times
from tidemark.errors import InvalidArgument

pytestmark = pytest.mark.slow

MINUTE = 60_000
START = midnight_ms(date(2013, 6, 27))
NOON = START + 12 * 60 * MINUTE

FLOWN = Flight(
    flight_id="UA1-2013-06-27-EWR",
    carrier="UA",
    origin="EWR",
    dest="IAH",
    tailnum="N1",
    scheduled_at_ms=NOON,
    departed_at_ms=NOON + 5 * MINUTE,
    arrived_at_ms=NOON + 240 * MINUTE,
    dep_delay_min=5,
    arr_delay_min=-3,
)
CANCELLED = replace(
    FLOWN,
    flight_id="DL2-2013-06-27-LGA",
    carrier="DL",
    origin="LGA",
    tailnum=None,
    departed_at_ms=None,
    arrived_at_ms=None,
    dep_delay_min=None,
    arr_delay_min=None,
)
WARM = Weather(origin="EWR", observed_at_ms=NOON, temp_f=80.06, wind_mph=9.2, precip_in=0.0, visibility_mi=None)


def of(*flights: Flight, **unruliness: Any) -> list[FeedRecord]:
    return feed(flights, [], range_start_ms=START, settings=replace(FeedSettings(), **unruliness))


@pytest.fixture(scope="module")
def data() -> FlightData:
    return load(date(2013, 6, 27), date(2013, 6, 29))


@pytest.fixture(scope="module")
def two_days(data: FlightData) -> list[FeedRecord]:
    settings = FeedSettings(offline_share=0.01, repeat_share=0.2, bad_records=12)
    return feed(data.flights, data.weather, range_start_ms=START, settings=settings)


def by_flight(records: list[FeedRecord]) -> dict[str, list[FeedRecord]]:
    grouped: dict[str, list[FeedRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.happened_at_ms):
        grouped[record.key].append(record)
    return grouped


def test_a_flown_flight_gives_three_records_and_late_delays() -> None:
    said = [
        (record.happened_at_ms - NOON, *(record.fields[name] for name in ("status", "dep_delay_min", "arr_delay_min")))
        for record in of(FLOWN)
    ]
    assert said == [
        (-180 * MINUTE, "scheduled", None, None),
        (5 * MINUTE, "departed", 5, None),
        (240 * MINUTE, "arrived", 5, -3),
    ]


def test_a_cancelled_flight_gives_two_records_without_delays() -> None:
    assert [(record.fields["status"], record.fields["dep_delay_min"]) for record in of(CANCELLED)] == [
        ("scheduled", None),
        ("cancelled", None),
    ]


def test_each_airport_has_its_partition_and_each_flight_its_key() -> None:
    jfk = replace(FLOWN, origin="JFK", flight_id="B6-3")
    places = {record.key: record.partition for record in of(FLOWN, CANCELLED, jfk)}
    assert places == {"UA1-2013-06-27-EWR": 0, "B6-3": 1, "DL2-2013-06-27-LGA": 2}


def test_a_flight_announced_before_the_range_is_announced_at_it() -> None:
    early = replace(FLOWN, scheduled_at_ms=START + 60 * MINUTE, departed_at_ms=START + 60 * MINUTE)
    assert of(early)[0].happened_at_ms == of(early)[0].sent_at_ms == START


def test_the_same_seed_gives_the_same_feed() -> None:
    assert of(FLOWN, CANCELLED, repeat_share=0.5) == of(CANCELLED, FLOWN, repeat_share=0.5)
    assert of(FLOWN, CANCELLED, seed=7) != of(FLOWN, CANCELLED, seed=8)


def test_a_repeat_comes_before_the_next_status() -> None:
    records = of(FLOWN, CANCELLED, repeat_share=1)
    for flight in by_flight(records).values():
        assert [record.kind for record in flight] == [RecordKind.STATUS, RecordKind.REPEAT] * (len(flight) // 2)
        for status, repeat in zip(flight[::2], flight[1::2], strict=True):
            assert repeat.fields == status.fields
            assert 0 < repeat.happened_at_ms - status.happened_at_ms < 20 * MINUTE


def test_repeats_come_in_the_share_that_was_asked_for(two_days: list[FeedRecord]) -> None:
    kinds = Counter(record.kind for record in two_days)
    assert kinds[RecordKind.STATUS] == 1989 + 1772 + 1750 + 217
    assert 0.18 < kinds[RecordKind.REPEAT] / kinds[RecordKind.STATUS] < 0.22


def test_an_offline_aircraft_sends_all_in_one_burst(two_days: list[FeedRecord]) -> None:
    bursts: dict[object, list[FeedRecord]] = defaultdict(list)
    for record in two_days:
        if record.was_held_back and record.kind is not RecordKind.BAD:
            bursts[record.fields["tailnum"]].append(record)
    aircraft = {record.fields["tailnum"] for record in two_days if record.fields.get("tailnum")}
    assert len(bursts) == round(0.01 * len(aircraft))
    for tailnum, burst in bursts.items():
        assert len({(record.sent_at_ms, record.delay_ms) for record in burst}) == 1
        back_at_ms = burst[0].sent_at_ms
        window = range(min(record.happened_at_ms for record in burst), back_at_ms)
        in_window = [
            record
            for record in two_days
            if record.fields.get("tailnum") == tailnum and record.happened_at_ms in window and record.fault is None
        ]
        assert sorted(map(id, in_window)) == sorted(map(id, burst)), "nothing of that window was sent in time"
        assert len(window) <= 360 * MINUTE


def test_flights_without_an_aircraft_are_never_held_back() -> None:
    assert not any(record.was_held_back for record in of(CANCELLED, offline_share=1))
    assert any(record.was_held_back for record in of(CANCELLED, FLOWN, offline_share=0.01))


def test_a_feed_delay_averages_250_ms_and_is_at_most_1500(
    two_days: list[FeedRecord],
) -> None:
    delays = [record.delay_ms for record in two_days]
    assert 230 < sum(delays) / len(delays) < 260
    assert min(delays) >= 0
    assert max(delays) == 1500


def test_bad_records_are_spread_over_the_feed(data: FlightData, two_days: list[FeedRecord]) -> None:
    bad = [record for record in two_days if record.kind is RecordKind.BAD]
    assert [record.fault for record in bad] == [*FeedFault, *list(FeedFault)[:5]]
    settings = FeedSettings(offline_share=0.01, repeat_share=0.2)
    without = feed(data.flights, data.weather, range_start_ms=START, settings=settings)
    assert [record for record in two_days if record.fault is None] == without
    places = [two_days.index(record) / len(two_days) for record in bad]
    assert all(abs(place - (number + 0.5) / 12) < 0.02 for number, place in enumerate(places))


def test_weather_goes_to_its_own_topic_under_its_airport() -> None:
    (record,) = feed([], [WARM], range_start_ms=START, settings=FeedSettings())
    assert (record.topic, record.partition, record.key, record.kind) == ("weather", 0, "EWR", RecordKind.WEATHER)
    _, value = encode(record, 1_000)
    assert json.loads(value) == {
        "event_time": 1_000,
        "happened_at": "2013-06-27T16:00:00.000Z",
        "origin": "EWR",
        "temp_f": 80.06,
        "wind_mph": 9.2,
        "precip_in": 0.0,
        "visibility_mi": None,
    }


def test_a_sound_record_is_json_with_the_mapped_event_time() -> None:
    key, value = encode(of(FLOWN)[1], 1_780_000_000_123)
    assert key == b"UA1-2013-06-27-EWR"
    assert json.loads(value) == {
        "event_time": 1_780_000_000_123,
        "happened_at": "2013-06-27T16:05:00.000Z",
        "flight": "UA1-2013-06-27-EWR",
        "carrier": "UA",
        "origin": "EWR",
        "dest": "IAH",
        "tailnum": "N1",
        "status": "departed",
        "dep_delay_min": 5,
        "arr_delay_min": None,
    }


@pytest.mark.parametrize(
    ("fault", "event_time"),
    [
        (FeedFault.TIMESTAMP_NEGATIVE, -1),
        (FeedFault.TIMESTAMP_ZERO, 0),
        (FeedFault.TIMESTAMP_IN_SECONDS, 1_780_000_000),
        (FeedFault.TIMESTAMP_YEAR_9999, 253_370_764_800_000),
    ],
)
def test_a_bad_timestamp_is_the_only_thing_wrong_with_its_record(fault: FeedFault, event_time: int) -> None:
    sound = of(FLOWN)[1]
    key, value = encode(replace(sound, fault=fault), 1_780_000_000_123)
    assert key == b"UA1-2013-06-27-EWR"
    assert json.loads(value) == json.loads(encode(sound, 0)[1]) | {"event_time": event_time}


def test_each_kind_of_unusable_record_has_its_own_flaw() -> None:
    sound = of(FLOWN)[1]
    sound_key, sound_value = encode(sound, 5)
    cut = encode(replace(sound, fault=FeedFault.MALFORMED_JSON), 5)
    assert cut == (sound_key, sound_value[: len(sound_value) // 2])
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut[1])
    stray = encode(replace(sound, fault=FeedFault.INVALID_UTF8), 5)
    assert stray == (sound_key, sound_value.replace(b'"EWR"', b'"\xff"'))
    assert encode(replace(sound, fault=FeedFault.NULL_VALUE), 5) == (sound_key, None)


def test_a_timeline_maps_a_day_to_a_minute_but_not_delays() -> None:
    timeline = ReplayClock(started_at_ms=1_000_000, range_start_ms=START, speed=1440)
    departed = replace(of(FLOWN)[1], happened_at_ms=NOON, sent_at_ms=NOON + 24 * MINUTE, delay_ms=200)
    assert timeline.event_time_ms(departed) == 1_000_000 + 30_000
    assert timeline.delivery_ms(departed) == 1_000_000 + 30_000 + 1_000 + 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offline_share": 1.5}, "offline_share must be from 0 to 1: got 1.5"),
        ({"repeat_share": -0.1}, "repeat_share must be from 0 to 1: got -0.1"),
        ({"bad_records": -1}, "bad_records must not be negative: got -1"),
    ],
)
def test_a_share_or_count_that_cannot_be_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        of(FLOWN, **settings)


def test_a_replay_says_which_record_times_the_instants_of_2013_have():
    # 1 January 2026, 12:00 UTC.
    timeline = ReplayClock(started_at_ms=1_767_268_800_000, range_start_ms=START, speed=2_880)
    assert moved_times(timeline) == (
        "record times are those of the replay: 2013-06-27 00:00 New York is 2026-01-01T12:00:00.000Z, and time goes "
        "2,880 times as fast"
    )
