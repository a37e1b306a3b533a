"""Loads the whole state of a stream when its driver starts.

The state is in state files or, if an older version wrote it, in tables. Records that wait for other partitions
(`max_drift`) are in a table in all versions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

import polars as pl

from tidemark.collecting import in_order_of, omit, outside
from tidemark.kernels import META
from tidemark.kernels.aggregates.windows import WINDOW
from tidemark.kernels.columns.values import key_columns, key_text, keys_as_now, parsed
from tidemark.kernels.records.marks import is_hop_update
from tidemark.kernels.updates.steps import MATCHED
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import CHANGES, HELD_RECORDS, HOP_MARK, OPERATOR_STATE, SUPPRESSED
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.storage.delta.tables import Reference, read_before
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.operate.registry import step_of
from tidemark.stream.operate.steps import Steps
from tidemark.stream.state.files import StateFiles
from tidemark.stream.state.memory import Tables
from tidemark.stream.updates.aggregating import GROUP

log = logging.getLogger("tidemark.stream")

SAME = ("topology", "sub_topology", "batch_id")
AFTER_ALL = 2**62
"""Position within a batch of updates that were not sent on.

They are sorted after the updates that were sent on, because of one instant none of these came later.
"""


def load_memory(steps: Steps, sub: SubTopology, home: Path, progress: StreamProgress) -> None:
    """Loads the state up to *progress* from tables of an older version.

    It reads the tables in *home* into the memory of *steps*.
    """
    before = progress.batch_id + 1
    columns = ["operator", "seq", "key", "value", "value_hash", "timestamp"]
    changes = read_before(home / CHANGES.name, before, columns)
    columns = outside(OPERATOR_STATE.names, SAME)
    states = read_before(home / OPERATOR_STATE.name, before, columns)
    columns = ["operator", "key", "value_hash", "asserted_ms"]
    joined = pl.col("operator").is_in([*steps.memory.versions]) & pl.col("asserted_ms").is_not_null()
    suppressed = read_before(home / SUPPRESSED.name, before, columns, keep=lambda rows: rows.filter(joined))
    for operator in (o for o in sub.operators if o.emission):
        key, of_it = _key_schema(steps, operator), pl.col("operator") == operator.name
        if operator.name in steps.memory.states:
            _load_states(steps, operator, keys_as_now(states.filter(of_it), "key", key))
        if operator.hop_table:
            columns = ["seq", "id", "value", "value_hash", "timestamp", *HOP_MARK]
            hop = read_before(home / operator.hop_table, before, columns, keep=_updates)
            _load_stored(steps, operator, keys_as_now(hop.rename({"id": "key"}), "key", key))
        else:
            sent, again = (keys_as_now(rows.filter(of_it), "key", key) for rows in (changes, suppressed))
            load_versions(steps, operator, sent, again)
            _load_stored(steps, operator, sent)
    steps.memory.count_held()


def _key_schema(steps: Steps, operator: Operator) -> dict[str, pl.DataType]:
    """Returns the columns of the keys of *operator*'s states.

    The result is empty if the keys are those of the records.
    """
    schema = {**WINDOW, **steps.schemas[step_of(operator).holder_of_key(operator)]}
    return in_order_of(step_of(operator).key(operator) or (), schema)


def _updates(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the updates of a hop, without the marks of its watermark."""
    return rows.filter(is_hop_update())


def _load_stored(steps: Steps, operator: Operator, rows: pl.DataFrame) -> None:
    in_order = rows.sort("batch_id", "seq")
    if operator.windows:
        # Windows without a state send no more updates, so their last update is not needed.
        open_ = steps.memory.states[operator.name].all()["_key"]
        in_order = in_order.filter(pl.col("key").is_in(open_.implode()))
    stored = in_order.select("key", "value", identity="value_hash", timestamp_ms=_ms("timestamp"))
    steps.memory.stored[operator.name].put(stored)


