"""The kind `join`: a table's row added to each record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import INPUT, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.registry import register
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional, required
from tidemark.model.settings.value_types import refuse
from tidemark.model.settings.window_columns import WindowColumns


def _how(word: str, *_: str) -> str:
    if word not in {"left", "inner"}:
        remedy = "use left (columns without a match are null) or inner (the record is dropped)"
        refuse(f"is {word!r}", remedy)
    return word


TABLE = optional(
    "table",
    value_types.text(),
    example='"device_now"',
    meaning=(
        "a `table` operator: joins the row that was valid at the record's time, among those that were read so far and "
        "that `history` keeps. A source that feeds only such tables never holds the watermark back"
    ),
)
DELTA = optional(
    "delta",
    value_types.text(),
    example='"reference/devices"',
    meaning=(
        "a Delta table, relative to the warehouse: its newest version, [see below](#a-delta-table-that-others-write)"
    ),
)
ON = required(
    "on",
    value_types.mapping(),
    example='{ device = "device" }',
    meaning="pairs of equal columns: of the record, and of the row",
)
HOW = defaulted(
    "how",
    value_types.text({"enum": ["left", "inner"]}).then(_how),
    example='"inner"',
    default="left",
    meaning="`left`: null columns where there is no row; `inner`: drops the record",
)


@register
@dataclass(frozen=True, kw_only=True)
class Join(DeclaredOperator):
    """Adds to each record the matching row of the operator *table*, or of the Delta table *delta*.

    The row of an operator is the one that was valid at the record's timestamp, among the rows read so far. The row of a
    Delta table is that of its newest version. A record without a match gets null columns, or is dropped (*inner*).
    """

    kind: ClassVar[str] = "join"
    keys: ClassVar[tuple[Key[Any], ...]] = (INPUT, TABLE, DELTA, ON, HOW)
    one_of: ClassVar[tuple[tuple[Key[Any], ...], ...]] = ((TABLE, DELTA),)
    is_checked_in_part: ClassVar[bool] = False
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "table", "delta", "on"})

    table: str | None = None
    delta: str | None = None
    on: Mapping[str, str]
    inner: bool = False

    @property
    def joined_table(self) -> str | None:
        """The operator whose rows it adds; None for a Delta table."""
        return self.table

    @property
    def joined_delta(self) -> str | None:
        """The Delta table whose rows it adds; None for an operator's table."""
        return self.delta

    @property
    def remedy_if_filtered(self) -> str:
        """Names the table that has no matching row."""
        return f"look at `on` and at the rows of {self.table or self.delta}, or use how = left"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it reads updates, which it sends on."""
        return reads_updates

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*: all columns of a record keep theirs."""
        return names

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the event times of both sides."""
        return frozenset().union(*read)

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds of both sides. Its records are results of the same windows as those of its first input."""
        stream, *table = read
        joined = table[0].bounds if table else {}
        return WindowColumns({**joined, **stream.bounds}, stream.results)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields a mistake if *table* is an operator of another kind."""
        if self.table is not None and not isinstance(read[self.table], KeyedTable):
            yield Mistake("table", f"is the {read[self.table].kind} {self.table!r}", "name a table")

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a join of the values of its table."""
        table = values[TABLE]
        # A Delta table is no operator, and so no input.
        inputs = (values[INPUT],) if table is None else (values[INPUT], table)
        return cls(
            **common, table=table, delta=values[DELTA], inputs=inputs, on=values[ON], inner=values[HOW] == "inner"
        )
