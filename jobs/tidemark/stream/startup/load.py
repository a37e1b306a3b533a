"""Loads the whole state of a stream when its driver starts, and versions of joined tables from their history."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from tidemark.kernels import META
from tidemark.kernels.columns.values import key_columns, parsed
from tidemark.kernels.updates.steps import MATCHED
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.stream import Stream
from tidemark.selection import in_order_of, omit
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.state.files import StateFiles
from tidemark.stream.state.memory import Tables

AFTER_ALL = 2**62
"""The position in a batch of updates that were not sent on: at one instant they come after those that were."""


def load_versions(steps: Steps, operator: Operator, changes: pl.DataFrame, suppressed: pl.DataFrame) -> None:
    """Loads the versions of the table *operator*, if joins look it up, into the memory of *steps*.

    *changes* and *suppressed* are the rows of these tables about the operator.
    """
    if isinstance(operator, KeyedTable) and operator.name in steps.memory.versions:
        schema = omit(steps.schemas[operator.name], META)
        values = omit(schema, operator.key)
        # Equal values may have other event times: an update repeats the change of one instant.
        on = ["key", "value_hash", "old_timestamp"]
        values_of = changes.select("key", "value", "value_hash", old_timestamp=_ms("timestamp")).unique(on)
        values_with_hash = values_of.filter(pl.col("value_hash").is_not_null())
        # A suppressed row has only the hash of its value; the update that it repeats has the value.
        again = (
            suppressed.explode("asserted_ms")
            .drop_nulls("asserted_ms")
            .join(values_with_hash, on=on, how="left")
            .filter(pl.col("value").is_not_null() | pl.col("value_hash").is_null())
        )
        rows = pl.concat(
            [
                changes.select("batch_id", "seq", "key", "value", at=_ms("timestamp")),
                again.select("batch_id", pl.lit(AFTER_ALL).alias("seq"), "key", "value", at="asserted_ms"),
            ]
        )
        # Each update is a version, even if it was not sent on. Of several with one instant the last one applies.
        in_order = rows.sort("batch_id", "seq", maintain_order=True)
        value = {"_value": parsed("value", values)} if values else {}
        versions = in_order.with_columns(**value, **key_columns("key", in_order_of(operator.key, schema)))
        later = versions.select(
            *operator.key,
            *(pl.col("_value").struct.field(name) for name in values),
            pl.col("value").is_not_null().alias(MATCHED),
            _valid_from_ms="at",
        ).select(steps.version_schema(operator.name).keys())
        steps.memory.add_versions(operator.name, later)


def load_whole(steps: Steps, stream: Stream, journal: Journal, newest: Entry) -> None:
    """Loads the state of all shards after the *newest* entry into the memory of *steps*."""
    shards = newest.notes.states
    for number, runs in enumerate(shards):
        of_shard = Steps(stream.topology, Reference(stream.layout.warehouse)).memory
        StateFiles(stream, journal, number, len(shards)).load(of_shard, runs, newest.batch_id)
        whole = of_shard.whole()
        # Every shard has a copy of the joined tables, so they are loaded from the first shard only.
        steps.memory.put(without(whole, stream.sub.table_inputs()) if number else whole)
    steps.memory.count_held()


def without(tables: Tables, operators: Collection[str]) -> Tables:
    """Returns *tables* without the tables of *operators*."""
    return {name: rows for name, rows in tables.items() if name.partition("/")[2] not in operators}


def _ms(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("ms")
