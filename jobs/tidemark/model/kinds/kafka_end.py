"""An operator that may use a Kafka topic, and its keys."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from tidemark.extensions import OpenList
from tidemark.model.kinds.operator import DeclaredOperator
from tidemark.model.project.connections import DEFAULT
from tidemark.model.settings.toml_keys import Keys


class Format(StrEnum):
    """The formats of records in topics and files."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, kw_only=True)
class TopicFormat:
    """A format of records in topics that another package adds.

    Attributes:
        as_json: the place, `module:name`, of a function that takes the bytes of a record's value and returns those of a
            JSON object with its fields. A record for which it raises an error is quarantined as `unreadable`.
    """

    as_json: str


TOPIC_FORMATS: OpenList[TopicFormat] = OpenList("format", group="tidemark.formats")
"""The added formats by their word."""
READ_FORMATS: Mapping[str, tuple[Format, ...]] = {
    "topic": (Format.JSON, Format.AVRO, Format.PROTOBUF),
    "files": (Format.JSON, Format.CSV, Format.PARQUET),
}
"""Formats of a source by place of the records.

A Delta table has its own.
"""
WRITTEN_FORMATS: Mapping[str, tuple[Format, ...]] = {"topic": (Format.JSON, Format.AVRO)}
"""Formats of a sink by place of the records."""
SCHEMA = "schema"
"""The key of a file with a schema."""


@dataclass(frozen=True, kw_only=True)
class KafkaEnd(DeclaredOperator, ABC):
    """Reads or writes a *topic* of the cluster *kafka*, or another place.

    The *format* is one of Format, or of TOPIC_FORMATS. Clusters are in model/project/connections.py. With another place
    *topic* is None. *avro_schema* is the text of the file that the key `schema` names. With *traces* a source notes the
    headers `traceparent` of its records, and the records of a sink have that of the batch.
    """

    topic: str | None = None
    kafka: str = DEFAULT
    format: str = Format.JSON
    avro_schema: str | None = None
    traces: bool = False

    def each_topic(self, existing: Iterable[str]) -> list[Self]:
        """Returns it once for each of its topics.

        Each uses its topic alone. A pattern matches topics among *existing*.
        """
        return [self] if self.topic else []


def read_kafka_end(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Reads a sink's `KafkaEnd`; *place* has `topic` or another place's key."""
    chosen = read_format(keys, place, WRITTEN_FORMATS)
    schema = read_schema_text(keys, folder, "alerts.avsc") if chosen["format"] is Format.AVRO else {}
    return {**place, **read_topic_keys(keys, place), **chosen, **schema}


def read_topic_keys(keys: Keys, place: Mapping[str, str]) -> dict[str, Any]:
    """Reads the cluster of a topic, and whether its batches are traced."""
    name: str = keys.name("kafka", "eu", DEFAULT)
    if "kafka" in keys.content and "topic" not in place:
        keys.fail("kafka", f"is {name!r}, but there is no topic", "leave it out: only a topic has a cluster")
    traces: bool = keys.get("traces", bool, "true", False)
    if traces and "topic" not in place:
        keys.fail("traces", "is true, but there is no topic", "leave it out: only records of a topic have headers")
    return {"kafka": name, "traces": traces}


def read_format(keys: Keys, place: Mapping[str, str], formats: Mapping[str, tuple[Format, ...]]) -> dict[str, Any]:
    """Reads which of *formats* the records at *place* have."""
    (kind,) = place
    if kind not in formats:
        return {"format": Format.JSON}
    added = TOPIC_FORMATS if formats is READ_FORMATS and kind == "topic" else ()
    chosen = keys.word("format", [*Format, *added], Format.JSON)
    allowed = (*formats[kind], *added)
    if chosen not in allowed:
        keys.fail("format", f"is {chosen!r}", f"use one of {', '.join(allowed)} for {kind}")
    return {"format": chosen if chosen in added else Format(chosen)}


def read_schema_text(keys: Keys, folder: Path | None, example: str) -> dict[str, Any]:
    """Reads an Avro schema from the file that the key `schema` names."""
    content = read_schema_file(keys, folder, example)
    try:
        return {"avro_schema": content.decode()}
    except UnicodeDecodeError:
        keys.fail(
            SCHEMA, f"is {keys.content[SCHEMA]!r}, which is not UTF-8", "name the file with the Avro schema in JSON"
        )


def read_schema_file(keys: Keys, folder: Path | None, example: str) -> bytes:
    """Returns the content of the file that the key `schema` names, in *folder*."""
    name: str = keys.text(SCHEMA, example)
    try:
        return ((folder or Path()) / name).read_bytes()
    except OSError as error:
        keys.fail(SCHEMA, f"is {name!r}: {error.strerror}", f"put the schema into the folder of {keys.file}")
