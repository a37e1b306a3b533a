"""The base of all kinds of operators: what the rest of Tidemark asks an operator, which docstrings here call *it*.

A kind is one file of this folder. Its class answers a question by overriding the method, so that no other module
compares kinds. Lengths of time are in ms, instants in epoch ms UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, TableKind, Values, required
from tidemark.model.settings.emission import Emission
from tidemark.model.settings.window_columns import WindowColumns
from tidemark.model.settings.windows import Windows
from tidemark.semantics.completeness import Intervals

KAFKA_KEY = "_key"
"""Stands for the record's own key among the columns of an order."""
PARTITION = "partition"
"""Stands for the partition of a record among the columns of `groups`."""
ORDERED = frozenset({"*"})
"""Stands for all columns: the records are in one order."""


class Level(StrEnum):
    """How much is measured of latency. Each level includes those before it.

    `off`: nothing, although batches are accounted for and watermarks kept. `info`: sources and terminal operators.
    `debug`: emission metrics, too. `trace`: stateful operators, too.
    """

    OFF = "off"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"

    def includes(self, other: Level) -> bool:
        """Returns True if rows of level *other* are written at this level."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class Mistake(NamedTuple):
    """What is wrong with an operator in a topology file, and what to do.

    *key* is the wrong key in the operator's table. It is empty if the whole operator is wrong.
    """

    key: str
    problem: str
    remedy: str


class ArrivalOrder(NamedTuple):
    """Says that an operator keeps, of the records with equal values of *key*, the one that arrived last.

    An empty *key* stands for the record's own key. *remedy* says what to do if several partitions have such records, so
    that it is left to chance which one arrives last.
    """

    key: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """What all operators have in common.

    *inputs* are the operators of its sub-topology that it reads. *sub_topology* is the name that the file gives the
    sub-topology at this operator, or None.
    """

    kind: ClassVar[str]
    """The word that the topology file and the tables use."""
    is_source: ClassVar[bool] = False
    """Its records come from outside of its sub-topology."""
    hands_out: ClassVar[bool] = False
    """Its rows leave the sub-topology, by a commit of its own."""
    reads_outside: ClassVar[bool] = False
    """Its records come from outside of the topology."""
    keeps_keyed_state: ClassVar[bool] = False
    """It keeps a state per key, which tasks can share out."""
    retracts: ClassVar[bool] = False
    """It can read updates with the values that they replace."""

    name: str
    inputs: tuple[str, ...] = ()
    sub_topology: str | None = None

    @property
    def flows(self) -> tuple[str, ...]:
        """The inputs whose records go through it, without looked-up tables."""
        return self.inputs[:1]

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The operators that it reads, across hops too."""
        return self.inputs

    @property
    def upstream_flows(self) -> tuple[str, ...]:
        """The operators whose records go through it, across hops too."""
        return self.flows

    @property
    def joined_table(self) -> str | None:
        """The operator that it looks up as a table, or None."""
        return None

    @property
    def is_strict(self) -> bool:
        """True if a record is late for a join with this table when it is older than the rows that the table keeps."""
        return False

    @property
    def joined_delta(self) -> str | None:
        """The Delta table that it looks up, or None."""
        return None

    @property
    def remedy_if_filtered(self) -> str:
        """What to do if it leaves out updates that should be sent on. By default these are only deletions."""
        return "they are deletions, which have no values that it could use: no action is needed"

    @property
    def hop_of(self) -> str | None:
        """The repartition whose hop it reads, or None."""
        return None

    @property
    def is_watched(self) -> bool:
        """True if the fields of its records are watched."""
        return False

    @property
    def topic_read(self) -> str | None:
        """The topic that it reads, or None."""
        return None

    @property
    def key_field(self) -> str | None:
        """The column that Kafka's key fills, or None."""
        return None

    @property
    def out_of_order_ms(self) -> int:
        """How far records of a partition may be out of order."""
        return 0

    @property
    def windows(self) -> Windows | None:
        """The windows over which it aggregates, or None."""
        return None

    @property
    def allowed_lateness_ms(self) -> int | None:
        """How far behind the watermark a record may be to be accepted; None accepts all records."""
        return self.windows.allowed_lateness_ms if self.windows else None

    @property
    def complete(self) -> Intervals | None:
        """The intervals of its table that can be complete, or None."""
        return None

    @property
    def emission(self) -> Emission | None:
        """When its updates are sent on; None if it judges no updates."""
        return None

    @property
    def output_table(self) -> str | None:
        """The Delta table of its rows, or None."""
        return None

    @property
    def hop_table(self) -> str | None:
        """Its `output_table` if that is a hop, or None."""
        return None

    @property
    def result_table(self) -> str | None:
        """Its `output_table` for readers outside of the topology, or None."""
        return None if self.hop_table else self.output_table

    @property
    def table_name(self) -> str:
        """What the rows of `completeness` call its table: the name of its `result_table`, or else its own name."""
        return self.result_table or self.name

    @property
    def appends_to(self) -> str | None:
        """The Delta table to which a batch appends its rows, or None."""
        return self.output_table

    @property
    def topic_written(self) -> str | None:
        """The topic that it writes, or None."""
        return None

    @property
    def appends_each_record(self) -> bool:
        """True if readers outside of the topology get each record, and not only the current row of a key."""
        return False

    @property
    def keeps_row_of_key(self) -> bool:
        """True if it keeps the last or current row of each key."""
        return self.emission is not None

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns by which SLAs can group its newest record times."""
        return ()

    @property
    def last_seen_at(self) -> bool:
        """True if it also reads suppressed updates, which show when a key was last seen."""
        return False

    @abstractmethod
    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if it sends updates of a table, and not events: an update replaces the one before of its key.

        *reads_updates* says whether its input sends updates.
        """

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the columns by which its records are in order: those that agree in one of the columns are.

        *read* has these columns of its first input.
        """
        return read

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns the key of which it keeps the record that arrived last, with a remedy; None if it keeps none."""
        return None

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns the names of columns in its output, by the names that they had first; None if it drops records.

        *names* has the names that the columns have in its input, also by their first names.
        """
        return None

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the columns that have the event time of a record as a source read it, under any name.

        *read* has these columns of each operator that it reads, across hops too.
        """
        return read[0] if read else frozenset()

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns which columns of its records are bounds of windows.

        *read* has the same of each input.
        """
        return read[0] if read else WindowColumns()

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields why it cannot read its inputs.

        *read* has the inputs by name. *updates* are the operators of the topology that send updates.
        """
        return iter(())

    def mistakes_of_reader(self, reader: Operator) -> Iterator[Mistake]:
        """Yields why *reader* cannot read it, as mistakes in the table of *reader*."""
        return iter(())

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields the mistakes that show in who reads it. *readers* are all operators that do."""
        return iter(())

    def completed(self, read: Mapping[str, Operator], columns: WindowColumns) -> Self:
        """Returns the operator with the fields that follow from its inputs.

        *read* has the inputs by name, with such fields already. *columns* is the result of `window_columns`.
        """
        return self

    def on_processing_time(self) -> Operator:
        """Returns the operator as it runs in a copy of the topology on processing time."""
        return self


KIND = "kind"
"""The name of the key that has the word of a kind."""
INPUT = required("input", value_types.text(), example='"readings"', meaning="the operator it reads")
"""The key of the only operator that most kinds read."""


@dataclass(frozen=True, kw_only=True)
class DeclaredOperator(Operator):
    """An operator that has a table in a topology file."""

    keys: ClassVar[tuple[Key[Any], ...]]
    """The keys of its table, beside those of every kind."""
    one_of: ClassVar[tuple[tuple[Key[Any], ...], ...]] = ()
    """Groups of its keys of which a table has exactly one."""
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = ()
    """Refuse what follows from several of its keys (settings/declared_tables.py)."""
    shaping: ClassVar[frozenset[str]]
    """The keys that decide its inputs and output columns."""
    is_checked_in_part: ClassVar[bool] = True
    """Its other keys are checked even if a mistake leaves its output columns unknown."""

    @classmethod
    def table_kind(cls) -> TableKind:
        """Returns the keys of its table, with what is declared about several of them."""
        return TableKind(name=cls.kind, key=KIND, word=cls.kind, keys=cls.keys, one_of=cls.one_of, rules=cls.rules)

    @classmethod
    @abstractmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes an operator of the *values* of its table. *common* are the fields that all operators have."""


def latency_level(operator: Operator, terminals: frozenset[str]) -> Level | None:
    """Returns the lowest level at which the latency of *operator* is written; None if it never is."""
    # KIP-613 has the same levels: INFO for sources and terminals, TRACE for stateful operators.
    if operator.is_source or operator.name in terminals:
        return Level.INFO
    return Level.TRACE if operator.emission else None
