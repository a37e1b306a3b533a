"""Runs the kind `map`: SQL on each record.

With an `emission`, a record is sent on only if it differs from the record before it with the same key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import polars as pl

from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.facts import times_of
from tidemark.kernels.updates.steps import map_records, map_updates
from tidemark.model.kinds.map import Map
from tidemark.model.settings.sql_columns import column_in
from tidemark.selection import outside
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.keyed import KeyedStep
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, of_any_type, of_sql, unknown
from tidemark.stream.updates.step import Origins, Run


class MapStep(KeyedStep[Map]):
    """Runs a map."""

    @staticmethod
    def mistakes(operator: Map, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterator[ColumnMistake]:
        """Yields what is wrong with `select`, `where`, `key` and `identity`."""
        texts = {f"select.{name}": text for name, text in operator.select.items()}
        found = [*of_sql(texts, columns, sql)]
        yield from found
        if operator.where is not None:
            yield from _condition_mistakes(operator.where, columns, sql)
        if "select" in wrong:
            return
        bad = {*wrong, *(mistake.key for mistake in found)}
        selected = {name: text for name, text in operator.select.items() if f"select.{name}" not in bad}
        columns_selected = sql.select(pl.DataFrame(schema=dict(columns)), selected, keep=()).schema if selected else {}
        # The key and the identity name columns that were selected.
        results = {**columns_selected, **of_any_type("select", bad)}
        yield from unknown({"key": operator.key}, results)
        if operator.identity is not None:
            yield from of_sql({"identity": operator.identity}, results, sql)

    @staticmethod
    def meaning(operator: Map) -> dict[str, str]:
        """Describes the key, and what counts as a change, if it judges records."""
        if operator.emission is None:
            return {}
        key = ", ".join(operator.key) or "no column"
        meaning = f"a map that judges by {key} whether {operator.identity or 'its columns'} changed"
        return {f"operators.{operator.name}": meaning}

    @staticmethod
    def key(operator: Map) -> tuple[str, ...] | None:
        """Returns the columns of its key, if it judges records."""
        return None if operator.emission is None else operator.key

    @staticmethod
    def origins(operator: Map, read: Origins) -> Origins:
        """Returns the origins of its columns: those that are only handed on have one."""
        return {name: read.get(column_in(sql)) for name, sql in operator.select.items()}

    @staticmethod
    def comment(operator: Map, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns the SQL of *column*, or its description in the operator before if it is only handed on."""
        if column_in(operator.select.get(column, column)) != column:
            return f"{operator.name}: {operator.select[column]}"
        return ask(operator.inputs[0])

    def updates(self, records: pl.DataFrame) -> pl.DataFrame:
        """Returns *records* as updates, with the value by which a change is seen."""
        return map_updates(self.operator, records, self.shared.sql, self.compared() or ())

    def compared(self) -> tuple[str, ...] | None:
        """Returns its identity, or else all columns but the event time, if it judges records."""
        if self.operator.emission is None:
            return None
        if self.operator.identity is not None:
            return (self.operator.identity,)
        return tuple(outside(self.operator.select, self.shared.event_times[self.operator.name]))

    def judged_records(self, records: pl.DataFrame) -> pl.DataFrame:
        """Applies `select` and `where` to *records*."""
        updates = self.operator.name in self.shared.updates
        return map_records(self.operator, records, self.shared.sql, updates=updates)

    def prepare(self) -> None:
        """Makes room for the last record of each key, if it judges records."""
        if self.operator.emission is not None:
            super().prepare()

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Applies `select` and `where` to the records, and judges them if `emission` is set."""
        (records,) = inputs
        mapped = self.judged_records(records)
        failed = self.shared.failed_n
        filtered = records.height - mapped.height - failed
        if self.operator.emission is None:
            counts = Counter(records_in=records.height, passed=mapped.height, filtered=filtered, quarantined=failed)
            return Run(mapped, times_of(records), counts)
        run = self.newest(mapped, moves, moment, mapped.columns, finished=records)
        # The judged records are counted already; these counts add the records that were not judged.
        others = Counter(records_in=filtered + failed, filtered=filtered, quarantined=failed)
        return replace(run, counts=run.counts + others)


def _condition_mistakes(where: str, columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    found = [*of_sql({"where": where}, columns, sql)]
    yield from found
    if not found and sql.misfit(f"coalesce(({where}), false)", pl.DataFrame(schema=dict(columns))):
        yield ColumnMistake(
            "where", f"is {where!r}, which is not a condition", f"write one, such as {where} is not null"
        )
