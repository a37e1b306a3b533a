"""The aggregate functions, each with a mergeable state.

A state row has the columns of every aggregate. States may be merged in any order, with the same result: sums are exact
(`sums.py`), and among values from one instant `first` and `last` choose by the record's partition and offset. Only
`count(*)` counts nulls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name

import polars as pl
from typing_extensions import override

from tidemark.errors import InvalidArgument
from tidemark.kernels.aggregates.function import KEY, OLD, AggregateFunction, Limit
from tidemark.kernels.aggregates.sums import DecimalSum, DoubleSum, ExactSum, WholeSum
from tidemark.kernels.columns.decimals import average_type, carried, quotients
from tidemark.kernels.columns.identity import identity_of
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS
from tidemark.model.settings.declared_fields import MOST_DIGITS


class CountFunction(AggregateFunction):
    """count(*) of rows, count(column) of values."""

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: pl.Int64()}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        new = ~pl.col("_deleted") if self.column == "*" else pl.col(self.column).is_not_null() & ~pl.col("_deleted")
        count = new.cast(pl.Int64)
        if OLD in rows.columns:
            old = pl.col(OLD) if self.column == "*" else pl.col(OLD).struct.field(self.column)
            count -= old.is_not_null().cast(pl.Int64)
        return {self.state: count}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        return {self.state: pl.col(self.state).sum()}

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        return states.select(pl.col(self.state).cum_sum().over(KEY)).to_series()


def exact_sum(name: str, column: str, kind: pl.DataType) -> ExactSum:
    """Returns sum(column): a double for doubles, a decimal for decimals, else a 64-bit integer; null without values."""
    if kind.is_float():
        return DoubleSum(name, column, kind)
    return (DecimalSum if kind.is_decimal() else WholeSum)(name, column, kind)


def average(name: str, column: str, kind: pl.DataType) -> AggregateFunction:
    """Returns avg(column), null without values: a decimal for decimals, else a double."""
    return (DecimalAverage if kind.is_decimal() else DoubleAverage)(name, column, kind)


class Average(AggregateFunction):
    """An average; its state is that of the sum."""

    of_numbers = True

    @property
    def sum(self) -> ExactSum:
        """The sum that it divides."""
        return exact_sum(f"{self.name}@sum", self.column, self.kind)

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return self.sum.schema

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        return self.sum.of_rows(rows)

    @override
    def merged(self) -> dict[str, pl.Expr]:
        return self.sum.merged()

    @override
    def settled(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        return self.sum.settled(states)


class DoubleAverage(Average):
    """The average of doubles or integers, a double."""

    @override
    def result(self) -> pl.Expr:
        return self._divided(self.sum.as_double())

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        so_far = states.select(pl.col(self.sum.n).cum_sum().over(KEY)).with_columns(
            _sum=self.sum.running_double(states)
        )
        return so_far.select(self._divided(pl.col("_sum"))).to_series()

    def _divided(self, total: pl.Expr) -> pl.Expr:
        n = pl.col(self.sum.n)
        return pl.when(n > 0).then(total / n)


class DecimalAverage(Average):
    """The average of decimals, a decimal of Spark's type for it, rounded half up."""

    @property
    @override
    def sum(self) -> DecimalSum:
        return DecimalSum(f"{self.name}@sum", self.column, self.kind)

    @property
    def _type(self) -> pl.Decimal:
        return average_type(self.sum.decimal)

    @property
    def _digits(self) -> int:
        """How many more digits behind the point the average has than the values."""
        return self._type.scale - self.sum.decimal.scale

    @property
    @override
    def limit(self) -> Limit | None:
        if self.sum.decimal.precision + self._digits <= MOST_DIGITS:
            return None  # an average is no larger than the largest value
        problem = f"the average needs more than {MOST_DIGITS} digits; cast the values to a decimal with fewer"
        most = 10.0 ** (MOST_DIGITS - self._digits)
        addends = *self.sum.halves, pl.col(self.sum.n)
        return Limit(problem, addends, self._fits, self.sum.size, most, self.sum.n)

    def _fits(self, totals: Sequence[int]) -> bool:
        low, high, n = totals
        total = abs(high * 2**64 + low) * 10**self._digits
        return n <= 0 or (2 * total + n) // (2 * n) < 10**MOST_DIGITS

    @override
    def result(self) -> pl.Expr:
        low, high = self.sum.halves
        state = pl.struct(low=low, high=high, n=self.sum.n)
        return state.map_batches(lambda states: self._divided(states.struct.unnest()), self._type)

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        low, high = self.sum.halves
        so_far = states.select(low=low, high=high, n=self.sum.n).select(pl.all().cum_sum().over(states[KEY]))
        return self._divided(so_far.select(*carried(pl.col("low"), pl.col("high")), "n"))

    def _divided(self, states: pl.DataFrame) -> pl.Series:
        return quotients(states, self._digits, self._type)


