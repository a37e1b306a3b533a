"""Reads the declared fields of records in Protobuf.

A record that cannot be read has a reason: malformed_protobuf, invalid_utf8, wrong_type or beyond_limit. A field that
can be absent (`optional`, `oneof`, messages, proto2) is null where it is; any other one has its default, as Protobuf
defines. A `string` has any other value as its text in JSON: a message, list or map as a JSON text, an enum by the name
of its value, bytes in base64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl
from google.protobuf import any_pb2, descriptor_pb2, json_format, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from tidemark.kernels.columns.schemas import INSTANT, polars_type
from tidemark.kernels.columns.years import BEYOND, within_years
from tidemark.kernels.records.fields import (
    INVALID_UTF8,
    MALFORMED_PROTOBUF,
    WRONG_TYPE,
    RecordFields,
    RecordUnreadable,
    column_of,
    read_fields,
)
from tidemark.kernels.records.iso_times import time_texts
from tidemark.kernels.records.json_fields import check_depth, json_of, text_of, too_deep
from tidemark.kernels.records.numbers import number_column
from tidemark.model.settings.declared_fields import digits_of, steps, whole_fields
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits

_TYPES = {
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SFIXED32: "int",
    # Spark has no unsigned types, so 32 bits take the next wider one.
    FieldDescriptor.TYPE_UINT32: "bigint",
    FieldDescriptor.TYPE_FIXED32: "bigint",
    FieldDescriptor.TYPE_INT64: "bigint",
    FieldDescriptor.TYPE_SINT64: "bigint",
    FieldDescriptor.TYPE_SFIXED64: "bigint",
    FieldDescriptor.TYPE_UINT64: "unsigned bigint",
    FieldDescriptor.TYPE_FIXED64: "unsigned bigint",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_ENUM: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
}
"""Types of Protobuf by the names that `fields` and Spark have."""
_ANY = any_pb2.Any.DESCRIPTOR.full_name
_TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
_WRAPPED = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
)
"""Messages with one field, `value`, which is null where they are absent."""
_OF_ONE_TEXT = frozenset(f"google.protobuf.{name}" for name in ("Timestamp", "Duration", "FieldMask"))
"""Messages that JSON has as a text."""
_WELL_KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_MOST = 2**63 - 1
Get = Callable[[Any], Any]
"""Returns the value of a field of a message."""


class InvalidDescriptors(ValueError):
    """Raised for bytes that are no FileDescriptorSet, or an incomplete one."""


@dataclass(frozen=True)
class _Decoder:
    """Decodes messages of one type.

    Attributes:
        descriptor: the type.
        decode: decodes a message.
        decode_any_text: decodes a message even if a text in it is not UTF-8.
    """

    descriptor: Descriptor
    decode: Callable[[bytes], Any]
    decode_any_text: Callable[[bytes], Any]


def message_names(descriptors: bytes) -> list[str]:
    """Returns the messages at the top of the last file of *descriptors*.

    That is the file that was compiled; those before it are its imports.

    Raises:
        InvalidDescriptors: they are not valid.
    """
    files = _files(descriptors)
    _pool(descriptors)
    prefix = f"{files[-1].package}." if files[-1].package else ""
    return [f"{prefix}{message.name}" for message in files[-1].message_type]


def message_at(descriptors: bytes, indexes: tuple[int, ...]) -> str | None:
    """Returns the message at *indexes* of the last file, or None.

    The first index is that of a message of the file; each further one is that of a message inside it. As in the text of
    the file, the messages that stand for maps do not count.
    """
    file = _files(descriptors)[-1]
    name, messages = file.package, file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        name = f"{name}.{messages[index].name}" if name else messages[index].name
        messages = [each for each in messages[index].nested_type if not each.options.map_entry]
    return name if indexes else None


def protobuf_types(descriptors: bytes, message: str, paths: Iterable[str] = ()) -> dict[str, str]:
    """Returns the type of each field of *message*, and of those at *paths* inside messages, as `fields` names it.

    Raises:
        InvalidDescriptors: they are not valid, or do not have the message.
    """
    descriptor = _decoder(descriptors, message).descriptor
    types = {field.name: _type(field) for field in descriptor.fields}
    for path in paths:
        if found := _fields_on(descriptor, path):
            types[path] = _type(found[-1])
    return types


def _fields_on(descriptor: Descriptor, path: str) -> list[FieldDescriptor]:
    """Returns the fields on *path*, the outermost first; none if messages of the type *descriptor* do not have it."""
    fields: list[FieldDescriptor] = []
    inside: Descriptor | None = descriptor
    for name in steps(path):
        field = None if inside is None else inside.fields_by_name.get(name)
        if field is None:
            return []
        fields.append(field)
        inside = None if field.is_repeated else field.message_type
    return fields


def protobuf_fields(
    values: pl.Series,
    declared_types: Mapping[str, str],
    descriptors: bytes,
    message: str,
    *,
    time: str | None = None,
    others: bool = False,
    limits: RecordLimits = DEFAULT_LIMITS,
) -> RecordFields:
    """Reads the declared fields of records.

    Args:
        values: the bytes of each record, a message; a null record has null fields.
        declared_types: the declared types by path.
        descriptors: a FileDescriptorSet that has the message.
        message: the full name of the message.
        time: the path of the event time, which may be in a text.
        others: keep the fields that are not declared, too. A message of which only fields inside are declared is kept.
        limits: what a record may hold.
    """
    decoder = _decoder(descriptors, message)
    plain = _Plain(limits.max_depth)
    getters: list[tuple[str, Get]] = []
    in_texts: set[str] = set()
    for path, word in declared_types.items():
        if fields := _fields_on(decoder.descriptor, path):
            is_text = path == time and _type(fields[-1]) == "string"
            getters.append((path, _inside(fields, "string" if is_text else word, plain)))
            in_texts |= {path} if is_text else set()
    declared = whole_fields(declared_types)
    undeclared = plain.json_of(field for field in decoder.descriptor.fields if field.name not in declared)
    written: dict[str, list[Any]] = {name: [] for name in declared_types}
    rest: list[str | None] = []
    refused: dict[int, RecordUnreadable] = {}
    for row, value in enumerate(values):
        read: dict[str, Any] = {}
        other = None
        if value is not None:
            try:
                parsed = _decoded(decoder, value)
                read = {name: get(parsed) for name, get in getters}
                other = undeclared(parsed) if others else None
            except Exception as error:
                read, refused[row] = {}, RecordUnreadable.by(error, MALFORMED_PROTOBUF)
        for name, column in written.items():
            column.append(read.get(name))
        rest.append(other)
    columns: dict[str, pl.Series] = {}
    for name, word in declared_types.items():
        if word == "timestamp":
            instants = time_texts if name in in_texts else _instants
            columns[name] = instants(name, written[name], refused)
        elif name in in_texts or digits_of(word):
            columns[name] = number_column(name, written[name], word, refused)
        else:
            columns[name] = column_of(written[name], polars_type(word), refused)
    return read_fields(columns, pl.Series(rest, dtype=pl.String), refused)


def _instants(name: str, us: list[int | None], refused: dict[int, RecordUnreadable]) -> pl.Series:
    """Returns the field *name*, epoch µs, as instants.

    Rows with one outside of the years 1 to 9999 are added to *refused*.
    """
    numbers = pl.Series(us, dtype=pl.Int64)
    instants = within_years(numbers.cast(INSTANT))
    for row in (numbers.is_not_null() & instants.is_null()).arg_true():
        refused[row] = RecordUnreadable(WRONG_TYPE, f"{name}: {BEYOND}")
    return instants


def _decoded(decoder: _Decoder, value: bytes) -> Any:
    try:
        return decoder.decode(value)
    except DecodeError as error:
        refusal = error
    # The parser does not distinguish bytes that are no text from those that are no message.
    try:
        decoder.decode_any_text(value)
    except DecodeError:
        raise RecordUnreadable.by(refusal, MALFORMED_PROTOBUF) from None
    raise RecordUnreadable.by(refusal, INVALID_UTF8)


def _inside(fields: Sequence[FieldDescriptor], word: str, plain: _Plain) -> Get:
    """Returns a function that reads the last of *fields*, each inside the one before, as the declared type *word*."""
    *outer, last = fields
    get = _getter(last, word, plain)
    for field in reversed(outer):
        get = _in_message(field.name, get)
    return get


def _in_message(name: str, get: Get) -> Get:
    return lambda message: get(getattr(message, name)) if _has(message, name) else None


def _getter(field: FieldDescriptor, word: str, plain: _Plain) -> Get:
    """Returns a function that reads *field*, declared as *word*, from a message; *plain* converts values to texts."""
    name, convert = field.name, _conversion(field, word, plain)
    # On the wire an absent list is the same as an empty one, and an absent plain field of proto3 as its default.
    if field.is_repeated or not field.has_presence:
        return lambda message: convert(getattr(message, name))
    if field.has_default_value:  # only proto2 has such fields
        return lambda message: convert(getattr(message, name))
    return lambda message: convert(getattr(message, name)) if _has(message, name) else None


def _has(message: Any, name: str) -> bool:
    # By the class: a field may have the name of a method, and hides it in the message.
    return bool(type(message).HasField(message, name))


def _conversion(field: FieldDescriptor, word: str, plain: _Plain) -> Get:
    """Returns a converter of *field*'s values to the type *word*."""
    if word == "timestamp":
        return _epoch_us
    if not field.is_repeated and field.type == FieldDescriptor.TYPE_MESSAGE and _name_of(field) in _WRAPPED:
        inner = _conversion(field.message_type.fields_by_name["value"], word, plain)
        return lambda message: inner(message.value)
    if word == "string":
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            return _checked_text
        return plain.text_of(field)
    if _type(field) == "unsigned bigint":
        return _as_bigint
    return _same


