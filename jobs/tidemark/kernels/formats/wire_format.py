"""Reads records that begin with the id of their schema.

The wire format is that of Confluent's serializers: a byte 0, the id of the schema in the registry (4 bytes, the most
significant first), and the record. Of Protobuf, the place of the message in the schema is before the record: the number
of its indexes and each index, as zigzag varints; a single byte 0 is the first message.

A record is quarantined as no_schema_id without such an id, as unknown_schema if the registry has no schema with the
id, and as incompatible_schema if the schema does not fit the declared fields. Its detail names the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from tidemark.kernels.columns.schemas import record_schema
from tidemark.kernels.formats.avro_fields import avro_fields, avro_types
from tidemark.kernels.formats.fitting import misfits
from tidemark.kernels.formats.protobuf_fields import message_at, protobuf_fields, protobuf_types
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.kernels.records.fields import MALFORMED_PROTOBUF, RecordFields
from tidemark.kernels.records.json_fields import json_fields
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source

NO_SCHEMA_ID, UNKNOWN_SCHEMA, INCOMPATIBLE_SCHEMA = "no_schema_id", "unknown_schema", "incompatible_schema"
HEAD = 5
"""Bytes of the magic byte and the id."""
_KINDS: Mapping[str, SchemaKind] = {Format.AVRO: SchemaKind.AVRO, Format.PROTOBUF: SchemaKind.PROTOBUF}
_INDEXES_AT_MOST = 32
"""Most indexes of a message in its schema; messages are not nested as deep."""
FIRST_MESSAGE = (0,)
_MOST_ID = 2**31 - 1
"""Ids are signed in this format, and never negative.

