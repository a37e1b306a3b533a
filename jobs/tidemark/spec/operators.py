"""What a topology is made of: one frozen value per kind of operator, as the TOML file says it.

Lengths of time are in ms, instants in epoch ms UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy
from tidemark.spec.connections import DEFAULT

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

MAX_FILES = 1_000
"""Of a Delta table a batch takes in no more files, unless the topology says so: Delta's own default."""
MAX_BYTES = 64_000_000
"""Of a table or a folder a batch takes in no more bytes of files, but always one file."""


class Kind(StrEnum):
    """The kinds of operator."""

    SOURCE = "source"
    MAP = "map"
    TABLE = "table"
    JOIN = "join"
    UNION = "union"
    REPARTITION = "repartition"
    AGGREGATE = "aggregate"
    SINK = "sink"


class Level(StrEnum):
    """What latency is written for: nothing; sources and terminals; emission metrics too; stateful operators too.

    When it is off, the batches are accounted for and watermarks kept, and nothing else is measured.
    """

    OFF = "off"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"

    def includes(self, other: Level) -> bool:
        """Whether rows of level *other* are written when this level is set."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class Time(StrEnum):
    """Which time records have: their own, or the instant of the batch that reads them."""

    EVENT = "event"
    PROCESSING = "processing"


class NotANumber(StrEnum):
    """What a source does with a record that has NaN in a field of type double: use it, or quarantine it."""

    KEEP = "keep"
    QUARANTINE = "quarantine"


class Format(StrEnum):
    """How a source's or a sink's records are written."""

    JSON = "json"
    AVRO = "avro"
    CSV = "csv"
    PARQUET = "parquet"


class Decide(StrEnum):
    """How often an operator decides about a key: after each record in offset order, or once per key and batch."""

    RECORD = "record"
    BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class Emission:
    """When the updates of an operator are sent on; `interval_ms` is that of `periodic` alone."""

    strategy: Strategy = Strategy.ON_CHANGE
    rule: Rule = Rule.STRICTLY_NEWER
    decide: Decide = Decide.RECORD
    interval_ms: int | None = None

    @property
    def holds(self) -> bool:
        """Whether updates wait, for the end of a window or of an interval."""
        return self.strategy in {Strategy.ON_WINDOW_CLOSE, Strategy.PERIODIC}


class Shape(StrEnum):
    """The shapes of window."""

    TUMBLING = "tumbling"
    HOPPING = "hopping"
    SESSION = "session"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of record time: *size_ms* is the length of tumbling and hopping ones and the gap that ends a session.

    `hop_ms` is from the start of one to that of the next. Results may change for `allowed_lateness_ms` after the end;
    the states of closed windows are kept for `reopen_for_ms` more, so that they can be corrected on request.
    With a `timezone` (IANA name) lengths are those of its local clock: a day may have 23 or 25 hours.
    """

    shape: Shape
    size_ms: int
    hop_ms: int
    offset_ms: int = 0
    allowed_lateness_ms: int = 0
    timezone: str | None = None
    reopen_for_ms: int | None = None

    @property
    def longest_ms(self) -> int:
        """No window is longer: a local clock may be put back while it is open, by a day at most."""
        return self.size_ms + (DAY_MS if self.timezone else 0)

    @property
    def behind_ms(self) -> int:
        """The results of no window that may still change are about records further behind the watermark."""
        return self.longest_ms + self.allowed_lateness_ms + (self.reopen_for_ms or 0)

    def closed_up_to_ms(self, watermark_ms: int, ended_ms: int | None = None) -> int:
        """The latest end of a window that is closed, as `semantics.watermark.is_window_late` says.

        Windows up to *ended_ms* are, too: `allowed_lateness` was shorter when the watermark passed them.
        """
        closed_ms = watermark_ms + 1 - self.allowed_lateness_ms
        return closed_ms if ended_ms is None else max(closed_ms, ended_ms)

    def forgotten_up_to_ms(self, watermark_ms: int) -> int:
        """The latest end of a closed window whose states are not kept any more."""
        return self.closed_up_to_ms(watermark_ms) - (self.reopen_for_ms or 0)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What every operator has: a name, and the operators whose output it reads."""

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    sub_topology: str | None = None

    @property
    def flows(self) -> tuple[str, ...]:
        """Those of the inputs whose records go through it: all of a union, else the first."""
        return self.inputs if self.kind is Kind.UNION else self.inputs[:1]


@dataclass(frozen=True, kw_only=True)
class Source(Operator):
    """Reads one of a Kafka *topic*, a Delta table (*delta*) or a folder of *files*.

    The topic is one of the cluster *kafka* (spec/connections.py).

    `fields` are its columns with their types, and `named` has those that the record names otherwise: column, field.
    `timestamp` is one of the columns, or None for Kafka's own timestamp. `key` is the field that Kafka's key fills;
    with it a record without a value deletes its key. `other_fields` names the column that takes, as JSON, the fields
    that are not declared. With `idle_advances` time goes on while every partition is idle. `written_by` are the writers
    (`topology/sub-topology`) whose headers and marks of time are believed. A strict source sets aside what is more than
    `allowed_lateness_ms` behind its watermark; None: nothing. A record moves time up to the decision time at most, and
    more than `max_ahead_ms` after that it is quarantined; None: neither. `nan` says what NaN in a double is.
    The time of a tombstone is in the header `tombstone_header`, or in `tombstone_field` of its key, a JSON object; else
    it is the newest of its partition. A batch reads at most `max_records` of a topic, and `max_files` files with
    `max_bytes` of a table or a folder (None: no limit).
    """

    topic: str | None = None
    kafka: str = DEFAULT
    delta: str | None = None
    files: str | None = None
    format: Format = Format.JSON
    avro_schema: str | None = None
    fields: Mapping[str, str]
    named: Mapping[str, str] = field(default_factory=dict)
    timestamp: str | None = None
    timestamp_unit: str = "ms"
    timestamp_range_ms: tuple[int, int]
    bound_ms: int
    idle_after_ms: int | None = None
    idle_advances: bool = False
    allowed_lateness_ms: int | None = None
    max_ahead_ms: int | None = HOUR_MS
    key: str | None = None
    other_fields: str | None = None
    max_records: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None
    written_by: tuple[str, ...] = ()
    nan: NotANumber = NotANumber.KEEP
    tombstone_header: str | None = None
    tombstone_field: str | None = None

    @property
    def field_of(self) -> Mapping[str, str]:
        """Per declared column the name of the record's field that fills it."""
        return {column: self.named.get(column, column) for column in self.fields}

    @property
    def types_of_fields(self) -> Mapping[str, str]:
        """Per field of a record the declared type of its column."""
        return {self.named.get(column, column): word for column, word in self.fields.items()}

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of its records, by name: DDL word."""
        return {**self.fields, **({self.other_fields: "string"} if self.other_fields else {})}


@dataclass(frozen=True, kw_only=True)
class HopSource(Operator):
    """Reads what the *repartition* of another sub-topology wrote; implied, never written in a file."""

    repartition: str
    upstream: str


@dataclass(frozen=True, kw_only=True)
class Map(Operator):
    """Stateless SQL: `select` names expressions, `where` leaves records out.

    With an *emission* it sends on a record only if it differs from the one before of its *key* (the record's own where
    that is empty): in all its columns, or in the SQL expression *identity*.
    """

    select: Mapping[str, str]
    where: str | None = None
    emission: Emission | None = None
    key: tuple[str, ...] = ()
    identity: str | None = None


class NewestBy(StrEnum):
    """Which row of a key is its newest: the one that was read last, or the one of the latest record time."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event_time"


