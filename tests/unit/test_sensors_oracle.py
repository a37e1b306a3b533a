"""The oracle of `sensors`, on records worked out by hand."""

import json
from collections import Counter
from typing import Any

from streaming.sensors_feed import SETTLED, feed
from streaming.sensors_oracle import fields_of, sensors_of

from support.oracle import Oracle
from support.oracle_parts import Batch, Late, Message, Place, Read, Update

T = 1_700_000_000_000
"""The record time from which these tests count."""
DECIDED_AT = T + 60_000
"""When the first batch is decided: no record is ahead of it."""
Record = tuple[str | None, dict[str, Any] | None, int]
"""Device, value and Kafka's own timestamp as ms after T."""


def reading(at: int, temp_c: float | None, device: str = "a", **other: Any) -> Record:
    return device, {"temp_c": temp_c, "battery": 50, "event_time": T + at, **other}, at


def after(*batches: list[Record]) -> Oracle:
    """The oracle after these batches of one partition, a second apart."""
    messages, read = [], []
    for number, records in enumerate(batches):
        start = len(messages)
        for key, value, at in records:
            place = Place("readings", 0, len(messages))
            octets = None if value is None else json.dumps(value).encode()
            messages.append(Message(place, None if key is None else key.encode(), octets, T + at))
        part = Read("readings", 0, start, len(messages), len(messages))
        read.append(Batch(DECIDED_AT + 1_000 * number, [part], number))
    return sensors_of(messages, read)


def test_an_equal_value_is_not_sent_on_whenever_it_was_measured() -> None:
    oracle = after([reading(0, 20.0), reading(5, 20), reading(-1, 20.0)])
    value = '{"temp_c":20.0,"battery":50,"other":null}'
    assert oracle["device_now"].changes.sent == [Update("a", value, T, None, 0, 0)]
    assert oracle["device_now"].changes.skipped == {"a": 2}


def test_a_field_that_is_not_declared_makes_a_new_value() -> None:
    oracle = after([reading(0, 20.0), reading(5, 20.0, humidity=40)])
    assert json.loads(oracle["device_now"].changes.sent[1].value or "")["other"] == '{"humidity":40}'
    assert oracle["devices"].current["a"]["timestamp"] == T + 5


def test_a_record_without_a_value_deletes_its_device_once() -> None:
    oracle = after([reading(0, 20.0), ("a", None, 10), ("a", None, 20), ("b", None, 30)], [reading(40, 20.0)])
    sent = [
        (update.value is None, update.timestamp_ms - T, update.old_timestamp_ms)
        for update in oracle["device_now"].changes.sent
    ]
    assert sent == [(False, 0, None), (True, 0, T), (False, 40, T)]
    assert oracle["device_now"].changes.skipped == {"a": 1, "b": 1}
    assert oracle["devices"].current["a"]["batch_id"] == 1


def test_deletions_and_impossible_temperatures_are_no_readings() -> None:
    oracle = after([reading(0, 120.5), reading(1, None), reading(2, -60.0), ("a", None, 3)])
    assert oracle.outcomes[0]["valid_readings"] == Counter(records_in=4, filtered=2, passed=2)
    assert oracle.outcomes[0]["device_sessions"] == Counter(records_in=2, filtered=1, held_after=1)


def test_readings_the_gap_apart_share_a_session() -> None:
    # The second ends the session at 10,000. It is final when the watermark is 19,999: newest record 22,000.
    oracle = after(
        [reading(0, 20.0), reading(5_000, 21.0), (None, {"event_time": T + 21_999}, 0)], [reading(22_000, 1.0)]
    )
    assert oracle["device_sessions"].sent[0] == []
    (final,) = oracle["device_sessions"].sent[1]
    assert final.key == f'{{"device":"a","window_start":{T}}}'
    assert json.loads(final.value or "") == {
        "readings": 2,
        "coldest": 20.0,
        "warmest": 21.0,
        "mean_c": 20.5,
        "risen_c": 1.0,
        "window_end": T + 10_000,
    }
    assert (final.timestamp_ms, final.partition, final.offset) == (T + 9_999, 0, 1)
    assert oracle.outcomes[0]["device_sessions"] == Counter(records_in=2, superseded=1, held_after=1)
    assert oracle.outcomes[1]["device_sessions"] == Counter(records_in=1, held_before=1, emitted=1, held_after=1)


