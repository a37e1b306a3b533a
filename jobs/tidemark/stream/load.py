"""Reads the whole state of a stream: from its files, or from the tables of an older version, which had no such files.

Records that wait for other partitions (`max_drift`) are in a table under this version, too.
"""

from __future__ import annotations

import logging
from pathlib import Path

import polars as pl

from tidemark.delta import read_before
from tidemark.kernels import META
from tidemark.kernels.marks import is_hop_update
from tidemark.kernels.steps import MATCHED
from tidemark.kernels.values import key_columns, key_text, keys_as_now, parsed
from tidemark.kernels.windows import WINDOW
from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Aggregate, KeyedTable, Map, Operator, Repartition, Source, emission_of
from tidemark.spec.stream import Stream
from tidemark.spec.tables import CHANGES, HELD_RECORDS, HOP_MARK, OPERATOR_STATE, SUPPRESSED
from tidemark.spec.topology import SubTopology
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.operate.aggregating import GROUP
from tidemark.stream.operate.registry import step_of
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps

log = logging.getLogger("tidemark.stream")

SAME = ("topology", "sub_topology", "batch_id")
AFTER_ALL = 2**62
"""Where updates that were not sent on stand among those of their batch that were: none of one instant came later."""


def load_memory(steps: Steps, sub: SubTopology, home: Path, progress: StreamProgress) -> None:
    """Have the memory of *steps* keep what tables of an older version, under *home*, say up to *progress*."""
    before = progress.batch_id + 1
    columns = ["operator", "seq", "key", "value", "value_hash", "timestamp"]
    changes = read_before(home / CHANGES.name, before, columns)
    columns = [c for c in OPERATOR_STATE.names if c not in SAME]
    states = read_before(home / OPERATOR_STATE.name, before, columns)
    columns = ["operator", "key", "value_hash", "asserted_ms"]
    joined = pl.col("operator").is_in([*steps.memory.versions]) & pl.col("asserted_ms").is_not_null()
    asserted = _asserted(read_before(home / SUPPRESSED.name, before, columns, keep=lambda rows: rows.filter(joined)))
    for operator in (o for o in sub.operators if emission_of(o)):
        key, of_it = _key_schema(steps, operator), pl.col("operator") == operator.name
        if operator.name in steps.memory.states:
            _load_states(steps, operator, keys_as_now(states.filter(of_it), "key", key))
        if isinstance(operator, Repartition):
            columns = ["seq", "id", "value", "value_hash", "timestamp", *HOP_MARK]
            hop = read_before(home / f"hop_{operator.name}", before, columns, keep=_updates)
            _load_stored(steps, operator, keys_as_now(hop.rename({"id": "key"}), "key", key))
        else:
            sent, again = (keys_as_now(rows.filter(of_it), "key", key) for rows in (changes, asserted))
            _load_versions(steps, operator, sent, again)
            _load_stored(steps, operator, sent)
    steps.memory.count_held()


def _key_schema(steps: Steps, operator: Operator) -> dict[str, pl.DataType]:
    """The columns of the keys under which *operator* keeps something; none for those of the records themselves."""
    schema = {**WINDOW, **steps.schemas[operator.name if isinstance(operator, Map) else operator.inputs[0]]}
    return {column: schema[column] for column in step_of(operator).key(operator) or ()}


def _updates(rows: pl.DataFrame) -> pl.DataFrame:
    """The updates of a hop; a mark of its watermark is none."""
    return rows.filter(is_hop_update())


def _load_stored(steps: Steps, operator: Operator, rows: pl.DataFrame) -> None:
    in_order = rows.sort("batch_id", "seq")
    if isinstance(operator, Aggregate) and operator.windows:
        open_ = steps.memory.states[operator.name].all()["_key"]
        in_order = in_order.filter(pl.col("key").is_in(open_.implode()))
    stored = in_order.select("key", "value", identity="value_hash", timestamp_ms=_ms("timestamp"))
    steps.memory.stored[operator.name].put(stored)


def _asserted(rows: pl.DataFrame) -> pl.DataFrame:
    """The updates that *rows* of `suppressed` are about, one row each."""
    times = pl.col("asserted_ms").str.json_decode(pl.List(pl.Int64))
    return rows.with_columns(times).explode("asserted_ms").drop_nulls("asserted_ms")


