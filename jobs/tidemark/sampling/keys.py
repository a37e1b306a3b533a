"""Which field says what a record of a sample is about: by it the newest rows are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.sampling.fields import EventTime
from tidemark.sampling.topic_sample import Sampled

KAFKA_KEY = "kafka_key"
"""The column of a key that no field repeats."""


@dataclass(frozen=True)
class Key:
    """The column by which current rows are kept; with *from_kafka* Kafka's key fills it; *seen* says why."""

    name: str
    from_kafka: bool
    seen: str


def key_of(
    records: Sequence[Sampled],
    read: Sequence[tuple[Sampled, dict[str, Any]]],
    types: dict[str, tuple[str, str]],
    at: EventTime | None,
    named: str | None,
    address: str,
) -> Key:
    """The key of current rows: the field that is *named*, Kafka's, or the field whose values repeat most."""
    if named is not None:
        if named not in types:
            msg = f"--key: no record has a field {named!r}; they have {', '.join(types)}"
            raise InvalidArgument(msg)
        return Key(named, from_kafka=False, seen="named with --key")
    deletes = any(record.value is None and record.key is not None for record in records)
    keyed = [(record.key, each) for record, each in read if record.key is not None]
    if len(keyed) == len(read):
        same = [name for name in types if all(_text(each.get(name)) == key for key, each in keyed)]
        seen = f"Kafka's key of all {len(read)} records"
        if same:
            more = "; records without a value delete it" if deletes else ""
            return Key(same[0], from_kafka=deletes, seen=f"the same as {seen}{more}")
        return Key(KAFKA_KEY, from_kafka=True, seen=f"{seen}, which no field repeats")
    values = {
        name: len({each[name] for _, each in read if each.get(name) is not None})
        for name, (kind, _) in types.items()
        if kind == "string" and (at is None or name != at.name) and all(_is_text(each.get(name)) for _, each in read)
    }
    repeated = [name for name, n in values.items() if n <= max(1, len(read) // 2)]
    if not repeated:
        missing = (
            f"{len(read) - len(keyed)} of {len(read)} records have no key, and no text field has values that repeat"
        )
        msg = f"{address}: {missing}; name the field that says what a record is about with --key FIELD"
        raise InvalidArgument(msg)
    best = max(repeated, key=lambda name: (name.endswith("id"), values[name]))
    seen = f"{len(read) - len(keyed)} of {len(read)} records have no key in Kafka; this field has {values[best]} values"
    return Key(best, from_kafka=False, seen=f"{seen}: correct it if rows are about something else")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _text(value: Any) -> bytes | None:
    """*value* as a producer would make a key of it."""
    return None if value is None or isinstance(value, (dict, list, bool)) else str(value).encode()