class Beyond(StrEnum):
    """What becomes of a record that asks a table for a version older than its history: the oldest kept, or late."""

    OLDEST = "oldest"
    LATE = "late"


@dataclass(frozen=True, kw_only=True)
class KeyedTable(Operator):
    """The latest value per key.

    For joins its versions are kept for *history_ms* of record time behind the watermark; None: for as long as is usual.
    `newest_by` is None where nobody has said it: then it is by arrival.
    """

    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    emission: Emission = Emission()
    history_ms: int | None = None
    beyond_history: Beyond = Beyond.OLDEST
    newest_by: NewestBy | None = None

    @property
    def is_strict(self) -> bool:
        """Whether a record that asks for a version older than its history is late."""
        return self.beyond_history is Beyond.LATE


@dataclass(frozen=True, kw_only=True)
class Join(Operator):
    """Adds to each record the matching row of *table*, or of a Delta table (*delta*).

    Of an operator's table it is the row that was valid at the record's timestamp, among the rows read so far; of a
    Delta table the newest version. Without a match the columns are null, or the record is left out (*inner*).
    """

    table: str | None = None
    delta: str | None = None
    on: Mapping[str, str]
    inner: bool = False


@dataclass(frozen=True, kw_only=True)
class Union(Operator):
    """Sends on the records of all its inputs, which have the same columns; of a batch, the first input's come first."""


