"""Sums doubles without rounding, in any order and grouping.

A + B − B is A to the last bit. A sum is kept as an *expansion*: a list of doubles that add up to it exactly. The first
is the sum rounded to the nearest double, the next is the remainder rounded again, and so on. So equal sums have equal
expansions, and the result of a sum is its first part. An ordinary sum has one to three parts; no sum has more than 42.

How it works: each double is an integer times a power of two. Sums are added up as integers in *limbs* of 32 bits, a
64-bit integer for each limb, whose upper half holds the carries of two thousand million summands.
Source: Kulisch, "Computer Arithmetic and Validity" (2008), the long accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

PARTS = pl.List(pl.Float64())
"""The type of an expansion. Functions here accept any list of finite doubles in its place, and use its exact sum."""

Array = np.ndarray[Any, np.dtype[Any]]

_BITS, _MASK = 32, np.int64(2**32 - 1)
_LOWEST = -1073 - 53
"""The power of two of the lowest bit of limb 0: that of the smallest double, as if it had a full mantissa."""
_MAX = np.finfo(np.float64).max


@dataclass(frozen=True)
class Sums:
    """Several exact sums, one for each column of *limbs*; row 0 is the limb number *base*, the lowest of all."""

    limbs: Array
    base: int

    @classmethod
    def of(cls, parts: pl.Series) -> Sums:
        """Returns the sum of each list of *parts*; 0 for null."""
        lengths = parts.list.len().fill_null(0).to_numpy()
        values = parts.explode(empty_as_null=False, keep_nulls=False).to_numpy()
        number, piece, sums = _pieces(values, np.repeat(np.arange(len(lengths)), lengths))
        if not len(number):
            return cls(np.zeros((1, len(lengths)), np.int64), 0)
        base, top = int(number.min()), int(number.max()) + 1  # one more limb, for the carry
        limbs = np.zeros((top - base + 1, len(lengths)), np.int64)
        # add.at adds all pieces that fall into one limb; `limbs[…] += piece` would add one of them.
        np.add.at(limbs.reshape(-1), (number - base) * len(lengths) + sums, piece)
        return cls(limbs, base)

    def running(self, key: pl.Series) -> Sums:
        """Returns, for each sum, the total of all sums up to it that have the same *key*."""
        frame = pl.DataFrame([pl.Series(str(number), limb) for number, limb in enumerate(_carried(self.limbs))])
        along = frame.select(pl.all().cum_sum().over(key))
        return Sums(np.stack([along[name].to_numpy() for name in frame.columns]), self.base)

    def rounded(self) -> Array:
        """Returns each sum as the nearest double, ties to even."""
        limbs = _carried(self.limbs)
        negative = limbs[-1] < 0
        digits = _carried(np.where(negative, -limbs, limbs)) if negative.any() else limbs
        digits = np.concatenate([np.zeros((2, digits.shape[1]), np.int64), digits])
        filled = digits != 0
        top = len(digits) - 1 - np.argmax(filled[::-1], axis=0)
        top = np.maximum(top, 2)
        each = np.arange(digits.shape[1])
        high, middle, low = (digits[top - number, each].astype(np.uint64) for number in range(3))
        shift = np.minimum(_BITS - np.frexp(high.astype(np.float64))[1], _BITS - 1).astype(np.uint64)
        # 64 bits, the highest of them set. The lowest is a sticky bit: it is set where any bit below the 64 is, so
        # that the conversion to a double rounds correctly.
        word = ((high << _BITS | middle) << shift) | (low >> (np.uint64(_BITS) - shift))
        below = ((low << shift) & np.uint64(_MASK)) != 0
        below |= filled.any(axis=0) & (np.argmax(filled, axis=0) < top - 2)
        exponent = (top - 2 + self.base - 1) * _BITS - shift.astype(np.int64) + _LOWEST
        # A sum beyond the largest double becomes ±infinity, which is no error here.
        with np.errstate(over="ignore"):
            magnitude = np.ldexp((word | below).astype(np.float64), exponent)
        signed: np.ndarray[Any, np.dtype[Any]] = np.where(negative, -magnitude, magnitude)
        return signed

    def expansions(self) -> pl.Series:
        """Returns each sum as its one expansion."""
        limbs, windows = _carried(self.limbs), np.arange(self.limbs.shape[1])
        count, values, owners = self.limbs.shape[1], [np.zeros(0)], [windows[:0]]
        # Each round takes the nearest double off every sum that is not 0 yet.
        while len(windows):
            nearest = np.clip(Sums(limbs, self.base).rounded(), -_MAX, _MAX)
            some = nearest != 0
            nearest, windows, limbs = nearest[some], windows[some], limbs[:, some]
            values.append(nearest)
            owners.append(windows)
            number, piece, columns = _pieces(-nearest, np.arange(len(windows)))
            np.add.at(limbs, (number - self.base, columns), piece)
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.concatenate(values)[order]))
        return pl.Series(lists, dtype=PARTS)


def _pieces(values: Array, sums: Array) -> tuple[Array, Array, Array]:
    """Splits each double into the limbs that its mantissa covers.

    *sums* has the number of the sum that each value belongs to. Returns for each piece the number of its limb, the
    piece, and the number of its sum.
    """
    fraction, exponent = np.frexp(values)
    mantissa = np.ldexp(np.abs(fraction), 53).astype(np.uint64)
    first, shift = np.divmod(exponent.astype(np.int64) - 53 - _LOWEST, _BITS)
    shift = shift.astype(np.uint64)
    rest = mantissa >> (np.uint64(_BITS) - shift)
    mask = np.uint64(_MASK)
    # A mantissa of 53 bits, shifted by up to 31, spans three limbs.
    pieces = np.stack([(mantissa << shift) & mask, rest & mask, rest >> np.uint64(_BITS)]).astype(np.int64)
    number, value = np.nonzero(pieces)
    piece = pieces[number, value]
    return first[value] + number, np.where(values[value] < 0, -piece, piece), sums[value]


def _carried(limbs: Array) -> Array:
    """Returns the same sums in limbs of 0 to 2^32 − 1."""
    digits = limbs.copy()
    # The highest limb keeps the sign, so it is not cut to its bits.
    for number in range(len(digits) - 1):
        digits[number + 1] += digits[number] >> _BITS
        digits[number] &= _MASK
    return digits
