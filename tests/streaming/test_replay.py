"""A consumer reads a replay in the feed's order and timing.

It goes through a real broker.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import median
from time import time_ns
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from tidemark.demo import publish
from tidemark.demo.feed_record import FeedRecord, RecordKind, ReplayClock, encode
from tidemark.demo.flights import midnight_ms
from tidemark.demo.generate import FeedSettings, feed
from tidemark.demo.nycflights import load
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.local.broker import create_topics

PLACES = [("flight_events", 0), ("flight_events", 1), ("flight_events", 2), ("weather", 0)]
AIRPORTS = ["EWR", "JFK", "LGA"]
START = midnight_ms(date(2013, 6, 27))
UNRULY = ["--repeat-share", "0.2", "--offline-share", "0.05", "--bad-records", "14", "--seed", "3"]


@dataclass
class Played:
    """A day played at once: summary, records read, and end.

    The summary is the line of JSON; records are by partition.
    """

    summary: dict[str, Any]
    read: dict[tuple[str, int], list[Message]]
    ended_at_ms: int

    @property
    def messages(self) -> list[Message]:
        return [message for messages in self.read.values() for message in messages]


def now_ms() -> int:
    return time_ns() // 1_000_000


def options(broker: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    publish.add_arguments(parser)
    return parser.parse_args(["--bootstrap", broker, "--from", "2013-06-27", "--to", "2013-06-28", *arguments])


@pytest.fixture(scope="module")
def consumer(broker: str) -> Iterator[Consumer]:
    create_topics(broker, {"flight_events": 3, "weather": 1})
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "test", "enable.auto.commit": False})
    yield consumer
    consumer.close()


def ends(consumer: Consumer) -> dict[tuple[str, int], int]:
    return {place: consumer.get_watermark_offsets(TopicPartition(*place))[1] for place in PLACES}


@pytest.fixture(scope="module")
def played(broker: str, consumer: Consumer, tmp_path_factory: pytest.TempPathFactory) -> Played:
    file = tmp_path_factory.mktemp("replay") / "summary.json"
    before = ends(consumer)
    chosen = options(broker, "--at-once", *UNRULY, "--summary", str(file))
    summary = publish.run(chosen, clock_ms=now_ms, report=lambda _: None)
    ended_at_ms = now_ms()
    assert json.loads(file.read_text()) == summary
    read: dict[tuple[str, int], list[Message]] = {}
    for place, end in ends(consumer).items():
        consumer.assign([TopicPartition(*place, before[place])])
        read[place] = consumer.consume(end - before[place], timeout=20)
        assert len(read[place]) == end - before[place]
    return Played(summary, read, ended_at_ms)


def payload(message: Message) -> dict[str, Any] | None:
    try:
        fields: dict[str, Any] = json.loads(message.value() or b"")
    except ValueError:  # of which bad JSON and bad UTF-8 are two kinds
        return None
    return fields


def sound(messages: list[Message], played: Played) -> list[dict[str, Any]]:
    """Returns valid payloads, judged without knowledge of the feed."""
    plausible = range(played.summary["started_at_ms"], played.ended_at_ms + 60_000)
    payloads = [payload(message) for message in messages if message.value() is not None]
    return [fields for fields in payloads if fields is not None and fields["event_time"] in plausible]


def test_a_consumer_reads_as_many_records_as_were_acknowledged(played: Played) -> None:
    assert len(played.messages) == played.summary["records"]
    assert Counter(message.topic() for message in played.messages) == played.summary["topics"]
    assert played.summary["topics"]["weather"] == 3 * 24


def test_every_partition_holds_the_feed_byte_for_byte(played: Played) -> None:
    data = load(date(2013, 6, 27), date(2013, 6, 28))
    settings = FeedSettings(seed=3, repeat_share=0.2, offline_share=0.05, bad_records=14)
    timeline = ReplayClock(started_at_ms=played.summary["started_at_ms"], range_start_ms=START, speed=1440)
    records = feed(data.flights, data.weather, range_start_ms=START, settings=settings)
    for place, messages in played.read.items():
        given = sorted((r for r in records if (r.topic, r.partition) == place), key=timeline.delivery_ms)
        expected = [encode(record, timeline.event_time_ms(record)) for record in given]
        assert [(message.key(), message.value()) for message in messages] == expected


def test_each_partition_of_flight_events_is_one_airport(played: Played) -> None:
    for partition, airport in enumerate(AIRPORTS):
        origins = {fields["origin"] for fields in sound(played.read["flight_events", partition], played)}
        assert origins == {airport}


def test_injected_bad_records_are_what_a_reader_finds_wrong(played: Played) -> None:
    found: Counter[str] = Counter()
    for message in played.messages:
        value, fields = message.value() or b"", payload(message)
        if message.value() is None:
            found["null_value"] += 1
        elif fields is None:
            found["malformed_json" if value.isascii() else "invalid_utf8"] += 1
        else:
            found[reason(fields["event_time"], played)] += 1
    expected = dict.fromkeys(
        [
            "malformed_json",
            "invalid_utf8",
            "null_value",
            "timestamp_negative",
            "timestamp_zero",
            "timestamp_in_seconds",
            "timestamp_year_9999",
        ],
        2,
    )
    assert found == expected | {"sound": played.summary["records"] - 14}
    assert played.summary["faults"] == expected


def reason(event_time: int, played: Played) -> str:
    if event_time in range(played.summary["started_at_ms"], played.ended_at_ms):
        return "sound"
    if event_time in range(played.summary["started_at_ms"] // 1000, played.ended_at_ms // 1000):
        return "timestamp_in_seconds"
    return {-1: "timestamp_negative", 0: "timestamp_zero", 253_370_764_800_000: "timestamp_year_9999"}[event_time]


def test_kafkas_timestamp_is_the_event_time_even_of_bad_records(played: Played) -> None:
    first, last = played.summary["first_event_time_ms"], played.summary["last_event_time_ms"]
    for message in played.messages:
        stamped = message.timestamp()[1]
        assert first <= stamped <= last
        fields = payload(message)
        if fields is not None and first <= fields["event_time"] <= last:
            assert stamped == fields["event_time"]


def test_records_of_one_airport_are_out_of_order(played: Played) -> None:
    for partition in range(3):
        event_times = [fields["event_time"] for fields in sound(played.read["flight_events", partition], played)]
        assert event_times != sorted(event_times)


def test_a_replay_at_once_is_one_that_ends_now(played: Played) -> None:
    assert played.ended_at_ms - 60_000 < played.summary["last_event_time_ms"] <= played.ended_at_ms
    one_day_ms = 60_000
    assert played.summary["last_event_time_ms"] - played.summary["first_event_time_ms"] > one_day_ms


def test_with_weather_first_flights_wait_for_its_acknowledgement(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Watched(publish.Outbox):
        def send(self, record: FeedRecord, event_time_ms: int) -> None:
            done.append(record.topic)
            super().send(record, event_time_ms)

        def flush(self) -> None:
            super().flush()
            done.append("acknowledged")

    monkeypatch.setattr(publish, "Outbox", Watched)
    publish.run(options(broker, "--at-once", "--weather-first"), clock_ms=now_ms, report=lambda _: None)
    assert [step for step, _ in groupby(done)] == ["weather", "acknowledged", "flight_events", "acknowledged"]


def test_a_paced_record_is_sent_at_its_delivery_instant(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, FeedRecord]] = []

    class Watched(publish.Outbox):
        def send(self, record: FeedRecord, event_time_ms: int) -> None:
            sent.append((now_ms(), record))
            super().send(record, event_time_ms)

    monkeypatch.setattr(publish, "Outbox", Watched)
    said: list[str] = []
    monkeypatch.setattr(publish, "PROGRESS_EVERY_MS", 500)
    summary: dict[str, Any] = publish.run(options(broker, "--speed", "34560"), clock_ms=now_ms, report=said.append)
    timeline = ReplayClock(started_at_ms=summary["started_at_ms"], range_start_ms=START, speed=34560)
    late_ms = [at_ms - timeline.delivery_ms(record) for at_ms, record in sent]
    assert min(late_ms) >= 0
    assert median(late_ms) < 1_000, "generous, for a busy machine"
    assert len(sent) == summary["records"]
    assert Counter(record.kind for _, record in sent)[RecordKind.BAD] == 12
    assert any(line.startswith("replay ") and "2013-06-27 1" in line and " New York, " in line for line in said)


def test_a_record_that_kafka_refuses_fails_the_replay(broker: str, consumer: Consumer) -> None:
    outbox = publish.Outbox(broker)
    record = FeedRecord(
        topic="weather", partition=9, key="EWR", kind=RecordKind.WEATHER, happened_at_ms=0, sent_at_ms=0, fields={}
    )
    outbox.send(record, 1)
    with pytest.raises(TidemarkError, match=r"Kafka rejected a record: .*partition.*; check that the broker runs"):
        outbox.flush()


def test_a_speed_of_zero_is_refused_with_the_remedy(broker: str) -> None:
    with pytest.raises(InvalidArgument, match=r"speed must be above 0: got 0; .* --at-once does not wait"):
        publish.run(options(broker, "--speed", "0"), clock_ms=now_ms, report=lambda _: None)


def test_the_job_prints_progress_apart_from_its_line_of_json(
    broker: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import replay

    monkeypatch.setattr("sys.argv", ["replay", "--bootstrap", broker, "--to", "2013-06-28", "--at-once"])
    replay.main()
    printed = capsys.readouterr()
    assert json.loads(printed.out)["records"] > 3_000
    assert printed.err.startswith("replay of 995 flights: ")