def _same(value: Any) -> Any:
    return value


def _checked_text(value: Any) -> Any:
    # Texts of proto2 are not checked when a message is read: those that are not UTF-8 are bytes.
    if isinstance(value, bytes):
        raise RecordUnreadable(INVALID_UTF8, "a text is not UTF-8")
    return value


def _as_bigint(value: int) -> int:
    if value > _MOST:
        raise RecordUnreadable(WRONG_TYPE, f"{value} is above 2^63 - 1")
    return value


def _epoch_us(value: Any) -> int:
    """Returns a Timestamp, rounded down; beyond 64 bits the nearest number."""
    # Nanos count forward before 1970, too, so all instants are rounded down.
    at_us: int = value.seconds * 1_000_000 + value.nanos // 1_000
    # Both ends are outside of the years 1 to 9999, so the record is refused by its year.
    return max(-_MOST, min(at_us, _MOST))


class _Plain:
    """Converts values of fields to what JSON has for them, with *max_depth* levels at most.

    How a field is converted is found out once, because a record may have very many messages of one type.
    """

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._of_messages: dict[str, list[_Field]] = {}

    def text_of(self, field: FieldDescriptor) -> Get:
        """Returns a function that converts a value of *field* to text."""
        convert = self._of(field)

        def text(value: Any) -> str | None:
            plain = self._checked(lambda: convert(value))
            try:
                return text_of(plain)
            except UnicodeError as error:
                raise RecordUnreadable.by(error, INVALID_UTF8) from None

        return text

    def json_of(self, fields: Iterable[FieldDescriptor]) -> Get:
        """Returns a function that converts a message to a JSON object of its *fields*, or None if it has
        none of them.
        """
        of_fields = [self._field(field) for field in fields]

        def json(message: Any) -> str | None:
            values = self._checked(lambda: _object(message, of_fields))
            try:
                return json_of(values) if values else None
            except UnicodeError as error:
                raise RecordUnreadable.by(error, INVALID_UTF8) from None

        return json

    def _checked(self, convert: Callable[[], Any]) -> Any:
        """Returns what *convert* returns; raises RecordUnreadable if it has too many levels."""
        try:
            plain = convert()
        except RecursionError:
            # A message of the type Any has another inside its bytes, whose levels the parser does not count together.
            raise too_deep(self._max_depth) from None
        check_depth({"": plain}, self._max_depth)
        return plain

    def _field(self, field: FieldDescriptor) -> _Field:
        return _Field(field.name, field.has_presence, field.is_repeated, self._of(field))

    def _of(self, field: FieldDescriptor) -> Get:
        """Returns a function that converts a value of *field* to what JSON has for it."""
        if not field.is_repeated:
            return self._of_one(field)
        of_map = field.message_type if field.type == FieldDescriptor.TYPE_MESSAGE else None
        if of_map is None or not of_map.GetOptions().map_entry:
            item = self._of_one(field)
            return lambda values: [item(each) for each in values]
        inner = self._of_one(of_map.fields_by_name["value"])
        # Keys of objects are texts; true and false are those of JSON.
        return lambda values: {text_of(key): inner(each) for key, each in values.items()}

    def _of_one(self, field: FieldDescriptor) -> Get:
        if field.type in {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP}:
            return self._of_message(field.message_type)
        if field.type == FieldDescriptor.TYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            # A newer writer may use a number of an open enum (proto3) that this schema does not name.
            return lambda value: names.get(value, value)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return lambda value: base64.b64encode(value).decode()
        return _checked_text

    def _of_message(self, descriptor: Descriptor) -> Get:
        name: str = descriptor.full_name
        if name in _WRAPPED:
            inner = self._of_one(descriptor.fields_by_name["value"])
            return lambda message: inner(message.value)
        if name.startswith("google.protobuf."):
            return self._well_known
        return self._object

    def _object(self, message: Any) -> dict[str, Any]:
        descriptor = type(message).DESCRIPTOR
        fields = self._of_messages.get(descriptor.full_name)
        if fields is None:
            # Not before a message is there: its type may contain itself.
            fields = self._of_messages[descriptor.full_name] = [self._field(field) for field in descriptor.fields]
        return _object(message, fields)

    def _well_known(self, message: Any) -> Any:
        """Returns a Timestamp, Duration, Struct …, which have forms of their own in JSON."""
        descriptor = type(message).DESCRIPTOR
        name, pool = descriptor.full_name, descriptor.file.pool
        try:
            if name in _OF_ONE_TEXT:
                return message.ToJsonString()
            return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
        except (ValueError, TypeError, json_format.Error) as error:
            if name == _ANY:  # of a type that the schema does not have
                return self._object(message)
            # For example a Timestamp after the year 9999.
            raise RecordUnreadable.by(error, WRONG_TYPE) from None


