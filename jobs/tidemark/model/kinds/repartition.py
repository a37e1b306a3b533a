"""The kind `repartition`: records passed on by another key, through a hop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from tidemark.model.kinds.operator import ORDERED, DeclaredOperator, Mistake, Operator
from tidemark.model.kinds.source import Source
from tidemark.model.settings.emission import Emission, read_emission
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.window_columns import WindowColumns, bounds_among
from tidemark.semantics.change import Rule


@dataclass(frozen=True, kw_only=True)
class Repartition(DeclaredOperator):
    """Passes records by another *key* to the next sub-topology.

    With an *id* they are updates of a table: each comes with the value of the same id that it replaces. Without an id
    they are a stream, nothing is ever retracted, and there is no emission.
    """

    kind: ClassVar[str] = "repartition"
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
        """Names the key with which it passes on deletions."""
        return "they are deletions, which a repartition passes on only if it has an `id`"

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False: with an id its records carry the replaced values.

        Readers must retract these.
        """
        return False

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the columns of the order that it passes on."""
        return read if read is ORDERED else read & {*self.key, *self.columns}

    def renamed(self, names: Mapping[str, str]) -> Mapping[str, str] | None:
        """Returns *names*; None with an id: it may suppress updates."""
        return None if self.id else names

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns those that it sends on."""
        return read[0] & {*self.key, *self.columns}

    def window_columns(self, read: Sequence[WindowColumns]) -> WindowColumns:
        """Returns the bounds that it passes on."""
        bounds = bounds_among((*self.key, *self.columns, *self.id), read[0].bounds)
        return WindowColumns(bounds, None if self.id else read[0].results)

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Yields that it reads updates and has no id."""
        if not self.id and self.inputs[0] in updates:
            remedy = 'give it an id, such as id = ["id"], so that an old value can be retracted'
            yield Mistake("id", f"is missing, but {self.inputs[0]!r} sends updates", remedy)

    def mistakes_of_reader(self, reader: Operator) -> Iterator[Mistake]:
        """Yields that *reader* cannot retract."""
        if self.id and not reader.retracts:
            problem = f"is of kind {reader.kind} and reads the table updates of {self.name!r}"
            yield Mistake("", problem, "let an aggregate read it, or remove its id to send a stream")

    def mistakes_by_readers(self, readers: Collection[Operator]) -> Iterator[Mistake]:
        """Yields that no operator reads it."""
        if not readers:
            yield Mistake("", "is read by no operator", "let another operator read it, or remove it")

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a repartition from its table of the file."""
        partitions = keys.get("partitions", int, "2", 1)
        if partitions < 1:
            keys.fail("partitions", f"is {partitions}", "use 1 or more")
        id_ = keys.names("id", '["id"]', ())
        return cls(
            **common,
            inputs=(keys.text("input", "events"),),
            id=id_,
            key=keys.names("key", '["group"]'),
            columns=keys.names("columns", '["amount"]'),
            partitions=partitions,
            emission=read_emission(keys, Rule.STRICTLY_NEWER) if id_ else None,
        )


@dataclass(frozen=True, kw_only=True)
class HopSource(Operator):
    """Reads the hop of a *repartition* of the sub-topology *upstream*.

    It is implied, never written in a file.
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
