"""Asks a warehouse the same of Spark and of DuckDB."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from tidemark.model.project.layout import Layout
from tidemark.query.spark import register
from tidemark.query.sql import Warehouse

Rows = list[tuple[Any, ...]]


class BothEngines:
    """The warehouse of *layout* as Spark and as DuckDB see it now.

    Spark knows the tables that *statements* name; without any, all, which takes seconds.
    """

    def __init__(self, spark: SparkSession, layout: Layout, *statements: str) -> None:
        register(spark, layout, *statements)
        self._spark, self._duckdb = spark, Warehouse(layout.warehouse)

    def __call__(self, text: str) -> Rows:
        """Returns the rows that both engines give for *text*.

        Instants are epoch ms; the order is that of the rows' text.
        """
        spark, duckdb = self.of_spark(text), self.of_duckdb(text)
        assert in_order(spark) == in_order(duckdb)
        return in_order(duckdb)

    def of_spark(self, text: str) -> Rows:
        """The rows that Spark gives, in its order."""
        table = self._spark.sql(text).toArrow()
        return plain(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def of_duckdb(self, text: str) -> Rows:
        """The rows that DuckDB gives, in its order."""
        return plain(self._duckdb.ask(text).rows)


def plain(rows: Iterable[tuple[Any, ...]]) -> Rows:
    """Normalises *rows* so that all readers give equal values.

    Instants are epoch ms, fractions have ten digits.
    """
    return [tuple(map(_plain, row)) for row in rows]


def in_order(rows: Rows) -> Rows:
    """Sorts *rows* by text, as a query without ORDER BY needs it."""
    return sorted(rows, key=repr)


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return round(value.timestamp() * 1_000)
        case float():
            return float(f"{value:.10g}")
        case Decimal():
            return _plain(float(value))
        case bytearray():
            return bytes(value)
        case dict():
            return {name: _plain(of) for name, of in value.items()}
        case list():
            return [_plain(of) for of in value]
        case _:
            return value
