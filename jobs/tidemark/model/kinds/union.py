"""The kind `union`: the records of several operators."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.registry import register
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, Values, required
from tidemark.model.settings.window_columns import WindowColumns, common

INPUTS = required(
    "inputs",
    value_types.texts(),
    example='["readings", "older_readings"]',
    meaning="the operators it reads: streams, or tables, and not both",
)


@register
@dataclass(frozen=True, kw_only=True)
class Union(DeclaredOperator):
    """Sends on the records of all its inputs, which have the same columns.

    In a batch the first input's records come first.
    """

    kind: ClassVar[str] = "union"
    keys: ClassVar[tuple[Key[Any], ...]] = (INPUTS,)
    is_checked_in_part: ClassVar[bool] = False
    shaping: ClassVar[frozenset[str]] = frozenset({"inputs"})

    @property
    def flows(self) -> tuple[str, ...]:
        """All of its inputs."""
        return self.inputs

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it reads updates, which it sends on."""
        return reads_updates

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns no column: its inputs have no common order."""
        return frozenset()

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*: all columns of a record keep theirs."""
        return names

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the event times that all inputs share."""
        return read[0].intersection(*read[1:])

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that all inputs share."""
        return common(read)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields a mistake if some inputs send updates of a table, and others events."""
        of_tables = sorted({*updates} & {*self.inputs})
        if of_tables and {*of_tables} != {*self.inputs}:
            remedy = "unite streams with streams, and tables with tables"
            yield Mistake("inputs", f"mixes the table updates of {', '.join(of_tables)} with a stream", remedy)

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a union of the values of its table."""
        # One alone is allowed: sources come and go, and those behind the union need not change with them.
        return cls(**common, inputs=values[INPUTS])
