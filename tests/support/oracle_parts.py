"""Has the values of the oracle: records, batches, emit-on-change and record time.

Standard library only, and nothing of the engine's, as in the oracle itself. Instants are epoch ms, UTC.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

PLAUSIBLE_MS = range(946_684_800_000, 4_102_444_800_000)  # 2000-01-01 to before 2100-01-01

Fields = dict[str, Any]


class Place(NamedTuple):
    """Where a record lies: in Kafka, or in what a source reads."""

    topic: str
    partition: int
    offset: int


class Message(NamedTuple):
    """A record of Kafka with Kafka's own `timestamp_ms`.

    Of several headers with one name it has the last.
    """

    place: Place
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Mapping[str, bytes | None] = MappingProxyType({})


class Read(NamedTuple):
    """Offsets that a batch read of one partition.

    From (inclusive) until (exclusive), and the broker's end if asked.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    latest_offset: int | None = None

    def places(self) -> list[Place]:
        """Where the records that were read lie, in order."""
        return [Place(self.topic, self.partition, offset) for offset in range(self.from_offset, self.until_offset)]


class Batch(NamedTuple):
    """A batch that changed anything."""

    decided_at_ms: int
    reads: Sequence[Read]
    batch_id: int = 0


class Update(NamedTuple):
    """A sent update: key, value, record time, and its record."""

    key: str
    value: str | None
    timestamp_ms: int
    old_timestamp_ms: int | None
    partition: int
    offset: int


class Late(NamedTuple):
    """A record that came at or behind the watermark."""

    place: Place
    timestamp_ms: int
    watermark_ms: int


class Handed(NamedTuple):
    """Rows of a repartition: value to retract, value to add, their record.

    It may be either or both.
    """

    key: str
    old: Fields | None
    new: Fields | None
    timestamp_ms: int
    partition: int
    offset: int


@dataclass
class EmitOnChange:
    """Stored values of an operator, and its sent and suppressed updates."""

    rule: str = "strictly_newer"
    stored: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    sent: list[Update] = field(default_factory=list)
    skips: list[tuple[str, Place]] = field(default_factory=list)
    identities: dict[str, str | None] = field(default_factory=dict)

    def offer(
        self, key: str, value: str | None, timestamp_ms: int, place: Place, *, identity: str | None = None
    ) -> bool:
        """Returns true if the update is sent, and so stored.

        None deletes; values are compared by *identity* if given.
        """
        compared = value if identity is None else identity
        _, old_ms = self.stored.get(key, (None, None))
        if compared == self.identities.get(key) and self._is_old_news(compared, timestamp_ms, old_ms):
            self.skips.append((key, place))
            return False
        self.stored[key], self.identities[key] = (value, timestamp_ms), compared
        self.sent.append(Update(key, value, timestamp_ms, old_ms, place.partition, place.offset))
        return True

    @property
    def skipped(self) -> Counter[str]:
        """Returns the number of suppressed updates of each key."""
        return Counter(key for key, _ in self.skips)

    def _is_old_news(self, value: str | None, timestamp_ms: int, old_ms: int | None) -> bool:
        """Returns true if the equal stored value must not be sent again.

        A deletion of an absent key is never sent.
        """
        if value is None or old_ms is None or self.rule == "value_only":
            return True
        return timestamp_ms > old_ms if self.rule == "strictly_newer" else timestamp_ms == old_ms


@dataclass
class Partition:
    """Time of one partition, and the last batch with its records."""

    heard_at_ms: int
    newest_ms: int = 0  # 0: no usable record yet
    activity: str = "active"


class Reached(NamedTuple):
    """Watermark and activity of a partition or source after a batch.

    It is active, idle or backlogged.
    """

    watermark_ms: int | None
    activity: str


@dataclass
class SourceTime:
    """How far time has come at one source."""

    bound_ms: int
    idle_after_ms: int
    watermark_ms: int | None = None
    partitions: dict[int, Partition] = field(default_factory=dict)

    def listen(self, read: Read, timestamps_ms: Sequence[int], decided_at_ms: int) -> None:
        """Applies a batch's reads of one partition, with usable record times."""
        partition = self.partitions.setdefault(read.partition, Partition(decided_at_ms))
        reached_ms = (min(ms, decided_at_ms) for ms in timestamps_ms)  # a record from the future moves time no further
        partition.newest_ms = max([partition.newest_ms, *reached_ms])
        partition.activity = "active"
        if read.until_offset > read.from_offset:
            partition.heard_at_ms = decided_at_ms
        elif read.latest_offset is None or read.latest_offset > read.until_offset:
            partition.activity = "backlogged"
        elif decided_at_ms - partition.heard_at_ms > self.idle_after_ms:
            partition.activity = "idle"

    def move(self) -> dict[int | None, Reached]:
        """End a batch: each partition, and as None the source.

        That is the lowest of the partitions that are not idle; when all are, the highest of all; and never back.
        """
        awake = [part.newest_ms for part in self.partitions.values() if part.activity != "idle"]
        leading_ms = min(awake) if awake else max(part.newest_ms for part in self.partitions.values())
        never_back = [ms for ms in (self.watermark_ms, self._behind(leading_ms)) if ms is not None]
        self.watermark_ms = max(never_back, default=None)
        return {
            None: Reached(self.watermark_ms, "active" if awake else "idle"),
            **{n: Reached(self._behind(part.newest_ms), part.activity) for n, part in self.partitions.items()},
        }

    def _behind(self, newest_ms: int) -> int | None:
        return newest_ms - self.bound_ms - 1 if newest_ms else None


def typed(value: bytes, types: Mapping[str, type]) -> Fields | str:
    """Returns the *types* fields of a JSON record, or the rejection.

    They include `event_time`.
    """
    try:
        content = json.loads(value.decode("utf-8"))
    except UnicodeDecodeError:
        return "invalid_utf8"
    except ValueError:
        return "malformed_json"
    if not isinstance(content, dict):
        return "malformed_json"
    fields: Fields = {}
    for name, kind in types.items():
        value_of_field = content.get(name)
        fields[name] = float(value_of_field) if kind is float and type(value_of_field) is int else value_of_field
        if fields[name] is not None and type(fields[name]) is not kind:
            return "wrong_type"
    if fields["event_time"] is None:
        return "missing_timestamp"
    return fields if fields["event_time"] in PLAUSIBLE_MS else "timestamp_out_of_range"


def sum_in_state(column: str, values: Sequence[float]) -> Fields:
    """Returns `state_changes` of a sum that one double can represent."""
    total = sum(values)
    return {f"@{column}@parts": [total] if total else [], f"@{column}@odd": None, f"@{column}@n": len(values)}


def is_closed(end_ms: int, allowed_lateness_ms: int, watermark_ms: int | None) -> bool:
    """Returns true if a window until *end_ms* accepts no records.

    *end_ms* is exclusive.
    """
    return watermark_ms is not None and end_ms - 1 + allowed_lateness_ms <= watermark_ms


def rounded(value: float, digits: int) -> float:
    """*value* with that many digits behind the point, halves away from zero."""
    return float(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def text(fields: Fields) -> str:
    """*fields* as one JSON object without spaces."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
