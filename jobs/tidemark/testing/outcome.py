"""Compares what the streams of a test did with what it expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import polars as pl

from tidemark.errors import InvalidSpec
from tidemark.kernels import payload
from tidemark.kernels.columns.schemas import INSTANT, instants
from tidemark.kernels.updates.final_rows import final_columns
from tidemark.kernels.updates.last_seen import SEEN_ONLY
from tidemark.model.operator_graph import window_bounds
from tidemark.model.settings.declared_fields import steps
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.value_types import suggestion_of
from tidemark.model.topology import Topology
from tidemark.selection import in_order_of, index_by_name, names_in, outside
from tidemark.stream.operate.registry import step_of
from tidemark.testing.file_format import DEAD_LETTERS, Expectation, Row, TopologyTest, written_time
from tidemark.testing.rows import fields_of
from tidemark.testing.streams import SeenBatch, TopologyInMemory, play, streams_of

OF_DEAD_LETTERS: Mapping[str, pl.DataType] = {
    "kind": pl.String(), "operator": pl.String(), "reason": pl.String(), "detail": pl.String(),
    "partition": pl.Int32(), "offset": pl.Int64(), "key": pl.String(), "value": pl.String(), "timestamp": INSTANT,
    "watermark": INSTANT, "lateness_ms": pl.Int64(), "decided_at": INSTANT,
}  # fmt: skip
"""The columns of records that did not go on, a part of those of the table `dead_letters`."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What *operator* did otherwise than expected: *what* is `rows`, `current`, or the name of a count.

    Rows have the *columns* that are compared, as JSON has them. Of those *expected*, *alike* are as *seen*.
    """

    operator: str
    what: str
    columns: tuple[str, ...]
    expected: tuple[tuple[Any, ...], ...]
    seen: tuple[tuple[Any, ...], ...]
    alike: int = 0


class Outcome:
    """What *streams* do, as rows for people: values as JSON has them, instants as ISO 8601 in UTC."""

    def __init__(self, streams: TopologyInMemory) -> None:
        self._streams, self._operators = streams, streams.topology.operators
        self._bounds = window_bounds(self._operators)
        # A repartition hands its columns on as text, and its reader has them.
        self._reader = {operator.hop_of: name for name, operator in self._operators.items() if operator.hop_of}

    @property
    def told(self) -> list[str]:
        """The operators whose rows tell what became of the records: the sinks, and the records that did not go on."""
        return [*names_in(self._streams.topology.sinks), DEAD_LETTERS]

    def columns(self, operator: str) -> Mapping[str, pl.DataType]:
        """Returns the columns that rows of *operator* have."""
        if operator == DEAD_LETTERS:
            return OF_DEAD_LETTERS
        return self._shown(operator, pl.DataFrame(schema=self._schema(operator)), 0).schema

    def own_columns(self, operator: str) -> list[str]:
        """Returns those columns of *operator* that are its results."""
        if operator == DEAD_LETTERS:
            return ["kind", "operator", "reason", "key"]
        return [name for name in payload(self._schema(operator)) if not name.startswith("@")]

    def _schema(self, operator: str) -> Mapping[str, pl.DataType]:
        return self._streams.schemas[self._reader.get(operator, operator)]

    def rows(self, operator: str) -> list[Row]:
        """Returns all that *operator* sent on, in its order."""
        if operator == DEAD_LETTERS:
            return [row for batch in self._streams.seen for row in _dead_letters(batch)]
        name, rows = self._reader.get(operator, operator), list[Row]()
        for batch in self._streams.seen:
            if name in batch.runs:
                rows += self._shown(operator, batch.runs[name].output, batch.decided_at_ms).to_dicts()
        return [_as_json(row) for row in rows]

    def _shown(self, operator: str, output: pl.DataFrame, decided_at_ms: int) -> pl.DataFrame:
        """Returns the columns of *output* for people."""
        own, bounds = self.own_columns(operator), self._bounds[self._reader.get(operator, operator)]
        added = {
            **final_columns(output.columns),
            "key": pl.col("_key"),
            "timestamp": instants("_timestamp_ms"),
            "deleted": pl.col("_deleted"),
            "decided_at": instants(pl.lit(decided_at_ms)),
        }
        if SEEN_ONLY in output.columns:
            output = output.filter(~pl.col(SEEN_ONLY))  # no news of the row
        return output.select(
            *(instants(name) if name in bounds and output.schema[name].is_integer() else pl.col(name) for name in own),
            **{name: column for name, column in added.items() if name not in own},
        )

    def key(self, operator: str) -> tuple[str, ...] | None:
        """Returns the columns by which *operator* keeps one row each; None: it keeps none."""
        if operator not in self._operators or self._operators[operator].is_source:
            return None
        key = step_of(self._operators[operator]).key(self._operators[operator])
        if key is None or not {*key} <= {*self.own_columns(operator)}:
            return None
        return key or ("key",)

    def current(self, operator: str) -> list[Row]:
        """Returns the newest row of each key of *operator*, in the order of their keys; deleted ones are left out."""
        newest: dict[str, Row] = {}
        for row in self.rows(operator):
            newest[repr([row[name] for name in self.key(operator) or ()])] = row
        return [row for _, row in sorted(newest.items()) if not row["deleted"]]

    def counts(self, operator: str) -> Mapping[str, int]:
        """Returns the counts of *operator*, over all batches; of what is held, that after the last one."""
        counts: dict[str, int] = {}
        for batch in self._streams.seen:
            if operator in batch.runs:
                of_batch = batch.runs[operator].counts
                for name, n in of_batch.items():
                    counts[name] = n if name == "held_after" else counts.get(name, 0) + n
        return counts

    def play(self, test: TopologyTest) -> list[Difference]:
        """Runs the streams over the records of *test*; returns where it expects something else than they do.

        Raises:
            InvalidSpec: the arrivals are not in their order, or the test takes too long.
        """
        play(test, self._streams)
        found: list[Difference] = []
        for expected in test.expected:
            name = expected.operator
            if expected.rows is not None:
                found += self._differing(test, name, "rows", expected.rows, self.rows(name))
            if expected.current is not None:
                found += self._differing(test, name, "current", expected.current, self.current(name))
            counted = self.counts(name)
            for count, n in (expected.counts or {}).items():
                if (seen := counted.get(count, 0)) != n:
                    of_count = Difference(
                        operator=name, what=count, columns=(count,), expected=((n,),), seen=((seen,),)
                    )
                    found.append(of_count)
        return found

    def _differing(
        self, test: TopologyTest, operator: str, what: str, expected: Sequence[Row], seen: Sequence[Row]
    ) -> Iterator[Difference]:
        """Yields how the rows *seen* differ from those *expected*; nothing if they do not."""
        kinds = self.columns(operator)
        columns = tuple(dict.fromkeys(name for row in expected for name in row)) or tuple(self.own_columns(operator))
        wanted = [tuple(_of_kind(row.get(name), kinds[name], test.start_ms) for name in columns) for row in expected]
        left = [tuple(row[name] for name in columns) for row in seen]
        missing: list[tuple[Any, ...]] = []
        for row in wanted:
            match = next((number for number, other in enumerate(left) if _is_same(row, other)), None)
            if match is None:
                missing.append(row)
            else:
                left.pop(match)
        if missing or left:
            yield Difference(
                operator=operator,
                what=what,
                columns=columns,
                expected=tuple(missing),
                seen=tuple(left),
                alike=len(wanted) - len(missing),
            )


def mistakes(test: TopologyTest, topology: Topology) -> tuple[list[InvalidSpec], Outcome | None]:
    """Returns what *test* names that *topology* does not have, and the outcome of its streams, before they run.

    The outcome is None where the streams lack a source or a table.

    Raises:
        InvalidSpec: the topology cannot run.
    """
    found = [*_unknown_inputs(test, topology)]
    outcome = None if found else Outcome(streams_of(test, topology))
    found += _unknown_fields(test, topology)
    names = [*topology.operators, DEAD_LETTERS]
    for expected in test.expected:
        if expected.operator not in names:
            problem = f"is {expected.operator!r}, which is no operator of {topology.name}"
            remedy = suggestion_of(expected.operator, names, "operators")
            found.append(InvalidSpec.at(test.file, f"{expected.place}.operator", problem, remedy))
        elif outcome is not None:
            found += _misfits(test, expected, outcome)
    return found, outcome


def _unknown_inputs(test: TopologyTest, topology: Topology) -> Iterator[InvalidSpec]:
    """Yields sources and joined tables that *test* has and *topology* has not, and tables that *test* lacks."""
    sources = names_in(topology.outside_sources)
    joined = {place for operator in topology.operators.values() if (place := operator.joined_delta)}
    for arrival in (arrival for arrival in test.arrivals if arrival.source not in sources):
        problem = f"is {arrival.source!r}, which is no source of {topology.name}"
        remedy = suggestion_of(arrival.source, sources, "sources")
        yield InvalidSpec.at(test.file, f"{arrival.place}.source", problem, remedy)
    for table in outside(test.tables, joined):
        problem = f"has the rows of {table!r}, which no join looks up"
        yield InvalidSpec.at(test.file, f"{test.place}.given", problem, suggestion_of(table, joined, "tables"))
    for table in sorted(joined - {table for table, rows in test.tables.items() if rows}):
        problem = f"lacks the rows of {table!r}, which a join looks up"
        remedy = f'write [[test.given]] with delta = "{table}" and one row at least'
        yield InvalidSpec.at(test.file, f"{test.place}.given", problem, remedy)


def _unknown_fields(test: TopologyTest, topology: Topology) -> Iterator[InvalidSpec]:
    """Yields fields of records that their source does not declare, and does not keep either."""
    sources = index_by_name(topology.outside_sources)
    for arrival in test.arrivals:
        source = sources.get(arrival.source)
        if source is None or source.other_fields:
            continue
        declared = [steps(path)[0] for path in source.field_of.values()]
        for number, record in enumerate(arrival.records, start=1):
            for name in outside(record.value, declared) if isinstance(record.value, Mapping) else ():
                place = f"{arrival.place}.records[{number}].value.{name}"
                problem = f"is no field of {source.name}, and only a value in text may have others"
                yield InvalidSpec.at(test.file, place, problem, suggestion_of(name, declared, "fields"))


def _misfits(test: TopologyTest, expected: Expectation, outcome: Outcome) -> Iterator[InvalidSpec]:
    """Yields what the operator of *expected* does not have: columns, a key, counts."""
    columns = outcome.columns(expected.operator)
    for key, rows in {"rows": expected.rows, "current": expected.current}.items():
        for name in dict.fromkeys(name for row in rows or () for name in row if name not in columns):
            problem, remedy = f"is no column of {expected.operator}", suggestion_of(name, columns, "columns")
            yield InvalidSpec.at(test.file, f"{expected.place}.{key}.{name}", problem, remedy)
    if expected.current is not None and outcome.key(expected.operator) is None:
        problem, remedy = f"is set, but {expected.operator} keeps no row by key", "write rows"
        yield InvalidSpec.at(test.file, f"{expected.place}.current", problem, remedy)
    if expected.counts and expected.operator == DEAD_LETTERS:
        problem, remedy = "is set, but counts are those of operators", "name the operator that counts"
        yield InvalidSpec.at(test.file, f"{expected.place}.counts", problem, remedy)


def _dead_letters(batch: SeenBatch) -> Iterator[Row]:
    for run in batch.runs.values():
        for found in run.rows.get(DEAD_LETTERS, pl.DataFrame()).to_dicts():
            row = {**dict.fromkeys(OF_DEAD_LETTERS), **found, "decided_at": batch.decided_at_ms}
            for name in ("timestamp", "watermark", "decided_at"):
                row[name] = None if row[name] is None else iso(row[name])
            yield _as_json(in_order_of(OF_DEAD_LETTERS, row))


def _as_json(value: Any) -> Any:
    """Returns *value* of a polars row as JSON has it; decimals are text with all digits."""
    match value:
        case dict():
            return {name: _as_json(each) for name, each in value.items()}
        case list():
            return [_as_json(each) for each in value]
        case datetime():
            text = value.isoformat(timespec="microseconds" if value.microsecond % 1_000 else "milliseconds")
            return text.replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case bytes():
            return value.decode(errors="backslashreplace")
        case _:
            return value


def _of_kind(value: Any, kind: pl.DataType, start_ms: int) -> Any:
    """Returns an expected *value* of a column of *kind* as `_as_json` has such values."""
    if isinstance(kind, pl.Datetime) and isinstance(value, str | datetime) and (time := written_time(value)):
        if time.is_relative:
            return iso(time.at_ms(start_ms))
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        return _as_json((at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC))
    if isinstance(kind, pl.Decimal):
        with suppress(InvalidOperation):
            return f"{Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale)):f}"
    return _as_json(value)


def _is_same(expected: Any, seen: Any) -> bool:
    """Returns True if two values are the same.

    Numbers may differ by what a sum in another order would; a table is the same as JSON text of it.
    """
    if isinstance(expected, Mapping) and isinstance(seen, str):
        seen = fields_of(seen)
    match expected, seen:
        case (bool(), _) | (_, bool()):
            return expected is seen
        case (int() | float(), int() | float()):
            return math.isclose(expected, seen, rel_tol=1e-9) or (math.isnan(expected) and math.isnan(seen))
        case (list() | tuple(), list() | tuple()):
            return len(expected) == len(seen) and all(map(_is_same, expected, seen))
        case (Mapping(), Mapping()):
            return {*expected} == {*seen} and all(_is_same(each, seen[name]) for name, each in expected.items())
        case _:
            return bool(expected == seen)
