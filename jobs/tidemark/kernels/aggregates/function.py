"""The interface of an aggregate function: state columns, merge and result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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

    def does_not_fit(self) -> pl.Expr | None:
        """Returns a condition for results that do not fit their type.

        None: every result fits.
        """
        return None

    def whole_numbers(self, states: pl.DataFrame) -> pl.Series | None:
        """Returns the integer that each of *states* adds to a result of 64 bits.

        None: every result fits.
        """
        return None

    @abstractmethod
    def running(self, states: pl.DataFrame) -> pl.Series:
        """Returns the result after each of *states*.

        Each is merged with all states before it that have the same `_key`.
        """
