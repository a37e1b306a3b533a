"""Equal values as equal bytes: what emit-on-change compares when a value is more than one text.

The bytes do not depend on the process, the JVM or the order of a map, and different values of one type never share
them. A user's own expression may stand in for a value instead; it has to be deterministic, and to differ where values
differ, or changes are lost (KIP-557, "generateUniqueObjectId").

| value | bytes |
|---|---|
| null | `n` |
| boolean | `t` or `f` |
| whole number | `i`, its digits, `;` |
| float, of any width | `d`, 8 bytes big-endian IEEE 754; −0.0 is 0.0, and there is one NaN |
| decimal | `c`, its digits without trailing zeros, `e`, its exponent, `;`, so 1.0 is 1.00 |
| string, binary | `s` or `b`, the number of bytes, `:`, the bytes (UTF-8) |
| date | `y`, days since 1970-01-01, `;` |
| timestamp | `z` as an instant, `l` without a zone, microseconds since 1970-01-01, `;` |
| duration | `u`, microseconds, `;` |
| array, or struct in the order of its fields | `a`, their number, `:`, the bytes of each |
| map | `m`, the number of entries, `:`, the bytes of each key and its value, in the order of the keys' bytes |
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal

from tidemark.errors import InvalidArgument

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of local times has no zone


def canonical(value: object) -> bytes:
    """The canonical bytes of one value; tuples and rows are structs, mappings are maps.

    Raises:
        InvalidArgument: the value, or one inside of it, is of another type, or an infinite decimal.
    """
    if isinstance(value, Mapping):
        entries = sorted((canonical(key), canonical(item)) for key, item in value.items())
        return b"m%d:" % len(entries) + b"".join(key + item for key, item in entries)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return b"a%d:" % len(value) + b"".join(map(canonical, value))
    return _scalar(value)


def sha256(canonical_bytes: bytes) -> bytes:
    """The SHA-256 digest, 32 bytes, that may stand in for canonical bytes (KIP-557, "Future Work")."""
    return hashlib.sha256(canonical_bytes).digest()


def _scalar(value: object) -> bytes:
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i%d;" % value
        case float():
            return b"d" + struct.pack(">d", math.nan if math.isnan(value) else value + 0.0)
        case str():
            return _sized(b"s", value.encode())
        case bytes() | bytearray():
            return _sized(b"b", bytes(value))
        case Decimal() if value.is_finite():
            return _decimal(value)
        case _:
            return _time(value)


def _time(value: object) -> bytes:
    match value:
        case datetime() if value.tzinfo is None:
            return b"l%d;" % ((value - _EPOCH) // _MICROSECOND)
        case datetime():
            local = value.replace(tzinfo=None) - (value.utcoffset() or timedelta())
            return b"z%d;" % ((local - _EPOCH) // _MICROSECOND)
        case date():
            return b"y%d;" % (value - _EPOCH.date()).days
        case timedelta():
            return b"u%d;" % (value // _MICROSECOND)
    msg = f"a value is a finite one of the types in tidemark.identity, got {value!r}; cast it to one of these"
    raise InvalidArgument(msg)


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + b"%d:" % len(content) + content


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    unscaled = "".join(map(str, digits)).lstrip("0")
    significant = unscaled.rstrip("0")
    if not significant:
        return b"c0e0;"
    text = f"c{'-' * sign}{significant}e{int(exponent) + len(unscaled) - len(significant)};"
    return text.encode()
