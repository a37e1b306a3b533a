"""Plays real flights into Kafka at a chosen speed.

`jobs/replay.py` and `tidemark replay` use it. Clock: `clock_ms` is the caller's, epoch ms UTC; it paces the records,
and their timestamps are mapped to it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tidemark.demo.feed_record import PARTITIONS, WEATHER, FeedFault, FeedRecord, RecordKind, ReplayClock, encode
from tidemark.demo.flights import NEW_YORK, midnight_ms
from tidemark.demo.generate import FeedSettings, feed
from tidemark.demo.nycflights import load
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.local.broker import create_topics
from tidemark.model.settings.intervals import iso, iso_day

POLL_MS = 100
PROGRESS_EVERY_MS = 5_000
DELIVERED_WITHIN_S = 60


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """Range, speed and disorder of a replay.

    It plays New York days from *first* to before *until*, *speed* times as fast as time. With *at_once* nothing waits:
    the records are those of a replay that has just ended. With *weather_first* all of the weather is acknowledged
    before the first flight is sent.
    """

    bootstrap: str
    first: date
    until: date
    speed: float
    at_once: bool = False
    weather_first: bool = False
    feed: FeedSettings

    def __post_init__(self) -> None:
        if not self.speed > 0:
            msg = f"speed must be above 0: got {self.speed:g}; 1440 plays a day in a minute, --at-once does not wait"
            raise InvalidArgument(msg)


def _day(text: str) -> date:
    try:
        return iso_day(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None  # argparse hides the message of any other error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a replay, which `run` takes, to *parser*."""
    add = parser.add_argument
    day = _day
    add("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT", help="Kafka to play into (default: %(default)s)")
    add(
        "--from", dest="first", type=day, default="2013-06-27", help="first New York day of 2013 (default: %(default)s)"
    )
    add("--to", dest="until", type=day, default="2013-06-29", help="day after the last one (default: %(default)s)")
    add(
        "--speed", type=float, default=1440, help="times real time; 1440 plays a day in a minute (default: %(default)s)"
    )
    add("--at-once", action="store_true", help="send all records at once, with the times of a replay that ends now")
    add("--weather-first", action="store_true", help="send all of the weather before the first flight")
    add("--seed", type=int, default=7, help="the same seed gives the same feed (default: %(default)s)")
    add("--repeat-share", type=float, default=0.2, help="share of statuses that are repeated (default: %(default)s)")
    add(
        "--offline-share",
        type=float,
        default=0.01,
        help="share of aircraft that reconnect after hours (default: %(default)s)",
    )
    add("--bad-records", type=int, default=12, metavar="N", help="broken records to inject (default: %(default)s)")
    add("--summary", type=Path, metavar="FILE", help="also write the summary, a line of JSON, to FILE")


def run(
    options: argparse.Namespace, *, clock_ms: Callable[[], int], report: Callable[[str], None]
) -> dict[str, object]:
    """Plays a replay, with progress to *report*; returns its summary."""
    unruly = FeedSettings(
        seed=options.seed,
        offline_share=options.offline_share,
        repeat_share=options.repeat_share,
        bad_records=options.bad_records,
    )
    settings = ReplaySettings(
        bootstrap=options.bootstrap,
        first=options.first,
        until=options.until,
        speed=options.speed,
        at_once=options.at_once,
        weather_first=options.weather_first,
        feed=unruly,
    )
    summary = replay(settings, clock_ms=clock_ms, report=report)
    if options.summary:
        options.summary.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    return summary


def replay(
    settings: ReplaySettings, *, clock_ms: Callable[[], int], report: Callable[[str], None]
) -> dict[str, object]:
    """Generates a feed and plays it; returns a summary.

    The topics are created where they are missing. The summary counts what Kafka acknowledged.
    """
    data = load(settings.first, settings.until)
    start_ms = midnight_ms(settings.first)
    records = feed(data.flights, data.weather, range_start_ms=start_ms, settings=settings.feed)
    create_topics(settings.bootstrap, PARTITIONS)
    timeline = ReplayClock(started_at_ms=clock_ms(), range_start_ms=start_ms, speed=settings.speed)
    length_ms = max(map(timeline.delivery_ms, records)) - timeline.started_at_ms
    if settings.at_once:
        timeline = replace(timeline, started_at_ms=timeline.started_at_ms - length_ms)
    takes = "at once" if settings.at_once else f"in {length_ms / 1000:.0f} s"
    report(f"replay of {len(data.flights):,} flights: {len(records):,} records {takes}")
    report(moved_times(timeline))
    publish(records, timeline, settings, clock_ms=clock_ms, report=report)
    return summary_of(records, timeline)