def _asserted(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns a row for each suppressed update in *rows* of `suppressed`."""
    times = pl.col("asserted_ms").str.json_decode(pl.List(pl.Int64))
    return rows.with_columns(times).explode("asserted_ms").drop_nulls("asserted_ms")


def load_versions(steps: Steps, operator: Operator, changes: pl.DataFrame, suppressed: pl.DataFrame) -> None:
    """Loads the versions of a joined table from its rows."""
    if isinstance(operator, KeyedTable) and operator.name in steps.memory.versions:
        schema = omit(steps.schemas[operator.name], META)
        values = omit(schema, operator.key)
        values_of = changes.select("key", "value", "value_hash").unique(["key", "value_hash"])
        on = ["key", "value_hash"]
        values_with_hash = values_of.filter(pl.col("value_hash").is_not_null())
        # A suppressed row has only the hash of its value; the update that it repeats has the value.
        again = (
            _asserted(suppressed)
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


def _load_states(steps: Steps, operator: Operator, rows: pl.DataFrame) -> None:
    states = steps.memory.states[operator.name]
    # Older versions appended a row for each move of a state: the last one is the state.
    last = rows.sort("batch_id", maintain_order=True).unique("key", keep="last", maintain_order=True)
    columns = {c: kind for c, kind in states.schema.items() if not c.startswith("_") and c not in WINDOW}
    window_edges = {c: _ms(c) for c in WINDOW if c in states.schema}
    functions = steps.functions(operator)
    for function in functions:
        columns |= dict.fromkeys(function.earlier, pl.String())
    loaded = last.filter(pl.col("state").is_not_null()).select(
        parsed("state", columns).struct.unnest(),
        **window_edges,
        _key="key",
        _timestamp_ms=_ms("timestamp"),
        _partition="source_partition",
        _offset="source_offset",
        _task="partition",
        _deleted="deleted",
        _headers="headers",
        _newest_ms=pl.coalesce(_ms("newest"), _ms("timestamp")),
        # Rows of older versions have no `repeated`.
        _repeated=pl.coalesce("repeated", ~pl.col("held")),
        _held="held",
    )
    for function in functions:
        loaded = loaded.with_columns(**function.of_earlier())
    if GROUP in states.schema and isinstance(operator, Aggregate):
        loaded = loaded.with_columns(key_text(operator.key, loaded.schema).alias(GROUP))
    # A row without a state marks a deleted key.
    gone = last.filter(pl.col("state").is_null())["key"]
    states.drop(gone)
    if "window_end" in states.schema:
        steps.memory.stored[operator.name].drop(gone)
    states.put(loaded.select(*states.schema))


def load_whole(steps: Steps, stream: Stream, journal: Journal, newest: Entry, progress: StreamProgress) -> None:
    """Loads the state of all shards after the *newest* entry.

    It reads the state into the memory of *steps*. *progress* is the progress in the entry.
    """
    shards = newest.notes.states
    if shards is None:
        log.info("%s: loading the state from the tables of an older version", stream.home)
        load_memory(steps, stream.sub, stream.home, progress)
        return
    for number, runs in enumerate(shards):
        of_shard = Steps(stream.topology, Reference(stream.layout.warehouse)).memory
        StateFiles(stream, journal, number, len(shards)).load(of_shard, runs, newest.batch_id)
        whole = of_shard.whole()
        # Every shard has a copy of the joined tables, so they are loaded from the first shard only.
        steps.memory.put(without(whole, stream.sub.table_inputs()) if number else whole)
    steps.memory.count_held()


def without(tables: Tables, operators: Collection[str]) -> Tables:
    """Returns *tables* without the tables of *operators*."""
    return {place: rows for place, rows in tables.items() if place.partition("/")[2] not in operators}


def load_waiting(steps: Steps, sub: SubTopology, home: Path, progress: StreamProgress) -> None:
    """Loads the records that were read and not sent on."""
    for source in sub.outside_sources:
        _load_waiting(steps, source, home, progress)


def _load_waiting(steps: Steps, source: Source, home: Path, progress: StreamProgress) -> None:
    """Loads the waiting records of *source*, in offset order."""
    steps.memory.waiting.pop(source.name, None)
    partitions = progress.inputs.get(source.name, InputProgress()).partitions
    # In each partition they begin with the first record that was not sent on.
    done: dict[int, int] = {}
    for number, part in partitions.items():
        if part.done_until_offset < part.until_offset:
            done[number] = part.done_until_offset
    if not done:
        return
    columns = ["source", "partition", "offset", "key", "timestamp", "value", "headers"]
    held = read_before(home / HELD_RECORDS.name, progress.batch_id + 1, columns)
    schema = steps.schemas[source.name]
    payload = omit(schema, META)
    first = pl.col("partition").replace_strict(done, default=None, return_dtype=pl.Int64)
    rows = held.filter((pl.col("source") == source.name) & (pl.col("offset") >= first))
    # A tombstone has no value, so its key is only in the column of the key.
    key = [pl.coalesce(source.key, "_key").alias(source.key)] if source.key else []
    waiting = rows.select(
        parsed("value", payload).struct.unnest(),
        _key="key",
        _timestamp_ms=_ms("timestamp"),
        _partition="partition",
        _offset="offset",
        _task="partition",
        _deleted=pl.col("value").is_null(),
        _headers="headers",
        _newest_ms=_ms("timestamp"),
        _repeated=pl.lit(value=False),
    )
    steps.memory.waiting[source.name] = waiting.with_columns(key).sort("_partition", "_offset")


def _ms(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("ms")
