"""Finds the key field of a sample.

The newest row of each key is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.sample.event_times import USUAL
from tidemark.sample.fields import FieldsByColumn, free_name
from tidemark.sample.topic_sample import SampledRecord
from tidemark.selection import outside, present

KAFKA_KEY = "kafka_key"
"""The column of a key that no field repeats, and its name for `--key`."""
MOST_NAMED = 20
"""Most fields that the error about an unknown field names."""


@dataclass(frozen=True)
class KeyColumn:
    """The column by which current rows are kept.

    With *from_kafka* Kafka's key fills it; *seen* is the evidence.
    """

    name: str
    from_kafka: bool
    seen: str


@dataclass(frozen=True)
class KeyedRecords:
    """The *records* of a sample, and the *objects* of those that have one, by column.

    The columns *times* have times, and are no keys.
    """

    records: Sequence[SampledRecord]
    objects: Sequence[tuple[SampledRecord, FieldsByColumn]]
    times: Collection[str]

    @property
    def kafka_keys(self) -> list[str]:
        """The texts of Kafka's keys; a key that is no text cannot be one of a table."""
        return present([_key_text(record.key) for record in self.records])

    @property
    def without_key(self) -> int:
        """The number of objects whose record has no key in Kafka that is a text."""
        return sum(_key_text(record.key) is None for record, _ in self.objects)

    @property
    def have_keys(self) -> bool:
        """True if nearly all objects have a key in Kafka that is a text."""
        return self.without_key <= (1 - USUAL) * len(self.objects)

    @property
    def deletes(self) -> bool:
        """True if a record without a value deletes its key."""
        # Such a record has no fields, so only Kafka's key says which.
        return any(record.value is None and record.key is not None for record in self.records)

    def repeats_key(self, column: str) -> bool:
        """Returns True if *column* equals Kafka's key in every object that has one."""
        keyed = ((record.key, fields) for record, fields in self.objects if record.key is not None)
        return column not in self.times and all(_text(fields.get(column)) == key for key, fields in keyed)


def key_of(keyed: KeyedRecords, columns: Mapping[str, str], named: str | None) -> KeyColumn:
    """Returns the key of current rows.

    It is the field that is *named*, Kafka's key, or the field whose values repeat most. A key with one value would keep
    one row, and one that is unique per record all of them: neither is proposed.

    Args:
        keyed: the records.
        columns: by field.
        named: the field that the author named, or KAFKA_KEY; None: none.

    Raises:
        InvalidArgument: no field has the name, or no field can be a key.
    """
    if named is not None:
        return _named(keyed, columns, named)
    kafka_keys = keyed.kafka_keys
    if not keyed.have_keys:
        kafka = f"{keyed.without_key:,} of {len(keyed.objects):,} records have no key in Kafka that is a text"
    elif len({*kafka_keys}) == 1:
        kafka = f"Kafka's key has the same value in each record of the sample ({len(kafka_keys):,})"
    elif len({*kafka_keys}) == len(kafka_keys):
        kafka = f"Kafka's key has a different value in each record of the sample ({len(kafka_keys):,})"
    else:
        return _kafka_key(keyed, columns.values(), "Kafka's key")
    values = {column: _repeated(keyed, column) for column in outside(columns.values(), keyed.times)}
    best = max(values, key=lambda column: (values[column] > 0, column.endswith("id"), values[column]), default=None)
    if best is None or not values[best]:
        of_kafka = f", or --key {KAFKA_KEY} for Kafka's key" if keyed.have_keys else ""
        msg = (
            f"--key: {kafka}, and no text field has several values that repeat; name the field that identifies the "
            f"subject of a record with --key FIELD{of_kafka}"
        )
        raise InvalidArgument(msg)
    seen = f"{kafka}; this field has {values[best]:,} values: correct it if rows are about something else"
    return KeyColumn(best, from_kafka=False, seen=seen)


def _named(keyed: KeyedRecords, columns: Mapping[str, str], named: str) -> KeyColumn:
    """Returns the key that the author *named*."""
    if named in columns:
        column = columns[named]
        is_kafkas = keyed.deletes and keyed.repeats_key(column)
        more = ", the same as Kafka's key; records without a value delete it" if is_kafkas else ""
        return KeyColumn(column, from_kafka=is_kafkas, seen=f"named with --key{more}")
    if named == KAFKA_KEY and keyed.have_keys:
        return _kafka_key(keyed, columns.values(), "Kafka's key, named with --key")
    names = ", ".join([*columns][:MOST_NAMED]) + (" …" if len(columns) > MOST_NAMED else "")
    msg = f"--key: no record has a field {named!r} that can be a column; they have {names}"
    raise InvalidArgument(msg)


def _repeated(keyed: KeyedRecords, column: str) -> int:
    """Returns the number of values of *column* if most objects have a text in it and these repeat, else 0."""
    values = [value for _, fields in keyed.objects if _is_text(value := fields.get(column))]
    different = {*values}
    # At most half as many values as records: a field with more is about single records.
    repeat = 2 <= len(different) <= len(values) // 2
    return len(different) if repeat and len(values) >= USUAL * len(keyed.objects) else 0


def _kafka_key(keyed: KeyedRecords, columns: Collection[str], observation: str) -> KeyColumn:
    """Returns Kafka's key, or the one of *columns* that repeats it."""
    missing = f", which {keyed.without_key:,} of {len(keyed.objects):,} records lack" if keyed.without_key else ""
    for column in columns:
        if keyed.repeats_key(column):
            more = "; records without a value delete it" if keyed.deletes else ""
            return KeyColumn(column, from_kafka=keyed.deletes, seen=f"the same as {observation}{missing}{more}")
    name = free_name(KAFKA_KEY, columns)
    return KeyColumn(name, from_kafka=True, seen=f"{observation}, which no field repeats{missing}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _key_text(key: bytes | None) -> str | None:
    """Returns Kafka's *key* as text; None where it is none."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _text(value: Any) -> bytes | None:
    """Returns *value* as a producer would make a key of it."""
    return None if value is None or isinstance(value, (dict, list, bool)) else str(value).encode()
