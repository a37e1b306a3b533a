"""The aggregate functions, each as columns of a state: of one row, merged over several, and the result of it.

A state row has the columns of every aggregate; merging the states of some rows gives the state of all of them, in
whatever order, but for `first` and `last`, where of values from one instant the earlier or later row counts. `running`
gives the result after each row. Nulls count in `count(*)` alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl
from typing_extensions import override

from tidemark.errors import InvalidArgument
from tidemark.kernels.identity import identity_of

OLD = "_old"
"""Of a record that takes something back: the columns that it replaces, as a struct; null where it replaces nothing."""
KEY = "_key"


@dataclass(frozen=True)
class AggregateFunction(ABC):
    """One aggregate: its *name*, the *column* it is of (`*` for whole rows), and the type of that."""

    name: str
    column: str
    kind: pl.DataType

    of_numbers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.of_numbers and not self.kind.is_numeric():
            msg = f"{self.name} is of {self.column}, a {self.kind}, and needs a number; use count, first or last"
            raise InvalidArgument(msg)

    @property
    def state(self) -> str:
        """The name of its column of state."""
        return f"@{self.name}"

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, pl.DataType]:
        """Its columns of state."""

    @abstractmethod
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        """The state of each single record of *rows*."""

    @abstractmethod
    def merged(self) -> dict[str, pl.Expr]:
        """The state of a group of state rows."""

    @abstractmethod
    def result(self) -> pl.Expr:
        """What the aggregate is, of a state row."""

    @abstractmethod
    def running(self, states: pl.DataFrame) -> pl.Series:
        """What the aggregate is after each of *states*, taking in all before it of the same `_key`."""


class Additive(AggregateFunction):
    """An aggregate whose states add up."""

    @override
    def merged(self) -> dict[str, pl.Expr]:
        # Added up one after the other, as `running` does: doubles make a difference of it.
        return {self.state: pl.col(self.state).cum_sum().last()}

    @override
    def result(self) -> pl.Expr:
        return pl.col(self.state)

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        return states.select(pl.col(self.state).cum_sum().over(KEY)).to_series()


class Count(Additive):
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


class Sum(Additive):
    """sum(column), 0 where there is no value."""

    of_numbers = True

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: pl.Float64() if self.kind.is_float() else pl.Int64()}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        total = pl.when(~pl.col("_deleted")).then(pl.col(self.column)).cast(self.schema[self.state]).fill_null(0)
        if OLD in rows.columns:
            total -= pl.col(OLD).struct.field(self.column).cast(self.schema[self.state]).fill_null(0)
        return {self.state: total}


class Average(AggregateFunction):
    """avg(column), null where there is no value."""

    of_numbers = True

    @property
    def _parts(self) -> tuple[Sum, Count]:
        return Sum(f"{self.name}@sum", self.column, pl.Float64()), Count(f"{self.name}@n", self.column, self.kind)

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        total, count = self._parts
        return {**total.schema, **count.schema}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        total, count = self._parts
        return {**total.of_rows(rows), **count.of_rows(rows)}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        total, count = self._parts
        return {**total.merged(), **count.merged()}

    @override
    def result(self) -> pl.Expr:
        total, count = self._parts
        return pl.when(count.result() > 0).then(total.result() / count.result())

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        total, count = (part.running(states) for part in self._parts)
        return pl.DataFrame({"sum": total, "n": count}).select(
            pl.when(pl.col("n") > 0).then(pl.col("sum") / pl.col("n"))
        ).to_series()  # fmt: skip


class Extreme(AggregateFunction):
    """min(column) or max(column), null where there is no value."""

    lowest: bool

    of_numbers = True

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
    def result(self) -> pl.Expr:
        return pl.col(self.state)

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


class AtEnd(AggregateFunction):
    """first(column) or last(column) by record time; of values from one instant the earlier or the later row's."""

    earliest: bool

    @property
    def _at(self) -> str:
        return f"{self.state}@at"

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: self.kind, self._at: pl.Int64()}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        at = pl.when(pl.col(self.column).is_not_null()).then("_timestamp_ms")
        return {self.state: pl.col(self.column), self._at: at}

    @override
    def merged(self) -> dict[str, pl.Expr]:
        at = pl.col(self._at)
        # Values without a time are null: they go to the end that is not asked for.
        in_order = pl.col(self.state).sort_by(at, nulls_last=self.earliest, maintain_order=True)
        if self.earliest:
            return {self.state: in_order.first(), self._at: at.min()}
        return {self.state: in_order.last(), self._at: at.max()}

    @override
    def result(self) -> pl.Expr:
        return pl.col(self.state)

    @override
    def running(self, states: pl.DataFrame) -> pl.Series:
        at = pl.col(self._at)
        so_far = (at.cum_min() if self.earliest else at.cum_max()).forward_fill().shift(1)
        wins = (at < so_far) if self.earliest else (at >= so_far)
        taken = pl.when(at.is_not_null() & wins.fill_null(value=True)).then(self.state)
        return states.select(taken.forward_fill().over(KEY)).to_series()


