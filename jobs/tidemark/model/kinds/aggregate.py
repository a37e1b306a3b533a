"""The kind `aggregate`: values per key, over windows or rolling."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import KAFKA_KEY, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS, parsed_call
from tidemark.model.settings.emission import Emission, read_emission
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.window_columns import (
    END,
    START,
    ResultWindows,
    WindowColumns,
    bounds_among,
    selected_bounds,
)
from tidemark.model.settings.windows import Windows, read_complete, read_windows
from tidemark.semantics.change import Rule
from tidemark.semantics.completeness import Intervals

SAME_INSTANT = Emission(rule=Rule.SAME_INSTANT)
"""The default emission of an aggregate."""


@dataclass(frozen=True, kw_only=True)
class Aggregate(DeclaredOperator):
    """Aggregates per *key*, over windows or rolling.

    It reads a stream, or a table's updates behind a repartition. `aggregates` are function and column by name; only
    `select` of them is emitted. `key` is that of the repartition where it reads one.
    """

    kind: ClassVar[str] = "aggregate"
    keeps_keyed_state: ClassVar[bool] = True
    retracts: ClassVar[bool] = True
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "key", "aggregates", "select", "window"})

    key: tuple[str, ...] = ()
    windows: Windows | None = None
    aggregates: Mapping[str, tuple[str, str]]
    select: Mapping[str, str]
    emission: Emission = SAME_INSTANT
    complete: Intervals | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """Its key; none over windows, which end."""
        return () if self.windows else self.key

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True."""
        return True

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns its key."""
        return frozenset({KAFKA_KEY, *self.key})

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns those of its key; all else is calculated."""
        return read[0] & {*self.key}

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns bounds of its own windows, and kept ones of its input."""
        bounds = read[0].bounds
        kept = bounds_among(self.key, bounds)
        # The smallest or newest bound is a bound itself; a sum of bounds is not.
        of_values = {}
        for name, (function, column) in self.aggregates.items():
            if column in bounds and AGGREGATE_FUNCTIONS[function].is_a_value:
                of_values[name] = bounds[column]
        own = {START: START, END: END} if self.windows else {}
        # Results always have their window_start, and its end only if `select` names it.
        shown = {START: START} if self.windows else {}
        emitted = kept | shown | selected_bounds(self.select, kept | of_values | own)
        return WindowColumns(emitted, ResultWindows(self.windows, self.emission.strategy) if self.windows else None)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields misfits with a stream, or a repartition with an id."""
        of = read[self.inputs[0]]
        yield from self._key_mistakes(of)
        if of.name in updates:
            # It would add each update to the value that the update replaces.
            remedy = "put a repartition with an id between them, so that old values are retracted"
            yield Mistake("input", f"reads the updates of {of.name!r}", remedy)
        if isinstance(of, Repartition) and of.id:
            yield from self._mistakes_of_retracting(of)

    def _key_mistakes(self, of: Operator) -> Iterator[Mistake]:
        if isinstance(of, Repartition):
            if self.key and self.key != of.key:
                yield Mistake(
                    "key", f"is {list(self.key)}", f"leave it out: the key of {of.name!r} applies, {list(of.key)}"
                )
        elif not self.key:
            yield Mistake("key", "is missing", 'write key = ["group"], the columns to group by')

    def _mistakes_of_retracting(self, of: Repartition) -> Iterator[Mistake]:
        retracting = sorted(name for name, facts in AGGREGATE_FUNCTIONS.items() if facts.retracts)
        for name, (function, column) in self.aggregates.items():
            if function not in retracting:
                problem = f'is "{function}({column})", which cannot retract a value'
                remedy = f"use {', '.join(retracting)}, or aggregate a stream"
                yield Mistake(f"aggregates.{name}", problem, remedy)
        if self.windows:
            yield Mistake(
                "window", f"is set, but {of.name!r} sends updates of a table", "leave it out, or aggregate a stream"
            )

    def completed(self, read: Mapping[str, Operator], columns: WindowColumns) -> Self:
        """Returns it with the key of the repartition that it reads."""
        of = read[self.inputs[0]]
        return replace(self, key=of.key) if isinstance(of, Repartition) else self

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads an aggregate from its table of the file."""
        calls = _calls(keys)
        windows = read_windows(keys)
        return cls(
            **common,
            inputs=(keys.text("input", "by_group"),),
            key=keys.names("key", '["group"]', ()),
            windows=windows,
            aggregates=MappingProxyType(calls),
            select=keys.columns("select", '{ n = "n" }', {name: name for name in calls}),
            emission=read_emission(keys, Rule.SAME_INSTANT, windowed=windows is not None),
            complete=read_complete(keys),
        )


def _calls(keys: Keys) -> dict[str, tuple[str, str]]:
    """Reads function and column of each aggregate, by name."""
    calls = {}
    for name, text in keys.columns("aggregates", '{ n = "count(*)" }').items():
        call = parsed_call(text)
        if call is None:
            calls_of_columns = ", ".join(f"{function}(column)" for function in AGGREGATE_FUNCTIONS)
            keys.fail(
                f"aggregates.{name}", f"is {text!r}, which cannot be merged", f"use count(*) or {calls_of_columns}"
            )
        calls[name] = call
    return calls
