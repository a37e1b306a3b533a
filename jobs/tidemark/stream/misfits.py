"""What of an operator does not fit the columns that it reads, by the key of the file that says it.

Only columns of records count: those that Tidemark keeps beside them are neither found nor named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels import payload
from tidemark.kernels.aggregates import aggregate_functions
from tidemark.kernels.aggregation import Aggregation
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.windows import WINDOW
from tidemark.spec.operators import Aggregate, KeyedTable, Map, Operator, Repartition, Sink, Source
from tidemark.stream.encoding import is_schema_of_records

SINK_COLUMNS = frozenset({"timestamp", "batch_id", "source_partition", "source_offset", "deleted"})
"""What a Delta sink adds to the columns of its records."""

Schema = Mapping[str, pl.DataType]
_NUMBER = "of a timestamp epoch_ms(...) and epoch_us(...) are numbers"


@dataclass(frozen=True)
class ColumnMistake:
    """One mistake: the *key* below its operator, empty for the whole of it, what was seen there, and the remedy."""

    key: str
    problem: str
    remedy: str


def misfits(
    operator: Operator, schema: Schema, sql: Expressions, wrong: Collection[str] = frozenset()
) -> list[ColumnMistake]:
    """What of *operator* does not fit the columns of *schema*; joins and unions are looked at when they run.

    The *wrong* keys of *operator*, which had a mistake before, have no other, and neither has what names them.
    """
    columns = {name: schema[name] for name in payload(schema)}
    found = [*_of_avro(operator), *_misfits(operator, columns, sql, wrong)]
    return [mistake for mistake in found if mistake.key not in wrong]


def _of_avro(operator: Operator) -> Iterator[ColumnMistake]:
    schema = operator.avro_schema if isinstance(operator, Source | Sink) else None
    if schema is not None and not is_schema_of_records(schema):
        problem = "is not an Avro schema of records in JSON"
        yield ColumnMistake("avro_schema", problem, 'write {"type": "record", "name": ..., "fields": [...]}')


def _misfits(operator: Operator, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterable[ColumnMistake]:
    match operator:
        case Map():
            return _of_map(operator, columns, sql, wrong)
        case Aggregate():
            return _of_aggregate(operator, columns, sql, wrong)
        case KeyedTable():
            return _unknown({"key": operator.key, "columns": operator.columns}, columns)
        case Repartition():
            return _unknown({"id": operator.id, "key": operator.key, "columns": operator.columns}, columns)
        case Sink():
            return [*_unknown({"key": operator.key}, columns), *_taken_by_sink(operator, columns)]
        case _:
            return []


def reads(columns: Collection[str]) -> str:
    """The remedy for what names other columns than these."""
    return f"it reads the columns {', '.join(columns)}"


def _unknown(named: Mapping[str, Sequence[str]], columns: Collection[str]) -> Iterator[ColumnMistake]:
    for key, names in named.items():
        if unknown := [name for name in names if name not in columns]:
            yield ColumnMistake(key, f"names {unknown}, which are no columns", reads(columns))


def _taken_by_sink(operator: Sink, columns: Collection[str]) -> Iterator[ColumnMistake]:
    added = SINK_COLUMNS | ({"last_seen_at"} if operator.last_seen_at else set())
    added |= {"window_final"} if operator.window else set()
    if operator.table and (own := sorted(added & {*columns})):
        anew = "name them anew: `name type from field` in `fields`, or in a map"
        yield ColumnMistake("", f"{own} are columns that a Delta sink adds itself; {anew}", reads(columns))


def _of_map(operator: Map, columns: Schema, sql: Expressions, wrong: Collection[str]) -> Iterator[ColumnMistake]:
    texts = {f"select.{name}": text for name, text in operator.select.items()}
    found = [*_of_sql(texts, columns, sql)]
    yield from found
    if operator.where is not None:
        yield from _of_condition(operator.where, columns, sql)
    if "select" in wrong:
        return
    bad = {*wrong, *(mistake.key for mistake in found)}
    selected = {name: text for name, text in operator.select.items() if f"select.{name}" not in bad}
    known = sql.select(pl.DataFrame(schema=dict(columns)), selected, keep=()).schema if selected else {}
    results = {**known, **_of_any_type("select", bad)}  # an identity is of what was selected
    yield from _unknown({"key": operator.key}, results)
    if operator.identity is not None:
        yield from _of_sql({"identity": operator.identity}, results, sql)


def _of_any_type(key: str, wrong: Collection[str]) -> Schema:
    """The columns that *key* names where it is *wrong*, of a type that fits whatever reads them."""
    return {part.removeprefix(f"{key}."): pl.Null() for part in wrong if part.startswith(f"{key}.")}


def _of_condition(where: str, columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    found = [*_of_sql({"where": where}, columns, sql)]
    yield from found
    if not found and sql.misfit(f"coalesce(({where}), false)", pl.DataFrame(schema=dict(columns))):
        yield ColumnMistake("where", f"is {where!r}, which is no condition", f"write one, such as {where} is not null")


def _of_aggregate(
    operator: Aggregate, columns: Schema, sql: Expressions, wrong: Collection[str]
) -> Iterator[ColumnMistake]:
    key = {*operator.key, *(("window_start",) if operator.windows else ())}
    found = [*_unknown({"key": operator.key}, columns)]
    for name, call in operator.aggregates.items():
        try:
            aggregate_functions({name: call}, columns)
        except InvalidArgument as error:
            found.append(ColumnMistake(f"aggregates.{name}", str(error), reads(columns)))
    for place, names, taken in (
        ("aggregates", operator.aggregates, key | {"window_end"}),
        ("select", operator.select, key),
    ):
        found += [
            ColumnMistake(
                f"{place}.{name}", "is a name that the result has already; choose another one", reads(columns)
            )
            for name in names
            if name in taken
        ]
    yield from found
    bad = {*wrong, *(mistake.key for mistake in found)}
    if not bad & {"key", "window", "aggregates"}:
        results = {**_results(operator, columns, bad), **_of_any_type("aggregates", bad)}
        texts = {f"select.{name}": text for name, text in operator.select.items()}
        yield from _of_sql(texts, results, sql)


def _results(operator: Aggregate, columns: Schema, bad: Collection[str]) -> Schema:
    """What `select` of *operator* reads, but for aggregates that are *bad*."""
    sound = {name: call for name, call in operator.aggregates.items() if f"aggregates.{name}" not in bad}
    kernel = Aggregation(replace(operator, aggregates=sound), aggregate_functions(sound, columns), columns)
    results = kernel.results(pl.DataFrame(schema=kernel.state_schema)).schema
    return {name: results[name] for name in (*operator.key, *(WINDOW if operator.windows else ()), *sound)}


def _of_sql(texts: Mapping[str, str], columns: Schema, sql: Expressions) -> Iterator[ColumnMistake]:
    """The mistakes in *texts*, which read *columns*, by key."""
    records = pl.DataFrame(schema=dict(columns))
    for key, text in texts.items():
        try:
            sql.check(text, columns)
        except InvalidArgument as error:
            problem, _, remedy = str(error).rpartition("; ")
            yield ColumnMistake(key, f"{text!r} {problem}", remedy)
            continue
        if reason := sql.misfit(text, records):
            at = f"; {_NUMBER}" if "TIMESTAMP WITH TIME ZONE" in reason else ""
            yield ColumnMistake(key, f"is {text!r}: {reason}", f"{reads(columns)}{at}")
