"""Encodes single values as `tidemark.kernels.columns.identity` encodes columns."""

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
    """Returns the canonical bytes of one value.

    Tuples and rows are structs, mappings are maps.

    Raises:
        InvalidArgument: the value, or a value in it, has another type or is an infinite decimal.
    """
    if isinstance(value, Mapping):
        entries = sorted((canonical(key), canonical(item)) for key, item in value.items())
        return b"m%d:" % len(entries) + b"".join(key + item for key, item in entries)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return b"a%d:" % len(value) + b"".join(map(canonical, value))
    return _scalar(value)


def sha256(canonical_bytes: bytes) -> bytes:
    """Returns the SHA-256 digest of *canonical_bytes*, 32 bytes.

    Source: KIP-557, "Future Work".
    """
    return hashlib.sha256(canonical_bytes).digest()


def _scalar(value: object) -> bytes:
    match value:
        case None:
            return b"n"
        # bool is a subclass of int, so it comes first.
        case bool():
            return b"t" if value else b"f"
        case int():
            return b"i%d;" % value
        case float():
            # Adding 0.0 turns −0.0 into 0.0.
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
        # datetime is a subclass of date, so it comes first.
        case datetime() if value.tzinfo is None:
            return b"l%d;" % ((value - _EPOCH) // _MICROSECOND)
        case datetime():
            local = value.replace(tzinfo=None) - (value.utcoffset() or timedelta())
            return b"z%d;" % ((local - _EPOCH) // _MICROSECOND)
        case date():
            return b"y%d;" % (value - _EPOCH.date()).days
        case timedelta():
            return b"u%d;" % (value // _MICROSECOND)
    msg = f"a value must be finite and of a type that identity.py lists, got {value!r}; cast it"
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
