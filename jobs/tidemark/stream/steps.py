"""What one operator decides of one batch: its kind's kernel, with what it kept, and the rows its tables get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels import META
from tidemark.kernels.expressions import Expressions
from tidemark.kernels.facts import TIMES
from tidemark.kernels.schemas import META_SCHEMA, record_schema
from tidemark.kernels.steps import (
    Judged,
    aggregated,
    hop_rows,
    join_valid,
    judged,
    map_records,
    pruned,
    repartition_updates,
    table_updates,
    value_columns,
    with_old_value,
    with_value,
)
from tidemark.kernels.values import value_text
from tidemark.spec.operators import Aggregate, HopSource, Join, KeyedTable, Map, Operator, Repartition, Sink, Source
from tidemark.spec.topology import Topology
from tidemark.stream.state import Memory, Moves

HOP_RECORDS: Mapping[str, pl.DataType] = {"value": pl.String(), "old_value": pl.String(), **META_SCHEMA}
"""A record behind a hop: texts of the value to add and of the one to take back."""


@dataclass
class Run:
    """What one operator did in one batch.

    `output`: the records that the next operators read; `times`: record time and partition of what it finished;
    `counts`: updates by outcome; `rows`: what its tables get, by table; clocks (epoch ms): when it began, when its
    result was there, and how long it had waited for a sibling branch before it began.
    """

    output: pl.DataFrame
    times: pl.DataFrame
    counts: Counter[str]
    rows: dict[str, pl.DataFrame] = field(default_factory=dict)
    started_at_ms: int = 0
    finished_at_ms: int = 0
    queued_ms: int = 0


class Steps:
    """The kernels of a topology's operators, and the memory that they read and move.

    At start every operator runs once over no records, which tells the schema of its output and refuses SQL that does
    not fit.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._sql = Expressions()
        self.memory = Memory()
        self.schemas: dict[str, Mapping[str, pl.DataType]] = {}
        for operator in topology.operators.values():
            self._prepare(operator)

    def _prepare(self, operator: Operator) -> None:
        if isinstance(operator, Source):
            self.schemas[operator.name] = record_schema(operator.fields)
            return
        if isinstance(operator, HopSource):
            self.schemas[operator.name] = HOP_RECORDS
            return
        if isinstance(operator, KeyedTable | Repartition | Aggregate):
            self.memory.keep(operator.name)
        if isinstance(operator, Aggregate):
            self.memory.accumulate(operator.name, self._accumulators(operator))
        if isinstance(operator, Join):
            self.memory.version(operator.table, self.version_schema(operator.table))
        inputs = [pl.DataFrame(schema=self.schemas[name]) for name in operator.inputs]
        try:
            self.schemas[operator.name] = self.run(operator, inputs, Moves()).output.schema
        except (InvalidArgument, pl.exceptions.PolarsError) as error:
            msg = f"{self._topology.name}: operators.{operator.name} does not fit what it reads: {error}"
            raise InvalidArgument(msg) from error

    def version_schema(self, table: str) -> dict[str, pl.DataType]:
        """What is kept of each version of *table* for joins: its columns and the record time from which it holds."""
        columns = {c: kind for c, kind in self.schemas[table].items() if c not in META}
        return {**columns, "_valid_from_ms": pl.Int64()}

    def _accumulators(self, operator: Aggregate) -> dict[str, pl.DataType]:
        values = self.value_schema(self.repartition_behind(operator))
        sums = {
            name: values[column] if function == "sum" else pl.Int64()
            for name, (function, column) in operator.aggregates.items()
        }
        return {"key": pl.String(), **sums, "max_timestamp_ms": pl.Int64()}

    def take(self, moves: Moves, *, watermark_ms: int | None) -> None:
        """Make *moves* what the next batch finds, and drop versions that no record after *watermark_ms* asks for."""
        self.memory.take(moves)
        for name in moves.versions:
            table = self._topology.operators[name]
            if isinstance(table, KeyedTable) and watermark_ms is not None:
                self.memory.versions[name] = pruned(self.memory.versions[name], table.key, before_ms=watermark_ms)

    def run(self, operator: Operator, inputs: list[pl.DataFrame], moves: Moves) -> Run:
        """What *operator* decides of its *inputs*; what it will have kept is put into *moves*."""
        records = inputs[0]
        match operator:
            case Map():
                output = map_records(operator, records, self._sql)
                filtered = records.height - output.height
                return Run(
                    output, _times(records), Counter(records_in=records.height, passed=output.height, filtered=filtered)
                )
            case KeyedTable():
                return self._table(operator, records, moves)
            case Join():
                output = join_valid(operator, records, self._versions(operator.table, moves))
                return Run(output, _times(records), Counter(records_in=records.height, passed=output.height))
            case Repartition():
                return self._repartition(operator, records, moves)
            case Aggregate():
                return self._aggregate(operator, records, moves)
            case Sink():
                counts = Counter(records_in=records.height, passed=records.height)
                return Run(records, _times(records), counts, {operator.name: records})
            case _:
                msg = f"{operator.name}: a {operator.kind} has no step"
                raise InvalidArgument(msg)

    def _versions(self, table: str, moves: Moves) -> pl.DataFrame:
        """All versions of *table* read so far, this batch's among them."""
        known = self.memory.versions[table]
        return pl.concat([known, moves.versions[table]]) if table in moves.versions else known

    def _table(self, operator: KeyedTable, records: pl.DataFrame, moves: Moves) -> Run:
        updates = table_updates(operator, records)
        result = judged(updates, self.memory.stored[operator.name].of(updates["_key"]), operator.rule)
        moves.stored[operator.name] = result.stored
        columns = [*operator.key, *value_columns(operator, records.columns)]
        output = result.emitted.select(*columns, *META)
        if operator.name in self.memory.versions:
            moves.versions[operator.name] = output.select(*columns, _valid_from_ms="_timestamp_ms")
        return Run(output, _times(records), _judged_counts(result), self._judged_rows(operator, result))

    def _repartition(self, operator: Repartition, records: pl.DataFrame, moves: Moves) -> Run:
        updates = repartition_updates(operator, records)
        stored = self.memory.stored[operator.name].of(updates["_key"])
        result = judged(updates, stored, operator.rule)
        moves.stored[operator.name] = result.stored
        rows = hop_rows(operator, with_old_value(result.emitted, stored))
        counts = _judged_counts(result) + Counter(fan_out=rows.height)
        tables = {operator.name: rows, "suppressed": self._suppressed(operator, result)}
        return Run(rows, _times(result.emitted), counts, tables)

    def _aggregate(self, operator: Aggregate, hop: pl.DataFrame, moves: Moves) -> Run:
        repartition = self.repartition_behind(operator)
        schema = self.value_schema(repartition)
        known = self.memory.accumulators[operator.name].of(hop["_key"])
        running = aggregated(operator, hop, known, schema, repartition.key)
        selected = self._sql.select(running, operator.select, keep=(*repartition.key, *META))
        updates = with_value(selected, tuple(operator.select))
        stored = self.memory.stored[operator.name]
        result = judged(updates, stored.of(updates["_key"]), operator.rule)
        moves.stored[operator.name] = result.stored
        last = running.unique("_key", keep="last", maintain_order=True)
        moves.accumulators[operator.name] = last.select(
            key="_key", **{n: n for n in operator.aggregates}, max_timestamp_ms="_timestamp_ms"
        )
        rows = self._judged_rows(operator, result)
        emitted = pl.concat([stored.of(last["_key"]), result.stored]).unique("key", keep="last", maintain_order=True)
        rows["aggregate_state"] = last.select(
            operator=pl.lit(operator.name),
            key="_key",
            accumulators=value_text(tuple(operator.aggregates), last.schema),
            max_timestamp="_timestamp_ms",
        ).join(emitted.select("key", "value", timestamp="timestamp_ms"), on="key", how="left")
        output = result.emitted.select(*repartition.key, *operator.select, *META)
        return Run(output, _times(hop), _judged_counts(result), rows)

    def _judged_rows(self, operator: Operator, result: Judged) -> dict[str, pl.DataFrame]:
        changes = result.emitted.select(
            seq=pl.int_range(pl.len(), dtype=pl.Int64),
            operator=pl.lit(operator.name),
            key="_key",
            value="_value",
            timestamp="_timestamp_ms",
            old_timestamp="_old_timestamp_ms",
            value_hash="_identity",
            source_partition="_partition",
            source_offset="_offset",
        )
        return {"changes": changes, "suppressed": self._suppressed(operator, result)}

    def _suppressed(self, operator: Operator, result: Judged) -> pl.DataFrame:
        runs = result.suppressed
        return runs.select(
            "n",
            "first_offset",
            "last_offset",
            "max_timestamp",
            operator=pl.lit(operator.name),
            key="_key",
            source_partition="_partition",
            old_timestamp="_old_timestamp_ms",
            value_hash="_identity",
        )

    def repartition_behind(self, operator: Aggregate) -> Repartition:
        """The repartition of the upstream sub-topology that *operator* reads through its hop."""
        hop = self._topology.operators[operator.inputs[0]]
        behind = self._topology.operators[hop.repartition] if isinstance(hop, HopSource) else hop
        if not isinstance(behind, Repartition):
            msg = f"{operator.name}: an aggregate reads a repartition, got the {behind.kind} {behind.name}"
            raise InvalidArgument(msg)
        return behind

    def value_schema(self, repartition: Repartition) -> dict[str, pl.DataType]:
        """The columns of the values that *repartition* hands on."""
        schema = self.schemas[repartition.inputs[0]]
        return {column: schema[column] for column in dict.fromkeys((*repartition.key, *repartition.columns))}


def _times(records: pl.DataFrame) -> pl.DataFrame:
    return records.select(*TIMES)


def _judged_counts(result: Judged) -> Counter[str]:
    emitted = result.emitted.height
    return Counter(records_in=emitted + result.suppressed_n, emitted=emitted, suppressed=result.suppressed_n)