Some registries answer a request for a larger one with an error and not with 404, so a batch would wait for ever.
"""


@dataclass(frozen=True)
class _Part:
    """The rows of a batch that are read alike, and their fields."""

    rows: list[int]
    fields: RecordFields


def schema_ids(values: pl.Series) -> list[int | None]:
    """Returns the id that begins each of *values*; None without one."""
    heads: list[bytes | None] = values.bin.head(HEAD).to_list()
    # A batch has few schemas, so each head is read once.
    by_head = {head: _schema_id(head) for head in {*heads}}
    return [by_head[head] for head in heads]


def _schema_id(head: bytes | None) -> int | None:
    # The first byte is the version of the wire format. 0 is the one with an id of four bytes.
    if head is None or len(head) < HEAD or head[0] != 0:
        return None
    id_ = int.from_bytes(head[1:], "big")
    return id_ if id_ <= _MOST_ID else None


def ids_needed(values: pl.Series, source: Source) -> set[int]:
    """Returns the ids of the schemas that are needed to read *values*."""
    # A record in JSON names its fields, so it is read without its schema.
    if not source.names_schemas:
        return set()
    return {id_ for id_ in schema_ids(values) if id_ is not None}


def misfit_of(id_: int, schema: WrittenSchema, source: Source) -> str | None:
    """Returns why all records of a schema would be quarantined, or None if they can be read.

    For Protobuf the first message of the schema counts, although records may be of others.
    """
    if source.format not in _KINDS:
        return None
    if (problem := schema.problem or _other_kind(schema, source)) is not None:
        return f"schema {id_}, which {problem}"
    if source.format is Format.AVRO:
        types: Mapping[str, str] = avro_types(schema.text, source.types_of_values, schema.referenced)
    else:
        # Only a record names its message, and there is none here.
        name = message_at(schema.descriptors, FIRST_MESSAGE)
        types = protobuf_types(schema.descriptors, name, source.types_of_values) if name else {}
    wrong = misfits(types, source.types_of_values, source.time_field)
    return f"schema {id_}: {'; '.join(wrong)}" if wrong else None


def wire_fields(
    values: pl.Series, declared_types: Mapping[str, str], source: Source, schemas: Mapping[int, WrittenSchema]
) -> RecordFields:
    """Reads the declared fields of records by the schemas that they name.

    Args:
        values: the bytes of each record; a null record has null fields.
        declared_types: the declared types by field.
        source: the source, with the format, and whether fields that are not declared are kept.
        schemas: all schemas that the records name, by id.
    """
    rows_of: dict[int | None, list[int]] = {}
    null = values.is_null().to_list()
    for row, id_ in enumerate(schema_ids(values)):
        if not null[row]:
            rows_of.setdefault(id_, []).append(row)
    others = source.other_fields is not None
    parts: list[_Part] = []
    if rows := rows_of.pop(None, None):
        detail = "does not begin with a byte 0 and the id of a schema"
        parts.append(_Part(rows, _unread(len(rows), declared_types, NO_SCHEMA_ID, detail)))
    for id_, rows in rows_of.items():
        bodies = values.gather(rows).bin.slice(HEAD)
        if source.format not in _KINDS:
            limits = source.record_limits
            fields = json_fields(bodies, declared_types, time=source.time_field, others=others, limits=limits)
            parts.append(_Part(rows, fields))
            continue
        assert id_ is not None
        parts += _parts_of_id(id_, rows, bodies, declared_types, source, schemas[id_])
    # Also without null records: polars cannot concatenate an empty list.
    parts.append(
        _Part([row for row, is_null in enumerate(null) if is_null], _unread(sum(null), declared_types, None, None))
    )
    return _in_order(parts, declared_types)


def _parts_of_id(
    id_: int,
    rows: list[int],
    bodies: pl.Series,
    declared_types: Mapping[str, str],
    source: Source,
    schema: WrittenSchema,
) -> Iterable[_Part]:
    """Reads the records of one schema.

    Args:
        id_: id of the schema.
        rows: the numbers of the records in the batch.
        bodies: their bytes behind the id.
        declared_types: the declared types by field.
        source: the source.
        schema: the schema.
    """
    # Kafka's key fills the key field, so the schema of the value need not have it.
    required_types = {name: kind for name, kind in declared_types.items() if name != source.key}
    if schema.is_missing:
        return [_Part(rows, _unread(len(rows), declared_types, UNKNOWN_SCHEMA, f"schema {id_} is not in the registry"))]
    if (problem := schema.problem or _other_kind(schema, source)) is not None:
        return [_Part(rows, _unread(len(rows), declared_types, INCOMPATIBLE_SCHEMA, f"schema {id_} {problem}"))]
    if source.format is Format.PROTOBUF:
        return _protobuf_parts(id_, rows, bodies, declared_types, required_types, source, schema)
    types = avro_types(schema.text, declared_types, schema.referenced)
    if (detail := _misfit(id_, types, required_types, source.time_field)) is not None:
        return [_Part(rows, _unread(len(rows), declared_types, INCOMPATIBLE_SCHEMA, detail))]
    fields = avro_fields(
        bodies,
        declared_types,
        schema.text,
        time=source.time_field,
        others=source.other_fields is not None,
        referenced=schema.referenced,
        limits=source.record_limits,
    )
    return [_Part(rows, _with_id(id_, fields))]


def _other_kind(schema: WrittenSchema, source: Source) -> str | None:
    wanted = _KINDS[source.format]
    return None if schema.kind == wanted else f"is of the kind {schema.kind}, not {wanted}"


def _misfit(id_: int, types: Mapping[str, str], declared_types: Mapping[str, str], time: str | None) -> str | None:
    wrong = misfits(types, declared_types, time)
    return f"schema {id_} does not fit the fields: {'; '.join(wrong)}" if wrong else None


def _protobuf_parts(
    id_: int,
    rows: list[int],
    bodies: pl.Series,
    declared_types: Mapping[str, str],
    required_types: Mapping[str, str],
    source: Source,
    schema: WrittenSchema,
) -> Iterable[_Part]:
    """Yields the records of a schema, a part for each message.

    *required_types* are the declared types of the fields that the schema must have: all but the field that Kafka's key
    fills. The other arguments are as in `_parts_of_id`.
    """
    time, others, limits = source.time_field, source.other_fields is not None, source.record_limits
    by_message: dict[tuple[int, ...] | None, list[tuple[int, bytes]]] = {}
    for row, body in zip(rows, bodies, strict=True):
        indexes, rest = message_indexes(body)
        by_message.setdefault(indexes, []).append((row, rest))
    for indexes, records in by_message.items():
        of_message, messages = [row for row, _ in records], pl.Series([rest for _, rest in records], dtype=pl.Binary)

        def unread(reason: str, detail: str, n: int = len(records)) -> RecordFields:
            return _unread(n, declared_types, reason, detail)

        name = None if indexes is None else message_at(schema.descriptors, indexes)
        if name is None:
            place = "" if indexes is None else f" at {[*indexes]}"
            yield _Part(of_message, unread(MALFORMED_PROTOBUF, f"schema {id_} has no such message{place}"))
            continue
        types = protobuf_types(schema.descriptors, name, declared_types)
        if (detail := _misfit(id_, types, required_types, time)) is not None:
            yield _Part(of_message, unread(INCOMPATIBLE_SCHEMA, f"{detail} (message {name})"))
        else:
            fields = protobuf_fields(
                messages, declared_types, schema.descriptors, name, time=time, others=others, limits=limits
            )
            yield _Part(of_message, _with_id(id_, fields))


def message_indexes(body: bytes) -> tuple[tuple[int, ...] | None, bytes]:
    """Returns the indexes at the beginning of *body*, and the bytes behind them; None if they are not valid.


    >>> message_indexes(bytes([0, 65])), message_indexes(bytes([4, 2, 0, 65])), message_indexes(b"")
    (((0,), b'A'), ((1, 0), b'A'), (None, b''))
    """
    # Writers shorten the most frequent indexes, [0], from two bytes (2 and 0) to one.
    if body[:1] == b"\0":
        return FIRST_MESSAGE, body[1:]
    numbers: list[int] = []
    at, left = 0, 1
    while left:
        number, at = _zigzag(body, at)
        if number is None:
            return None, b""
        if not numbers:
            if not 0 < number <= _INDEXES_AT_MOST:
                return None, b""
            left = number + 1
        numbers.append(number)
        left -= 1
    return tuple(numbers[1:]), body[at:]


def _zigzag(body: bytes, at: int) -> tuple[int | None, int]:
    """Returns the zigzag varint at the position *at*, or None without one, and the position behind it."""
    value = shift = 0
    # A number of 32 bits takes at most five bytes, with 7 bits each.
    while at < len(body) and shift < 35:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            # Zigzag has the sign in the lowest bit, so that small negative numbers are short, too.
            return (value >> 1) ^ -(value & 1), at
    return None, at


def _with_id(id_: int, fields: RecordFields) -> RecordFields:
    """Returns *fields* whose unreadable records name their schema."""
    named = pl.when(fields.reasons.is_not_null()).then(pl.concat_str(pl.lit(f"read by schema {id_}: "), fields.details))
    return replace(fields, details=pl.select(detail=named)["detail"])


def _unread(n: int, declared_types: Mapping[str, str], reason: str | None, detail: str | None) -> RecordFields:
    """Returns *n* records without fields, all for one *reason*."""
    schema = record_schema(declared_types)
    columns = {name: pl.Series([None] * n, dtype=schema[name]) for name in declared_types}
    others, reasons, details = (pl.Series([text] * n, dtype=pl.String) for text in (None, reason, detail))
    return RecordFields(columns, others, reasons, details)


def _in_order(parts: list[_Part], declared_types: Mapping[str, str]) -> RecordFields:
    """Returns the fields of all *parts* in the order of their rows."""
    rows = pl.Series([row for part in parts for row in part.rows], dtype=pl.UInt32).arg_sort()
    columns: dict[str, pl.Series] = {}
    for name in declared_types:
        columns[name] = pl.concat([part.fields.columns[name] for part in parts]).gather(rows)
    others = pl.concat([part.fields.others for part in parts]).gather(rows)
    reasons = pl.concat([part.fields.reasons for part in parts]).gather(rows)
    details = pl.concat([part.fields.details for part in parts]).gather(rows)
    return RecordFields(columns, others, reasons, details)