def _load_versions(steps: Steps, operator: Operator, changes: pl.DataFrame, asserted: pl.DataFrame) -> None:
    """The versions of a table that is joined: each update, sent on or not; of one instant the last one counts."""
    if isinstance(operator, KeyedTable) and operator.name in steps.memory.versions:
        schema = {c: kind for c, kind in steps.schemas[operator.name].items() if c not in META}
        values = {c: kind for c, kind in schema.items() if c not in operator.key}
        values_of = changes.select("key", "value", "value_hash").unique(["key", "value_hash"])
        on = ["key", "value_hash"]
        known = values_of.filter(pl.col("value_hash").is_not_null())
        again = asserted.join(known, on=on, how="left").filter(
            pl.col("value").is_not_null() | pl.col("value_hash").is_null()
        )
        rows = pl.concat(
            [
                changes.select("batch_id", "seq", "key", "value", at=_ms("timestamp")),
                again.select("batch_id", pl.lit(AFTER_ALL).alias("seq"), "key", "value", at="asserted_ms"),
            ]
        )
        in_order = rows.sort("batch_id", "seq", maintain_order=True)
        value = {"_value": parsed("value", values)} if values else {}
        versions = in_order.with_columns(**value, **key_columns("key", {c: schema[c] for c in operator.key}))
        later = versions.select(
            *operator.key,
            *(pl.col("_value").struct.field(name) for name in values),
            pl.col("value").is_not_null().alias(MATCHED),
            _valid_from_ms="at",
        ).select(steps.version_schema(operator.name).keys())
        steps.memory.add_versions(operator.name, later)


def _load_states(steps: Steps, operator: Operator, rows: pl.DataFrame) -> None:
    states = steps.memory.states[operator.name]
    last = rows.sort("batch_id", maintain_order=True).unique("key", keep="last", maintain_order=True)
    columns = {c: kind for c, kind in states.schema.items() if not c.startswith("_") and c not in WINDOW}
    functions = steps.functions(operator)
    earlier = {c: pl.String() for f in functions for c in f.earlier}
    loaded = last.filter(pl.col("state").is_not_null()).select(
        parsed("state", columns | earlier).struct.unnest(),
        *(_ms(c).alias(c) for c in WINDOW if c in states.schema),
        _key="key",
        _timestamp_ms=_ms("timestamp"),
        _partition="source_partition",
        _offset="source_offset",
        _task="partition",
        _deleted="deleted",
        _headers="headers",
        _newest_ms=pl.coalesce(_ms("newest"), _ms("timestamp")),
        _repeated=pl.coalesce("repeated", ~pl.col("held")),
        _held="held",
    )
    loaded = loaded.with_columns(**{name: column for f in functions for name, column in f.of_earlier().items()})
    if GROUP in states.schema and isinstance(operator, Aggregate):
        loaded = loaded.with_columns(key_text(operator.key, loaded.schema).alias(GROUP))
    gone = last.filter(pl.col("state").is_null())["key"]
    states.drop(gone)
    if "window_end" in states.schema:
        steps.memory.stored[operator.name].drop(gone)
    states.put(loaded.select(*states.schema))


def load_whole(steps: Steps, stream: Stream, journal: Journal, newest: Entry, progress: StreamProgress) -> None:
    """Have the memory of *steps* keep the state of all shards after the *newest* entry, which made the *progress*."""
    shards = StateRuns.of(newest.notes)
    if shards is None:
        log.info("%s: the state is taken over from the tables of an older version", stream.home)
        load_memory(steps, stream.sub, stream.home, progress)
        return
    everywhere = stream.sub.table_inputs()  # every shard has these
    for number, runs in enumerate(shards):
        files = StateFiles(stream, journal, number, len(shards))
        files.load(steps.memory, runs, newest.batch_id, but=everywhere if number else frozenset())


def load_waiting(steps: Steps, sub: SubTopology, home: Path, progress: StreamProgress) -> None:
    """Have the memory of *steps* keep the records that were read and not sent on."""
    for operator in sub.operators:
        if isinstance(operator, Source):
            _load_waiting(steps, operator, home, progress)


def _load_waiting(steps: Steps, source: Source, home: Path, progress: StreamProgress) -> None:
    """Those of *source*: from where each partition was done to, in offset order."""
    steps.memory.waiting.pop(source.name, None)
    partitions = progress.inputs.get(source.name, InputProgress()).partitions
    done = {
        number: part.done_until_offset
        for number, part in partitions.items()
        if part.done_until_offset < part.until_offset
    }
    if not done:
        return
    columns = ["source", "partition", "offset", "key", "timestamp", "value", "headers"]
    held = read_before(home / HELD_RECORDS.name, progress.batch_id + 1, columns)
    schema = steps.schemas[source.name]
    payload = {c: kind for c, kind in schema.items() if c not in META}
    first = pl.col("partition").replace_strict(done, default=None, return_dtype=pl.Int64)
    rows = held.filter((pl.col("source") == source.name) & (pl.col("offset") >= first))
    # What deletes a key has no value, and the key beside it alone.
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
