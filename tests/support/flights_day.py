"""Plays a day of flights twelve times as fast, with expected results.

The expected results follow from the feed alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from support.play import Play, Row
from tidemark.demo.feed_record import FLIGHT_EVENTS, PARTITIONS, WEATHER, FeedFault, FeedRecord, ReplayClock, encode
from tidemark.demo.flights import midnight_ms
from tidemark.demo.generate import FeedSettings, feed
from tidemark.demo.nycflights import load

DAY = date(2013, 6, 27)
NEXT_DAY = date(2013, 6, 28)
STARTED_AT_MS = 1_772_359_200_000  # 2026-03-01T10:00:00Z
BATCH_MS = 10 * 60_000
CARRIERS_AFTER_MS = 2_000
FEW_FLIGHTS = 3
TOPOLOGY = Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml"
STRICT = TOPOLOGY.read_text().replace("idle_advances = true", 'idle_advances = true\nallowed_lateness = "0 ms"')
"""The flights topology with a source that refuses records behind its watermark."""
REASONS = {
    FeedFault.MALFORMED_JSON: "malformed_json",
    FeedFault.INVALID_UTF8: "invalid_utf8",
    FeedFault.NULL_VALUE: "null_value",
    FeedFault.TIMESTAMP_NEGATIVE: "timestamp_out_of_range",
    FeedFault.TIMESTAMP_ZERO: "timestamp_out_of_range",
    FeedFault.TIMESTAMP_IN_SECONDS: "timestamp_out_of_range",
    FeedFault.TIMESTAMP_YEAR_9999: "timestamp_out_of_range",
}
"""Maps each fault to the source's reason."""


class TickingPlay(Play):
    """A clock that advances 3 ms per reading, so work takes time."""

    @property
    def now_ms(self) -> int:
        self._now_ms += 3
        return self._now_ms

    @now_ms.setter
    def now_ms(self, at_ms: int) -> None:
        self._now_ms = at_ms


def few_flights(play: Play, at_ms: int, number: int) -> list[Row]:
    """Returns the records of a small batch of `status`.

    Each of FEW_FLIGHTS of one airport has a new status in each *number*, and repeats it. Every tenth has a record of
    the weather, too.
    """
    rows = [play.row("weather", at_ms, key="EWR", origin="EWR", temp_f=float(number))] if number % 10 == 0 else []
    for flight in 2 * [*range(FEW_FLIGHTS)]:
        fields = {"flight": f"UA{flight}", "carrier": "UA", "origin": "EWR", "dest": "SFO", "tailnum": "N1"}
        status = {"status": "departed", "dep_delay_min": float(number)}
        rows.append(play.row("flight_events", at_ms, key=fields["flight"], **fields, **status))
    return rows


@dataclass(frozen=True)
class PartitionIntake:
    """A record at its source: record time and read time, epoch ms."""

    record: FeedRecord
    partition: int
    offset: int
    at_ms: int
    read_at_ms: int


@dataclass
class FlightsDay:
    """Records in arrival order, and the end of the last batch.

    The end is an instant in epoch ms.
    """

    arrived: list[PartitionIntake] = field(default_factory=list)
    ended_at_ms: int = 0

    def flights(self, late: Iterable[tuple[int, int]] = ()) -> list[PartitionIntake]:
        """Returns sound flights in order of judgement, without the *late* places."""
        left_out = set(late)
        sound = [a for a in self.arrived if a.record.topic == FLIGHT_EVENTS and a.record.fault is None]
        return [a for a in sound if (a.partition, a.offset) not in left_out]

    @cached_property
    def weather(self) -> list[PartitionIntake]:
        """The observations in the order in which they came."""
        return [a for a in self.arrived if a.record.topic == WEATHER]


def play_day(home: Path, of: type[Play] = TickingPlay) -> FlightsDay:
    """Plays the day into *home*, a batch per sub-topology every ten minutes, on the clock of a play *of* this kind."""
    data = load(DAY, NEXT_DAY)
    start_ms = midnight_ms(DAY)
    unruly = FeedSettings(seed=7, offline_share=0.01, repeat_share=0.2, bad_records=12)
    records = feed(data.flights, data.weather, range_start_ms=start_ms, settings=unruly)
    timeline = ReplayClock(started_at_ms=STARTED_AT_MS, range_start_ms=start_ms, speed=12)
    play, day = of(STRICT, home, partitions=len(PARTITIONS)), FlightsDay()
    play.broker.partitions = {topic: 3 if topic == FLIGHT_EVENTS else 1 for topic in (FLIGHT_EVENTS, WEATHER)}

    def batch_of(record: FeedRecord) -> int:
        return (timeline.delivery_ms(record) - STARTED_AT_MS) // BATCH_MS

    for number, batch in groupby(sorted(records, key=timeline.delivery_ms), key=batch_of):
        day.ended_at_ms = STARTED_AT_MS + (number + 1) * BATCH_MS
        play.batch([_row(play, record, timeline, day) for record in batch], at_ms=day.ended_at_ms, sub="status")
        play.hop("carriers", at_ms=day.ended_at_ms + CARRIERS_AFTER_MS)
    return day


def _row(play: Play, record: FeedRecord, timeline: ReplayClock, day: FlightsDay) -> Row:
    at_ms = timeline.event_time_ms(record)
    fields = {name: float(v) if isinstance(v, int) else v for name, v in record.fields.items()}
    row = play.row(record.topic, at_ms, partition=record.partition, key=record.key, **fields)
    day.arrived.append(PartitionIntake(record, record.partition, row["offset"], at_ms, day.ended_at_ms))
    if record.fault is None:
        return row
    key, value = encode(record, at_ms)
    place: dict[str, Any] = {name: row[name] for name in ("source", "partition", "offset")}
    return {**place, "key": key, "value": value, "reason": REASONS[record.fault]}
