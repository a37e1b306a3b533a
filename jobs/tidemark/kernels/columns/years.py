"""Finds times outside of the years 1 to 9999, and infinite ones, which ISO 8601 text cannot express."""

from __future__ import annotations

from datetime import date

import polars as pl

from tidemark.selection import present

BEYOND = "a time outside of the years 1 to 9999"
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST, _END = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH + 1
_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000}


def beyond_years(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns a column for each column of *frame* with dates or times, true where a value is outside these years."""
    columns: list[pl.Expr] = []
    for name, kind in frame.schema.items():
        beyond = _beyond(pl.col(name), kind)
        if beyond is not None:
            columns.append(beyond.fill_null(value=False).alias(name))
    return frame.select(columns)


def _beyond(value: pl.Expr, kind: object) -> pl.Expr | None:
    match kind:
        case pl.Date():
            return ~value.to_physical().is_between(_FIRST, _END, closed="left")
        case pl.Datetime(time_unit="ms" | "us" as unit):
            first, end = _FIRST * _PER_DAY[unit], _END * _PER_DAY[unit]
            return ~value.to_physical().is_between(first, end, closed="left")
        case pl.List(inner=inner):
            one = _beyond(pl.element(), inner)
            return None if one is None else value.list.eval(one).list.any()
        case pl.Struct():
            fields = present(_beyond(value.struct.field(name), inner) for name, inner in kind.to_schema().items())
            return pl.any_horizontal(fields) if fields else None
    return None


def within_years(instants: pl.Series) -> pl.Series:
    """Returns *instants*, with those outside of these years as null."""
    return instants.set(beyond_years(pl.DataFrame({"at": instants}))["at"], None)
