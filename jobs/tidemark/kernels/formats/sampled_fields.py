"""Samples the fields of records, with their types.

At most SAMPLE records of each partition are looked at, so that sampling costs a batch little. Records in JSON have
types of JSON; those with a schema of a registry have the types of their schema. A record that no parser reads is not
sampled.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice, starmap
from typing import Any

import msgspec
import polars as pl

from tidemark.kernels.formats.avro_fields import avro_types
from tidemark.kernels.formats.protobuf_fields import message_at, protobuf_types
from tidemark.kernels.formats.wire_format import HEAD, message_indexes, schema_ids
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.kernels.records.fields import texts_at
from tidemark.kernels.records.json_fields import json_of
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import outermost
from tidemark.semantics.schema_watch import MOST_FIELDS, NULL, FieldSample, step

SAMPLE = 20
"""Records of a partition that are sampled in a batch, at most."""
DEPTH = 3
"""Levels of objects and arrays in which fields are watched."""
LONGEST = 200
"""Letters of the longest path that is watched."""
_WORDS: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
    type(None): NULL,
}
_parse = msgspec.json.Decoder().decode


def sampled_types(raw: pl.DataFrame, source: Source, schemas: Mapping[int, WrittenSchema]) -> pl.Series:
    """Returns the types of the fields of each sampled row as a JSON object, and null for the other rows.

    *schemas* are the schemas of the registry of *source*, by id.
    """
    sampled = [*_sampled_rows(raw["partition"])] if source.is_watched else []
    values = raw["value"].gather(sampled)
    types: Iterable[Mapping[str, str] | None]
    if source.names_schemas:
        types = _types_by_schema(values, source, schemas)
    else:
        declared = outermost(source.types_of_values)
        types = _json_types(values if source.registry is None else values.bin.slice(HEAD), declared)
    return texts_at(dict(zip(sampled, _texts(types), strict=True)), raw.height)


def _texts(types: Iterable[Mapping[str, str] | None]) -> Iterator[str | None]:
    """Yields each of *types* as a JSON object."""
    # Records of one form have one object, whose text is made once.
    newest: Mapping[str, str] | None = None
    text = None
    for each in types:
        if each is not newest:
            newest, text = each, None if each is None else json_of(each)
        yield text


def field_sample(sampled: pl.Series) -> FieldSample:
    """Adds up a column of `sampled_types`."""
    records, fields = 0, dict[str, dict[str, int]]()
    # Many records have the same fields, and texts are the same then.
    for text, n in sampled.drop_nulls().value_counts().iter_rows():
        records += n
        for path, word in json.loads(text).items():
            counts = fields.setdefault(path, {})
            counts[word] = counts.get(word, 0) + n
    return FieldSample(records, fields)


def _sampled_rows(partitions: pl.Series) -> Iterator[int]:
    """Yields the numbers of the rows to sample, evenly over those of each partition."""
    start = 0
    # A partition's rows follow one another, as Spark reads them.
    for length in partitions.rle().struct.field("len"):
        yield from range(start, start + length, -(-length // SAMPLE))
        start += length


def _json_types(values: Iterable[bytes | None], declared: Collection[str]) -> Iterator[Mapping[str, str] | None]:
    """Yields the types of each JSON record's fields, or None."""
    # Most records without inner fields have the same names and types as one before.
    flat: dict[tuple[Any, ...], Mapping[str, str]] = {}
    for value in values:
        try:
            record = None if value is None else _parse(value)
        except Exception:
            # Whatever the parser of records makes of it, the record is not sampled.
            record = None
        if not isinstance(record, dict):
            yield None
            continue
        kinds = tuple(map(type, record.values()))
        form = () if dict in kinds or list in kinds else (*record, *kinds)
        if form in flat:
            yield flat[form]
            continue
        types = dict(islice(_fields_of(record, declared), max(MOST_FIELDS, len(declared))))
        if form:
            flat[form] = types
        yield types


def _fields_of(record: dict[str, Any], declared: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields path and type of each field of *record*, inner ones too.

    Outer fields come before inner ones, and *declared* fields first.
    """
    level = _inside("", {name: record[name] for name in declared if name in record} | record)
    for _ in range(DEPTH):
        holders: list[tuple[str, Any]] = []
        for path, value in level:
            yield path, _WORDS[type(value)]
            if isinstance(value, (dict, list)):
                holders.append((path, value))
        level = chain.from_iterable(starmap(_inside, holders))


def _inside(outer: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """Yields path and value of each field in an object or array."""
    if isinstance(holder, list):
        # The first element stands for all of them.
        if holder and len(outer) + len("[]") <= LONGEST:
            yield f"{outer}[]", holder[0]
        return
    for name, value in holder.items():
        # A step is never shorter than its name, and steps of long names would be kept in memory.
        if len(outer) + len(name) <= LONGEST:
            path = f"{outer}.{step(name)}" if outer else step(name)
            if len(path) <= LONGEST:
                yield path, value


def _types_by_schema(
    values: pl.Series, source: Source, schemas: Mapping[int, WrittenSchema]
) -> Iterator[Mapping[str, str] | None]:
    """Yields the types of the fields in each record's schema, or None."""
    by_schema: dict[tuple[int, tuple[int, ...] | None], Mapping[str, str] | None] = {}
    for id_, value in zip(schema_ids(values), values, strict=True):
        schema = schemas.get(id_) if id_ is not None else None
        if id_ is None or schema is None or not schema.is_usable:
            yield None
            continue
        is_message = source.format is Format.PROTOBUF
        indexes = message_indexes(value[HEAD:])[0] if is_message else None
        if (id_, indexes) not in by_schema:
            by_schema[id_, indexes] = _types_of(schema, indexes, source.types_of_values)
        yield by_schema[id_, indexes]


def _types_of(schema: WrittenSchema, indexes: tuple[int, ...] | None, paths: Iterable[str]) -> Mapping[str, str] | None:
    if schema.kind == SchemaKind.AVRO:
        return avro_types(schema.text, paths, schema.referenced)
    name = message_at(schema.descriptors, indexes) if indexes is not None else None
    return protobuf_types(schema.descriptors, name, paths) if name is not None else None
