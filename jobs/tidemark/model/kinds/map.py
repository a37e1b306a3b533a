"""The kind `map`: stateless SQL on each record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import KAFKA_KEY, ORDERED, ArrivalOrder, DeclaredOperator
from tidemark.model.settings.emission import Emission, read_emission
from tidemark.model.settings.sql_columns import column_in
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.window_columns import WindowColumns, selected_bounds
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Map(DeclaredOperator):
    """Stateless SQL: `select` names expressions, `where` filters records.

    With an *emission* it sends on a record only if it differs from the one before of its *key* (the record's own where
    that is empty): in all its columns, or in the SQL expression *identity*.
    """

    kind: ClassVar[str] = "map"
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "key", "select"})

    select: Mapping[str, str]
    where: str | None = None
    emission: Emission | None = None
    key: tuple[str, ...] = ()
    identity: str | None = None

    @property
    def remedy_if_filtered(self) -> str:
        """Names its condition."""
        return "look at its `where`"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it reads updates, which it sends on."""
        return reads_updates

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the unchanged columns, or its key if it judges updates."""
        if read is ORDERED:
            return read
        if self.emission is not None:
            return frozenset({KAFKA_KEY, *self.key})
        # A column that is only renamed keeps its order. Other SQL may make one value of two, whose orders differ.
        return frozenset(name for name, sql in self.select.items() if column_in(sql) in read) | (read & {KAFKA_KEY})

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns its key if it judges updates."""
        if self.emission is None:
            return None
        return ArrivalOrder(self.key, "let it read a table with newest_by, or records that have this key in Kafka")

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns the names that `select` gives; None if it may suppress records."""
        if self.emission is not None:
            return None
        if not self.select:
            return names
        passed = {column_in(sql): column for column, sql in self.select.items()}
        return {first: passed[name] for first, name in names.items() if name in passed}

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns those that it only renames."""
        return (
            frozenset(name for name, sql in self.select.items() if column_in(sql) in read[0])
            if self.select
            else read[0]
        )

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that it selects."""
        return WindowColumns(selected_bounds(self.select, read[0].bounds), read[0].results) if self.select else read[0]

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a map from its table of the file."""
        judges = keys.choice_if_set("strategy", Strategy) is not None
        return cls(
            **common,
            inputs=(keys.text("input", "events"),),
            select=keys.columns("select", '{ id = "id" }'),
            where=keys.text("where", "id is not null", None),
            emission=read_emission(keys, Rule.STRICTLY_NEWER) if judges else None,
            key=keys.names("key", '["id"]', ()) if judges else (),
            identity=keys.text("identity", "round(amount)", None) if judges else None,
        )