@dataclass(frozen=True)
class _Field:
    """A field of a message; `plain` converts its value to what JSON has for it."""

    name: str
    has_presence: bool
    is_repeated: bool
    plain: Get


def _object(message: Any, fields: Iterable[_Field]) -> dict[str, Any]:
    """Returns the values of *fields* of *message* that are not absent."""
    values: dict[str, Any] = {}
    for field in fields:
        name = field.name
        if field.has_presence and not _has(message, name):
            continue
        value = getattr(message, name)
        if value or not field.is_repeated:
            values[name] = field.plain(value)
    return values


def _type(field: FieldDescriptor) -> str:
    if field.is_repeated:
        is_map = field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry
        return "map" if is_map else "array"
    if field.type not in {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP}:
        return _TYPES[field.type]
    if _name_of(field) == _TIMESTAMP:
        return "timestamp"
    return _type(field.message_type.fields_by_name["value"]) if _name_of(field) in _WRAPPED else "message"


def _name_of(field: FieldDescriptor) -> str:
    return str(field.message_type.full_name)


def _files(descriptors: bytes) -> list[Any]:
    """Returns the files of *descriptors*, at least one."""
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
    except DecodeError:
        files = []
    if not files:
        msg = "is not a set of Protobuf descriptors"
        raise InvalidDescriptors(msg)
    return files


