"""Encodes equal values as equal bytes, which emit-on-change compares.

The bytes do not depend on the process, the JVM or the order of a map, and different values of one type never share
them. A user's own expression may stand in for a value instead. It has to be deterministic, and to differ where values
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
from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tidemark.errors import InvalidArgument

Encode = Callable[[pa.Array], pa.Array]


def canonical(rows: pa.Table) -> pa.Array:
    """Returns the canonical bytes of each row as a struct.

    They are binary, never null. Two rows have equal bytes exactly when their columns are equal, null being equal to
    null.

    Raises:
        InvalidArgument: a column is of a type that has no bytes in the table above.
    """
    columns = [_encoded(column.combine_chunks()) for column in rows.columns]
    return _joined(b"a%d:" % len(columns), *columns) if columns else pa.array([b"a0:"] * rows.num_rows, pa.binary())


def sha256(values: pa.Array) -> pa.Array:
    """Returns each binary value's SHA-256 digest, 32 bytes; null for null."""
    # hashlib in a loop takes 0.35 µs a value, which is a third of what DuckDB's vectorised sha256 takes.
    digests = [None if value is None else hashlib.sha256(value).digest() for value in values.to_pylist()]
    return pa.array(digests, pa.binary(32))


def identity_of(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Returns the SHA-256, in hex, of the canonical bytes of *columns*."""
    rows = frame.select(columns or frame.columns[:1]).to_arrow()  # a polars frame without columns has no rows
    digests = sha256(canonical(rows.select(list(columns))))
    return pl.Series(digests.cast(pa.binary()), dtype=pl.Binary).bin.encode("hex")


def _encoded(values: pa.Array) -> pa.Array:
    """Returns the bytes of each value; `n` for null."""
    for is_type, encode in _ENCODERS:
        if is_type(values.type):
            return pc.fill_null(encode(values), b"n")
    msg = f"a column needs a type that tidemark/kernels/columns/identity.py lists, got {values.type}; cast it"
    raise InvalidArgument(msg)


def _joined(*parts: bytes | pa.Array) -> pa.Array:
    """Joins the parts, one after the other; null where one is null."""
    return pc.binary_join_element_wise(*parts, b"")


def _digits(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()).cast(pa.binary())


def _boolean(values: pa.Array) -> pa.Array:
    return pc.if_else(values, b"t", b"f")


def _integer(values: pa.Array) -> pa.Array:
    return _joined(b"i", _digits(values), b";")


def _floating(values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
    # + 0.0 turns −0.0 into 0.0; NaNs differ in their payload, and become one.
    numbers[np.isnan(numbers)] = np.nan
    octets = pa.py_buffer(numbers.astype(">f8").tobytes())
    encoded = _joined(b"d", pa.Array.from_buffers(pa.binary(8), len(values), [None, octets]).cast(pa.binary()))
    return pc.if_else(values.is_valid(), encoded, None)


def _decimal(values: pa.Array) -> pa.Array:
    wide = values.cast(pa.decimal256(76, values.type.scale))
    # The same buffers under scale 0 are the unscaled integers, whose text has no point.
    unscaled = pa.Array.from_buffers(pa.decimal256(76, 0), len(wide), wide.buffers(), offset=wide.offset)
    text = unscaled.cast(pa.string())
    significant = pc.utf8_rtrim(text, "0")
    exponent = pc.subtract(pc.subtract(pc.utf8_length(text), pc.utf8_length(significant)), values.type.scale)
    encoded = _joined(b"c", significant.cast(pa.binary()), b"e", _digits(exponent), b";")
    return pc.if_else(pc.equal(significant, ""), b"c0e0;", encoded)


def _sized(tag: bytes) -> Encode:
    def encode(values: pa.Array) -> pa.Array:
        octets = values.cast(pa.binary())
        return _joined(tag, _digits(pc.binary_length(octets)), b":", octets)

    return encode


def _date(values: pa.Array) -> pa.Array:
    return _joined(b"y", _digits(values.cast(pa.date32()).cast(pa.int32())), b";")


def _timestamp(values: pa.Array) -> pa.Array:
    tag = b"l" if values.type.tz is None else b"z"
    return _joined(tag, _digits(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())), b";")


def _duration(values: pa.Array) -> pa.Array:
    return _joined(b"u", _digits(values.cast(pa.duration("us")).cast(pa.int64())), b";")


def _struct(values: pa.Array) -> pa.Array:
    fields = [_encoded(field) for field in values.flatten()]
    encoded = _joined(b"a%d:" % len(fields), *fields)
    return pc.if_else(values.is_valid(), encoded, None)


def _list(values: pa.Array) -> pa.Array:
    return _counted(b"a", values, _encoded(values.flatten()))


def _map(values: pa.Array) -> pa.Array:
    entries = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    key, value = map(_encoded, entries.flatten().flatten())
    # Two equal maps may list their entries in another order.
    table = pa.table({"map": pc.list_parent_indices(entries), "key": key})
    order = pc.sort_indices(table, sort_keys=[("map", "ascending"), ("key", "ascending")])
    return _counted(b"m", entries, _joined(key, value).take(order))


def _counted(tag: bytes, lists: pa.Array, encoded_items: pa.Array) -> pa.Array:
    """Returns tag, length and items of each of *lists*."""
    lengths = pc.list_value_length(lists)
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0))])
    # Arrow joins the bytes of a list at once: the items come one list after the other.
    items = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), encoded_items), b"")
    return _joined(tag, _digits(lengths), b":", items)


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Encode], ...] = (
    (types.is_null, lambda values: values.cast(pa.binary())),
    (types.is_dictionary, lambda values: _encoded(values.dictionary_decode())),
    (types.is_boolean, _boolean),
    (types.is_integer, _integer),
    (types.is_floating, _floating),
    (types.is_decimal, _decimal),
    (lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t), _sized(b"s")),
    (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t), _sized(b"b")),
    (types.is_date, _date),
    (lambda t: types.is_timestamp(t) and t.unit != "ns", _timestamp),
    (lambda t: types.is_duration(t) and t.unit != "ns", _duration),
    (types.is_struct, _struct),
    (types.is_map, _map),
    (lambda t: types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t), _list),
)
