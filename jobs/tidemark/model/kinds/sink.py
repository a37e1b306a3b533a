"""Describes the kind `sink`, which writes to a topic or Delta table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from tidemark.model.kinds.kafka_end import KafkaEnd, read_kafka_end
from tidemark.model.kinds.operator import ArrivalOrder, Mistake, Operator
from tidemark.model.project.layout import CHANGES_OF
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.value_types import IDENTIFIER
from tidemark.model.settings.window_columns import SinkWindow, WindowColumns, sink_window
from tidemark.model.settings.windows import read_complete
from tidemark.model.tables.catalog import TABLES
from tidemark.semantics.completeness import Intervals


class Partitioner(StrEnum):
    """The hash of a key that decides its partition of a topic."""

    MURMUR2 = "murmur2"
    """As Java's client does, and librdkafka with `murmur2_random`."""
    CRC32 = "crc32"
    """As librdkafka does by default, `consistent_random`."""


@dataclass(frozen=True, kw_only=True)
class Sink(KafkaEnd):
    """Writes to a Kafka *topic* or a Delta *table*.

    It appends rows, or keeps the current row of each *key*. `partitioner` places the records of a topic. With `marks`
    its topic gets marks of time (kernels/records/marks.py), at most one per partition in `mark_every_ms`. Each commit
    of a table has a mark; an append-only table without new rows gets it by a commit of its own. A table with current
    rows is merged every `refresh_ms`; until then new rows are in the table `appends_to`. With `last_seen_at` the row of
    a key has the time of the key's newest update, suppressed or not. `bounds` are its columns that are bounds of
    windows (window_start | window_end), and `window` are the windows whose results its rows are. Both follow from the
    operators that it reads.
    """

    kind: ClassVar[str] = "sink"
    hands_out: ClassVar[bool] = True
    shaping: ClassVar[frozenset[str]] = frozenset({"input", "key", "table"})

    table: str | None = None
    key: tuple[str, ...] = ()
    partitioner: Partitioner = Partitioner.MURMUR2
    marks: bool = False
    mark_every_ms: int = 10_000
    last_seen_at: bool = False
    refresh_ms: int = 60_000
    bounds: Mapping[str, str] = field(default_factory=dict)
    window: SinkWindow | None = None
    complete: Intervals | None = None

    @property
    def flows(self) -> tuple[str, ...]:
        """All of its inputs: that of a recorded query has several."""
        return self.inputs

    @property
    def tells_time(self) -> bool:
        """Returns whether readers see its watermark advance without new rows."""
        return self.marks or (self.table is not None and not self.key)

    @property
    def output_table(self) -> str | None:
        """Returns the Delta table that it writes; None for a topic."""
        return self.table

    @property
    def appends_to(self) -> str | None:
        """Returns the table that a batch appends to; None for a topic."""
        return f"{CHANGES_OF}{self.table}" if self.table and self.key else self.table

    @property
    def topic_written(self) -> str | None:
        """The topic that it writes; None for a table."""
        return self.topic

    @property
    def appends_each_record(self) -> bool:
        """True unless it keeps current rows."""
        return not self.key

    @property
    def keeps_row_of_key(self) -> bool:
        """True if it keeps current rows."""
        return bool(self.key)

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False: no operator reads it."""
        return False

    def last_arrived(self, *, reads_updates: bool) -> ArrivalOrder | None:
        """Returns its key if it keeps current rows of events."""
        if not self.key or reads_updates:
            return None
        return ArrivalOrder(self.key, "let it read a table with newest_by")

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Refuses `last_seen_at` if the input suppresses nothing."""
        of = read[self.inputs[0]]
        if self.last_seen_at and of.emission is None:
            problem = f"is true, but it reads the {of.kind} {of.name!r}, which suppresses nothing"
            remedy = "read a table, an aggregate or a map with a strategy, or use the column timestamp"
            yield Mistake("last_seen_at", problem, remedy)

    def mistakes_of_reader(self, reader: Operator) -> Iterator[Mistake]:
        """Refuses every *reader*: a sink has none."""
        yield Mistake("", f"reads the sink {self.name!r}", "read what the sink reads")

    def completed(self, read: Mapping[str, Operator], columns: WindowColumns) -> Self:
        """Returns the sink with the windows of its rows."""
        return replace(self, bounds=dict(columns.bounds), window=sink_window(columns))

    def on_processing_time(self) -> Self:
        """Returns the sink with a table in place of its topic."""
        # Readers of the topic must not see records of processing time.
        return replace(self, topic=None, table=self.name) if self.topic else self

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a sink from its table of the file."""
        place = keys.one_of({"topic": "alerts", "table": "board"})
        table = place.get("table")
        if table is not None and not IDENTIFIER.fullmatch(table):
            keys.fail("table", f"is {table!r}", "use a lower-case letter, then lower-case letters, digits and _")
        # The tables of sinks lie in one folder with the engine's own.
        if table in TABLES or (table or "").startswith(("hop_", CHANGES_OF)):
            keys.fail("table", f"is {table!r}, which is reserved for Tidemark's tables", "choose another name")
        mode = keys.word("mode", ("append", "current"), "append") if table else "append"
        return cls(
            **common,
            **read_kafka_end(keys, place, folder),
            partitioner=_partitioner(keys, place),
            inputs=(keys.text("input", "events"),),
            key=keys.names("key", '["id"]') if mode == "current" else (),
            last_seen_at=_last_seen_at(keys, mode),
            complete=read_complete(keys),
            refresh_ms=_refresh_ms(keys, mode),
            **_marks(keys, place, mode),
        )


def _last_seen_at(keys: Keys, mode: str) -> bool:
    """Reads whether current rows say when their key was last asserted."""
    wanted: bool = keys.get("last_seen_at", bool, "true", False)
    if wanted and mode != "current":
        problem = 'is true, but mode is not "current"'
        keys.fail("last_seen_at", problem, 'write mode = "current" and a key', beside="mode")
    return wanted


def _refresh_ms(keys: Keys, mode: str) -> int:
    """Reads how often a table with current rows is merged."""
    refresh_ms = keys.duration("refresh", "1 min", None, zero=True)
    if refresh_ms is not None and mode != "current":
        keys.fail("refresh", 'is set, but mode is not "current"', 'write mode = "current" and a key', beside="mode")
    return Sink.refresh_ms if refresh_ms is None else refresh_ms


def _partitioner(keys: Keys, place: Mapping[str, str]) -> Partitioner:
    """Reads by which hash the records of a topic are placed."""
    chosen = keys.choice("partitioner", Partitioner, Partitioner.MURMUR2)
    if "partitioner" in keys.content and "topic" not in place:
        keys.fail(
            "partitioner", f"is {chosen.value!r}, but there is no topic", "leave it out: only a topic has partitions"
        )
    return chosen


def _marks(keys: Keys, place: Mapping[str, str], mode: str) -> dict[str, Any]:
    """Reads whether a topic gets marks of time, and how often."""
    if mode == "current":
        return {}
    # An append-only table always gets marks, in the commits of its rows or by a commit of its own.
    marks = keys.get("marks", bool, "true", False) if "topic" in place else False
    every_ms = keys.duration("mark_every", "10 s", None)
    if every_ms is not None and "topic" in place and not marks:
        keys.fail("mark_every", "is set, but marks is not true", "write marks = true, or leave it out", beside="marks")
    return {"marks": marks, "mark_every_ms": every_ms or 10_000}