@lru_cache(maxsize=64)
def _pool(descriptors: bytes, *, any_text: bool = False) -> DescriptorPool:
    """Returns the pool of the files of *descriptors*.

    With *any_text* its texts are bytes, which need not be UTF-8.
    """
    pool, there = DescriptorPool(), set[str]()
    for file in [*_well_known(), *_files(descriptors)]:
        # A set that was made with imports has Google's files, too.
        if file.name in there:
            continue
        there.add(file.name)
        if any_text:
            _accept_any_text(file.message_type)
        try:
            pool.Add(file)
            # The usual implementation of Protobuf misses an import in `Add`, the one in pure Python only here.
            pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            msg = f"has an incomplete file {file.name}: {error}; compile it with --include_imports"
            raise InvalidDescriptors(msg) from None
    return pool


def _well_known() -> list[Any]:
    files: list[Any] = []
    for name in _WELL_KNOWN:
        file = descriptor_pb2.FileDescriptorProto()
        _import_well_known(name).CopyToProto(file)
        files.append(file)
    return files


def _import_well_known(name: str) -> Any:
    __import__(f"google.protobuf.{name}_pb2")  # registers its file
    return Default().FindFileByName(f"google/protobuf/{name}.proto")


def _accept_any_text(messages: Any) -> None:
    """Makes bytes of the texts of *messages*, except keys of maps."""
    for message in messages:
        # Protobuf does not allow bytes as the key of a map.
        for field in () if message.options.map_entry else message.field:
            if field.type == FieldDescriptor.TYPE_STRING:
                field.type = FieldDescriptor.TYPE_BYTES
                # A default of bytes is written with escapes, that of a text without.
                field.ClearField("default_value")
        _accept_any_text(message.nested_type)


@lru_cache(maxsize=64)
def _decoder(descriptors: bytes, message: str) -> _Decoder:
    try:
        descriptor = _pool(descriptors).FindMessageTypeByName(message)
    except KeyError:
        there = ", ".join(message_names(descriptors)) or "no message"
        msg = f"has no message {message}; it has {there}"
        raise InvalidDescriptors(msg) from None
    bytes_for_text = _pool(descriptors, any_text=True).FindMessageTypeByName(message)
    return _Decoder(
        descriptor,
        message_factory.GetMessageClass(descriptor).FromString,
        message_factory.GetMessageClass(bytes_for_text).FromString,
    )