class Extreme(AggregateFunction):
    """min(column) or max(column), null without values."""

    lowest: bool

    of_numbers = of_instants = True

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: self.kind}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        return {self.state: pl.col(self.column)}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        state = pl.col(self.state)
        return {self.state: state.min() if self.lowest else state.max()}

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        state = pl.col(self.state)
        so_far = state.cum_min() if self.lowest else state.cum_max()
        return states.select(so_far.forward_fill().over(KEY)).to_series()


class Minimum(Extreme):
    """min(column)."""

    lowest = True


class Maximum(Extreme):
    """max(column)."""

    lowest = False


class EndpointFunction(AggregateFunction):
    """first(column) or last(column) by record time.

    Values from one instant are ordered by their partition and offset.
    """

    earliest: bool

    @property
    def _order(self) -> dict[str, str]:
        """The columns of the state by which values are ordered, each with the column of a record that it has.

        These are the time, the partition and the offset of the record.
        """
        return {
            f"{self.state}@at": "_timestamp_ms",
            f"{self.state}@partition": "_partition",
            f"{self.state}@offset": "_offset",
        }

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: self.kind, **{c: META_SCHEMA[of] for c, of in self._order.items()}}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        # A record without a value is neither first nor last, so its time must not win.
        has_value = pl.col(self.column).is_not_null()
        return {self.state: pl.col(self.column), **{c: pl.when(has_value).then(of) for c, of in self._order.items()}}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        # Values without a time are null: they sort to the other end, so that they are never chosen.
        in_order: dict[str, pl.Expr] = {}
        for column in self.schema:
            in_order[column] = pl.col(column).sort_by(*self._order, nulls_last=self.earliest, maintain_order=True)
        return {c: rows.first() if self.earliest else rows.last() for c, rows in in_order.items()}

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        has_time = pl.col(next(iter(self._order))).is_not_null()
        ranked = states.with_columns(_rank=pl.when(has_time).then(ranks(states, [*self._order])))
        rank = pl.col("_rank")
        # `over` at the end applies to the whole expression: ranks are compared within a key.
        so_far = (rank.cum_min() if self.earliest else rank.cum_max()).forward_fill().shift(1)
        wins = (rank < so_far) if self.earliest else (rank > so_far)
        winner = pl.when(rank.is_not_null() & wins.fill_null(value=True)).then(self.state)
        return ranked.select(winner.forward_fill().over(KEY)).to_series()


