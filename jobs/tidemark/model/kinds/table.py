"""The kind `table`: the latest value per key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import INPUT, KAFKA_KEY, ArrivalOrder, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.registry import register
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional, required
from tidemark.model.settings.emission import HOW_TO_SEND, ON_CHANGE, STRATEGY, Emission, emission_keys
from tidemark.model.settings.window_columns import START, WindowColumns, bounds_among
from tidemark.model.settings.windows import COMPLETE, intervals_of
from tidemark.semantics.completeness import Intervals


class NewestRule(StrEnum):
    """Which row of a key is the newest: the one that arrived last, or the one with the latest record time."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event_time"


class HistoryPolicy(StrEnum):
    """What a join does with a record that is older than all versions that its table still has.

    The record is joined with the oldest version, or is late.
    """

    OLDEST = "oldest"
    LATE = "late"


KEY = required(
    "key",
    value_types.texts(),
    example='["device"]',
    meaning="columns of the key; a record where it is null is quarantined",
)
COLUMNS = optional(
    "columns",
    value_types.texts(),
    example='["temp_c"]',
    meaning=(
        "columns of the value. Without this key, all columns except the key; then the event time is kept and not "
        "compared, see [below](#what-is-compared)"
    ),
)
NEWEST_BY = optional(
    "newest_by",
    value_types.choice(NewestRule),
    example='"event_time"',
    without='`"arrival"`',
    meaning=(
        "`arrival`: the record that was read last; `event_time`: the record with the latest event time, ties by "
        "the higher partition, then offset. A record older than the key's newest is `superseded`, and is no "
        "version for joins. Deleted keys are remembered. See [below](#order)"
    ),
)
HISTORY = optional(
    "history",
    value_types.length(),
    example='"1 h"',
    without='`"1 h"`',
    meaning=(
        "for joins: how long versions of the table are kept, in record time behind the watermark. They are kept "
        "longer if windows upstream of the join are longer, and for ever downstream of a `periodic` operator"
    ),
)
BEYOND_HISTORY = defaulted(
    "beyond_history",
    value_types.choice(HistoryPolicy),
    example='"late"',
    default=HistoryPolicy.OLDEST.value,
    meaning=(
        "for joins: the treatment of a record older than `history`. `oldest` joins it with the oldest version, "
        "and counts it as `joined_beyond_history`; `late` writes it to `late_records`"
    ),
)
EMISSION = emission_keys(replace(STRATEGY, meaning=HOW_TO_SEND))


@register
@dataclass(frozen=True, kw_only=True)
class KeyedTable(DeclaredOperator):
    """Keeps the latest value of each key.

    For joins it keeps versions for *history_ms* of record time behind the watermark; None stands for the default.
    `newest_by` is None if the file does not set it; then the row that arrived last is the newest.
    """

    kind: ClassVar[str] = "table"
    keys: ClassVar[tuple[Key[Any], ...]] = (
        INPUT,
        KEY,
        COLUMNS,
        NEWEST_BY,
        HISTORY,
        BEYOND_HISTORY,
        COMPLETE,
        *EMISSION.all,
    )
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (EMISSION.refuse_window_close,)
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
        """True if a record that is older than all versions is late."""
        return self.beyond_history is HistoryPolicy.LATE

    @property
    def groups(self) -> tuple[str, ...]:
        """Its key."""
        return self.key

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True: a row replaces the one before of its key."""
        return True

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns its key."""
        return frozenset({KAFKA_KEY, *self.key})

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns its key, with a remedy, if the file does not set `newest_by`."""
        if self.newest_by is not None:
            return None
        remedy = (
            'write newest_by = "event_time" to keep the newest by record time, or newest_by = "arrival" to accept this'
        )
        return ArrivalOrder(self.key, remedy)

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the event times among the columns that it keeps."""
        return read[0] & {*self.key, *self.columns} if self.columns else read[0]

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds among the columns that it keeps.

        Its rows are results of windows only if its key has the start of the window.
        """
        bounds = bounds_among((*self.key, *self.columns), read[0].bounds) if self.columns else read[0].bounds
        is_per_window = any(bounds.get(column) == START for column in self.key)
        return WindowColumns(bounds, read[0].results if is_per_window else None)

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields a mistake for each key about its history that the file sets, if no join reads the table."""
        if any(reader.joined_table == self.name for reader in readers):
            return
        for key, is_set in (("history", self.history_ms is not None), ("beyond_history", self.is_strict)):
            if is_set:
                yield Mistake(key, "is set, but no join reads this table", "leave it out, or let a join read it")

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a table of the values of its table of the file."""
        return cls(
            **common,
            inputs=(values[INPUT],),
            key=values[KEY],
            columns=values.get(COLUMNS, ()),
            emission=EMISSION.emission(values) or ON_CHANGE,
            history_ms=values[HISTORY],
            beyond_history=values[BEYOND_HISTORY],
            complete=intervals_of(values[COMPLETE]),
            newest_by=values[NEWEST_BY],
        )
