"""The kind `repartition`: records passed on by another key, through a hop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import INPUT, ORDERED, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.model.kinds.source import Source
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional, required
from tidemark.model.settings.emission import HOW_TO_SEND, STRATEGY, Emission, emission_keys
from tidemark.model.settings.window_columns import WindowColumns, bounds_among

ID = optional(
    "id",
    value_types.texts(),
    example='["device"]',
    meaning=(
        "columns that identify the value that an update replaces. The old value is sent along, and retracted "
        "downstream. Without this key the records are a stream"
    ),
)
KEY = required("key", value_types.texts(), example='["temp_c"]', meaning="the columns of the new key")
COLUMNS = required(
    "columns", value_types.texts(), example='["temp_c"]', meaning="the other columns that are sent along"
)
PARTITIONS = defaulted(
    "partitions",
    value_types.count(),
    example="2",
    default=1,
    meaning="number of partitions of the hop, which the next query reads",
)
_WITH_ID = needs(given(ID))
EMISSION = emission_keys(
    replace(
        STRATEGY,
        meaning=f"with an `id`: {HOW_TO_SEND}. An update without a change is skipped",
        needs=(_WITH_ID,),
    ),
    others_need=[_WITH_ID],
)


@dataclass(frozen=True, kw_only=True)
class Repartition(DeclaredOperator):
    """Passes records on to the next sub-topology by another *key*.

    With an *id* the records are updates of a table: each comes with the value of its id that it replaces. Without one
    the records are a stream: nothing is ever retracted, and there is no emission.
    """

    kind: ClassVar[str] = "repartition"
    keys: ClassVar[tuple[Key[Any], ...]] = (INPUT, ID, KEY, COLUMNS, PARTITIONS, *EMISSION.all)
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (EMISSION.refuse_window_close,)
    hands_out: ClassVar[bool] = True
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "id", "key", "columns"})

    id: tuple[str, ...] = ()
    key: tuple[str, ...]
    columns: tuple[str, ...]
    partitions: int = 1
    emission: Emission | None = None

    @property
    def output_table(self) -> str:
        """The table of its hop."""
        return f"hop_{self.name}"

    @property
    def hop_table(self) -> str:
        """The table of its hop."""
        return self.output_table

    @property
    def remedy_if_filtered(self) -> str:
        """Says that only a repartition with an `id` passes deletions on."""
        return "they are deletions, which a repartition passes on only if it has an `id`"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False: with an id a record has the value that it replaces, and readers must retract that."""
        return False

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns those columns of its input's order that it passes on."""
        return read if read is ORDERED else read & {*self.key, *self.columns}

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*; None with an id, because it may then suppress updates."""
        return None if self.id else names

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the event times among the columns that it passes on."""
        return read[0] & {*self.key, *self.columns}

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that it passes on."""
        bounds = bounds_among((*self.key, *self.columns, *self.id), read[0].bounds)
        return WindowColumns(bounds, None if self.id else read[0].results)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields a mistake if it reads updates and has no id."""
        if not self.id and self.inputs[0] in updates:
            remedy = 'give it an id, such as id = ["id"], so that an old value can be retracted'
            yield Mistake("id", f"is missing, but {self.inputs[0]!r} sends updates", remedy)

    def mistakes_of_reader(self, reader: Operator) -> Iterator[Mistake]:
        """Yields a mistake if it sends updates that *reader* cannot retract."""
        if self.id and not reader.retracts:
            problem = f"is of kind {reader.kind} and reads the table updates of {self.name!r}"
            yield Mistake("", problem, "let an aggregate read it, or remove its id to send a stream")

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields a mistake if no operator reads it."""
        if not readers:
            yield Mistake("", "is read by no operator", "let another operator read it, or remove it")

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a repartition of the values of its table."""
        return cls(
            **common,
            inputs=(values[INPUT],),
            id=values.get(ID, ()),
            key=values[KEY],
            columns=values[COLUMNS],
            partitions=values[PARTITIONS],
            emission=EMISSION.emission(values) if values[ID] else None,
        )


@dataclass(frozen=True, kw_only=True)
class HopSource(Operator):
    """Reads the hop into which *repartition* of the sub-topology *upstream* writes.

    No file declares it: each repartition has one, to which its readers are connected.
    """

    kind: ClassVar[str] = Source.kind
    is_source: ClassVar[bool] = True

    repartition: str
    upstream: str

    @property
    def hop_of(self) -> str:
        """The repartition."""
        return self.repartition

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The repartition."""
        return (self.repartition,)

    @property
    def upstream_flows(self) -> tuple[str, ...]:
        """The repartition."""
        return (self.repartition,)

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False, as its repartition does."""
        return False

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*: all columns of a record keep theirs."""
        return names


KINDS.register(Repartition.kind, Repartition)
