"""Calculates with decimals, and gives the results the types that Spark gives them.

Decimals are summed as integers without their point, the *unscaled* decimals: 9.38 of the type decimal(12,2) is 938.
Since sums may need more than 128 bits, such an integer has two halves: it is `high` times 2^64 plus `low`. The halves
are *carried* if `low` is a signed number of 64 bits. Each integer has exactly one pair of carried halves.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from tidemark.model.settings.declared_fields import MOST_DIGITS

_WORD, _PLUS, _MINUS = (pl.lit(number, pl.Int128) for number in (2**64, 1, -1))


def sum_type(kind: pl.Decimal) -> pl.Decimal:
    """Returns Spark's type of a sum of decimals of *kind*.

    Source: Spark's `Sum.resultType`, `DecimalType.bounded(p + 10, s)`.
    """
    return pl.Decimal(min(kind.precision + 10, MOST_DIGITS), kind.scale)


def average_type(kind: pl.Decimal) -> pl.Decimal:
    """Returns Spark's type of an average of decimals of *kind*.

    Source: Spark's `Average.resultType`, `DecimalType.bounded(p + 4, s + 4)`.
    """
    return pl.Decimal(min(kind.precision + 4, MOST_DIGITS), min(kind.scale + 4, MOST_DIGITS))


def unscaled(value: pl.Expr) -> pl.Expr:
    """Returns decimals as integers of 128 bits, without their point."""
    return value.to_physical()


def with_point(number: pl.Expr, kind: pl.Decimal) -> pl.Expr:
    """Returns decimals of *kind* from integers of 128 bits without their point, which have no more digits than it.

    Polars 1 cannot reinterpret such integers as decimals. In Arrow, decimals of all scales have the same bytes.
    """

    def pointed(series: pl.Series) -> pl.Series:
        whole = series.to_arrow()
        arrow_type = pa.decimal128(kind.precision, kind.scale)
        decimals = pa.Array.from_buffers(arrow_type, len(whole), whole.buffers(), offset=whole.offset)
        return pl.Series(series.name, decimals, kind)

    without = number.cast(pl.Decimal(MOST_DIGITS, 0))
    return without.map_batches(pointed, return_dtype=kind, is_elementwise=True)


def carried(low: pl.Expr, high: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Returns the halves of the same integers, carried; all are of 128 bits."""
    kept = low.cast(pl.Int64, wrap_numerical=True).cast(pl.Int128)
    return kept, high + (low - kept) // _WORD


def as_decimal(low: pl.Expr, high: pl.Expr, kind: pl.Decimal) -> pl.Expr:
    """Returns the decimals of *kind* with these carried halves; null where they do not fit."""
    fits_128_bits = high.is_between(-(2**63), 2**63 - 1)
    return _fitted(pl.when(fits_128_bits).then(high * _WORD + low), kind)


def quotients(halves: pl.DataFrame, digits: int, kind: pl.Decimal) -> pl.Series:
    """Returns integers divided by numbers, as decimals of *kind*.

    They are rounded half up, away from 0, as Spark does it. Null where they do not fit, or a number is not above 0.

    Args:
        halves: the carried low and high halves of the integers, and the 64-bit numbers to divide them by.
        digits: how many more digits *kind* has behind the point than the integers before they were unscaled.
        kind: the type of the result.
    """
    low, high, n, rest = map(pl.col, ("low", "high", "n", "rest"))
    power = pl.lit(10**digits, pl.Int128)
    steps = halves.select(pl.all().cast(pl.Int128))
    steps.columns = ["low", "high", "n"]
    steps = steps.with_columns(sign=pl.when((high < 0) | ((high == 0) & (low < 0))).then(_MINUS).otherwise(_PLUS))
    steps = steps.with_columns(low=low * pl.col("sign"), high=high * pl.col("sign"))
    # Long division in words of 64 bits. A low half below 0 borrows from the high one.
    steps = steps.with_columns(borrowed=low // _WORD)
    steps = steps.with_columns(low=low - pl.col("borrowed") * _WORD, high=high + pl.col("borrowed"))
    steps = steps.with_columns(first=high // n, rest=(high % n) * _WORD + low)
    steps = steps.with_columns(second=rest // n, rest=rest % n)
    whole = pl.when(pl.col("first") < 2**63).then(pl.col("first") * _WORD + pl.col("second"))
    steps = steps.with_columns(
        whole=whole, rounded=(pl.lit(2, pl.Int128) * rest * power + n) // (pl.lit(2, pl.Int128) * n)
    )
    most = pl.lit(10 ** (MOST_DIGITS - digits), pl.Int128)
    number = pl.when((n > 0) & (pl.col("whole") <= most)).then(
        (pl.col("whole") * power + pl.col("rounded")) * pl.col("sign")
    )
    return steps.select(_fitted(number, kind)).to_series()


def _fitted(number: pl.Expr, kind: pl.Decimal) -> pl.Expr:
    """Returns unscaled *number* as decimals of *kind*; null where they do not fit."""
    most = pl.lit(10**kind.precision - 1, pl.Int128)
    return with_point(pl.when(number.is_between(-most, most)).then(number), kind)
