"""An operator that may use a Kafka topic, and what its keys have in common."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from tidemark.extensions import OpenList
from tidemark.model.kinds.operator import DeclaredOperator
from tidemark.model.project.connections import DEFAULT
from tidemark.model.settings.conditions import Needs, given, needs
from tidemark.model.settings.declared_tables import Key, Values


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
        as_json: for sources, the `module:name` of a function that takes the bytes of a record's value and returns the
            bytes of a JSON object with the record's fields. A record for which the function raises an error is
            quarantined as `unreadable`. None if no source reads the format.
        of_json: for sinks, the `module:name` of a function that takes the bytes of a JSON object with the columns of a
            record and returns the bytes of the record's value. A record for which the function raises an error is
            quarantined at the sink. The function must give the same bytes for the same record, because a record is
            sent again after a crash. None if no sink writes the format.
    """

    as_json: str | None = None
    of_json: str | None = None


TOPIC_FORMATS: OpenList[TopicFormat] = OpenList("format", group="tidemark.formats")
"""The added formats by their word."""


def formats_read() -> list[str]:
    """Returns the names of the formats of other packages that sources read."""
    return [word for word, added in TOPIC_FORMATS.items() if added.as_json]


def formats_written() -> list[str]:
    """Returns the names of the formats of other packages that sinks write."""
    return [word for word, added in TOPIC_FORMATS.items() if added.of_json]


@dataclass(frozen=True, kw_only=True)
class KafkaEnd(DeclaredOperator, ABC):
    """Reads or writes a *topic* of the cluster *kafka*, or something else; then *topic* is None.

    The *format* is one of Format, or of TOPIC_FORMATS. Clusters are in model/project/connections.py. *avro_schema* is
    the text of the file that the key `schema` names. With *traces* a source notes the `traceparent` headers of its
    records, and a sink gives its records the `traceparent` header of their batch.
    """

    topic: str | None = None
    kafka: str = DEFAULT
    format: str = Format.JSON
    avro_schema: str | None = None
    traces: bool = False

    def each_topic(self, existing: Iterable[str]) -> list[Self]:
        """Returns the operator once for each of its topics, each time with that topic alone.

        The topics of a pattern are those of *existing* that match it.
        """
        return [self] if self.topic else []


def of_a_cluster(*topics: Key[Any]) -> Needs:
    """Returns what the key `kafka` needs beside it: one of the keys *topics*."""
    return needs(given(*topics), because="only a topic has a cluster")


def with_headers(*topics: Key[Any]) -> Needs:
    """Returns what the key `traces` needs beside it: one of the keys *topics*."""
    return needs(given(*topics), because="only records of a topic have headers")


def schema_file(values: Values, schema: Key[str | None]) -> bytes | None:
    """Returns the content of the file that the key *schema* names; None if the operator does not have the key.

    Raises:
        InvalidSpec: the file cannot be read.
        MistakenKey: the key has a mistake.
    """
    name = values[schema]
    if name is None:
        return None
    try:
        return ((values.folder or Path()) / name).read_bytes()
    except OSError as error:
        values.fail(schema, f"is {name!r}: {error.strerror}", f"put the schema into the folder of {values.file}")


def schema_text(values: Values, schema: Key[str | None]) -> str | None:
    """Returns the Avro schema in the file that the key *schema* names; raises as `schema_file`."""
    content = schema_file(values, schema)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        problem = f"is {values[schema]!r}, which is not UTF-8"
        values.fail(schema, problem, "name the file with the Avro schema in JSON")
