"""The interface of an aggregate function: the columns of its state, how states are merged, and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import INSTANT

OLD = "_old"
"""Column of an update with the columns of the value that it replaces, as a struct, which an aggregate retracts.

Null for an update that replaces nothing.
"""
KEY = "_key"


@dataclass(frozen=True)
class Limit:
    """Decides whether a result fits its type: quickly by `size` and `most`, and exactly by `addends` and `fits`.

    Attributes:
        problem: what is wrong with a result that does not fit, and what to do, for the person who reads it.
        addends: integers of a state, whose sums over all states of a key decide whether the result fits.
        fits: returns True if the result with these sums fits.
        size: the absolute value of a state's total, as a double.
        most: a result surely fits if the sizes of its states add up to less than this.
        values: the column of the state with the number of values.
    """

    problem: str
    addends: Sequence[pl.Expr]
    fits: Callable[[Sequence[int]], bool]
    size: pl.Expr
    most: float
    values: str


@dataclass(frozen=True)
class AggregateFunction(ABC):
    """An aggregate function of a *column*.

    Attributes:
        name: name of the result.
        column: the column it aggregates; `*` for whole rows.
        kind: the type of that column.
    """

    name: str
    column: str
    kind: pl.DataType

    of_numbers: ClassVar[bool] = False
    of_instants: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fits = self.kind.is_numeric() or (self.of_instants and isinstance(self.kind, pl.Datetime | pl.Date))
        if self.of_numbers and not fits:
            kind = "timestamp" if self.kind == INSTANT else self.kind
            other = "min, max, count" if isinstance(self.kind, pl.Datetime | pl.Date) else "count"
            msg = f"{self.name} is of {self.column}, a {kind}, and needs a number; use {other}, first or last"
            raise InvalidArgument(msg)

    @property
    def state(self) -> str:
        """The name of its state's column, or the beginning of the names if there are several."""
        return f"@{self.name}"

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, pl.DataType]:
        """The columns of its state."""

    @abstractmethod
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        """Returns the state of each single record of *rows*."""

    @abstractmethod
    def merged(self) -> dict[str, pl.Expr]:
        """Returns the state of a group of state rows."""

    def settled(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        """Returns those columns of merged *states* that have several forms, in the one form that equal states share.

        Equal states are then equal bytes. Most functions have no such columns.
        """
        return {}

    def result(self) -> pl.Expr:
        """Returns the result, computed from the columns of a state row."""
        return pl.col(self.state)

    @property
    def limit(self) -> Limit | None:
        """The limit of its results; None if all results fit their type."""
        return None

    @abstractmethod
    def running(self, states: pl.DataFrame) -> pl.Series:
        """Returns the result after each of *states*, merged with all states before it that have the same `_key`."""
