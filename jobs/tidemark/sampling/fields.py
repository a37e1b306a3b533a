"""Which fields the JSON objects of a sample have, of which types, and which of them is the event time."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

from tidemark.sampling.topic_sample import Sampled
from tidemark.spec.toml_keys import IDENTIFIER
from tidemark.stream.sink_columns import TIDEMARKS_OWN

USUAL = 0.95
"""The share of a field's values that have its type, and of the records that have an event time."""
UNITS = {"s": 1_000, "ms": 1, "us": 1 / 1_000, "ns": 1 / 1_000_000}
"""What one of each is in ms."""
EARLIEST_MS, LATEST_MS = 946_684_800_000, 4_102_444_800_000
"""The years 2000 to 2099, in which numbers of each unit are no numbers of another."""
ISO_8601 = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
LIKELY = ("event", "timestamp", "ts", "time", "occurred", "measured", "observed", "read", "recorded", "created", "at")
"""Parts of names of an event time, the likeliest first."""
UNLIKELY = ("ingest", "ingested", "processed", "received", "sent", "updated", "expires", "due", "birth", "id")
WRITABLE = re.compile(r"[^\s,`\"\\][^,`\"\\\x00-\x1f\x7f]*(?<!\s)")
"""Names of fields that the text of `fields` can have."""
RARE = 50
YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True)
class EventTime:
    """The field *name* has times in *unit*: s, ms, us, ns, or ISO 8601 where it is None; *share* of records has one."""

    name: str
    unit: str | None
    share: float

    @property
    def text(self) -> str:
        """Its unit in words."""
        return f"epoch {self.unit}" if self.unit else "ISO 8601 text"


def json_object(record: Sampled) -> dict[str, Any] | None:
    """The object that is the value of *record*; None where it has none."""
    try:
        found = json.loads(record.value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def names_of(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the fields of *objects*, in the order in which they first occur."""
    return list(dict.fromkeys(name for each in objects for name in each))


def rare_names_of(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of fields that less than one in RARE of *objects* has: mostly mistakes of a producer."""
    having = Counter(name for each in objects for name in each)
    return [name for name, n in having.items() if n * RARE < len(objects)]


def columns_of(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By field of *objects* the column for it: its own name, or one made of that.

    Without one are names that `fields` of a topology cannot have, and a second one that differs in case only.

    >>> columns_of([{"eventTime": 1, "event_time": 2, "ID": 3, "id": 4, "2nd": 5, "a,b": 6}])
    {'event_time': 'event_time', 'id': 'id', 'eventTime': 'event_time_2', '2nd': 'f_2nd'}
    """
    read: set[str] = set()
    columns: dict[str, str] = {}
    # Names that can be columns come first and stay as they are; others get what is left.
    for name in sorted(names_of(objects), key=lambda name: not IDENTIFIER.fullmatch(name)):
        if name.lower() in read or not WRITABLE.fullmatch(name):
            continue
        read.add(name.lower())
        made = _column(name)
        candidates = chain([made], (f"{made}_{n}" for n in count(2)))
        columns[name] = next(each for each in candidates if each not in columns.values())
    return columns


def _column(field: str) -> str:
    """The name of a column for *field*; not one that a Delta sink adds itself."""
    if IDENTIFIER.fullmatch(field):
        return f"{field}_field" if field in TIDEMARKS_OWN else field
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field).lower()
    made = re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:50]
    return made if made[:1].isalpha() else f"f_{made}"


def field_types(objects: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """By column its type, and what was seen of it."""
    return {
        name: _type([each[name] for each in objects if each.get(name) is not None], len(objects))
        for name in names_of(objects)
    }


def event_time(objects: Sequence[dict[str, Any]], kafka_ms: int) -> EventTime | None:
    """The likeliest event time of *objects*, the newest of which Kafka has since *kafka_ms*; None without any."""
    found: list[tuple[int, int, EventTime]] = []
    for name in names_of(objects):
        units = Counter(unit for each in objects if (unit := unit_of(each.get(name))) is not None)
        if not units:
            continue
        ((unit, n),) = units.most_common(1)
        newest_ms = max(time_ms(each[name], unit) for each in objects if unit_of(each.get(name)) == unit)
        rank = _rank(name)
        is_time = unit == "" or rank > 0 or (rank == 0 and abs(newest_ms - kafka_ms) < YEAR_MS)
        if n >= USUAL * len(objects) and is_time:
            found.append((rank, -len(found), EventTime(name, unit or None, n / len(objects))))
    return max(found, key=lambda each: each[:2])[2] if found else None


def unit_of(value: Any) -> str | None:
    """The unit of a *value* that is a time of this century; "" for ISO 8601; None for others.

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
        return next((unit for unit, in_ms in UNITS.items() if EARLIEST_MS <= value * in_ms < LATEST_MS), None)
    return None


def time_ms(value: Any, unit: str | None) -> int:
    """*value*, which is in *unit*, as epoch ms."""
    if unit:
        return int(value * UNITS[unit])
    at = datetime.fromisoformat(value)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _rank(name: str) -> int:
    """How likely *name* is that of an event time; 0: it says nothing, below: it says something else."""
    words = name.split("_")
    if any(word in UNLIKELY for word in words):
        return -1
    return max((len(LIKELY) - i for i, part in enumerate(LIKELY) if part in words), default=0)


def _type(values: Sequence[Any], of: int) -> tuple[str, str]:
    """The type of most of *values*, text where they differ; and what was seen in *of* objects."""
    if not values:
        return "string", "always null"
    kinds = Counter(_kind(value) for value in values)
    if kinds["double"]:
        kinds["double"] += kinds.pop("bigint", 0)
    ((kind, n),) = kinds.most_common(1)
    usual = n >= USUAL * len(values)
    seen = [f"for example {json.dumps(values[0])[:40]}"]
    part = next(iter(values[0]), "") if isinstance(values[0], dict) else ""
    seen += [f"an object, whose {part} is column ->> '$.{part}' in SQL"] if IDENTIFIER.fullmatch(part) else []
    seen += [f"missing in {of - len(values)} of {of}"] if len(values) < of else []
    seen += [f"{len(values) - n} of another type"] if n < len(values) and usual else []
    seen += ["of several types, so text"] if not usual else []
    return (kind if usual else "string"), ", ".join(seen)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "double"
    return "double" if isinstance(value, float) else "string"
