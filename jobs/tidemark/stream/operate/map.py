"""The kind `map`: SQL on each record, which may send on only what differs from the record of its key before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import polars as pl

from tidemark.kernels.expressions import Expressions
from tidemark.kernels.facts import times_of
from tidemark.kernels.steps import map_records, map_updates
from tidemark.spec.operators import Map
from tidemark.stream.batch import Moment
from tidemark.stream.operate.keyed import KeyedStep
from tidemark.stream.operate.mistakes import ColumnMistake, Schema, of_any_type, of_sql, unknown
from tidemark.stream.operate.step import Origins, Run
from tidemark.stream.state import Moves


class MapStep(KeyedStep[Map]):
    """A map."""

    @staticmethod
    def mistakes(operator: Map, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterator[ColumnMistake]:
        """Yield what is wrong with `select`, `where`, `key` and `identity`."""
        texts = {f"select.{name}": text for name, text in operator.select.items()}
        found = [*of_sql(texts, columns, sql)]
        yield from found
        if operator.where is not None:
            yield from _of_condition(operator.where, columns, sql)
        if "select" in wrong:
            return
        bad = {*wrong, *(mistake.key for mistake in found)}
        selected = {name: text for name, text in operator.select.items() if f"select.{name}" not in bad}
        known = sql.select(pl.DataFrame(schema=dict(columns)), selected, keep=()).schema if selected else {}
        results = {**known, **of_any_type("select", bad)}  # an identity is of what was selected
        yield from unknown({"key": operator.key}, results)
        if operator.identity is not None:
            yield from of_sql({"identity": operator.identity}, results, sql)

    @staticmethod
    def meaning(operator: Map) -> dict[str, str]:
        """Return by what it judges, if it does."""
        if operator.emission is None:
            return {}
        key = ", ".join(operator.key) or "no column"
        said = f"a map that judges by {key} whether {operator.identity or 'its columns'} changed"
        return {f"operators.{operator.name}": said}

    @staticmethod
    def key(operator: Map) -> tuple[str, ...] | None:
        """Return the columns of its key, if it judges."""
        return None if operator.emission is None else operator.key

    @staticmethod
    def origins(operator: Map, read: Origins) -> Origins:
        """Return the columns that it hands on as they are; others are calculated."""
        return {name: read.get(sql.strip()) for name, sql in operator.select.items()}

    @staticmethod
    def comment(operator: Map, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Return the expression of *column*, or where it comes from if it is handed on as it is."""
        if operator.select.get(column, column) != column:
            return f"{operator.name}: {operator.select[column]}"
        return ask(operator.inputs[0])

    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return *records* as updates, with what tells whether they changed."""
        return map_updates(self.operator, records, self.shared.sql)

    def judged_records(self, records: pl.DataFrame) -> pl.DataFrame:
        """Return *records* as `select` and `where` make them."""
        updates = self.operator.name in self.shared.updates
        return map_records(self.operator, records, self.shared.sql, updates=updates)

    def prepare(self) -> None:
        """Keep what was sent on, if it judges."""
        if self.operator.emission is not None:
            super().prepare()

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Select, and judge where asked."""
        (records,) = inputs
        mapped = self.judged_records(records)
        failed = self.shared.failed_n
        filtered = records.height - mapped.height - failed
        if self.operator.emission is None:
            counts = Counter(records_in=records.height, passed=mapped.height, filtered=filtered, quarantined=failed)
            return Run(mapped, times_of(records), counts)
        run = self.newest(mapped, moves, moment, mapped.columns, finished=records)
        others = Counter(records_in=filtered + failed, filtered=filtered, quarantined=failed)
        return replace(run, counts=run.counts + others)


def _of_condition(where: str, columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    found = [*of_sql({"where": where}, columns, sql)]
    yield from found
    if not found and sql.misfit(f"coalesce(({where}), false)", pl.DataFrame(schema=dict(columns))):
        yield ColumnMistake("where", f"is {where!r}, which is no condition", f"write one, such as {where} is not null")