def ranks(rows: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Returns the rank of each row, from 0, in the order of the columns *by*."""
    in_order = rows.select(by).with_row_index("_row").sort(by, maintain_order=True).with_row_index("_rank")
    return in_order.sort("_row")["_rank"]


class First(EndpointFunction):
    """first(column)."""

    earliest = True


class Last(EndpointFunction):
    """last(column)."""

    earliest = False


class ApproxDistinct(AggregateFunction):
    """approx_distinct(column): distinct non-null values, by HyperLogLog.

    It has 4,096 registers and a standard error of 1.6 %; up to a few dozen values it is exact but for rare collisions.
    The state lists the registers that are not empty, each as register × 64 + rank. Source: Flajolet et al.,
    "HyperLogLog" (2007).
    """

    _REGISTERS = 4096
    _HEX_DIGITS, _RANK_BITS = 15, 48  # of the SHA-256: 12 bits name the register, the rest give the rank

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: pl.List(pl.Int32())}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        # HyperLogLog: part of the hash names a register, the position of the first 1 in the rest is the rank.
        digest = identity_of(rows, [self.column]).str.slice(0, self._HEX_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
        hashed = pl.DataFrame({"value": rows[self.column], "digest": digest}).select(
            item=pl.when(pl.col("value").is_not_null()).then(
                pl.col("digest") // 2**self._RANK_BITS * 64
                + (pl.col("digest") % 2**self._RANK_BITS).bitwise_leading_zeros().cast(pl.Int64)
                - (64 - self._RANK_BITS)
                + 1
            )
        )
        return {self.state: hashed.select(pl.concat_list(pl.col("item").cast(pl.Int32))).to_series()}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        items = pl.col(self.state).explode().drop_nulls().sort(descending=True)
        # In descending order the first item of a register has its highest rank.
        return {self.state: items.filter((items // 64).is_first_distinct())}

    @override
    def result(self) -> pl.Expr:
        items = pl.col(self.state).list.drop_nulls()
        return self._estimate(items.list.len(), items.list.eval(0.5 ** (pl.element() % 64)).list.sum())

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        items = states.select(KEY, item=self.state).with_row_index("row").explode("item").drop_nulls("item")
        rank, register = pl.col("item") % 64, pl.col("item") // 64
        highest = items.with_columns(register=register).with_columns(
            now=rank.cum_max().over(KEY, "register"), before=rank.cum_max().shift(1).over(KEY, "register")
        )
        moved = highest.group_by("row").agg(
            filled=pl.col("before").is_null().sum(),
            weight=(0.5 ** pl.col("now")).sum() - (0.5 ** pl.col("before")).fill_null(0.0).sum(),
        )
        so_far = states.select(KEY).with_row_index("row").join(moved, on="row", how="left", maintain_order="left")
        sums = so_far.select(
            filled=pl.col("filled").fill_null(0).cum_sum().over(KEY),
            weight=pl.col("weight").fill_null(0).cum_sum().over(KEY),
        )
        return sums.select(self._estimate(pl.col("filled"), pl.col("weight"))).to_series()

    def _estimate(self, filled: pl.Expr, weight: pl.Expr) -> pl.Expr:
        """Returns the number of distinct values.

        *filled* counts the registers in use, *weight* is the sum of 2^−rank over them.
        """
        m = self._REGISTERS
        empty = m - filled.cast(pl.Float64)
        # Constants of the paper: bias correction for m ≥ 128, and linear counting of few values.
        raw = 0.7213 / (1 + 1.079 / m) * m * m / (weight + empty)
        counted = m * (math.log(m) - empty.log())
        return pl.when((raw <= 2.5 * m) & (empty > 0)).then(counted).otherwise(raw).round().cast(pl.Int64)


def aggregate_functions(
    calls: Mapping[str, tuple[str, str]], schema: Mapping[str, pl.DataType]
) -> tuple[AggregateFunction, ...]:
    """Returns the functions of an aggregate over records with *schema*.

    Args:
        calls: function and column, such as ("sum", "price"), by the name of the result.
        schema: the columns of the records.

    Raises:
        InvalidArgument: a column is unknown.
    """
    functions = []
    for name, (function, column) in calls.items():
        if column != "*" and column not in schema:
            msg = f"{name} = {function}({column}): there is no column {column}"
            raise InvalidArgument(msg)
        calculation = resolve_name(AGGREGATE_FUNCTIONS[function].calculation)
        functions.append(calculation(name, column, schema.get(column, pl.Int64())))
    return tuple(functions)
