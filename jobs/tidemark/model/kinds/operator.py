"""The base of all operator kinds: the questions about an operator.

A kind is one file of this folder. Its value answers by overriding what is below, so that
no other module compares kinds. Lengths of time are in ms, instants in epoch ms UTC.
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
    """Levels of latency rows.

    `off`: none, although batches are accounted for and watermarks kept. `info`: sources and terminal operators.
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
    """The problem of an operator in a topology file, and the remedy.

    The *key* is below the operator; an empty one stands for the whole operator.
    """

    key: str
    problem: str
    remedy: str


class ArrivalOrder(NamedTuple):
    """The record of a *key* that arrives last is kept.

    An empty key is the record's own; *remedy* is for a mixed order.
    """

    key: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Operator(ABC):
    """The common part of every operator.

    It has its name, and the operators of its sub-topology that it reads.
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
        """True if records may be late for a join that looks it up as a table."""
        return False

    @property
    def joined_delta(self) -> str | None:
        """The Delta table that it looks up, or None."""
        return None

    @property
    def remedy_if_filtered(self) -> str:
        """What to do where updates that it leaves out should go on; by default it leaves out deletions alone."""
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
        """How far behind the watermark it accepts records; None: any."""
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
        """Its `result_table`, or its own name: what `completeness` calls it."""
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
        """True if it hands each record to readers outside."""
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
        """True if it reads suppressed updates, too.

        They show when a key was last seen.
        """
        return False

    @abstractmethod
    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns True if its records are updates of a table, not events.

        Each update replaces the one before of its key.
        """

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the columns whose equal values have one order of records.

        *read* has those of its first input.
        """
        return read

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns key and remedy if it keeps a key's last arrived record."""
        return None

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names* of columns as it passes them on.

        They are by their first name.

        None unless it passes every record.
        """
        return None

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the columns that have the event time of a record as a source read it, under any name.

        *read* has those of each operator that it reads, across hops too.
        """
        return read[0] if read else frozenset()

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds of windows in its records.

        *read* has those of each input.
        """
        return read[0] if read else WindowColumns()

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields mistakes about the operators that it reads, by name.

        *updates* names those that send updates.
        """
        return iter(())

    def mistakes_of_reader(self, reader: Operator) -> Iterator[Mistake]:
        """Yields why *reader* cannot read it; the keys are the reader's."""
        return iter(())

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields its mistakes if *readers* are all that read it."""
        return iter(())

    def completed(self, read: Mapping[str, Operator], columns: WindowColumns) -> Self:
        """Returns it with the fields that follow from its inputs.

        These are the operators *read*, and its window *columns*.
        """
        return self

    def on_processing_time(self) -> Operator:
        """Returns it as it runs on processing time, beside the topology itself."""
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
    """Its other keys are checked even if its columns are open."""

    @classmethod
    def table_kind(cls) -> TableKind:
        """Returns the keys of its table, with what is declared about several of them."""
        return TableKind(name=cls.kind, key=KIND, word=cls.kind, keys=cls.keys, one_of=cls.one_of, rules=cls.rules)

    @classmethod
    @abstractmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes one of the *values* of its table; *common* are its fields of `Operator`."""


def latency_level(operator: Operator, terminals: frozenset[str]) -> Level | None:
    """Returns the level at which latency is written, or None (KIP-613)."""
    # KIP-613 has the same levels: INFO for sources and terminals, TRACE for stateful operators.
    if operator.is_source or operator.name in terminals:
        return Level.INFO
    return Level.TRACE if operator.emission else None
