"""The kind `join`: a table's row added to each record."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.window_columns import WindowColumns


@dataclass(frozen=True, kw_only=True)
class Join(DeclaredOperator):
    """Adds to each record the matching row of *table*, or of *delta*.

    From an operator's table it is the row that was valid at the record's timestamp, among the rows read so far; from a
    Delta table that of the newest version. Without a match the columns are null, or the record is left out (*inner*).
    """

    kind: ClassVar[str] = "join"
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
        """Names the side without a match."""
        return f"look at `on` and at the rows of {self.table or self.delta}, or use how = left"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it reads updates, which it sends on."""
        return reads_updates

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*: all columns of a record keep theirs."""
        return names

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns those of both sides."""
        return frozenset().union(*read)

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds of both sides, and the first input's results."""
        stream, *table = read
        joined = table[0].bounds if table else {}
        return WindowColumns({**joined, **stream.bounds}, stream.results)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields that the other side is not a table."""
        if self.table is not None and not isinstance(read[self.table], KeyedTable):
            yield Mistake("table", f"is the {read[self.table].kind} {self.table!r}", "name a table")

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a join from its table of the file."""
        place = keys.one_of({"table": "weather_now", "delta": "reference/airports"})
        # A Delta table is no operator, and so no input.
        inputs = (keys.text("input", "events"), *filter(None, [place.get("table")]))
        how = keys.text("how", "left", "left", form={"enum": ["left", "inner"]})
        if how not in {"left", "inner"}:
            remedy = "use left (columns without a match are null) or inner (the record is dropped)"
            keys.fail("how", f"is {how!r}", remedy)
        return cls(**common, **place, inputs=inputs, on=keys.mapping("on", '{ id = "id" }'), inner=how == "inner")
