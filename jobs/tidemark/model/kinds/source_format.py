"""The keys of a source that say in which format its records are, and where their schema is.

Either a file beside the topology has the schema, or each record names one of a registry by its id.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tidemark.model.kinds.kafka_end import TOPIC_FORMATS, Format, formats_read, schema_file, schema_text
from tidemark.model.kinds.source_place import FILES, TOPIC, TOPICS, place_of, reads_topics
from tidemark.model.settings import record_limits, value_types
from tidemark.model.settings.conditions import given, has_word, left_out, needs
from tidemark.model.settings.declared_tables import Values, defaulted, optional
from tidemark.model.settings.record_limits import MAX_DEPTH, RecordLimits
from tidemark.model.settings.value_types import refuse

_OF_TOPICS, _OF_FILES = (Format.JSON, Format.AVRO, Format.PROTOBUF), (Format.JSON, Format.CSV, Format.PARQUET)
_MESSAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def _message(name: str, *_: str) -> str:
    if not _MESSAGE.fullmatch(name):
        remedy = "write the message with its package, such as plant.Reading"
        refuse(f"is {name!r}, which is not the name of a message", remedy)
    return name


FORMAT = defaulted(
    "format",
    value_types.word(lambda: [*Format, *formats_read()]),
    example='"json"',
    default=Format.JSON.value,
    meaning=(
        "topics: `json`, `avro`, `protobuf` (see [below](#avro-and-protobuf)), or [what a package "
        "adds](extending.md#tidemarkformats); files: `json`, `csv` or `parquet`"
    ),
    needs=[needs(given(TOPIC, TOPICS, FILES), because="records elsewhere have a format of their own")],
)
REGISTRY = optional(
    "registry",
    value_types.name(),
    example='"main"',
    meaning=(
        "the schema registry, here `[registry.main]` ([connections.md](connections.md#schema-registries)). With "
        "this key each record begins with the id of its schema in the registry; without this key records have no "
        "ids"
    ),
    needs=[needs(given(TOPIC, TOPICS), because="only a topic's records have ids")],
)
_IN_A_FILE = needs(left_out(REGISTRY), because="the registry has the schemas")
SCHEMA = optional(
    "schema",
    value_types.text(),
    example='"readings.avsc"',
    meaning=(
        "the file with the schema, in the folder of this file: an Avro schema, or Protobuf's descriptors; not with "
        "`registry`, which has the schemas"
    ),
    needs=[needs(has_word(FORMAT, Format.AVRO.value, Format.PROTOBUF.value)), _IN_A_FILE],
    required_if=needs(
        has_word(FORMAT, Format.AVRO.value, Format.PROTOBUF.value),
        left_out(REGISTRY),
        given(TOPIC, TOPICS),
        because='it is a file beside this one (of Protobuf "readings.desc"); or write registry = "main"',
    ),
)
MESSAGE = optional(
    "message",
    value_types.text().then(_message),
    example='"plant.Reading"',
    meaning="full name of the records' message",
    needs=[needs(has_word(FORMAT, Format.PROTOBUF.value)), _IN_A_FILE],
    required_if=needs(has_word(FORMAT, Format.PROTOBUF.value), left_out(REGISTRY), given(TOPIC, TOPICS)),
)
SUBJECT = optional(
    "subject",
    value_types.text(),
    example='"readings-value"',
    without="the topic's name and `-value`",
    meaning="with `registry`: the subject whose latest version is compared with `fields` when a driver starts",
    needs=[needs(given(REGISTRY))],
    required_if=needs(given(TOPICS), given(REGISTRY), because="several topics have no subject in common"),
)
_OF_AVRO = needs(has_word(FORMAT, Format.AVRO.value))
MAX_DIGITS = replace(record_limits.MAX_DIGITS, needs=(_OF_AVRO,))
MAX_EMPTY_ITEMS = replace(record_limits.MAX_EMPTY_ITEMS, needs=(_OF_AVRO,))
OF_FORMATS = (FORMAT, SCHEMA, MESSAGE, REGISTRY, SUBJECT)
"""The keys of this module, but for limits."""
LIMITS = (MAX_DEPTH, MAX_DIGITS, MAX_EMPTY_ITEMS)
"""The limits of records."""


def _refuse_other_formats(values: Values) -> None:
    """Refuses a format that the source cannot read where its records are."""
    chosen, place = values[FORMAT], place_of(values)
    allowed = (*_OF_TOPICS, *formats_read()) if reads_topics(values) else _OF_FILES if place is FILES else (chosen,)
    if chosen not in allowed:
        of = "topics" if reads_topics(values) else "files"
        values.fail(FORMAT, f"is {chosen!r}", f"use one of {', '.join(allowed)} for {of}")


def _refuse_missing_file(values: Values) -> None:
    schema_file(values, SCHEMA)


def _refuse_no_text(values: Values) -> None:
    if values[FORMAT] == Format.AVRO:
        schema_text(values, SCHEMA)


RULES = (_refuse_other_formats, _refuse_missing_file, _refuse_no_text)
"""The rules about the keys of this module."""


def _schema(values: Values) -> dict[str, Any]:
    """Returns the attributes of a `Source` about its schema, by name; raises as `schema_file`."""
    if (registry := values[REGISTRY]) is not None:
        return {"registry": registry, "subject": values[SUBJECT] or f"{values[TOPIC]}-value"}
    match values[FORMAT]:
        case Format.AVRO:
            return {"avro_schema": schema_text(values, SCHEMA)}
        case Format.PROTOBUF:
            return {"descriptors": schema_file(values, SCHEMA), "message": values[MESSAGE]}
        case _:
            return {}


def source_format(values: Values) -> dict[str, Any]:
    """Returns the attributes of a `Source` that follow from the keys of this module, by name."""
    chosen = values[FORMAT]
    limits = RecordLimits(max_depth=values[MAX_DEPTH])
    if chosen == Format.AVRO:
        limits = replace(limits, max_digits=values[MAX_DIGITS], max_empty_items=values[MAX_EMPTY_ITEMS])
    return {
        "format": chosen if chosen in TOPIC_FORMATS else Format(chosen),
        **_schema(values),
        "record_limits": limits,
    }
