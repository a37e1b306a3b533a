"""A record of the feed, its arrival in a replay, its bytes.

Instants are epoch ms UTC: of 2013 in a `FeedRecord`, of the replay's wall clock behind a `ReplayClock`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from tidemark.demo.flights import utc_text

FLIGHT_EVENTS = "flight_events"
WEATHER = "weather"
AIRPORTS = ("EWR", "JFK", "LGA")
"""An airport's place in this list is its partition of `flight_events`."""
PARTITIONS = {FLIGHT_EVENTS: len(AIRPORTS), WEATHER: 1}

YEAR_9999_MS = 253_370_764_800_000


class RecordKind(StrEnum):
    """The reason for a record: change, repeat, observation or fault."""

    STATUS = "status"
    REPEAT = "repeat"
    WEATHER = "weather"
    BAD = "bad"


class FeedFault(StrEnum):
    """The fault of a bad record.

    Faults are injected in this order, repeatedly.
    """

    MALFORMED_JSON = "malformed_json"
    INVALID_UTF8 = "invalid_utf8"
    NULL_VALUE = "null_value"
    TIMESTAMP_NEGATIVE = "timestamp_negative"
    TIMESTAMP_ZERO = "timestamp_zero"
    TIMESTAMP_IN_SECONDS = "timestamp_in_seconds"
    TIMESTAMP_YEAR_9999 = "timestamp_year_9999"


@dataclass(frozen=True, kw_only=True)
class FeedRecord:
    """A record of the feed.

    It happened at *happened_at_ms*, its sender was online again at *sent_at_ms* (the same instant for most), and it
    arrives *delay_ms* real milliseconds after that.
    """

    topic: str
    partition: int
    key: str
    kind: RecordKind
    happened_at_ms: int
    sent_at_ms: int
    delay_ms: int = 0
    fields: dict[str, str | float | None]
    fault: FeedFault | None = None

    @property
    def was_held_back(self) -> bool:
        """True if its sender was offline when it happened."""
        return self.sent_at_ms > self.happened_at_ms


@dataclass(frozen=True, kw_only=True)
class ReplayClock:
    """Maps instants of 2013 to a replay.

    The replay began at *started_at_ms* and runs *speed* times as fast as time.
    """

    started_at_ms: int
    range_start_ms: int
    speed: float

    def mapped_ms(self, instant_ms: int) -> int:
        """Returns the instant of the replay, epoch ms, for *instant_ms*."""
        return self.started_at_ms + round((instant_ms - self.range_start_ms) / self.speed)

    def event_time_ms(self, record: FeedRecord) -> int:
        """Returns when *record* happened in the replay.

        A sound record carries it as its timestamp.
        """
        return self.mapped_ms(record.happened_at_ms)

    def delivery_ms(self, record: FeedRecord) -> int:
        """Returns when *record* arrives in the replay."""
        return self.mapped_ms(record.sent_at_ms) + record.delay_ms


def encode(record: FeedRecord, event_time_ms: int) -> tuple[bytes, bytes | None]:
    """Returns key and value of *record* on the wire, with its fault.

    The value is JSON whose timestamp is `event_time`.
    """
    fields: dict[str, object] = {
        "event_time": event_time_ms,
        "happened_at": utc_text(record.happened_at_ms),
        **record.fields,
    }
    match record.fault:
        case FeedFault.TIMESTAMP_NEGATIVE:
            fields["event_time"] = -1
        case FeedFault.TIMESTAMP_ZERO:
            fields["event_time"] = 0
        case FeedFault.TIMESTAMP_IN_SECONDS:
            fields["event_time"] = event_time_ms // 1000
        case FeedFault.TIMESTAMP_YEAR_9999:
            fields["event_time"] = YEAR_9999_MS
        case FeedFault.INVALID_UTF8:
            fields["origin"] = "\udcff"  # encoded below as the single byte FF: sound JSON but for that
    key = record.key.encode()
    if record.fault is FeedFault.NULL_VALUE:
        return key, None
    value = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape")
    return key, value[: len(value) // 2] if record.fault is FeedFault.MALFORMED_JSON else value
