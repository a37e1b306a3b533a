"""Hashes the keys of rows, in the same way in memory, in tasks and in files.

The hash h of a text starts as its length in bytes. Each eight bytes of its UTF-8 are then read as a little-endian word,
the last one filled up with zeros, and h becomes mixed(h XOR word). mixed(x) is p XOR (p shifted right by 32 bits),
where p is x times MULTIPLIER modulo 2^64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

Array = np.ndarray[tuple[int], np.dtype[Any]]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
WORD = 8
"""Bytes in a word."""


def hashes_of(values: pl.Series) -> Array:
    """Returns a 64-bit hash for each of *values*, which are texts or integers."""
    # An integer is its own hash.
    return values.to_numpy() if values.dtype.is_integer() else text_hashes(values)


def text_hashes(texts: pl.Series) -> Array:
    """Returns the hash of each of *texts*, none of which is null.

    >>> [hex(number) for number in text_hashes(pl.Series(["", "a", "0123456789"]))]
    ['0x0', '0x54cda58fef23226f', '0x4bb34b26df6db1e8']
    """
    if texts.is_empty():
        return np.empty(0, np.uint64)
    starts, lengths, content = _utf8(texts)
    words = np.ndarray((len(content) - WORD + 1,), dtype="<u8", buffer=content, strides=(1,))
    hashes = lengths.astype(np.uint64)
    for done in range(0, int(lengths.max(initial=0)), WORD):
        longer = np.flatnonzero(lengths > done)
        unused = np.maximum(WORD - (lengths[longer] - done), 0).astype(np.uint64)
        # A word at the end of a text also has bytes of the next text: they are masked.
        word = words[starts[longer] + done] & (np.uint64(2**64 - 1) >> (unused * np.uint64(8)))
        mixed = (hashes[longer] ^ word) * MULTIPLIER
        hashes[longer] = mixed ^ (mixed >> np.uint64(32))
    return hashes


def _utf8(texts: pl.Series) -> tuple[Array, Array, Array]:
    """Returns the starts, lengths and bytes of *texts*."""
    array = pa.array(texts.to_arrow()).cast(pa.large_string())
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    # A word of zeros follows the bytes, so that a word can be read at any byte of a text.
    content = np.zeros(int(bounds[-1]) + WORD, np.uint8)
    content[: bounds[-1]] = np.frombuffer(data, np.uint8)[: bounds[-1]] if data else 0
    return bounds[:-1], np.diff(bounds), content
