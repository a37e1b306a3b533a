"""Describes the kind `sink`, which writes to a topic or Delta table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from tidemark.model.kinds.kafka_end import (
    TOPIC_FORMATS,
    Format,
    KafkaEnd,
    formats_written,
    of_a_cluster,
    schema_text,
    with_headers,
)
from tidemark.model.kinds.operator import INPUT, ArrivalOrder, Mistake, Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.model.project.connections import DEFAULT
from tidemark.model.project.layout import CHANGES_OF
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, has_word, needs
from tidemark.model.settings.declared_tables import Key, Values, defaulted, optional
from tidemark.model.settings.value_types import refuse
from tidemark.model.settings.window_columns import SinkWindow, WindowColumns, sink_window
from tidemark.model.settings.windows import COMPLETE, intervals_of
from tidemark.model.tables.catalog import TABLES
from tidemark.semantics.completeness import Intervals


class Partitioner(StrEnum):
    """The hash of a key that decides its partition of a topic."""

    MURMUR2 = "murmur2"
    """As Java's client does, and librdkafka with `murmur2_random`."""
    CRC32 = "crc32"
    """As librdkafka does by default, `consistent_random`."""


APPEND, CURRENT = "append", "current"
"""The words of `mode`."""


def _free_name(table: str, *_: str) -> str:
    # The tables of sinks lie in one folder with the engine's own.
    if table in TABLES or table.startswith(("hop_", CHANGES_OF)):
        refuse(f"is {table!r}, which is reserved for Tidemark's tables", "choose another name")
    return table


TOPIC = optional(
    "topic",
    value_types.text(),
    example='"alerts"',
    meaning=(
        "a Kafka topic, at least once. Each record has a header `tidemark-id`, by which consumers drop repeats (a "
        "source: with `written_by`). It replaces such a header of the input; other headers, and keys, are kept. A "
        "new warehouse needs a new topology name; otherwise consumers drop its records as repeats"
    ),
)
KAFKA = defaulted(
    "kafka",
    value_types.name(),
    example='"eu"',
    default=DEFAULT,
    meaning="with `topic`: the Kafka cluster, here `[kafka.eu]` ([connections.md](connections.md))",
    needs=[of_a_cluster(TOPIC)],
)
TRACES = defaulted(
    "traces",
    value_types.flag(),
    example="true",
    default=False,
    meaning=(
        "with `topic`: each record has a header `traceparent` (W3C) with the span of its batch, in place of "
        "`traceparent` and `tracestate` of the input; see [spans](metrics.md#spans). Without it these headers are kept"
    ),
    needs=[with_headers(TOPIC)],
)
FORMAT = defaulted(
    "format",
    value_types.word(lambda: [Format.JSON, Format.AVRO, *formats_written()]),
    example='"json"',
    default=Format.JSON.value,
    meaning="with `topic`: `json`, `avro`, or [what a package adds](extending.md#tidemarkformats)",
    needs=[needs(given(TOPIC), because="only records of a topic have a format")],
)
SCHEMA = optional(
    "schema",
    value_types.text(),
    example='"alerts.avsc"',
    meaning=(
        "the file with the schema, in the folder of this file. A record that does not fit is quarantined at this sink"
    ),
    needs=[needs(has_word(FORMAT, Format.AVRO.value))],
    required_if=needs(has_word(FORMAT, Format.AVRO.value), given(TOPIC), because="it is a file beside this one"),
)
PARTITIONER = defaulted(
    "partitioner",
    value_types.choice(Partitioner),
    example='"crc32"',
    default=Partitioner.MURMUR2.value,
    meaning=(
        "with `topic`: the hash of a record's key that decides its partition, so that topics which other programs "
        "write can be joined partition by partition. `murmur2`: as Java's client, Kafka Streams and Flink do by "
        "default, and librdkafka with its own `partitioner` `murmur2` or `murmur2_random`. `crc32`: as librdkafka "
        "does by default (`consistent_random`), and so the clients for Python, Go, C# and Node that are built on "
        "it. The other partitioners of librdkafka (`fnv1a`, `random` …) are not known here. A record without a "
        "key (with `crc32` also one with an empty key) has the partition that its number in the batch decides, so "
        "that it goes to the same one when it is sent again"
    ),
    needs=[needs(given(TOPIC), because="only a topic has partitions")],
)
MARKS = defaulted(
    "marks",
    value_types.flag(),
    example="true",
    default=False,
    meaning=(
        "with `topic`: sends marks of time, so that readers get the watermark while every update is suppressed, "
        "see below. Not for compacted topics: the driver refuses them, and so does `tidemark check`, which asks "
        "the broker of `--bootstrap` (it must answer), or else that of `tidemark up` if it runs"
    ),
    needs=[needs(given(TOPIC), because="a table that appends always has marks, in its commits")],
)
MARK_EVERY = defaulted(
    "mark_every",
    value_types.length(),
    example='"10 s"',
    default="10 s",
    meaning=(
        "with `marks`, and for a table with `append`: the shortest time between two marks of a partition, or "
        "between two commits without rows. They are written only if the watermark or the status has changed"
    ),
)
TABLE = optional(
    "table",
    value_types.name().then(_free_name),
    example='"board"',
    meaning="a Delta table, exactly once",
)
MODE = defaulted(
    "mode",
    value_types.word((APPEND, CURRENT)),
    example='"current"',
    default=APPEND,
    meaning="with `table`: `append` adds every record; `current` keeps the current row of each key",
    needs=[needs(given(TABLE), because="records are appended to a topic")],
)
_KEEPS_CURRENT_ROWS = needs(has_word(MODE, CURRENT))
KEY = optional(
    "key",
    value_types.texts(),
    example='["device"]',
    meaning="with `current`: the columns of the key",
    needs=[_KEEPS_CURRENT_ROWS],
    required_if=_KEEPS_CURRENT_ROWS,
)
REFRESH = defaulted(
    "refresh",
    value_types.length(zero=True),
    example='"5 min"',
    default="1 min",
    meaning=(
        'with `current`: how often changes are merged into the files of the table; `"0 s"`: in each batch. See below'
    ),
    needs=[_KEEPS_CURRENT_ROWS],
)
LAST_SEEN_AT = defaulted(
    "last_seen_at",
    value_types.flag(),
    example="true",
    default=False,
    meaning=(
        "with `current`, downstream of a `table`, an `aggregate` or a `map` with a strategy: a column "
        "`last_seen_at` with the newest record time of each key, including suppressed updates; see below"
    ),
    needs=[_KEEPS_CURRENT_ROWS],
)