class First(AtEnd):
    """first(column)."""

    earliest = True


class Last(AtEnd):
    """last(column)."""

    earliest = False


class ApproxDistinct(AggregateFunction):
    """approx_distinct(column): distinct values that are not null, by HyperLogLog with 4,096 registers.

    The standard error is 1.6 %; up to a few dozen values it is exact but for rare collisions. The state lists the
    registers that are not empty, each as register × 64 + rank. Source: Flajolet et al., "HyperLogLog" (2007).
    """

    _REGISTERS = 4096
    _HEX_DIGITS, _RANK_BITS = 15, 48  # of the SHA-256: 12 bits name the register, the rest give the rank

    @property
    @override
    def schema(self) -> Mapping[str, pl.DataType]:
        return {self.state: pl.List(pl.Int32())}

    @override
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
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
            now=rank.cum_max().over(KEY, "register"), was=rank.cum_max().shift(1).over(KEY, "register")
        )
        moved = highest.group_by("row").agg(
            filled=pl.col("was").is_null().sum(),
            weight=(0.5 ** pl.col("now")).sum() - (0.5 ** pl.col("was")).fill_null(0.0).sum(),
        )
        so_far = states.select(KEY).with_row_index("row").join(moved, on="row", how="left", maintain_order="left")
        sums = so_far.select(
            filled=pl.col("filled").fill_null(0).cum_sum().over(KEY),
            weight=pl.col("weight").fill_null(0).cum_sum().over(KEY),
        )
        return sums.select(self._estimate(pl.col("filled"), pl.col("weight"))).to_series()

    def _estimate(self, filled: pl.Expr, weight: pl.Expr) -> pl.Expr:
        """The number of distinct values, by the registers *filled* and the sum of 2^−rank over them."""
        m = self._REGISTERS
        empty = m - filled.cast(pl.Float64)
        raw = 0.7213 / (1 + 1.079 / m) * m * m / (weight + empty)
        counted = m * (math.log(m) - empty.log())
        return pl.when((raw <= 2.5 * m) & (empty > 0)).then(counted).otherwise(raw).round().cast(pl.Int64)


FUNCTIONS: Mapping[str, type[AggregateFunction]] = {
    "count": Count,
    "sum": Sum,
    "avg": Average,
    "min": Minimum,
    "max": Maximum,
    "first": First,
    "last": Last,
    "approx_distinct": ApproxDistinct,
}


def aggregate_functions(
    calls: Mapping[str, tuple[str, str]], schema: Mapping[str, pl.DataType]
) -> tuple[AggregateFunction, ...]:
    """The functions that *calls* name, over records with that *schema*; InvalidArgument for an unknown column."""
    found = []
    for name, (function, column) in calls.items():
        if column != "*" and column not in schema:
            msg = f"{name} = {function}({column}): there is no column {column}; known: {', '.join(schema)}"
            raise InvalidArgument(msg)
        found.append(FUNCTIONS[function](name, column, schema.get(column, pl.Int64())))
    return tuple(found)
