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
        as_json: for sources: the place, `module:name`, of a function that takes the bytes of a record's value and
            returns those of a JSON object with its fields. A record for which it raises an error is quarantined as
            `unreadable`. None: no source reads it.
        of_json: for sinks: the place of a function that takes the bytes of a JSON object with the columns of a record
            and returns those of its value. A record for which it raises an error is quarantined at the sink. It gives
            the same bytes for the same record, which is sent again after a crash. None: no sink writes it.
    """

    as_json: str | None = None
    of_json: str | None = None


TOPIC_FORMATS: OpenList[TopicFormat] = OpenList("format", group="tidemark.formats")
"""The added formats by their word."""


def formats_read() -> list[str]:
    """Returns the words of added formats that sources read."""
    return [word for word, added in TOPIC_FORMATS.items() if added.as_json]


def formats_written() -> list[str]:
    """Returns the words of added formats that sinks write."""
    return [word for word, added in TOPIC_FORMATS.items() if added.of_json]


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


def of_a_cluster(*topics: Key[Any]) -> Needs:
    """Returns the need of the key `kafka`: one of the keys *topics*."""
    return needs(given(*topics), because="only a topic has a cluster")


def with_headers(*topics: Key[Any]) -> Needs:
    """Returns the need of the key `traces`: one of the keys *topics*."""
    return needs(given(*topics), because="only records of a topic have headers")


def schema_file(values: Values, schema: Key[str | None]) -> bytes | None:
    """Returns the content of the file that the key *schema* names; None without the key.

    Raises:
        InvalidSpec: it cannot be read.
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
