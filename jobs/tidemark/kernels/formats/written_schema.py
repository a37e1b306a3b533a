"""The schemas that a registry has, under their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class SchemaKind(StrEnum):
    """The kinds of schemas that registries name."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


@dataclass(frozen=True)
class WrittenSchema:
    """A schema with which records were written.

    Attributes:
        kind: the registry's name of the format; it may be one that Tidemark does not know.
        text: the schema, as the registry has it.
        referenced: for Avro, the schemas that it refers to, each after those that it names.
        descriptors: for Protobuf, a FileDescriptorSet whose last file is the schema.
        problem: why it cannot be used; None if it can.
        is_missing: the registry has no schema with this id.
    """

    kind: str = SchemaKind.AVRO
    text: str = ""
    referenced: tuple[str, ...] = ()
    descriptors: bytes = b""
    problem: str | None = None
    is_missing: bool = False

    @property
    def is_usable(self) -> bool:
        """Returns True unless it is missing or has a problem."""
        return not self.is_missing and self.problem is None


KnownSchemas = Mapping[str, Mapping[int, WrittenSchema]]
"""By name of a registry and by id."""
