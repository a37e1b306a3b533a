"""Runs the kind `aggregate`: values per key, in windows or over all records. `aggregating.py` keeps its states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels import META
from tidemark.kernels.aggregates.aggregation import Aggregation
from tidemark.kernels.aggregates.function import OLD
from tidemark.kernels.aggregates.functions import aggregate_functions
from tidemark.kernels.aggregates.windows import WINDOW
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.proofs import as_late, late_rows
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.lengths import length_in_toml
from tidemark.model.settings.windows import Shape, Windows
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.selection import in_order_of
from tidemark.stream.journal.batch import Moment
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.aggregating import Aggregator
from tidemark.stream.updates.keyed import JudgingStep, with_key
from tidemark.stream.updates.mistakes import ColumnMistake, Schema, of_any_type, of_sql, reads, unknown
from tidemark.stream.updates.step import Origins, Run


class AggregateStep(JudgingStep[Aggregate]):
    """Runs an aggregate."""

    _aggregating: Aggregator

    @staticmethod
    def mistakes(
        operator: Aggregate, columns: Schema, sql: Expressions, wrong: Collection[str]
    ) -> Iterator[ColumnMistake]:
        """Yields what is wrong with `key`, `aggregates` and `select`."""
        found = [
            *unknown({"key": operator.key}, columns),
            *_function_mistakes(operator, columns),
            *_name_mistakes(operator),
        ]
        found = [replace(mistake, remedy=mistake.remedy or reads(columns)) for mistake in found]
        yield from found
        bad = {*wrong, *(mistake.key for mistake in found)}
        if not bad & {"key", "window", "aggregates"}:
            results = {**_results(operator, columns, bad), **of_any_type("aggregates", bad)}
            texts = {f"select.{name}": text for name, text in operator.select.items()}
            yield from of_sql(texts, results, sql)

    @staticmethod
    def meaning(operator: Aggregate) -> dict[str, str]:
        """Describes its key and windows, and each of its functions."""
        path, over = f"operators.{operator.name}", _in_words(operator.windows) if operator.windows else "no windows"
        values: dict[str, str] = {}
        for name, (function, column) in operator.aggregates.items():
            values[f"{path}.aggregates.{name}"] = f"{function}({column})"
        return {path: f"an aggregate by {', '.join(operator.key) or 'no column'} over {over}", **values}

    @staticmethod
    def key(operator: Aggregate) -> tuple[str, ...] | None:
        """Returns its key, with the start of the window if it has windows."""
        return (*operator.key, *(("window_start",) if operator.windows else ()))

    @staticmethod
    def origins(operator: Aggregate, read: Origins) -> Origins:
        """Returns the origins of the columns of its key; all other columns are calculated."""
        key = {column: read.get(column) for column in operator.key}
        return key | ({"window_start": None} if operator.windows else {})

    @staticmethod
    def comment(operator: Aggregate, column: str, read: Collection[str], ask: Callable[[str], str]) -> str:
        """Returns the SQL of *column*, or which bound of the window it is."""
        if column in operator.select:
            return f"{operator.name}: {operator.select[column]}"
        if column in WINDOW:
            return f"{column} of {operator.name}: record time, epoch ms"
        return ask(operator.inputs[0])

    def compared(self) -> tuple[str, ...]:
        """Returns the columns of its `select`."""
        return tuple(self.operator.select)

    def prepare(self) -> None:
        """Makes room for the states of its keys."""
        schema = self.shared.schemas[self.operator.inputs[0]]
        self._aggregating = Aggregator(self.operator, schema, self.shared.sql, self.shared.memory)

    def run(self, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """Aggregates the records, and judges the results."""
        (records,) = inputs
        name, kernel = self.operator.name, self._aggregating.kernel
        # Where records are updates, a deletion takes a value away. In a plain stream it has nothing to aggregate.
        kept = records if OLD in records.columns else records.filter(~pl.col("_deleted"))
        keyed, bad = with_key(self.operator, kept, self.operator.key)
        done = self._aggregating.run(keyed, moves, moment)
        filtered, no_key = records.height - kept.height, kept.height - keyed.height
        quarantined = no_key + self.shared.failed_n
        # Late records and records without a key are no updates, but they count among those that came in.
        counts = done.emitted.counts + Counter(late=done.late.height, filtered=filtered, quarantined=quarantined)
        counts["records_in"] = done.updates + done.late.height + filtered + no_key
        counts["reopened"] = done.reopened
        window = {"window_start": "window_start", "window_end": "_window_end"} if self.operator.windows else {}
        late = late_rows(name, as_late(done.late), moment.was_watermark_ms, moment.held_by)
        dead = {DEAD_LETTERS.name: pl.concat([late, bad], how="diagonal")}
        rows = {**self.judged_rows(done.emitted, window), **self.state_rows(moves, WINDOW if window else ()), **dead}
        output = done.emitted.output.select(*kernel.key, *self.operator.select, *META)
        times = self.finished(records, done.emitted)
        return Run(output, times, counts, rows, done.emitted.judged.skipped, done.emitted.asserted)


def _function_mistakes(operator: Aggregate, columns: Schema) -> Iterator[ColumnMistake]:
    for name, call in operator.aggregates.items():
        try:
            aggregate_functions({name: call}, columns)
        except InvalidArgument as error:
            yield ColumnMistake(f"aggregates.{name}", str(error), "")


def _name_mistakes(operator: Aggregate) -> Iterator[ColumnMistake]:
    """Yields a mistake for each name in `aggregates` and `select` that a column of the result has already."""
    key = {*operator.key, *(("window_start",) if operator.windows else ())}
    for table, names, names_in_result in (
        ("aggregates", operator.aggregates, key | {"window_end"}),
        ("select", operator.select, key),
    ):
        for name in names:
            if name in names_in_result:
                yield ColumnMistake(f"{table}.{name}", "is already a column of the result; choose another name", "")


def _results(operator: Aggregate, columns: Schema, bad: Collection[str]) -> Schema:
    """Returns the columns that `select` of *operator* may read, without the aggregates that are *bad*."""
    valid = {name: call for name, call in operator.aggregates.items() if f"aggregates.{name}" not in bad}
    kernel = Aggregation(replace(operator, aggregates=valid), aggregate_functions(valid, columns), columns)
    results = kernel.results(pl.DataFrame(schema=kernel.state_schema)).schema
    return in_order_of((*operator.key, *(WINDOW if operator.windows else ()), *valid), results)


def _in_words(windows: Windows) -> str:
    """Describes shape and lengths of *windows*."""
    every = f" every {length_in_toml(windows.hop_ms)}" if windows.shape is Shape.HOPPING else ""
    shifted = f", shifted by {length_in_toml(windows.offset_ms)}" if windows.offset_ms else ""
    zone = f" in {windows.timezone}" if windows.timezone else ""
    return f"{windows.shape} windows of {length_in_toml(windows.size_ms)}{every}{shifted}{zone}"
