"""Derives fields, types and event time from a sample's JSON objects."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

from tidemark.model.settings.toml_keys import IDENTIFIER
from tidemark.sampling.topic_sample import SampledRecord
from tidemark.stream.write.sink_columns import TIDEMARKS_OWN

USUAL = 0.95
"""Share of a field's values that have its type.

Also the share of the records that have an event time.
"""
UNITS = {"s": 1_000, "ms": 1, "us": 1 / 1_000, "ns": 1 / 1_000_000}
"""Each unit in ms."""
EARLIEST_MS, LATEST_MS = 946_684_800_000, 4_102_444_800_000
"""The years 2000 to 2099.

In them numbers of one unit are no plausible numbers of another.
"""
ISO_8601 = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
LIKELY = ("event", "timestamp", "ts", "time", "occurred", "measured", "observed", "read", "recorded", "created", "at")
"""Words in the names of event times, the likeliest first."""
UNLIKELY = ("ingest", "ingested", "processed", "received", "sent", "updated", "expires", "due", "birth", "id")
WRITABLE = re.compile(r"[^\s,`\"\\][^,`\"\\\x00-\x1f\x7f]*(?<!\s)")
"""Field names that `fields` of a topology can contain."""
RARE = 50
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True)
class EventTime:
    """The field *name* has event times, in a *share* of the records.

    *unit* is s, ms, us, ns, or None for ISO 8601.
    """

    name: str
    unit: str | None
    share: float

    @property
    def text(self) -> str:
        """Its unit in words."""
        return f"epoch {self.unit}" if self.unit else "ISO 8601 text"


def json_object(record: SampledRecord) -> dict[str, Any] | None:
    """Returns the object that is the value of *record*, or None."""
    try:
        value = json.loads(record.value or b"")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def names_of(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the field names of *objects*, in the order of occurrence."""
    return list(dict.fromkeys(chain.from_iterable(objects)))


def rare_names_of(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Returns names that less than one in RARE of *objects* has."""
    # Most rare names are mistakes of a producer.
    having = Counter(chain.from_iterable(objects))
    return [name for name, n in having.items() if n * RARE < len(objects)]


def columns_of(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Returns the column for each field of *objects*.

    It is the field's own name, or one derived from it. A field has none if `fields` of a topology cannot contain its
    name, or if it differs from another in case only.

    >>> columns_of([{"eventTime": 1, "event_time": 2, "ID": 3, "id": 4, "2nd": 5, "a,b": 6}])
    {'event_time': 'event_time', 'id': 'id', 'eventTime': 'event_time_2', '2nd': 'f_2nd'}
    """
    lower_names: set[str] = set()
    columns: dict[str, str] = {}
    # Names that can be columns come first and stay as they are; others get names that are left.
    for name in sorted(names_of(objects), key=lambda name: not IDENTIFIER.fullmatch(name)):
        if name.lower() in lower_names or not WRITABLE.fullmatch(name):
            continue
        lower_names.add(name.lower())
        columns[name] = _free_name(_column(name), columns.values())
    return columns


def _free_name(column: str, used: Collection[str]) -> str:
    """Returns *column*, with a number behind it if it is *used*."""
    free = column
    numbers = count(2)
    while free in used:
        free = f"{column}_{next(numbers)}"
    return free


def _column(field: str) -> str:
    """Returns a column name for *field*."""
    # A Delta sink adds columns of its own, whose names are taken.
    if IDENTIFIER.fullmatch(field):
        return f"{field}_field" if field in TIDEMARKS_OWN else field
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field).lower()
    column = re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:50]
    return column if column[:1].isalpha() else f"f_{column}"


def field_types(objects: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Returns by column its type, and the evidence for it."""
    types: dict[str, tuple[str, str]] = {}
    for name in names_of(objects):
        values = [each[name] for each in objects if each.get(name) is not None]
        types[name] = _type(values, len(objects))
    return types


def event_time(objects: Sequence[dict[str, Any]], kafka_ms: int) -> EventTime | None:
    """Returns the likeliest event time of *objects*; None without any.

    *kafka_ms* is Kafka's timestamp of the newest of them.
    """
    candidates: list[tuple[int, int, EventTime]] = []
    for name in names_of(objects):
        values_by_unit: dict[str, list[Any]] = {}
        for record in objects:
            value = record.get(name)
            if (unit_of_value := unit_of(value)) is not None:
                values_by_unit.setdefault(unit_of_value, []).append(value)
        if not values_by_unit:
            continue
        unit, values = max(values_by_unit.items(), key=lambda of_unit: len(of_unit[1]))
        newest_ms = max(time_ms(value, unit) for value in values)
        rank = _rank(name)
        # Without a word in its name a number has to lie near Kafka's clock: ids may look like times.
        is_time = unit == "" or rank > 0 or (rank == 0 and abs(newest_ms - kafka_ms) < YEAR_MS)
        if len(values) >= USUAL * len(objects) and is_time:
            share = len(values) / len(objects)
            # Of equal ranks the first field wins, hence the negative number.
            candidates.append((rank, -len(candidates), EventTime(name, unit or None, share)))
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def unit_of(value: Any) -> str | None:
    """Returns the unit of a *value* that is a plausible time.

    Plausible are the years 2000 to 2099.

    "" for ISO 8601; None for others.

    >>> unit_of(1_700_000_000), unit_of(1_700_000_000_000), unit_of("2024-05-01T12:00:00Z"), unit_of(17)
    ('s', 'ms', '', None)
    """
    if isinstance(value, str) and ISO_8601.fullmatch(value):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return None
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        for unit, in_ms in UNITS.items():
            if EARLIEST_MS <= value * in_ms < LATEST_MS:
                return unit
    return None


def time_ms(value: Any, unit: str | None) -> int:
    """Returns *value*, which is in *unit*, as epoch ms."""
    if unit:
        return int(value * UNITS[unit])
    at = datetime.fromisoformat(value)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _rank(name: str) -> int:
    """Returns how likely *name* is that of an event time.

    0: the name has no such word; below 0: it has a word of another meaning.
    """
    words = name.split("_")
    if any(word in UNLIKELY for word in words):
        return -1
    for place, word in enumerate(LIKELY):
        if word in words:
            return len(LIKELY) - place
    return 0


def _type(values: Sequence[Any], of: int) -> tuple[str, str]:
    """Returns the type of most of *values*, and the evidence.

    It is text where they differ. *of* is the number of objects.
    """
    if not values:
        return "string", "always null"
    kinds = Counter(map(_kind, values))
    # Some producers write a double without a fraction as a whole number.
    if kinds["double"]:
        kinds["double"] += kinds.pop("bigint", 0)
    ((kind, n),) = kinds.most_common(1)
    usual = n >= USUAL * len(values)
    remarks = [f"for example {json.dumps(values[0])[:40]}"]
    part = next(iter(values[0]), "") if isinstance(values[0], dict) else ""
    remarks += [f"an object, whose {part} is column ->> '$.{part}' in SQL"] if IDENTIFIER.fullmatch(part) else []
    remarks += [f"missing in {of - len(values)} of {of}"] if len(values) < of else []
    remarks += [f"{len(values) - n} of another type"] if n < len(values) and usual else []
    remarks += ["of several types, so text"] if not usual else []
    return (kind if usual else "string"), ", ".join(remarks)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "double"
    return "double" if isinstance(value, float) else "string"
