"""The interface of an aggregate function: state columns, merge and result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import INSTANT

OLD = "_old"
"""The columns that an update replaces, as a struct, to be retracted.

Null if it replaces nothing.
"""
KEY = "_key"


@dataclass(frozen=True)
class Limit:
    """The limit of a function whose results may not fit their type.

    Attributes:
        problem: what is wrong with a result that does not fit, and what to do.
        addends: the integers of a state whose sums over all states decide whether the result fits.
        fits: takes these sums and returns True if the result fits.
        size: the absolute total of a state, as a double.
        most: a result surely fits if the sizes of its states add up to less than this.
        values: the column of state with the number of values.
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
        """Name of its column of state."""
        return f"@{self.name}"

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, pl.DataType]:
        """Its columns of state."""

    @abstractmethod
    def of_rows(self, rows: pl.DataFrame) -> dict[str, pl.Expr | pl.Series]:
        """Returns the state of each single record of *rows*."""

    @abstractmethod
    def merged(self) -> dict[str, pl.Expr]:
        """Returns the state of a group of state rows."""

    def settled(self, states: pl.DataFrame) -> dict[str, pl.Series]:
        """Returns columns of merged *states* in their canonical form.

        They are written anew, so that equal states are equal bytes.
        """
        return {}

    def result(self) -> pl.Expr:
        """Returns the result, computed from the columns of a state row."""
        return pl.col(self.state)

    @property
    def limit(self) -> Limit | None:
        """The limit of its results; None: all of them fit their type."""
        return None

    @abstractmethod
    def running(self, states: pl.DataFrame) -> pl.Series:
        """Returns the result after each of *states*.

        Each is merged with all states before it that have the same `_key`.
        """
