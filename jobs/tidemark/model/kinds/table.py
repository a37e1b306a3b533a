"""The kind `table`: the latest value per key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import KAFKA_KEY, ArrivalOrder, DeclaredOperator, Mistake, Operator
from tidemark.model.settings.emission import ON_CHANGE, Emission, read_emission
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.window_columns import START, WindowColumns, bounds_among
from tidemark.model.settings.windows import read_complete
from tidemark.semantics.change import Rule
from tidemark.semantics.completeness import Intervals


class NewestRule(StrEnum):
    """The newest row of a key: by arrival, or by record time."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event_time"


class HistoryPolicy(StrEnum):
    """The answer to a record from before a table's history.

    It gets the oldest kept version, or is late.
    """

    OLDEST = "oldest"
    LATE = "late"


@dataclass(frozen=True, kw_only=True)
class KeyedTable(DeclaredOperator):
    """The latest value per key.

    For joins its versions are kept for *history_ms* of record time behind the watermark; None: the default. `newest_by`
    is None if the file does not set it: then it is by arrival.
    """

    kind: ClassVar[str] = "table"
    keeps_keyed_state: ClassVar[bool] = True
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "key", "columns"})

    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    emission: Emission = ON_CHANGE
    history_ms: int | None = None
    beyond_history: HistoryPolicy = HistoryPolicy.OLDEST
    newest_by: NewestRule | None = None
    complete: Intervals | None = None

    @property
    def is_strict(self) -> bool:
        """True if a record from before its history is late."""
        return self.beyond_history is HistoryPolicy.LATE

    @property
    def groups(self) -> tuple[str, ...]:
        """Its key."""
        return self.key

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True."""
        return True

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns its key."""
        return frozenset({KAFKA_KEY, *self.key})

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns its key if the file does not set `newest_by`."""
        if self.newest_by is not None:
            return None
        remedy = (
            'write newest_by = "event_time" to keep the newest by record time, or newest_by = "arrival" to accept this'
        )
        return ArrivalOrder(self.key, remedy)

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns those that it keeps."""
        return read[0] & {*self.key, *self.columns} if self.columns else read[0]

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that it keeps.

        Its rows are results if the window's start is part of its key.
        """
        bounds = bounds_among((*self.key, *self.columns), read[0].bounds) if self.columns else read[0].bounds
        is_per_window = any(bounds.get(column) == START for column in self.key)
        return WindowColumns(bounds, read[0].results if is_per_window else None)

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields the keys about its history if no join needs versions."""
        if any(reader.joined_table == self.name for reader in readers):
            return
        for key, is_set in (("history", self.history_ms is not None), ("beyond_history", self.is_strict)):
            if is_set:
                yield Mistake(key, "is set, but no join reads this table", "leave it out, or let a join read it")

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a table from its table of the file."""
        return cls(
            **common,
            inputs=(keys.text("input", "events"),),
            key=keys.names("key", '["id"]'),
            columns=keys.names("columns", '["status"]', ()),
            emission=read_emission(keys, Rule.STRICTLY_NEWER),
            history_ms=keys.duration("history", "1 h", None),
            beyond_history=keys.choice("beyond_history", HistoryPolicy, HistoryPolicy.OLDEST),
            complete=read_complete(keys),
            newest_by=keys.choice_if_set("newest_by", NewestRule),
        )
