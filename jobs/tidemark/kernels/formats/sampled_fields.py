"""Samples the fields of records, with their types.

At most SAMPLE records of each partition are looked at, whatever is declared: a batch pays for these alone. Records in
JSON have types of JSON; those with a schema of a registry have the types of their schema. What no parser reads is in no
sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import polars as pl

from tidemark.kernels.formats.protobuf_fields import message_at, protobuf_types
from tidemark.kernels.formats.wire_format import HEAD, message_indexes, schema_ids
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.kernels.records.avro_fields import avro_types
from tidemark.kernels.records.json_fields import json_of
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source import Source
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
    """Returns, for sampled rows, the type of each field as a JSON object.

    Null for the other rows. *schemas* are those of the registry of *source*, by id.
    """
    places = [*_places(raw["partition"])] if source.is_watched else []
    values = raw["value"].gather(places)
    types: Iterable[Mapping[str, str] | None]
    if source.names_schemas:
        types = _types_by_schema(values, source, schemas)
    else:
        types = map(_json_types, values if source.registry is None else values.bin.slice(HEAD))
    texts = [None if each is None else json_of(each) for each in types]
    none = pl.Series([None], dtype=pl.String).new_from_index(0, raw.height)
    return none.scatter(places, pl.Series(texts, dtype=pl.String)) if places else none


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


def _places(partitions: pl.Series) -> Iterator[int]:
    """Yields the rows to sample, evenly over those of each partition."""
    start = 0
    # A partition's rows follow one another, as Spark reads them.
    for length in partitions.rle().struct.field("len"):
        yield from range(start, start + length, -(-length // SAMPLE))
        start += length


def _json_types(value: bytes | None) -> dict[str, str] | None:
    """Returns the types of the fields of a record in JSON; None if it has none."""
    try:
        record = None if value is None else _parse(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return dict(islice(_fields_of(record, "", DEPTH), MOST_FIELDS)) if isinstance(record, dict) else None


def _fields_of(record: dict[str, Any], outer: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yields the path and type of each field of *record*, and of fields in them."""
    for name, value in record.items():
        yield from _types_at(f"{outer}{step(name)}", value, depth)


def _types_at(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if len(path) > LONGEST:
        return
    yield path, _WORDS[type(value)]
    if depth > 1 and isinstance(value, dict):
        yield from _fields_of(value, f"{path}.", depth - 1)
    # The first element stands for all of them.
    elif depth > 1 and isinstance(value, list) and value:
        yield from _types_at(f"{path}[]", value[0], depth - 1)


def _types_by_schema(
    values: pl.Series, source: Source, schemas: Mapping[int, WrittenSchema]
) -> Iterator[Mapping[str, str] | None]:
    """Yields the types of the fields in the schema of each record; None without."""
    known: dict[tuple[int, tuple[int, ...] | None], Mapping[str, str] | None] = {}
    for id_, value in zip(schema_ids(values), values, strict=True):
        schema = schemas.get(id_) if id_ is not None else None
        if id_ is None or schema is None or not schema.is_usable:
            yield None
            continue
        is_message = source.format is Format.PROTOBUF
        indexes = message_indexes(value[HEAD:])[0] if is_message else None
        if (id_, indexes) not in known:
            known[id_, indexes] = _types_of(schema, indexes)
        yield known[id_, indexes]


def _types_of(schema: WrittenSchema, indexes: tuple[int, ...] | None) -> Mapping[str, str] | None:
    if schema.kind == SchemaKind.AVRO:
        return avro_types(schema.text)
    name = message_at(schema.descriptors, indexes) if indexes is not None else None
    return protobuf_types(schema.descriptors, name) if name is not None else None
