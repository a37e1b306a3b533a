"""Finds the key field of a sample.

The newest row of each key is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.sampling.fields import EventTime
from tidemark.sampling.topic_sample import SampledRecord

KAFKA_KEY = "kafka_key"
"""The column of a key that no field repeats."""


@dataclass(frozen=True)
class Key:
    """The column by which current rows are kept.

    With *from_kafka* Kafka's key fills it; *seen* is the evidence.
    """

    name: str
    from_kafka: bool
    seen: str


def key_of(
    records: Sequence[SampledRecord],
    read: Sequence[tuple[SampledRecord, dict[str, Any]]],
    types: dict[str, tuple[str, str]],
    at: EventTime | None,
    named: str | None,
    address: str,
) -> Key:
    """Returns the key of current rows.

    It is the field that is *named*, Kafka's key if each record has one that is text, or the field whose values repeat
    most.

    Args:
        records: all of the sample.
        read: those that are JSON objects, with the object.
        types: type and evidence of each field.
        at: the event time.
        named: the field that the author named; None: none.
        address: of the cluster.

    Raises:
        InvalidArgument: no field has the name, or no field can be a key.
    """
    if named is not None:
        if named not in types:
            msg = f"--key: no record has a field {named!r}; they have {', '.join(types)}"
            raise InvalidArgument(msg)
        return Key(named, from_kafka=False, seen="named with --key")
    keyed = [(record.key, fields) for record, fields in read if _is_utf8(record.key)]
    if len(keyed) == len(read):
        return _kafka_key(records, keyed, types)
    # At most half as many values as records: a field with more is about single records.
    most_values = max(1, len(read) // 2)
    values: dict[str, int] = {}
    for name, (kind, _) in types.items():
        if kind != "string" or (at is not None and name == at.name):
            continue
        of_field = [fields.get(name) for _, fields in read]
        if all(map(_is_text, of_field)) and len(set(of_field)) <= most_values:
            values[name] = len(set(of_field))
    without_key = f"{len(read) - len(keyed)} of {len(read)} records have no key that is text"
    if not values:
        msg = (
            f"{address}: {without_key}, and no text field has values that repeat; name the field that identifies the "
            "subject of a record with --key FIELD"
        )
        raise InvalidArgument(msg)
    best = max(values, key=lambda name: (name.endswith("id"), values[name]))
    observation = f"{without_key} in Kafka; this field has {values[best]} values"
    return Key(best, from_kafka=False, seen=f"{observation}: correct it if rows are about something else")


def _kafka_key(
    records: Sequence[SampledRecord],
    keyed: Sequence[tuple[bytes | None, dict[str, Any]]],
    types: dict[str, tuple[str, str]],
) -> Key:
    """Returns Kafka's key, or the field that repeats it.

    *keyed* has key and fields of all records that are JSON objects.
    """
    # A record without a value deletes its key. It has no fields, so only Kafka's key says which.
    deletes = any(record.value is None and record.key is not None for record in records)
    observation = f"Kafka's key of all {len(keyed)} records"
    for name in types:
        if _repeats_key(name, keyed):
            more = "; records without a value delete it" if deletes else ""
            return Key(name, from_kafka=deletes, seen=f"the same as {observation}{more}")
    return Key(KAFKA_KEY, from_kafka=True, seen=f"{observation}, which no field repeats")


def _repeats_key(name: str, keyed: Sequence[tuple[bytes | None, dict[str, Any]]]) -> bool:
    """Returns True if a field equals Kafka's key in every record."""
    return all(_text(fields.get(name)) == key for key, fields in keyed)


def _is_utf8(key: bytes | None) -> bool:
    """Returns True if a record has a key that a source can use."""
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return key is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _text(value: Any) -> bytes | None:
    """Returns *value* as a producer would make a key of it."""
    return None if value is None or isinstance(value, (dict, list, bool)) else str(value).encode()
