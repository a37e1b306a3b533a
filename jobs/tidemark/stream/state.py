"""What the operators of one driver keep between batches, in memory: moved only after a batch has been committed.

Nothing here is durable. The `changes` table is the state of a table, the hop that of a repartition, and
`aggregate_state` that of an aggregate; `load.py` rebuilds this from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tidemark.kernels.steps import STORED


class KeyedRows:
    """The newest row per key, with the columns of *schema*, one of which is `key`."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self.schema = dict(schema)
        self._rows: dict[str, tuple[Any, ...]] = {}

    def of(self, keys: pl.Series) -> pl.DataFrame:
        """The rows of those *keys* that have one, once each."""
        rows = [row for key in keys.unique() if (row := self._rows.get(key)) is not None]
        return pl.DataFrame(rows, schema=self.schema, orient="row")

    def put(self, rows: pl.DataFrame) -> None:
        """Take *rows* in place of older ones of the same key; of several the last counts."""
        self._rows.update(zip(rows["key"], rows.select(*self.schema).iter_rows(), strict=True))


@dataclass
class Moves:
    """What one batch does to the memory, per operator."""

    stored: dict[str, pl.DataFrame] = field(default_factory=dict)
    accumulators: dict[str, pl.DataFrame] = field(default_factory=dict)
    versions: dict[str, pl.DataFrame] = field(default_factory=dict)


class Memory:
    """Stored rows and accumulators per operator, and the versions of the tables that are joined."""

    def __init__(self) -> None:
        self.stored: dict[str, KeyedRows] = {}
        self.accumulators: dict[str, KeyedRows] = {}
        self.versions: dict[str, pl.DataFrame] = {}

    def keep(self, operator: str) -> None:
        """Have *operator* keep the update of each key that it sent on last."""
        self.stored[operator] = KeyedRows(STORED)

    def accumulate(self, operator: str, schema: Mapping[str, pl.DataType]) -> None:
        """Have the aggregate *operator* keep accumulators of that *schema* per key."""
        self.accumulators[operator] = KeyedRows(schema)

    def version(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Have the *table* keep its versions for joins."""
        self.versions[table] = pl.DataFrame(schema=dict(schema))

    def take(self, moves: Moves) -> None:
        """Make *moves* what the next batch finds."""
        for name, rows in moves.stored.items():
            self.stored[name].put(rows)
        for name, rows in moves.accumulators.items():
            self.accumulators[name].put(rows)
        for name, rows in moves.versions.items():
            self.versions[name] = pl.concat([self.versions[name], rows])
