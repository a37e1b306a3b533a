"""Rebuilds what a driver kept in memory from its tables, as of the batches before one: at start, and never else."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tidemark.delta import read_before
from tidemark.kernels.values import parsed
from tidemark.spec.operators import Aggregate, KeyedTable, Operator, Repartition
from tidemark.spec.tables import AGGREGATE_STATE, CHANGES
from tidemark.spec.topology import SubTopology
from tidemark.stream.steps import Steps


def load_memory(steps: Steps, sub: SubTopology, home: Path, *, before: int) -> None:
    """Fill the memory of *steps* with what the tables under *home* say of the batches before *before*."""
    changes = read_before(home / CHANGES.name, before, ["operator", "seq", "key", "value", "value_hash", "timestamp"])
    states = read_before(home / AGGREGATE_STATE.name, before, ["operator", "key", "accumulators", "max_timestamp"])
    for operator in sub.operators:
        match operator:
            case KeyedTable() | Aggregate():
                _load_stored(steps, operator, changes.filter(pl.col("operator") == operator.name))
            case Repartition():
                hop = read_before(
                    home / f"hop_{operator.name}",
                    before,
                    ["seq", "id", "value", "value_hash", "timestamp", "watermark"],
                )
                rows = hop.filter(pl.col("watermark").is_null()).rename({"id": "key"})
                _load_stored(steps, operator, rows)
        if isinstance(operator, Aggregate):
            _load_accumulators(steps, operator, states.filter(pl.col("operator") == operator.name))


def _load_stored(steps: Steps, operator: Operator, rows: pl.DataFrame) -> None:
    in_order = rows.sort("batch_id", "seq")
    stored = in_order.select("key", "value", identity="value_hash", timestamp_ms=_ms("timestamp"))
    steps.memory.stored[operator.name].put(stored)
    if isinstance(operator, KeyedTable) and operator.name in steps.memory.versions:
        schema = {c: kind for c, kind in steps.version_schema(operator.name).items() if c != "_valid_from_ms"}
        values = {c: kind for c, kind in schema.items() if c not in operator.key}
        versions = in_order.with_columns(_value=parsed("value", values), **_key_columns(operator, schema))
        steps.memory.versions[operator.name] = versions.select(
            *operator.key, pl.col("_value").struct.field(*values), _valid_from_ms=_ms("timestamp")
        ).select(steps.version_schema(operator.name).keys())


def _key_columns(operator: KeyedTable, schema: dict[str, pl.DataType]) -> dict[str, pl.Expr]:
    """The key's columns, read back from its text."""
    if len(operator.key) == 1:
        return {operator.key[0]: pl.col("key").cast(schema[operator.key[0]])}
    key = parsed("key", {c: schema[c] for c in operator.key})
    return {c: key.struct.field(c) for c in operator.key}


def _load_accumulators(steps: Steps, operator: Aggregate, rows: pl.DataFrame) -> None:
    kept = steps.memory.accumulators[operator.name]
    sums = {name: kept.schema[name] for name in operator.aggregates}
    last = rows.sort("batch_id", maintain_order=True).with_columns(_sums=parsed("accumulators", sums))
    kept.put(last.select("key", pl.col("_sums").struct.field(*sums), max_timestamp_ms=_ms("max_timestamp")))


def _ms(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("ms")
