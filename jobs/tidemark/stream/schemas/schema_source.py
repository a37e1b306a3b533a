"""Gets schemas from a registry, with all to which they refer, and finds out whether they can be used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from tidemark.kernels.formats.protobuf_fields import InvalidDescriptors, message_names, protobuf_types
from tidemark.kernels.formats.written_schema import SchemaKind, WrittenSchema
from tidemark.stream.schemas.protoc import DoesNotCompile, compiled
from tidemark.stream.schemas.registry_client import NotRegistered, RegistryClient, RegistryUnavailable

# fastavro does not check the form of a schema first, so a mistake may show as one of Python's own errors.
_NOT_AVRO = (ValueError, TypeError, AttributeError, LookupError, RecursionError, SchemaParseException, UnknownType)
# Each takes a request to the registry.
_MOST_REFERENCES = 500


def schema_of_id(client: RegistryClient, id_: int) -> WrittenSchema:
    """Returns the schema *id_* of the registry of *client*; `problem` says why a schema cannot be used.

    Raises:
        RegistryUnavailable: the registry gives no usable answer.
        NotPermitted: the login may not read it.
        InvalidArgument: the login is refused.
    """
    try:
        answer = client.schema(id_)
    except NotRegistered:
        return WrittenSchema(is_missing=True)
    return _usable(client, answer)


def latest_schema(client: RegistryClient, subject: str) -> tuple[int, WrittenSchema]:
    """Returns id and schema of the latest version of *subject*.

    Raises:
        NotRegistered: the registry does not have the subject.
        RegistryUnavailable: the registry gives no usable answer.
        InvalidArgument: the login is refused.
    """
    answer = client.version(subject, "latest")
    id_ = answer.get("id")
    if not isinstance(id_, int):
        msg = f"registry.{client.registry.name}: the latest version of {subject} has no id"
        raise RegistryUnavailable(msg)
    return id_, _usable(client, answer)


def _usable(client: RegistryClient, answer: Mapping[str, Any]) -> WrittenSchema:
    """Returns the schema of *answer*, with all to which it refers."""
    # Registries leave the kind out for Avro.
    kind, text = str(answer.get("schemaType") or SchemaKind.AVRO), str(answer["schema"])
    if kind not in {SchemaKind.AVRO, SchemaKind.PROTOBUF}:
        return WrittenSchema(kind=kind)
    try:
        references = dict(_references(client, answer, {}))
        if kind == SchemaKind.AVRO:
            referenced = tuple(references.values())
            return WrittenSchema(kind=kind, text=text, referenced=referenced, problem=_avro_problem(text, referenced))
        descriptors = compiled(text, references)
        names = message_names(descriptors)
        if not names:
            return WrittenSchema(kind=kind, text=text, problem="has no message")
        # What this process cannot use shows here, and not in each batch with such records.
        protobuf_types(descriptors, names[0])
        return WrittenSchema(kind=kind, text=text, descriptors=descriptors)
    except (NotRegistered, DoesNotCompile, InvalidDescriptors) as error:
        return WrittenSchema(kind=kind, text=text, problem=str(error))


def _references(client: RegistryClient, answer: Mapping[str, Any], seen: dict[str, None]) -> Iterator[tuple[str, str]]:
    """Yields name and text of each schema to which *answer* refers, once, after those to which it refers itself."""
    for name, subject, version in _named(answer):
        if name in seen:
            continue
        if len(seen) >= _MOST_REFERENCES:
            msg = f"refers to more than {_MOST_REFERENCES} schemas"
            raise DoesNotCompile(msg)
        # Before its own references are read, so that a circle of them ends.
        seen[name] = None
        inner = client.version(subject, version)
        yield from _references(client, inner, seen)
        yield name, str(inner["schema"])


def _named(answer: Mapping[str, Any]) -> list[tuple[str, str, int | str]]:
    """Returns name, subject and version of each reference of *answer*.

    Raises:
        DoesNotCompile: they have another form.
    """
    try:
        return [(str(each["name"]), str(each["subject"]), each["version"]) for each in answer.get("references") or ()]
    except (TypeError, LookupError):
        msg = "has references of an unknown form"
        raise DoesNotCompile(msg) from None


def _avro_problem(text: str, referenced: tuple[str, ...]) -> str | None:
    """Returns why *text* describes no Avro records, or None."""
    try:
        named: dict[str, Any] = {}
        for each in referenced:
            # It adds the types of a schema to *named*, where later schemas look for them.
            fastavro.parse_schema(json.loads(each), named)
        schema = json.loads(text)
        fastavro.parse_schema(schema, named)
    except _NOT_AVRO as error:
        return f"is not a valid Avro schema: {error}"
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    return None if is_record else "is not an Avro schema of records"