def _refuse_times_of_no_marks(values: Values) -> None:
    """Refuses `mark_every` for a sink that writes no marks."""
    if not values.has(MARK_EVERY):
        return
    if values[MODE] == CURRENT:
        problem = f"is set, but mode is {CURRENT!r}"
        values.fail(MARK_EVERY, problem, "leave it out: a table with current rows has no marks of time")
    if values[TOPIC] is not None and not values[MARKS]:
        values.fail(MARK_EVERY, "is set, but marks is not true", "write marks = true, or leave it out")


def _refuse_schema(values: Values) -> None:
    schema_text(values, SCHEMA)


@dataclass(frozen=True, kw_only=True)
class Sink(KafkaEnd):
    """Writes records to a Kafka topic, or rows to a Delta table.

    Attributes:
        table: the Delta table; None for a topic.
        key: the columns of which the table keeps the current row; empty if it gets a row for each record.
        partitioner: decides the partition of a record in a topic.
        marks: the topic gets marks of time (kernels/records/marks.py). A table has one in each commit.
        mark_every_ms: the shortest time between two marks of a partition, or between two commits of a table that have a
            mark and no rows.
        last_seen_at: the current row of a key has the time of the key's newest update, suppressed or not.
        refresh_ms: how often current rows are merged into the table; until then they are in `appends_to`.
        bounds: by column that is the bound of a window, which one it is: window_start or window_end. This follows from
            the operators that it reads, as does `window`.
        window: the windows whose results the rows are; None if they are none of one aggregate.
        complete: the intervals of the table that can be complete; None without such intervals.
    """

    kind: ClassVar[str] = "sink"
    keys: ClassVar[tuple[Key[Any], ...]] = (
        INPUT,
        TOPIC,
        KAFKA,
        TRACES,
        FORMAT,
        SCHEMA,
        PARTITIONER,
        MARKS,
        MARK_EVERY,
        TABLE,
        MODE,
        KEY,
        REFRESH,
        COMPLETE,
        LAST_SEEN_AT,
    )
    one_of: ClassVar[tuple[tuple[Key[Any], ...], ...]] = ((TOPIC, TABLE),)
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (_refuse_times_of_no_marks, _refuse_schema)
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
        """All of its inputs, of which the sink of a recorded query has several."""
        return self.inputs

    @property
    def tells_time(self) -> bool:
        """True if readers see its watermark advance without new rows."""
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
        """Returns its key, with a remedy, if it keeps current rows of events."""
        if not self.key or reads_updates:
            return None
        return ArrivalOrder(self.key, "let it read a table with newest_by")

    def mistakes(self, read: Mapping[str, Operator], updates: Collection[str]) -> Iterator[Mistake]:
        """Refuses `last_seen_at` if the input suppresses nothing."""
        upstream = read[self.inputs[0]]
        if self.last_seen_at and upstream.emission is None:
            problem = f"is true, but it reads the {upstream.kind} {upstream.name!r}, which suppresses nothing"
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
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a sink of the values of its table."""
        return cls(
            **common,
            topic=values[TOPIC],
            kafka=values[KAFKA],
            traces=values[TRACES],
            format=values[FORMAT] if values[FORMAT] in TOPIC_FORMATS else Format(values[FORMAT]),
            avro_schema=schema_text(values, SCHEMA),
            partitioner=values[PARTITIONER],
            marks=values[MARKS],
            mark_every_ms=values[MARK_EVERY],
            inputs=(values[INPUT],),
            table=values[TABLE],
            key=values.get(KEY, ()),
            refresh_ms=values[REFRESH],
            last_seen_at=values[LAST_SEEN_AT],
            complete=intervals_of(values[COMPLETE]),
        )


KINDS.register(Sink.kind, Sink)
