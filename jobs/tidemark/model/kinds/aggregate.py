"""The kind `aggregate`: values per key, over windows or rolling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import INPUT, KAFKA_KEY, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.registry import register
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.settings import value_types
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS, parsed_call
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import Key, Values, inner_table, optional, required
from tidemark.model.settings.emission import HOW_TO_SEND, STRATEGY, Emission, emission_keys
from tidemark.model.settings.value_types import refuse
from tidemark.model.settings.window_columns import (
    END,
    START,
    ResultWindows,
    WindowColumns,
    bounds_among,
    selected_bounds,
)
from tidemark.model.settings.windows import COMPLETE, SESSION, WINDOW_FORM, Windows, intervals_of, windows_of
from tidemark.semantics.change import Rule
from tidemark.semantics.completeness import Intervals

SAME_INSTANT = Emission(rule=Rule.SAME_INSTANT)
"""The default emission of an aggregate."""


def _calls(texts: Mapping[str, str], *_: str) -> Mapping[str, tuple[str, str]]:
    """Returns function and column of each aggregate, by name."""
    calls: dict[str, tuple[str, str]] = {}
    for name, text in texts.items():
        call = parsed_call(text)
        if call is None:
            calls_of_columns = ", ".join(f"{function}(column)" for function in AGGREGATE_FUNCTIONS)
            refuse(f"is {text!r}, which cannot be merged", f"use count(*) or {calls_of_columns}", part=name)
        calls[name] = call
    return MappingProxyType(calls)


KEY = optional(
    "key",
    value_types.texts(),
    example='["device"]',
    meaning=(
        "columns to group by. Downstream of a `repartition` leave this key out: the columns are those of the "
        "repartition"
    ),
)
AGGREGATES = required(
    "aggregates",
    value_types.columns().then(_calls),
    example='{ n = "count(*)", mean = "avg(temp_c)" }',
    meaning=(
        "`count(*)`, and of a column `count`, `sum`, `avg`, `min`, `max`, `first`, `last` (by record time) and "
        "`approx_distinct` (error 1.6 %). Only `count(*)` counts nulls"
    ),
)
SELECT = optional(
    "select",
    value_types.columns(),
    example="""{ n = "n", kind = "case when mean > 20 then 'warm' else 'cold' end" }""",
    without="the aggregates",
    meaning=(
        "the columns of the result, in SQL over the aggregates, the key, `window_start` and `window_end` (epoch ms)"
    ),
)
WINDOW = inner_table(
    "window",
    WINDOW_FORM,
    example='{ tumbling = "1 min" }',
    meaning="the windows, see below. Without this key the aggregate covers all records since the start",
)
ALLOWED_LATENESS = optional(
    "allowed_lateness",
    value_types.length(zero=True),
    example='"10 s"',
    meaning=(
        "how long after its end a window accepts late records and sends its result again. Then it is closed, and "
        "later records go to `late_records`. Without it a window closes at its end. A longer value opens no "
        "window that was closed before: its state was removed"
    ),
    needs=[needs(given(WINDOW))],
)
REOPEN_FOR = optional(
    "reopen_for",
    value_types.length(),
    example='"1 d"',
    meaning=(
        "of tumbling and hopping windows: for how much longer, in record time, the states of closed windows are "
        "kept, so that `tidemark requeue --late --reopen` can correct their results; see [below](#late-records). "
        "Without it they are removed when the window closes. They cost memory and time at a restart"
    ),
    needs=[needs(given(WINDOW))],
)
EMISSION = emission_keys(replace(STRATEGY, example='"on_window_close"', meaning=HOW_TO_SEND), rule=Rule.SAME_INSTANT)


def _refuse_the_end_of_no_window(values: Values) -> None:
    if values[WINDOW] is None:
        EMISSION.refuse_window_close(values)


def _refuse_reopened_sessions(values: Values) -> None:
    window = values[WINDOW]
    if values[REOPEN_FOR] is not None and window is not None and window[SESSION] is not None:
        remedy = 'leave it out, and give late records time with allowed_lateness = "1 d"'
        values.fail(REOPEN_FOR, "is set for a session, whose bounds depend on all of its records", remedy)


@register
@dataclass(frozen=True, kw_only=True)
class Aggregate(DeclaredOperator):
    """Aggregates the records of each key, in windows or over all records so far.

    It reads a stream, or the updates that a repartition hands on; then `key` is that of the repartition. `aggregates`
    has function and column by name. `select` has the columns of a result, as SQL over the aggregates.
    """

    kind: ClassVar[str] = "aggregate"
    keys: ClassVar[tuple[Key[Any], ...]] = (
        INPUT,
        KEY,
        AGGREGATES,
        SELECT,
        WINDOW,
        ALLOWED_LATENESS,
        REOPEN_FOR,
        COMPLETE,
        *EMISSION.all,
    )
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (_refuse_the_end_of_no_window, _refuse_reopened_sessions)
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
        """Its key. With windows it has none: after the end of its window, a key gets no new records."""
        return () if self.windows else self.key

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True: a result replaces the one before of its key."""
        return True

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns its key."""
        return frozenset({KAFKA_KEY, *self.key})

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the event times among the columns of its key: all other columns are calculated."""
        return read[0] & {*self.key}

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds of its own windows, and the bounds of its input that its results still have."""
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
        """Yields a missing or superfluous key, and what would need old values to be retracted and cannot do that."""
        upstream = read[self.inputs[0]]
        yield from self._key_mistakes(upstream)
        if upstream.name in updates:
            # It would add each update to the value that the update replaces.
            remedy = "put a repartition with an id between them, so that old values are retracted"
            yield Mistake("input", f"reads the updates of {upstream.name!r}", remedy)
        if isinstance(upstream, Repartition) and upstream.id:
            yield from self._mistakes_of_retracting(upstream)

    def _key_mistakes(self, upstream: Operator) -> Iterator[Mistake]:
        if isinstance(upstream, Repartition):
            if self.key and self.key != upstream.key:
                yield Mistake(
                    "key",
                    f"is {list(self.key)}",
                    f"leave it out: the key of {upstream.name!r} applies, {list(upstream.key)}",
                )
        elif not self.key:
            yield Mistake("key", "is missing", 'write key = ["group"], the columns to group by')

    def _mistakes_of_retracting(self, upstream: Repartition) -> Iterator[Mistake]:
        retracting = sorted(name for name, facts in AGGREGATE_FUNCTIONS.items() if facts.retracts)
        for name, (function, column) in self.aggregates.items():
            if function not in retracting:
                problem = f'is "{function}({column})", which cannot retract a value'
                remedy = f"use {', '.join(retracting)}, or aggregate a stream"
                yield Mistake(f"aggregates.{name}", problem, remedy)
        if self.windows:
            yield Mistake(
                "window",
                f"is set, but {upstream.name!r} sends updates of a table",
                "leave it out, or aggregate a stream",
            )

    def completed(self, read: Mapping[str, Operator], columns: WindowColumns) -> Self:
        """Returns the aggregate, with the key of the repartition if it reads one."""
        upstream = read[self.inputs[0]]
        return replace(self, key=upstream.key) if isinstance(upstream, Repartition) else self

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes an aggregate of the values of its table."""
        calls = values[AGGREGATES]
        return cls(
            **common,
            inputs=(values[INPUT],),
            key=values.get(KEY, ()),
            windows=_windows(values),
            aggregates=calls,
            select=values.get(SELECT, {name: name for name in calls}),
            emission=EMISSION.emission(values) or SAME_INSTANT,
            complete=intervals_of(values[COMPLETE]),
        )


def _windows(values: Values) -> Windows | None:
    window = values[WINDOW]
    if window is None:
        return None
    return windows_of(window, allowed_lateness_ms=values[ALLOWED_LATENESS] or 0, reopen_for_ms=values[REOPEN_FOR])
