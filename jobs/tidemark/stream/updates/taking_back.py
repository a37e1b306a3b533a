"""Takes back what operators remember of updates that the table of a sink refused.

An operator suppresses an update that is equal to the last one that it sent. If the sink's table refused that one, the
table still has the row before. So later updates have to be compared with the row that was accepted last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tidemark.graph import reached
from tidemark.model.kinds.operator import Operator
from tidemark.model.topology import Topology
from tidemark.stream.state.memory import Moves
from tidemark.stream.updates.step import StepContext

UNEQUAL = ""
"""The stored value of a key whose last accepted value is not known, or not the same for all readers.

No update is equal to it, so the next one is sent.
"""


def take_back(sink: Operator, shared: StepContext, records: pl.DataFrame, is_accepted: pl.Series, moves: Moves) -> None:
    """Changes the last sent updates in *moves* for keys whose newest record the table of *sink* refused.

    Args:
        sink: the sink whose table refused records.
        shared: has the topology.
        records: all records that the sink got in the batch.
        is_accepted: whether the table accepted each of *records*.
        moves: the changes of states by the batch.
    """
    outcomes = records.select("_key", is_accepted.alias("_accepted")).group_by("_key")
    keys = outcomes.agg(pl.col("_accepted").last().alias("_last"), pl.col("_accepted").any().alias("_any"))
    refused = keys.filter(~pl.col("_last"))
    for name in _judging(shared.topology, sink):
        stored = moves.stored.get(name)
        if stored is None:
            continue
        # If the batch has no accepted update of the key, the update stored before the batch is the last accepted one,
        # and stays.
        unequal = refused.filter("_any") if _reads_alone(shared.topology, sink, name) else refused
        is_refused = pl.col("key").is_in(refused["_key"].implode())
        is_unequal = pl.col("key").is_in(unequal["_key"].implode())
        moves.stored[name] = pl.concat([stored.filter(~is_refused), _unequal(stored.filter(is_unequal))])


def take_back_later(shared: StepContext, refused: Mapping[str, Sequence[str]]) -> dict[str, pl.DataFrame]:
    """Changes the last sent updates in memory for keys that tables refused after their batch had been decided.

    The row that a table had accepted before is no longer known then. *refused* has the keys by sink.

    Returns:
        The changed rows by operator, for the journal.
    """
    changed: dict[str, pl.DataFrame] = {}
    for name, keys in refused.items():
        for operator in _judging(shared.topology, shared.topology.operators[name]):
            stored = shared.memory.stored[operator]
            rows = _unequal(stored.look_up(pl.Series(keys, dtype=pl.String).unique()))
            if rows.height:
                stored.put(rows)
                changed[operator] = pl.concat([changed.get(operator, rows.clear()), rows])
    return changed


def _unequal(stored: pl.DataFrame) -> pl.DataFrame:
    return stored.with_columns(value=pl.lit(UNEQUAL), identity=pl.lit(UNEQUAL))


def _judging(topology: Topology, sink: Operator) -> list[str]:
    """Returns the operators before *sink* that suppress updates."""
    operators = topology.operators
    return [name for name in reached(sink.flows, topology.flows) if operators[name].emission is not None]


def _reads_alone(topology: Topology, sink: Operator, name: str) -> bool:
    """Returns True if nothing but *sink* gets to see the updates of the operator *name*."""
    for reader in topology.operators.values():
        if name not in reader.inputs or reader.name == sink.name:
            continue
        passes_on = name in reader.flows and reader.emission is None and not reader.hands_out
        if not (passes_on and _reads_alone(topology, sink, reader.name)):
            return False
    return True