def test_a_reading_between_two_sessions_makes_them_one() -> None:
    oracle = after([reading(0, 20.0), reading(8_000, 23.0)], [reading(4_000, 21.0)])
    (session,) = oracle["device_sessions"].groups.values()
    assert (session.start_ms, session.end_ms, session.place.offset) == (T, T + 13_000, 2)
    assert oracle.outcomes[1]["device_sessions"] == Counter(records_in=1, held_before=2, superseded=2, held_after=1)
    assert oracle["device_sessions"].value(session)["risen_c"] == 3.0


def test_of_readings_of_one_instant_arrival_decides() -> None:
    oracle = after([reading(0, 20.0), reading(0, 25.0), reading(1, 30.0), reading(1, 22.0)])
    (session,) = oracle["device_sessions"].groups.values()
    assert oracle["device_sessions"].value(session)["risen_c"] == 2.0


def test_lateness_at_the_source_and_at_sessions_differ() -> None:
    # The first batch brings the watermark to 30,000: behind 15,000 all is late, and a session that ends by 20,001.
    oracle = after(
        [(None, {"event_time": T + 32_001}, 0)],
        [reading(15_000, 1.0), reading(15_001, 2.0, "b"), reading(15_002, 3.0, "c")],
    )
    assert oracle["readings"].late == [Late(Place("readings", 0, 1), T + 15_000, T + 30_000)]
    assert oracle["device_sessions"].late == [Late(Place("device_sessions", 0, 2), T + 15_001, T + 30_000)]
    assert oracle.outcomes[1]["readings"] == Counter(records_in=3, late=1, passed=2)
    assert [session.key["device"] for session in oracle["device_sessions"].groups.values()] == ["c"]


def test_a_record_with_only_a_time_moves_time() -> None:
    oracle = after([(None, {"event_time": T + 9_001}, 0)])
    assert oracle.outcomes[0]["readings"] == Counter(records_in=1, filtered=1)
    assert oracle.watermark_ms == T + 7_000


def test_a_partition_silent_for_5_s_and_read_to_its_end_is_idle() -> None:
    message = Message(Place("readings", 0, 0), b"a", json.dumps({"event_time": T}).encode(), T)
    batches = [Batch(T, [Read("readings", 0, 0, 1, 1)])]
    batches += [Batch(T + silent_ms, [Read("readings", 0, 1, 1, 1)], n) for n, silent_ms in ((1, 5_000), (2, 5_001))]
    oracle = sensors_of([message], batches)
    assert [oracle.times[number]["readings", None].activity for number in range(3)] == ["active", "active", "idle"]


def test_every_reason_for_quarantine_is_in_the_feed() -> None:
    found = [
        fields_of(Message(Place("readings", 0, 0), s.key, s.value, s.timestamp_ms))
        for s in feed(T)
        if s.at_ms == T + 8_000
    ]
    assert [reason for reason in found if isinstance(reason, str)] == [
        "null_key",
        "invalid_key",
        "invalid_utf8",
        "malformed_json",
        "wrong_type",
        "missing_timestamp",
        "timestamp_out_of_range",
        "timestamp_out_of_range",
    ]


def test_the_feed_repeats_and_ends_all_partitions_at_one_time() -> None:
    sent = feed(T)
    assert sent == feed(T)
    assert sent == sorted(sent, key=lambda one: one.at_ms)
    assert {one.partition: one.timestamp_ms for one in sent} == dict.fromkeys(range(3), T + SETTLED)
