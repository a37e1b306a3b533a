"""The kind `map`: stateless SQL on each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import INPUT, KAFKA_KEY, ORDERED, ArrivalOrder, DeclaredOperator
from tidemark.model.kinds.registry import register
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import Key, Values, optional, required
from tidemark.model.settings.emission import HOW_TO_SEND, Emission, emission_keys
from tidemark.model.settings.sql_columns import column_in
from tidemark.model.settings.window_columns import WindowColumns, selected_bounds
from tidemark.semantics.strategy import Strategy

SELECT = required(
    "select",
    value_types.columns(),
    example='{ device = "device", temp_c = "round(temp_c)" }',
    meaning="columns by name",
)
WHERE = optional("where", value_types.text(), example='"temp_c > 20"', meaning="a condition")
STRATEGY = optional(
    "strategy",
    value_types.choice(Strategy),
    example='"on_change"',
    meaning=f"a record is emitted only if it differs from the previous record of its key; {HOW_TO_SEND}",
)
_WITH_STRATEGY = needs(given(STRATEGY))
EMISSION = emission_keys(STRATEGY, others_need=[_WITH_STRATEGY])
KEY = optional(
    "key",
    value_types.texts(),
    example='["device"]',
    meaning="with a strategy: the columns of the key; without it, the key of the record itself",
    needs=[_WITH_STRATEGY],
)
IDENTITY = optional(
    "identity",
    value_types.text(),
    example='"floor(temp_c)"',
    meaning=(
        "with a strategy: an expression over the columns of `select`; records with equal results are equal. "
        "Without it, the SHA-256 of all columns except the [event time](#what-is-compared)"
    ),
    needs=[_WITH_STRATEGY],
)


@register
@dataclass(frozen=True, kw_only=True)
class Map(DeclaredOperator):
    """Evaluates SQL on each record: `select` has expressions by name, and `where` is true for records to send on.

    With an *emission* a record is sent on only if it differs from the one before with the same *key*; if *key* is
    empty, with the same key of the record itself. All columns are compared, or else the SQL expression *identity*.
    """

    kind: ClassVar[str] = "map"
    keys: ClassVar[tuple[Key[Any], ...]] = (INPUT, SELECT, WHERE, *EMISSION.all, KEY, IDENTITY)
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (EMISSION.refuse_window_close,)
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "key", "select"})

    select: Mapping[str, str]
    where: str | None = None
    emission: Emission | None = None
    key: tuple[str, ...] = ()
    identity: str | None = None

    @property
    def remedy_if_filtered(self) -> str:
        """Names its key `where`."""
        return "look at its `where`"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it reads updates, which it sends on."""
        return reads_updates

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the columns that `select` only renames, or its key if it judges updates."""
        if read is ORDERED:
            return read
        if self.emission is not None:
            return frozenset({KAFKA_KEY, *self.key})
        # A column that is only renamed keeps its order. Other SQL may make one value of two, whose orders differ.
        return frozenset(name for name, sql in self.select.items() if column_in(sql) in read) | (read & {KAFKA_KEY})

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns its key, with a remedy, if it judges updates."""
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
        """Returns the event times that `select` only renames."""
        return (
            frozenset(name for name, sql in self.select.items() if column_in(sql) in read[0])
            if self.select
            else read[0]
        )

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that `select` hands on."""
        return WindowColumns(selected_bounds(self.select, read[0].bounds), read[0].results) if self.select else read[0]

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a map of the values of its table."""
        return cls(
            **common,
            inputs=(values[INPUT],),
            select=values[SELECT],
            where=values[WHERE],
            emission=EMISSION.emission(values),
            key=values.get(KEY, ()),
            identity=values[IDENTITY],
        )
