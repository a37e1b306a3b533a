"""Plays a range of real flights into Kafka at a chosen speed: `jobs/replay.py` and `tidemark replay`.

Clock: `clock_ms` is the caller's, epoch ms UTC; it paces the records and is what their timestamps are mapped to.
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

from tidemark.embedded.broker import create_topics
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.feed.feed_record import PARTITIONS, WEATHER, FeedRecord, Kind, Timeline, encode
from tidemark.feed.flights import NEW_YORK, midnight_ms
from tidemark.feed.generate import FeedSettings, feed
from tidemark.feed.nycflights import load

POLL_MS = 100
PROGRESS_EVERY_MS = 5_000
DELIVERED_WITHIN_S = 60


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """What to play and how: New York days from *first* to before *until*, *speed* times as fast as time.

    With *at_once* nothing waits: the records are those of a replay that has just ended. With *weather_first* all of
    the weather is acknowledged before the first flight is sent.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give *parser* the options of a replay, which `run` takes."""
    add = parser.add_argument
    day = date.fromisoformat
    add("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT", help="Kafka to play into (%(default)s)")
    add("--from", dest="first", type=day, default="2013-06-27", help="first New York day of 2013 (%(default)s)")
    add("--to", dest="until", type=day, default="2013-06-29", help="the day before which to end (%(default)s)")
    add("--speed", type=float, default=1440, help="times as fast as time; 1440 plays a day in a minute (%(default)s)")
    add("--at-once", action="store_true", help="do not wait: send what a replay that ends now would have sent")
    add("--weather-first", action="store_true", help="send all of the weather before the first flight")
    add("--seed", type=int, default=7, help="the same seed gives the same feed (%(default)s)")
    add("--repeat-share", type=float, default=0.2, help="share of statuses that are said again (%(default)s)")
    add("--offline-share", type=float, default=0.01, help="share of aircraft that reconnect after hours (%(default)s)")
    add("--bad-records", type=int, default=12, metavar="N", help="broken records to inject (%(default)s)")
    add("--summary", type=Path, metavar="FILE", help="write the closing JSON line to FILE, too")


def run(
    options: argparse.Namespace, *, clock_ms: Callable[[], int], report: Callable[[str], None]
) -> dict[str, object]:
    """Play what the *options* of `add_arguments` say; its summary. *report* gets a line of progress now and then."""
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
    """Generate the feed, create its topics where they are missing, play it; the summary of what Kafka acknowledged."""
    data = load(settings.first, settings.until)
    start_ms = midnight_ms(settings.first)
    records = feed(data.flights, data.weather, range_start_ms=start_ms, settings=settings.feed)
    create_topics(settings.bootstrap, PARTITIONS)
    timeline = Timeline(started_at_ms=clock_ms(), range_start_ms=start_ms, speed=settings.speed)
    length_ms = max(map(timeline.delivery_ms, records)) - timeline.started_at_ms
    if settings.at_once:
        timeline = replace(timeline, started_at_ms=timeline.started_at_ms - length_ms)
    takes = "at once" if settings.at_once else f"in {length_ms / 1000:.0f} s"
    report(f"replay of {len(data.flights):,} flights: {len(records):,} records {takes}")
    publish(records, timeline, settings, clock_ms=clock_ms, report=report)
    return summary_of(records, timeline)


def publish(
    records: Sequence[FeedRecord],
    timeline: Timeline,
    settings: ReplaySettings,
    *,
    clock_ms: Callable[[], int],
    report: Callable[[str], None],
) -> None:
    """Send *records*, each when its delivery instant has come; return when Kafka has acknowledged every one.

    Raises TidemarkError as soon as one is refused.
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
    """An idempotent producer that waits for every acknowledgement and raises on the first refusal."""

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
        """Hand *record* to the producer; Kafka's own timestamp is *event_time_ms* even where the payload's is bad."""
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
        """Take acknowledgements for up to *seconds*."""
        self._producer.poll(seconds)
        self._check()

    def flush(self) -> None:
        """Return when all that was sent is acknowledged."""
        left = self._producer.flush(DELIVERED_WITHIN_S)
        self._check()
        if left:
            msg = (
                f"Kafka must acknowledge every record: {left} are open after {DELIVERED_WITHIN_S} s; is the broker up?"
            )
            raise TidemarkError(msg)

    def _delivered(self, refusal: KafkaError | None, _: Message) -> None:
        self._refusal = self._refusal or refusal

    def _check(self) -> None:
        if self._refusal is not None:
            msg = f"Kafka must acknowledge every record: {self._refusal.str()}; is the broker up, are its topics there?"
            raise TidemarkError(msg)


def summary_of(records: Sequence[FeedRecord], timeline: Timeline) -> dict[str, object]:
    """Counts of *records* by topic, kind and fault, and the span of the sound ones' event times (epoch ms)."""
    event_times = [timeline.event_time_ms(record) for record in records if record.kind is not Kind.BAD]
    return {
        "records": len(records),
        "topics": Counter(record.topic for record in records),
        "kinds": Counter(record.kind for record in records),
        "faults": Counter(record.fault for record in records if record.fault is not None),
        "held_back": sum(record.was_held_back for record in records),
        "started_at_ms": timeline.started_at_ms,
        "first_event_time_ms": min(event_times),
        "last_event_time_ms": max(event_times),
    }


def _progress(record: FeedRecord, number: int, total: int) -> str:
    shown = datetime.fromtimestamp(record.sent_at_ms / 1000, NEW_YORK)
    return f"replay {100 * number // total} % {shown:%Y-%m-%d %H:%M} New York, {number:,} of {total:,} records"