def publish(
    records: Sequence[FeedRecord],
    timeline: ReplayClock,
    settings: ReplaySettings,
    *,
    clock_ms: Callable[[], int],
    report: Callable[[str], None],
) -> None:
    """Sends each of *records* at its delivery instant.

    It returns when Kafka has acknowledged every record.

    Args:
        records: the feed.
        timeline: maps instants of the feed to the replay.
        settings: of the replay.
        clock_ms: the caller's clock.
        report: gets a line of progress now and then.

    Raises:
        TidemarkError: Kafka refused a record; it is raised at once.
    """
    outbox = Outbox(settings.bootstrap)
    ordered = sorted(records, key=timeline.delivery_ms)
    if settings.weather_first:
        for record in ordered:
            if record.topic == WEATHER:
                outbox.send(record, timeline.event_time_ms(record))
        outbox.flush()
        ordered = [record for record in ordered if record.topic != WEATHER]
    report_at_ms = clock_ms() + PROGRESS_EVERY_MS
    for number, record in enumerate(ordered):
        while not settings.at_once and (early_ms := timeline.delivery_ms(record) - clock_ms()) > 0:
            outbox.serve(min(early_ms, POLL_MS) / 1000)
        outbox.send(record, timeline.event_time_ms(record))
        if clock_ms() >= report_at_ms:
            report(_progress(record, number, len(ordered)))
            report_at_ms += PROGRESS_EVERY_MS
    outbox.flush()


class Outbox:
    """An idempotent producer that raises on the first refusal.

    It waits for every acknowledgement.
    """

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": DELIVERED_WITHIN_S * 1000,
                "log_level": 3,  # retries are no news; refusals reach _delivered
            }
        )
        self._refusal: KafkaError | None = None

    def send(self, record: FeedRecord, event_time_ms: int) -> None:
        """Hands *record* to the producer.

        Kafka's own timestamp is *event_time_ms* even where the payload's is bad.
        """
        key, value = encode(record, event_time_ms)
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value,
                    key,
                    record.partition,
                    on_delivery=self._delivered,
                    timestamp=event_time_ms,
                )
                break
            except BufferError:  # its queue is full
                self.serve(POLL_MS / 1000)
        self.serve(0)

    def serve(self, seconds: float) -> None:
        """Handles acknowledgements for up to *seconds*."""
        self._producer.poll(seconds)
        self._check()

    def flush(self) -> None:
        """Returns when all sent records are acknowledged."""
        unacknowledged = self._producer.flush(DELIVERED_WITHIN_S)
        self._check()
        if unacknowledged:
            msg = (
                f"Kafka has not acknowledged {unacknowledged} records within {DELIVERED_WITHIN_S} s; check that the "
                "broker runs"
            )
            raise TidemarkError(msg)

    def _delivered(self, refusal: KafkaError | None, _: Message) -> None:
        self._refusal = self._refusal or refusal

    def _check(self) -> None:
        if self._refusal is not None:
            msg = f"Kafka rejected a record: {self._refusal.str()}; check that the broker runs and has the topics"
            raise TidemarkError(msg)


def moved_times(timeline: ReplayClock) -> str:
    """Says which record times the instants of 2013 have in a replay."""
    start, speed = _in_new_york(timeline.range_start_ms), f"{timeline.speed:,g} times as fast"
    return f"record times are those of the replay: {start} is {iso(timeline.started_at_ms)}, and time goes {speed}"


def summary_of(records: Sequence[FeedRecord], timeline: ReplayClock) -> dict[str, object]:
    """Counts *records* by topic, kind and fault.

    It has the span of the sound ones' event times, too (epoch ms).
    """
    topics: Counter[str] = Counter()
    kinds: Counter[RecordKind] = Counter()
    faults: Counter[FeedFault] = Counter()
    event_times_ms: list[int] = []
    held_back = 0
    for record in records:
        topics[record.topic] += 1
        kinds[record.kind] += 1
        held_back += record.was_held_back
        if record.fault is not None:
            faults[record.fault] += 1
        # The payload of a bad record need not have an event time.
        if record.kind is not RecordKind.BAD:
            event_times_ms.append(timeline.event_time_ms(record))
    return {
        "records": len(records),
        "topics": topics,
        "kinds": kinds,
        "faults": faults,
        "held_back": held_back,
        "started_at_ms": timeline.started_at_ms,
        "first_event_time_ms": min(event_times_ms),
        "last_event_time_ms": max(event_times_ms),
    }


def _progress(record: FeedRecord, number: int, total: int) -> str:
    shown = _in_new_york(record.sent_at_ms)
    return f"replay {100 * number // total} % {shown}, {number:,} of {total:,} records"


def _in_new_york(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, NEW_YORK):%Y-%m-%d %H:%M} New York"