@dataclass(frozen=True, kw_only=True)
class Repartition(Operator):
    """Hands records on by another *key*, to the next sub-topology.

    With an *id* they are updates of a table: each comes with the value of the same id that it replaces. Without, they
    are a stream, and nothing is ever taken back.
    """

    id: tuple[str, ...] = ()
    key: tuple[str, ...]
    columns: tuple[str, ...]
    partitions: int = 1
    emission: Emission = Emission()


@dataclass(frozen=True, kw_only=True)
class Aggregate(Operator):
    """Aggregates per *key*, over windows or rolling: of a stream, or of a table's updates behind a repartition.

    `aggregates` are function and column by name; only `select` of them is emitted. `key` is that of the repartition
    where it reads one.
    """

    key: tuple[str, ...] = ()
    windows: Windows | None = None
    aggregates: Mapping[str, tuple[str, str]]
    select: Mapping[str, str]
    emission: Emission = Emission(rule=Rule.SAME_INSTANT)


@dataclass(frozen=True, kw_only=True)
class SinkWindow:
    """How a sink knows that the *windows* of its rows have ended: *column* is *before_ms* before their end.

    `column` is None where no column tells it. With `is_closed` its rows are results of closed windows only.
    """

    windows: Windows
    is_closed: bool
    column: str | None
    before_ms: int = 0

    def closed_up_to_ms(self, watermark_ms: int | None) -> int | None:
        """The latest value of `column` of a window that is closed at *watermark_ms*; None: none is, or not known."""
        if watermark_ms is None or self.column is None:
            return None
        return self.windows.closed_up_to_ms(watermark_ms) - self.before_ms


@dataclass(frozen=True, kw_only=True)
class Sink(Operator):
    """Writes to a Kafka *topic* of the cluster *kafka*, or to a Delta *table*: appends, or keeps current rows by *key*.

    With `marks` its topic gets marks of time (kernels/marks.py), at most one each `mark_every_ms` and partition. Each
    commit of a table has one; where there are no rows a table that is appended to gets it by a commit of its own.
    With `last_seen_at` the row of a key says when the key was last asserted, by updates that were suppressed too.
    `bounds` are its columns that are bounds of windows (window_start | window_end), and
    `window` those of which its table's rows are results: both follow from the operators that it reads.
    """

    topic: str | None = None
    kafka: str = DEFAULT
    format: Format = Format.JSON
    avro_schema: str | None = None
    table: str | None = None
    key: tuple[str, ...] = ()
    marks: bool = False
    mark_every_ms: int = 10_000
    last_seen_at: bool = False
    bounds: Mapping[str, str] = field(default_factory=dict)
    window: SinkWindow | None = None

    @property
    def tells_time(self) -> bool:
        """Whether its readers learn how far time has come where there are no rows."""
        return self.marks or (self.table is not None and not self.key)


def emission_of(operator: Operator) -> Emission | None:
    """When the updates of *operator* are sent on; None when it judges none."""
    match operator:
        case KeyedTable() | Aggregate() | Map():
            return operator.emission
        case Repartition():
            return operator.emission if operator.id else None
        case _:
            return None


def latency_level(operator: Operator, terminals: frozenset[str]) -> Level | None:
    """The level at which an operator's latency is written: sources and terminals, stateful ones, or never (KIP-613)."""
    if operator.kind is Kind.SOURCE or operator.name in terminals:
        return Level.INFO
    return Level.TRACE if emission_of(operator) else None
