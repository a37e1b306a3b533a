"""An operator that may use a Kafka topic, and its keys."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tidemark.model.kinds.operator import DeclaredOperator
from tidemark.model.project.connections import DEFAULT
from tidemark.model.settings.toml_keys import Keys


class Format(StrEnum):
    """The formats of records in topics and files."""

    JSON = "json"
    AVRO = "avro"
    CSV = "csv"
    PARQUET = "parquet"


FORMATS: Mapping[str, tuple[Format, ...]] = {
    "topic": (Format.JSON, Format.AVRO),
    "files": (Format.JSON, Format.CSV, Format.PARQUET),
}
"""Formats by place of the records; a Delta table has its own."""


@dataclass(frozen=True, kw_only=True)
class KafkaEnd(DeclaredOperator, ABC):
    """Reads or writes a *topic* of the cluster *kafka*, or another place.

    Clusters are in model/project/connections.py. With another place *topic* is None.
    """

    topic: str | None = None
    kafka: str = DEFAULT
    format: Format = Format.JSON
    avro_schema: str | None = None


def read_kafka_end(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Reads a `KafkaEnd`'s fields; *place* has `topic` or another place's key."""
    return {**place, "kafka": _cluster(keys, place), **_format(keys, place, folder)}


def _cluster(keys: Keys, place: Mapping[str, str]) -> str:
    name: str = keys.name("kafka", "eu", DEFAULT)
    if "kafka" in keys.content and "topic" not in place:
        keys.fail("kafka", f"is {name!r}, but there is no topic", "leave it out: only a topic has a cluster")
    return name


def _format(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Reads the format of records, with the text of its Avro schema."""
    (kind,) = place
    if kind not in FORMATS:
        return {}
    chosen = keys.choice("format", Format, Format.JSON)
    if chosen not in FORMATS[kind]:
        keys.fail("format", f"is {chosen.value!r}", f"use one of {', '.join(FORMATS[kind])} for {kind}")
    if chosen is not Format.AVRO:
        return {"format": chosen}
    name = keys.text("avro_schema", "events.avsc")
    try:
        return {"format": chosen, "avro_schema": ((folder or Path()) / name).read_text(encoding="utf-8")}
    except OSError as error:
        keys.fail("avro_schema", f"is {name!r}: {error.strerror}", f"put the schema into the folder of {keys.file}")
