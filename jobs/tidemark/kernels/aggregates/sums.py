"""Exact sums for aggregates, in any order of records.

A + B − B equals A. Integers are summed in 128 bits, decimals as the integers that their digits are (`decimals.py`),
doubles without rounding (`exact.py`); NaN and infinities are counted apart.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from typing_extensions import override

from tidemark.kernels.aggregates.function import KEY, OLD, AggregateFunction, Limit
from tidemark.kernels.columns.decimals import as_decimal, carried, sum_type, unscaled, with_point
from tidemark.kernels.columns.exact import PARTS, Sums
from tidemark.model.settings.declared_fields import MOST_DIGITS

_ODD = ("nan", "inf", "-inf")
"""Doubles that are counted instead of added: NaN and the infinities."""


class ExactSum(AggregateFunction):
    """The sum of a column, null without values. Its state has the columns of the total, and `@n`, the
    number of values.
    """

    of_numbers = True

    @property
    def n(self) -> str:
        """The column of state with the number of values."""
        return f"{self.state}@n"

    @property
    @abstractmethod
    def total_schema(self) -> Mapping[str, pl.DataType]:
        """The columns of the total in a state."""

    @abstractmethod
    def totals_of_rows(self, rows: pl.DataFrame) -> Mapping[str, pl.Expr | pl.Series]:
        """Returns the total of each single record of *rows*, 0 without a value."""

    @abstractmethod
    def merged_totals(self) -> Mapping[str, pl.Expr]:
        """Returns the total of a group of state rows."""

    @abstractmethod
    def total(self) -> pl.Expr:
        """Returns the total of a state row."""

    @abstractmethod
    def running_total(self, states: pl.DataFrame) -> pl.Series:
        """Returns the total after each of *states*, which includes all states before it of the same `_key`."""

    def as_double(self) -> pl.Expr:
        """Returns the total of a state row as the nearest double."""
        return self.total()

    def running_double(self, states: pl.DataFrame) -> pl.Series:
        """Returns `running_total` as the nearest doubles."""
        return self.running_total(states)

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {**self.total_schema, self.n: pl.Int64()}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        new, old = _new_and_old(rows, self.column, self.kind)
        n = new.is_not_null().cast(pl.Int64) - old.is_not_null().cast(pl.Int64)
        return {**self.totals_of_rows(rows), self.n: n}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        return {**self.merged_totals(), self.n: pl.col(self.n).sum()}

    @override
    def result(self) -> pl.Expr:
        return pl.when(pl.col(self.n) > 0).then(self.total())

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        so_far = states.select(pl.col(self.n).cum_sum().over(KEY)).with_columns(_total=self.running_total(states))
        return so_far.select(pl.when(pl.col(self.n) > 0).then("_total")).to_series()


class WholeSum(ExactSum):
    """The sum of integers, in 128 bits: `@low` + `@high` · 2^64.

    The result is a 64-bit integer, null where the sum is beyond 64 bits.
    """

    @property
    def _low(self) -> str:
        return f"{self.state}@low"

    @property
    def _high(self) -> str:
        return f"{self.state}@high"

    @property
    @override
    def total_schema(self) -> Mapping[str, pl.DataType]:
        return {self._low: pl.Int64(), self._high: pl.Int64()}

    @override
    def totals_of_rows(self, rows: pl.DataFrame) -> Mapping[str, pl.Expr | pl.Series]:
        if OLD not in rows.columns and self.kind.is_integer() and self.kind not in {pl.UInt64(), pl.Int128()}:
            # A single value fits into the low half: only sums need 128 bits.
            new, _ = _new_and_old(rows, self.column, pl.Int64())
            return {self._low: new.fill_null(0), self._high: pl.lit(0, pl.Int64)}
        new, old = _new_and_old(rows, self.column, pl.Int128())
        return self._halves(new.fill_null(0) - old.fill_null(0))

    @override
    def merged_totals(self) -> Mapping[str, pl.Expr]:
        return self._halves(self._wide.sum())

    @override
    def total(self) -> pl.Expr:
        return pl.when(pl.col(self._high) == 0).then(self._low)

    @property
    @override
    def limit(self) -> Limit:
        problem = "the sum needs more than 64 bits; sum up doubles instead"
        addends = pl.col(self._low), pl.col(self._high)
        return Limit(problem, addends, _fits_64_bits, self.as_double().abs(), 2.0**63, self.n)

    @override
    def running_total(self, states: pl.DataFrame) -> pl.Series:
        return self._running(states).cast(pl.Int64, strict=False)

    @override
    def as_double(self) -> pl.Expr:
        return self._wide.cast(pl.Float64)

    @override
    def running_double(self, states: pl.DataFrame) -> pl.Series:
        return self._running(states).cast(pl.Float64)

    def _running(self, states: pl.DataFrame) -> pl.Series:
        return states.select(self._wide.cum_sum().over(KEY)).to_series()

    @property
    def _wide(self) -> pl.Expr:
        return pl.col(self._low).cast(pl.Int128) + pl.col(self._high).cast(pl.Int128) * pl.lit(2**64, pl.Int128)

    def _halves(self, wide: pl.Expr) -> Mapping[str, pl.Expr]:
        low, high = carried(wide, pl.lit(0, pl.Int128))
        return {self._low: low.cast(pl.Int64), self._high: high.cast(pl.Int64)}


def _fits_64_bits(totals: Sequence[int]) -> bool:
    low, high = totals
    return -(2**63) <= high * 2**64 + low < 2**63


class DecimalSum(ExactSum):
    """The sum of decimals of one type, a decimal of the type that Spark gives such a sum.

    Decimals are summed as integers without their point, which are `@low` + `@high` · 2^64: decimals of 38 digits fill
    128 bits, and their sums need more. The result is null where its type cannot hold it.
    """

    @property
    def decimal(self) -> pl.Decimal:
        """The type of the values."""
        assert isinstance(self.kind, pl.Decimal)
        return self.kind

    @property
    def halves(self) -> tuple[pl.Expr, pl.Expr]:
        """The carried halves of the unscaled total of a state."""
        low, high = map(pl.col, self.total_schema)
        return unscaled(low), high.cast(pl.Int128)

    @property
    def size(self) -> pl.Expr:
        """How large the unscaled total of a state is, as a double."""
        low, high = (half.cast(pl.Float64) for half in self.halves)
        return (high * 2.0**64 + low).abs()

    @property
    def _type(self) -> pl.Decimal:
        return sum_type(self.decimal)

    @property
    @override
    def limit(self) -> Limit:
        kind = f"decimal({self._type.precision},{self._type.scale})"
        problem = f"the sum does not fit {kind}; cast the values to a decimal with fewer digits, or sum up doubles"
        return Limit(problem, self.halves, self._fits, self.size, 10.0**self._type.precision, self.n)

    def _fits(self, totals: Sequence[int]) -> bool:
        low, high = totals
        most: int = 10**self._type.precision
        return abs(high * 2**64 + low) < most

    @property
    def _low_type(self) -> pl.Decimal:
        return pl.Decimal(MOST_DIGITS, self.decimal.scale)

    @property
    @override
    def total_schema(self) -> Mapping[str, pl.DataType]:
        return {f"{self.state}@low": self._low_type, f"{self.state}@high": pl.Decimal(MOST_DIGITS, 0)}

    @override
    def totals_of_rows(self, rows: pl.DataFrame) -> Mapping[str, pl.Expr | pl.Series]:
        none = pl.lit(0, pl.Int128)
        new, old = (unscaled(value).fill_null(0) for value in _new_and_old(rows, self.column, self.kind))
        (low, high), (old_low, old_high) = carried(new, none), carried(old, none)
        return self._columns(low - old_low, high - old_high)

    @override
    def merged_totals(self) -> Mapping[str, pl.Expr]:
        low, high = self.halves
        return self._columns(low.sum(), high.sum())

    @override
    def total(self) -> pl.Expr:
        return as_decimal(*self.halves, self._type)

    @override
    def running_total(self, states: pl.DataFrame) -> pl.Series:
        low, high = (half.cum_sum().over(KEY) for half in self.halves)
        so_far = states.select(low=low, high=high)
        return so_far.select(as_decimal(*carried(pl.col("low"), pl.col("high")), self._type)).to_series()

    def _columns(self, low: pl.Expr, high: pl.Expr) -> Mapping[str, pl.Expr]:
        low, high = carried(low, high)
        without_point = pl.Decimal(MOST_DIGITS, 0)
        return {f"{self.state}@low": with_point(low, self._low_type), f"{self.state}@high": high.cast(without_point)}


class DoubleSum(ExactSum):
    """The sum of doubles, rounded once, or NaN or an infinity if these are among the values.

    `@parts` has the exact sum of finite values as an expansion (`exact.py`), and `@odd` the numbers of NaN, ∞ and −∞ in
    it, null if there are none.
    """

    @property
    def _parts(self) -> str:
        return f"{self.state}@parts"

    @property
    def _odd(self) -> str:
        return f"{self.state}@odd"

    @property
    @override
    def total_schema(self) -> Mapping[str, pl.DataType]:
        return {self._parts: PARTS, self._odd: pl.List(pl.Int64)}

    @override
    def totals_of_rows(self, rows: pl.DataFrame) -> Mapping[str, pl.Expr | pl.Series]:
        new, old = _new_and_old(rows, self.column, pl.Float64())
        values = rows.select(new=new, old=old)
        new, old = pl.col("new"), pl.col("old")
        ordinary = values.select(pl.all().is_finite().all()).row(0) == (True, True)
        odd = pl.lit(None, pl.List(pl.Int64)) if ordinary else _odd(new, old)
        return dict(zip(self.total_schema, values.select(parts=_finite(new, -old), odd=odd), strict=True))

    @override
    def merged_totals(self) -> Mapping[str, pl.Expr]:
        return {name: pl.col(name).explode().drop_nulls() for name in self.total_schema}

    @override
    def settled(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        some = pl.any_horizontal(pl.all() != 0)
        odd = self._counts(states).select(pl.when(some).then(pl.concat_list(pl.all()))).to_series()
        return {self._parts: Sums.of(states[self._parts]).expansions(), self._odd: odd}

    @override
    def total(self) -> pl.Expr:
        parts = pl.struct(*self.total_schema)
        return parts.map_batches(lambda states: self._total(states.struct.unnest()), pl.Float64)

    @override
    def running_total(self, states: pl.DataFrame) -> pl.Series:
        key, counts = states[KEY], self._counts(states)
        finite = Sums.of(states[self._parts]).running(key).rounded()
        return _with_odd(finite, counts.select(pl.all().cum_sum().over(key)))

    def _total(self, states: pl.DataFrame) -> pl.Series:
        return _with_odd(Sums.of(states[self._parts]).rounded(), self._counts(states))

    def _counts(self, states: pl.DataFrame) -> pl.DataFrame:
        """Returns how many NaN, ∞ and −∞ are in each of *states*."""
        listed = states[self._odd]
        if not (listed.list.len() > 0).any():
            return pl.DataFrame({name: np.zeros(len(listed), np.int64) for name in _ODD})
        # In merged states the counts follow one another.
        counts = [listed.list.gather_every(len(_ODD), at).list.sum().fill_null(0) for at in range(len(_ODD))]
        return pl.DataFrame(dict(zip(_ODD, counts, strict=True)))


def _new_and_old(rows: pl.DataFrame, column: str, kind: pl.DataType) -> tuple[pl.Expr, pl.Expr]:
    """Returns the value of *column* that each row adds, and the one that it retracts; null for none."""
    new = pl.when(~pl.col("_deleted")).then(pl.col(column)).cast(kind)
    old = pl.col(OLD).struct.field(column).cast(kind) if OLD in rows.columns else pl.lit(None, kind)
    return new, old


def _finite(*values: pl.Expr) -> pl.Expr:
    parts = [pl.when(value.is_finite() & (value != 0)).then(value) for value in values]
    return pl.concat_list(parts).list.drop_nulls()


def _odd(new: pl.Expr, old: pl.Expr) -> pl.Expr:
    """Returns how many NaN, ∞ and −∞ each row adds, minus those that it retracts; null if all are 0."""
    counts = [added - retracted for added, retracted in zip(_flags(new), _flags(old), strict=True)]
    return pl.when(pl.any_horizontal(count != 0 for count in counts)).then(pl.concat_list(counts))


def _flags(value: pl.Expr) -> list[pl.Expr]:
    kinds = (value.is_nan(), value == math.inf, value == -math.inf)
    return [kind.fill_null(value=False).cast(pl.Int64) for kind in kinds]


def _with_odd(finite: np.ndarray[Any, np.dtype[Any]], odd: pl.DataFrame) -> pl.Series:
    """Returns the *finite* sums, or NaN and infinities where *odd* counts some."""
    nan, up, down = (pl.col(name) > 0 for name in _ODD)
    whole = pl.when(nan | (up & down)).then(math.nan).when(up).then(math.inf).when(down).then(-math.inf)
    return odd.with_columns(_finite=pl.Series(finite)).select(whole.otherwise("_finite")).to_series()
