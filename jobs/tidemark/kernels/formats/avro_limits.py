"""Bounds the work of decoding a record in Avro.

fastavro decodes a record in a time that is proportional to its bytes, with three exceptions. Each must be caught before
or while the record is decoded, because afterwards it is too late:

* A type that contains itself: the decoder calls itself for each level without a limit, and ends the process.
* A list of items without bytes, such as nulls: the bytes say how many there are, and the decoder makes as many.
* A decimal: an integer becomes one in quadratic time.

So where a schema has one of the first two, the bytes of records are walked through before they are decoded. Decimals
are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import partial
from typing import Any

import fastavro.read

from tidemark.kernels.records.fields import WRONG_TYPE, RecordUnreadable
from tidemark.kernels.records.json_fields import too_deep
from tidemark.model.settings.record_limits import RecordLimits

_DECIMAL = "tidemark-decimal"
"""The logical type of decimals with a limit, which `_read_decimal` reads."""
_MOST = "tidemark-most-digits"
_PLACES_OF_TYPES = ("type", "items", "values", "fields")
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LEVELS = frozenset({"record", "array", "map"})
_ENDS = "the record ends too early"


@dataclass(eq=False)
class _Type:
    """A type of a schema.

    Attributes:
        kind: Avro's name of the type, or `entry` for an entry of a map.
        parts: the types inside it: the fields of a record, the branches of a union, the item of a list, the entry of a
            map, or the key and the value of an entry.
        size: the number of bytes of a value; None if it has at least one, and the bytes say how many.
        levels: how many levels of records, lists and maps it has, if it does not contain itself.
    """

    kind: str
    parts: list[_Type] = field(default_factory=list)
    size: int | None = None
    levels: int = field(init=False)

    def __post_init__(self) -> None:
        self.levels = (self.kind in _LEVELS) + max((part.levels for part in self.parts), default=0)


def check_of(parsed: Any, named: Mapping[str, Any], limits: RecordLimits) -> Callable[[bytes], None] | None:
    """Returns a function that raises an error for a record that the decoder must not read.

    Such a record is beyond *limits*, or ends too early. None if no record of the schema *parsed* can be beyond them.
    *named* has the types of the schema that have names.
    """
    types = _Types(named)
    root = types.of(parsed)
    if types.contains_itself or types.has_empty_items or root.levels > limits.max_depth:
        return partial(_walk, root=root, limits=limits)
    return None


class _Types:
    """Makes the types of a schema; *named* has those with names."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._made, self._open = named, dict[str, _Type](), set[str]()
        self.contains_itself = self.has_empty_items = False

    def of(self, schema: Any) -> _Type:
        """Returns the type of the parsed *schema*; for a type with a name always the same object."""
        if isinstance(schema, list):
            return _Type("union", [self.of(branch) for branch in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.of(kind)
        if kind in self._made:
            self.contains_itself |= kind in self._open
            return self._made[kind]
        match kind:
            case "record" | "error":
                return self._record(schema)
            case "array":
                item = self.of(schema["items"])
                self.has_empty_items |= item.size == 0
                return _Type("array", [item])
            case "map":
                return _Type("map", [_Type("entry", [_Type("string"), self.of(schema["values"])])])
            case "fixed":
                return _Type("fixed", size=schema["size"])
            case _ if kind in self._named:
                return self.of(self._named[kind])
            case _:
                return _Type(kind, size=_SIZES.get(kind))

    def _record(self, schema: Mapping[str, Any]) -> _Type:
        name = schema["name"]
        made = self._made[name] = _Type("record")
        self._open.add(name)
        made.parts = [self.of(each["type"]) for each in schema["fields"]]
        self._open.remove(name)
        made.size = 0 if all(part.size == 0 for part in made.parts) else None
        made.levels = 1 + max((part.levels for part in made.parts), default=0)
        return made


def _walk(value: bytes, *, root: _Type, limits: RecordLimits) -> None:
    """Raises RecordUnreadable if *value* is beyond *limits*, and another error if it is malformed."""
    at = empty_items = 0
    # What is still to be read, the next last: a type, its level, and how often it follows.
    todo: list[tuple[_Type, int, int]] = [(root, 1, 1)]
    while todo:
        type_, level, times = todo.pop()
        if times > 1:
            todo.append((type_, level, times - 1))
        if type_.kind in _LEVELS and type_.size is None and level > limits.max_depth:
            raise too_deep(limits.max_depth)
        if type_.kind in {"array", "map"}:
            count, at = _block(value, at)
            (item,) = type_.parts
            if count:
                todo.append((type_, level, 1))  # another block follows
            if item.size == 0:
                empty_items += count
            elif count:
                todo.append((item, level + 1, count))
        else:
            at, inner = _read(value, at, type_)
            todo += [(part, level + (type_.kind == "record"), 1) for part in reversed(inner)]
        if empty_items > limits.max_empty_items:
            found = "lists have more items without bytes"
            raise RecordUnreadable.beyond(key="max_empty_items", limit=limits.max_empty_items, found=found)
        if at > len(value):
            raise EOFError(_ENDS)


def _read(value: bytes, at: int, type_: _Type) -> tuple[int, list[_Type]]:
    """Reads the beginning of a value at the position *at*: its size, its branch or its number.

    Returns the position behind that, and the types of the parts that follow there.
    """
    if type_.size is not None:
        return at + type_.size, []
    match type_.kind:
        case "record" | "entry":
            return at, type_.parts
        case "union":
            branch, at = _varint(value, at, most=len(type_.parts) - 1)
            return at, [type_.parts[branch]]
        case "bytes" | "string":
            length, at = _varint(value, at, most=len(value) - at)
            return at + length, []
        case _:
            _, at = _varint(value, at)
            return at, []


def _block(value: bytes, at: int) -> tuple[int, int]:
    """Returns how many items the block at the position *at* has, and the position of the first."""
    count, at = _varint(value, at)
    if count >= 0:
        return count, at
    # Its length in bytes follows, for readers that skip it.
    _, at = _varint(value, at)
    return -count, at


def _varint(value: bytes, at: int, *, most: int | None = None) -> tuple[int, int]:
    """Returns the zigzag varint at the position *at*, and the position behind it.

    Raises an error if *most* is given and the number is not within 0 and *most*.
    """
    number = shift = 0
    while True:
        if at >= len(value):
            raise EOFError(_ENDS)
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
        if shift > 63:
            msg = "a number has more than 64 bits"
            raise ValueError(msg)
    number = (number >> 1) ^ -(number & 1)
    if most is not None and not 0 <= number <= most:
        msg = f"{number} is not one of 0 to {most}"
        raise ValueError(msg)
    return number, at


def limited_decimals(schema: Any, max_digits: int) -> Any:
    """Returns *schema*, parsed JSON, in which decimals are read by `_read_decimal`, with *max_digits*
    digits at most.
    """
    if isinstance(schema, list):
        return [limited_decimals(each, max_digits) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: limited_decimals(value, max_digits) for key, value in schema.items() if key in _PLACES_OF_TYPES}
    of_decimal = schema.get("type") in ("bytes", "fixed") and schema.get("logicalType") == "decimal"
    own = {"logicalType": _DECIMAL, _MOST: max_digits} if of_decimal else {}
    return {**schema, **inner, **own}


def _read_decimal(data: bytes, writer_schema: Any = None, reader_schema: Any = None) -> Decimal:
    """Returns the decimal whose unscaled value is *data*, a signed integer."""
    unscaled = int.from_bytes(data, "big", signed=True)
    most, precision, scale = writer_schema[_MOST], int(writer_schema["precision"]), int(writer_schema.get("scale", 0))
    if _has_more_digits(unscaled, most):
        raise RecordUnreadable.beyond(key="max_digits", limit=most, found="a decimal has more digits")
    if _has_more_digits(unscaled, precision):
        raise RecordUnreadable(WRONG_TYPE, f"a decimal has more digits than its precision, {precision}")
    return Decimal(unscaled).scaleb(-scale, Context(prec=most))


def _has_more_digits(number: int, digits: int) -> bool:
    # The number of bits excludes most, so that no power of ten is made for them.
    bits = number.bit_length()
    return bits > 3 * digits and (bits > 4 * digits or abs(number) >= 10**digits)


fastavro.read.LOGICAL_READERS |= {f"{kind}-{_DECIMAL}": _read_decimal for kind in ("bytes", "fixed")}
