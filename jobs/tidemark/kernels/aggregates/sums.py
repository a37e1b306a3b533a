"""Exact sums for aggregates, in any order of records.

A + B − B equals A. Integers are summed in 128 bits, doubles without rounding (`exact.py`); NaN and infinities are
counted apart.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from typing_extensions import override

from tidemark.kernels.aggregates.function import KEY, OLD, AggregateFunction
from tidemark.kernels.columns.exact import PARTS, Sums

_ODD = ("nan", "inf", "-inf")
"""Doubles that are counted instead of added."""


class ExactSum(AggregateFunction):
    """The sum of a column, 0 without values."""

    of_numbers = True

    @abstractmethod
    def as_double(self) -> pl.Expr:
        """Returns the sum of a state row as the nearest double."""

    @abstractmethod
    def running_double(self, states: pl.DataFrame) -> pl.Series:
        """Returns that after each of *states*.

        Each includes all states before it of the same `_key`.
        """


class WholeSum(ExactSum):
    """The sum of integers.

    `@low` has its low 64 bits, `@high` how many times 2^64 is added to that. Its result is a 64-bit integer; null where
    that cannot hold it.
    """

    @property
    def _low(self) -> str:
        return f"{self.state}@low"

    @property
    def _high(self) -> str:
        return f"{self.state}@high"

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self._low: pl.Int64(), self._high: pl.Int64()}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        if OLD not in rows.columns and self.kind.is_integer() and self.kind not in {pl.UInt64(), pl.Int128()}:
            # A single value fits into the low half: only sums need 128 bits.
            new, _ = _new_and_old(rows, self.column, pl.Int64())
            return {self._low: new.fill_null(0), self._high: pl.lit(0, pl.Int64)}
        new, old = _new_and_old(rows, self.column, pl.Int128())
        return dict(self._halves(new.fill_null(0) - old.fill_null(0)))

    @override
    def merged(self) -> dict[str, pl.Expr]:
        return self._halves(self._wide.sum())

    @override
    def result(self) -> pl.Expr:
        return pl.when(pl.col(self._high) == 0).then(self._low)

    @override
    def does_not_fit(self) -> pl.Expr:
        return pl.col(self.name).is_null()

    @override
    def whole_numbers(self, states: pl.DataFrame) -> pl.Series:
        return states.select(self._wide).to_series()

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
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

    def _halves(self, wide: pl.Expr) -> dict[str, pl.Expr]:
        low = wide.cast(pl.Int64, wrap_numerical=True)
        high = (wide - low.cast(pl.Int128)) // pl.lit(2**64, pl.Int128)
        return {self._low: low, self._high: high.cast(pl.Int64)}


class DoubleSum(ExactSum):
    """The sum of doubles.

    `@parts` has its expansion, `@odd` how many of each of _ODD are in it, null for none. Its result is the sum rounded
    once, or NaN or an infinity if these are among the values.
    """

    @property
    def _parts(self) -> str:
        return f"{self.state}@parts"

    @property
    def _odd(self) -> str:
        return f"{self.state}@odd"

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self._parts: PARTS, self._odd: pl.List(pl.Int64)}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        new, old = _new_and_old(rows, self.column, pl.Float64())
        values = rows.select(new=new, old=old)
        new, old = pl.col("new"), pl.col("old")
        ordinary = values.select(pl.all().is_finite().all()).row(0) == (True, True)
        odd = pl.lit(None, pl.List(pl.Int64)) if ordinary else _odd(new, old)
        return dict(zip(self.schema, values.select(parts=_finite(new, -old), odd=odd), strict=True))

    @override
    def merged(self) -> dict[str, pl.Expr]:
        return {name: pl.col(name).explode().drop_nulls() for name in self.schema}

    @override
    def settled(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        some = pl.any_horizontal(pl.all() != 0)
        odd = self._counts(states).select(pl.when(some).then(pl.concat_list(pl.all()))).to_series()
        return {self._parts: Sums.of(states[self._parts]).expansions(), self._odd: odd}

    @override
    def result(self) -> pl.Expr:
        return pl.struct(*self.schema).map_batches(lambda states: self._result(states.struct.unnest()), pl.Float64)

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        key, counts = states[KEY], self._counts(states)
        finite = Sums.of(states[self._parts]).running(key).rounded()
        return _with_odd(finite, counts.select(pl.all().cum_sum().over(key)))

    @override
    def as_double(self) -> pl.Expr:
        return self.result()

    @override
    def running_double(self, states: pl.DataFrame) -> pl.Series:
        return self.running(states)

    def _result(self, states: pl.DataFrame) -> pl.Series:
        return _with_odd(Sums.of(states[self._parts]).rounded(), self._counts(states))

    def _counts(self, states: pl.DataFrame) -> pl.DataFrame:
        """Returns how many of each of _ODD are in each of *states*."""
        listed = states[self._odd]
        if not (listed.list.len() > 0).any():
            return pl.DataFrame({name: np.zeros(len(listed), np.int64) for name in _ODD})
        # In merged states the counts follow one another.
        counts = [listed.list.gather_every(len(_ODD), at).list.sum().fill_null(0) for at in range(len(_ODD))]
        return pl.DataFrame(dict(zip(_ODD, counts, strict=True)))


def _new_and_old(rows: pl.DataFrame, column: str, kind: pl.DataType) -> tuple[pl.Expr, pl.Expr]:
    """Returns the values of *column* that *rows* add and retract; null: none."""
    new = pl.when(~pl.col("_deleted")).then(pl.col(column)).cast(kind)
    old = pl.col(OLD).struct.field(column).cast(kind) if OLD in rows.columns else pl.lit(None, kind)
    return new, old


def _finite(*values: pl.Expr) -> pl.Expr:
    parts = [pl.when(value.is_finite() & (value != 0)).then(value) for value in values]
    return pl.concat_list(parts).list.drop_nulls()


def _odd(new: pl.Expr, old: pl.Expr) -> pl.Expr:
    """Returns how many of _ODD are added less those retracted; null: none."""
    counts = [added - gone for added, gone in zip(_flags(new), _flags(old), strict=True)]
    return pl.when(pl.any_horizontal(count != 0 for count in counts)).then(pl.concat_list(counts))


def _flags(value: pl.Expr) -> list[pl.Expr]:
    kinds = (value.is_nan(), value == math.inf, value == -math.inf)
    return [kind.fill_null(value=False).cast(pl.Int64) for kind in kinds]


def _with_odd(finite: np.ndarray[Any, np.dtype[Any]], odd: pl.DataFrame) -> pl.Series:
    """Returns the *finite* sums, or NaN and infinities where *odd* counts some."""
    nan, up, down = (pl.col(name) > 0 for name in _ODD)
    whole = pl.when(nan | (up & down)).then(math.nan).when(up).then(math.inf).when(down).then(-math.inf)
    return odd.with_columns(_finite=pl.Series(finite)).select(whole.otherwise("_finite")).to_series()
