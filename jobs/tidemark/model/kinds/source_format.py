"""Reads the format of a source's records, and their schema's place.

Records have a schema in a file beside the topology, or each names one of a registry by its id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemark.model.kinds.kafka_end import (
    READ_FORMATS,
    SCHEMA,
    Format,
    read_format,
    read_schema_file,
    read_schema_text,
    read_topic_keys,
)
from tidemark.model.settings.record_limits import read_record_limits
from tidemark.model.settings.toml_keys import Keys

_EXAMPLES: Mapping[str, str] = {Format.AVRO: "readings.avsc", Format.PROTOBUF: "readings.desc"}
_MESSAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def read_source_format(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Reads place, cluster, format, schema and limits of a source's records."""
    chosen = read_format(keys, place, READ_FORMATS)
    limits = read_record_limits(keys, of_avro=chosen["format"] is Format.AVRO)
    schema = _schema(keys, place, chosen["format"], folder)
    return {**place, **read_topic_keys(keys, place), **chosen, **schema, "record_limits": limits}


def _schema(keys: Keys, place: Mapping[str, str], format_: str, folder: Path | None) -> dict[str, Any]:
    """Reads the place of the schema of records in *format_*."""
    registry: str | None = keys.name("registry", "main", None)
    if registry is not None:
        return _of_registry(keys, place, registry)
    if "subject" in keys.content:
        keys.fail("subject", "is set without registry", 'write registry = "main", too', beside="registry")
    if format_ not in _EXAMPLES:
        return {}
    # A schema may be missing, so what else a format has is asked for before.
    message: str = keys.text("message", "plant.Reading") if format_ is Format.PROTOBUF else ""
    if SCHEMA not in keys.content:
        remedy = f'write {SCHEMA} = "{_EXAMPLES[format_]}", a file beside this one, or registry = "main"'
        keys.get(SCHEMA, str, f'"{_EXAMPLES[format_]}"', None)
        keys.fail(SCHEMA, f"is missing, and format is {str(format_)!r}", remedy, beside=("format", "registry"))
    if format_ is Format.AVRO:
        return read_schema_text(keys, folder, _EXAMPLES[format_])
    descriptors = read_schema_file(keys, folder, _EXAMPLES[format_])
    if not _MESSAGE.fullmatch(message):
        remedy = "write the message with its package, such as plant.Reading"
        keys.fail("message", f"is {message!r}, which is not the name of a message", remedy)
    return {"descriptors": descriptors, "message": message}


def _of_registry(keys: Keys, place: Mapping[str, str], registry: str) -> dict[str, Any]:
    if "topic" not in place:
        keys.fail(
            "registry", f"is {registry!r}, but there is no topic", "leave it out: only a topic's records have ids"
        )
    for key in (SCHEMA, "message"):
        if key in keys.content:
            problem = "is set together with registry, which has the schemas"
            keys.fail(key, problem, "leave one of the two out", beside="registry")
    # Several topics have no subject in common, unless the file names one.
    default = ... if "topics" in keys.content else f"{place['topic']}-value"
    return {"registry": registry, "subject": keys.text("subject", "readings-value", default)}
