"""The kind `source`: records of a topic, a Delta table or files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from tidemark.model.kinds.kafka_end import Format, KafkaEnd
from tidemark.model.kinds.operator import KAFKA_KEY, ORDERED, PARTITION
from tidemark.model.kinds.source_format import read_source_format
from tidemark.model.settings.declared_fields import PATH, decimal_word, digits_of, path_of, split_fields, steps
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.value_types import IDENTIFIER, LENGTH
from tidemark.semantics.progress import Place

HOUR_MS = 3_600_000
MAX_FILES = 1_000
"""Default limit of a table's files per batch: Delta's own."""
MAX_BYTES = 64_000_000
"""Default limit of bytes per batch of a table or a folder.

At least one file is always read.
"""
FIELD_TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp")
TIMESTAMP_UNITS = ("s", "ms", "us", "ns")
TIME_TYPES = ("bigint", "double", "timestamp")
"""Types of the field with the event time, which may also be a decimal."""
UNLIMITED = "unlimited"
"""The value of `max_ahead` where record time is not wall time."""
EARLIEST, LATEST = "earliest", "latest"
"""Values of `starting_offsets` beside instants."""
LIMITS: Mapping[str, Mapping[str, int | None]] = {
    "topic": {"max_records": 200_000},
    "delta": {"max_files": MAX_FILES, "max_bytes": MAX_BYTES},
    "files": {"max_files": None, "max_bytes": MAX_BYTES},
}
"""Limits of a batch by place, with their defaults.

With them a backlog does not fill the driver.
"""

_FIELD = re.compile(
    rf"(?P<column>{IDENTIFIER.pattern})\s+(?P<type>\w+(?:\s*\([^()]*\))?)(?:\s+from\s+(?P<path>{PATH}))?"
)
_WRITER = re.compile(r"[\w.-]+/[\w.-]+")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""The names that Kafka allows for topics."""
_OF_PATTERN = re.compile(
    r"""(?:
        # A character, a set or the end of a group, and how often it may come.
        (?: [\w.-] | \\[.dw] | \[\^?-?(?: [\w.](?:-[\w.])? | \\[.dw] )+-?\] | \) )
        (?: (?: [*+?] | \{\d{1,4}(?:,\d{0,4})?\} ) [?+]? )?
        | [(|^$]
    )+""",
    re.ASCII | re.VERBOSE,
)
"""The form of patterns that Java and Python read alike.

Of other forms one refuses some, for example Java `a{,3}` and Python `a{2}{2}`.
"""
_PLAUSIBLE = '["2000-01-01", "2100-01-01"]'


class NanPolicy(StrEnum):
    """The treatment of records with NaN in a double: use or quarantine."""

    KEEP = "keep"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, kw_only=True)
class Source(KafkaEnd):
    """Reads records of a Kafka topic, a Delta table or files.

    *topic*, *delta* or *files* names the place. Of a source over several topics *topic* is the text for people: the
    names or the pattern. Its input partitions have numbers of their own (decision 81).

    Attributes:
        topics: the topics of a source over a list of them; empty: it has none.
        topic_pattern: the pattern of a source over all topics whose names match it; None: it has none.
        places: of a source over several topics, the partition that each input partition is, by number. It is empty in a
            topology; `with_places` fills it in for a batch.
        fields: its columns with their types.
        named: by column, the path of its field in the record if that is another one (`declared_fields.steps`).
        timestamp: one of the columns; None: Kafka's own timestamp.
        timestamp_unit: of a number.
        timestamp_range_ms: outside of it a record is quarantined.
        bound_ms: how far records of a partition may be out of order.
        idle_after_ms: silence of more than this is idleness; None: never.
        idle_advances: time advances while every partition is idle.
        allowed_lateness_ms: a strict source drops records so far behind its watermark; None: it drops none.
        max_ahead_ms: a record moves time up to the decision time at most, and further ahead than this it is
            quarantined; None: neither.
        key: the field that Kafka's key fills; with it a record without a value deletes its key.
        other_fields: the column for undeclared fields, as JSON.
        max_records: most records of a topic per batch; None: no limit.
        max_files: most files of a table or a folder per batch; None: no limit.
        max_bytes: most bytes of these files; None: no limit.
        written_by: writers (`topology/sub-topology`) whose headers and marks of time are trusted.
        nan: treatment of NaN in a double.
        tombstone_header: header with the time of a tombstone.
        tombstone_field: field of its key, a JSON object, with that time; without either it is the newest of its
            partition.
        descriptors: Protobuf's descriptors of the records, a FileDescriptorSet.
        message: their message in it.
        registry: with the schemas whose ids begin the records; None: they have no ids.
        subject: of the registry, whose latest version is compared with the fields at a start.
        record_limits: what a record may hold; beyond it the record is quarantined.
        written_to_by: of a recorded query: the sinks of other queries that write what it reads.
        was: the name under which it read before; None: it had no other.
        starting_offsets: where a source without progress begins: EARLIEST, LATEST, or at the records that came from an
            instant on, epoch ms; None: the file does not say, and it begins at the earliest.
    """

    kind: ClassVar[str] = "source"
    is_source: ClassVar[bool] = True
    reads_outside: ClassVar[bool] = True
    is_checked_in_part: ClassVar[bool] = False
    shaping: ClassVar[frozenset[str]] = frozenset({"delta", "fields", "key", "other_fields", "timestamp"})

    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    places: tuple[Place, ...] = field(default=(), repr=False)
    delta: str | None = None
    files: str | None = None
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
    nan: NanPolicy = NanPolicy.KEEP
    tombstone_header: str | None = None
    tombstone_field: str | None = None
    descriptors: bytes | None = field(default=None, repr=False)
    message: str | None = None
    registry: str | None = None
    subject: str | None = None
    record_limits: RecordLimits = DEFAULT_LIMITS
    written_to_by: tuple[str, ...] = ()
    was: str | None = None
    starting_offsets: str | int | None = None

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The sinks of recorded queries that write what it reads."""
        return self.written_to_by

    @property
    def upstream_flows(self) -> tuple[str, ...]:
        """The sinks of recorded queries that write what it reads."""
        return self.written_to_by

    @property
    def topic_read(self) -> str | None:
        """The topic that it reads; None for a table or a folder."""
        return self.topic

    @property
    def reads_several(self) -> bool:
        """True if it may read several topics, and numbers partitions itself."""
        return bool(self.topics or self.topic_pattern)

    @property
    def subscribed_pattern(self) -> str:
        """The pattern of the topics of a source over several."""
        return self.topic_pattern or "|".join(name.replace(".", r"\.") for name in self.topics)

    def reads(self, topic: str) -> bool:
        """Returns True if it reads *topic*."""
        if self.reads_several:
            return re.fullmatch(self.subscribed_pattern, topic, re.ASCII) is not None
        return topic == self.topic

    def with_places(self, places: tuple[Place, ...]) -> Self:
        """Returns it with the *places* of its input partitions.

        A source of one topic needs none.
        """
        return replace(self, places=places) if self.reads_several else self

    @property
    def may_be_idle(self) -> bool:
        """True if its partitions count as idle, after a silence or by marks of their writer."""
        return self.idle_after_ms is not None or bool(self.written_by)

    def place(self, number: int) -> Place:
        """Returns the partition that the input partition *number* is."""
        return self.places[number] if self.reads_several else Place(self.topic or "", number)

    def alone(self, topic: str) -> Self:
        """Returns it as a source of one *topic* of several."""
        return replace(self, topic=topic, topics=(), topic_pattern=None, places=())

    def each_topic(self, existing: Iterable[str]) -> list[Self]:
        """Returns it once for each of its topics.

        Each reads its topic alone. A pattern matches topics among *existing*.
        """
        if not self.reads_several:
            return super().each_topic(existing)
        return [self.alone(topic) for topic in self.topics or sorted(filter(self.reads, existing))]

    @property
    def key_field(self) -> str | None:
        """The field that Kafka's key fills, a string."""
        return self.key

    @property
    def out_of_order_ms(self) -> int:
        """Its bound."""
        return self.bound_ms

    @property
    def field_of(self) -> Mapping[str, str]:
        """By declared column, the path of the field of the record that fills it."""
        return {column: self.named.get(column, column) for column in self.fields}

    @property
    def time_field(self) -> str | None:
        """The path of the field with the event time; None without one."""
        return None if self.timestamp is None else self.field_of[self.timestamp]

    @property
    def names_schemas(self) -> bool:
        """True if its records are read by the schemas that they name."""
        return self.registry is not None and self.format in {Format.AVRO, Format.PROTOBUF}

    @property
    def is_watched(self) -> bool:
        """True if the fields of its records are watched: they name them."""
        return self.topic is not None and (self.format is Format.JSON or self.registry is not None)

    @property
    def types_of_fields(self) -> Mapping[str, str]:
        """By path of a field of a record, the declared type of its column."""
        return {self.named.get(column, column): word for column, word in self.fields.items()}

    @property
    def types_of_values(self) -> Mapping[str, str]:
        """By path of a field of a record's value, the declared type of its column."""
        # The column `key` is a record's own key, and no field.
        return {self.named.get(column, column): word for column, word in self.fields.items() if column != self.key}

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of its records, by name: DDL word."""
        return {**self.fields, **({self.other_fields: "string"} if self.other_fields else {})}

    @property
    def groups(self) -> tuple[str, ...]:
        """The partitions of its topic."""
        return (PARTITION,) if self.topic else ()

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False: its records are events."""
        return False

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the record's key, which is in one partition of a topic."""
        if self.reads_several:
            return frozenset()  # each topic has a partition with records of the key
        # Kafka puts records of one key into one partition. A table or a folder has one partition.
        return frozenset({KAFKA_KEY, *([self.key] if self.key else [])}) if self.topic else ORDERED

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the column that `timestamp` names."""
        return frozenset({self.timestamp} if self.timestamp else ())

    def on_processing_time(self) -> Self:
        """Returns it without `max_ahead`: no record is ahead of the clock."""
        return replace(self, max_ahead_ms=None)

    @classmethod
    def read(cls, keys: Keys, common: dict[str, Any], folder: Path | None) -> Self:
        """Reads a source from its table of the file."""
        place, topics = _place(keys)
        fields, named = _fields(keys)
        timestamp = _timestamp(keys, place, fields)
        unit = _timestamp_unit(keys, timestamp, fields)
        low, high = keys.pair("timestamp_range", _PLAUSIBLE, ("2000-01-01", "2100-01-01"))
        key = _key(keys, place, fields)
        form = read_source_format(keys, place, folder)
        _refuse_objects(keys, form["format"], named)
        return cls(
            **common,
            fields=fields,
            named=named,
            timestamp=timestamp,
            timestamp_unit=unit,
            key=key,
            other_fields=_other_fields(keys, fields),
            **topics,
            **_idleness(keys, place, is_several=bool(topics)),
            **form,
            timestamp_range_ms=(keys.instant_ms(low, "timestamp_range"), keys.instant_ms(high, "timestamp_range")),
            bound_ms=keys.duration("bound", "3 s", zero=True),
            allowed_lateness_ms=keys.duration("allowed_lateness", "1 min", None, zero=True),
            max_ahead_ms=_max_ahead_ms(keys),
            **_limits(keys, place),
            written_by=_written_by(keys, place),
            nan=_nan(keys, fields),
            **_tombstone_time(keys, key, timestamp),
            was=keys.name("was", "old_events", None),
            starting_offsets=_starting_offsets(keys, place),
        )


def _place(keys: Keys) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Reads the place of the records, and several topics."""
    places = {"topic": "events", "delta": "reference/events", "files": "incoming/events"}
    example = '["orders", "returns"]'
    topics = keys.get("topics", (str, list), example, None)
    if topics is None:
        place = keys.one_of(places)
        if "://" in place.get("files", ""):
            remedy = "write a folder of a disk: relative to the warehouse, or an absolute path such as /srv/incoming"
            keys.fail("files", f"is {place['files']!r}, a URL", remedy)
        return place, {}
    if others := [key for key in places if key in keys.content]:
        keys.fail("topics", f"is set together with {others[0]}", "keep one of the two", beside=others[0])
    keys.is_required("topics")
    return _pattern(keys, topics) if isinstance(topics, str) else _list(keys, topics, example)


def _list(keys: Keys, topics: list[Any], example: str) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Reads a list of topics."""
    if not topics or not all(isinstance(name, str) and _TOPIC.fullmatch(name) for name in topics):
        remedy = f'write topics = {example} with names of topics, or a pattern such as "orders-.*" without brackets'
        keys.fail("topics", f"is {topics!r}", remedy)
    if twice := [name for name, n in Counter(topics).items() if n > 1]:
        keys.fail("topics", f"has {twice[0]!r} twice", "name each topic once")
    return {"topic": ", ".join(topics)}, {"topics": tuple(topics)}


def _pattern(keys: Keys, pattern: str) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Reads a pattern of topics that Java and Python read alike."""
    if _TOPIC.fullmatch(pattern) and "." not in pattern:
        keys.fail("topics", f"is {pattern!r}, the name of one topic", f'write topic = "{pattern}", or a pattern')
    try:
        re.compile(pattern if _OF_PATTERN.fullmatch(pattern) else "(")
    except re.error:
        remedy = r'use letters, digits and . * + ? | ( ) [ ] { } \. \d \w, such as topics = "orders-.*"'
        keys.fail("topics", f"is {pattern!r}, which is not a pattern that Spark and Python read alike", remedy)
    return {"topic": pattern}, {"topic_pattern": pattern}


def _fields(keys: Keys) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Reads the columns with types, and fields with other names."""
    fields: dict[str, str] = {}
    named: dict[str, str] = {}
    wrong: list[str] = []
    for part in split_fields(keys.text("fields", "id string, event_time bigint")):
        match = _FIELD.fullmatch(part)
        word = None if match is None else _type_word(match["type"])
        if match is None or word is None:
            wrong.append(repr(part))
            continue
        if match["column"] in fields:
            keys.fail("fields", f"has {match['column']!r} twice", "name each field once")
        fields[match["column"]] = word
        if match["path"]:
            named[match["column"]] = path_of(steps(match["path"]))
    if wrong:
        types = ", ".join((*FIELD_TYPES, "decimal(12,2)"))
        remedy = (
            f"write `name type` with one of {types}; where the record has another name, `name type from itsName`, and "
            "for a field inside an object, `name type from object.field` (a name with a dot is in backquotes)"
        )
        keys.fail("fields", f"has {', '.join(wrong)}", remedy)
    read = Counter(named.get(column, column).lower() for column in fields)
    if twice := [field for field, n in read.items() if n > 1]:
        keys.fail("fields", f"reads {twice[0]!r} twice (Spark ignores case)", "read each field once")
    return MappingProxyType(fields), MappingProxyType(named)


def _type_word(text: str) -> str | None:
    """Returns the type that *text* names, as `fields` stores it; None where there is no such type."""
    return text if text in FIELD_TYPES else decimal_word(text)


def _timestamp(keys: Keys, place: Mapping[str, str], fields: Mapping[str, str]) -> str | None:
    timestamp: str | None = keys.text("timestamp", "event_time", None if "topic" in place else ...)
    word = fields.get(timestamp or "", "")
    if timestamp is not None and word not in TIME_TYPES and digits_of(word) is None:
        remedy = "name a field of type bigint, decimal(p,s), double or timestamp among `fields`"
        keys.fail("timestamp", f"is {timestamp!r}", remedy, beside="fields")
    return timestamp


def _timestamp_unit(keys: Keys, timestamp: str | None, fields: Mapping[str, str]) -> str:
    unit: str = keys.word("timestamp_unit", TIMESTAMP_UNITS, "ms")
    if unit == "ns" and fields.get(timestamp or "") == "double":
        remedy = f"declare {timestamp} as bigint: a double has no nanoseconds of the present time"
        keys.fail("timestamp_unit", f"is 'ns', but {timestamp!r} is a double", remedy, beside="fields")
    return unit


def _refuse_objects(keys: Keys, form: str, named: Mapping[str, str]) -> None:
    """Fails where `fields` names a field inside an object and records in *form* have no objects."""
    inner = [path for path in named.values() if len(steps(path)) > 1]
    if inner and form is Format.CSV:
        remedy = f"write `{inner[0]}` in backquotes if that is the name of a column"
        keys.fail("fields", f"has the path {inner[0]!r}, and rows of CSV have no objects", remedy, beside="format")


def _key(keys: Keys, place: Mapping[str, str], fields: Mapping[str, str]) -> str | None:
    key: str | None = keys.text("key", "id", None)
    if key is not None and ("topic" not in place or fields.get(key) != "string"):
        remedy = "name a field of type string, to be filled with the key of the topic's records"
        keys.fail("key", f"is {key!r}", remedy, beside="fields")
    return key


def _other_fields(keys: Keys, fields: Mapping[str, str]) -> str | None:
    other_fields: str | None = keys.name("other_fields", "other", None)
    if other_fields in fields:
        problem = f"is {other_fields!r}, which is a field"
        keys.fail("other_fields", problem, "choose a name that no field has", beside="fields")
    return other_fields


def _idleness(keys: Keys, place: Mapping[str, str], *, is_several: bool) -> dict[str, Any]:
    idle_after_ms = keys.duration("idle_after", "30 s", None)
    if is_several and idle_after_ms is None:
        problem = f"is not set, but the source reads several topics ({place['topic']})"
        keys.fail("idle_after", problem, 'write idle_after = "30 s": a new topic without records holds time back')
    idle_advances = keys.get("idle_advances", bool, "true", False)
    if idle_advances and idle_after_ms is None:
        problem = "is true, but idle_after is not set"
        keys.fail("idle_advances", problem, 'write idle_after = "30 s"', beside="idle_after")
    return {"idle_after_ms": idle_after_ms, "idle_advances": idle_advances}


def _limits(keys: Keys, place: Mapping[str, str]) -> dict[str, Any]:
    """Reads the limits of a batch: records, or files and bytes."""
    (kind,) = place
    allowed = LIMITS[kind]
    examples = {"max_records": "100000", "max_files": "100", "max_bytes": "16000000"}
    limits = {key: keys.count(key, example, allowed.get(key)) for key, example in examples.items()}
    for key in examples:
        if key in keys.content and key not in allowed:
            reads = "a topic" if kind == "topic" else "no topic"
            keys.fail(key, f"is set, but the source reads {reads}", f"leave it out, or write {' or '.join(allowed)}")
    if kind == "files" and limits["max_files"] is not None:
        if "max_bytes" in keys.content:
            remedy = "keep one of the two: for a folder Spark accepts only one limit"
            keys.fail("max_files", "is set together with max_bytes", remedy, beside="max_bytes")
        limits["max_bytes"] = None
    return limits


def _starting_offsets(keys: Keys, place: Mapping[str, str]) -> str | int | None:
    """Reads where a source begins that has no progress yet."""
    text: str | None = keys.text("starting_offsets", "latest", None)
    if text is None or text == EARLIEST:
        return text
    if "files" in place:
        problem = f"is {text!r}, but the source reads files, and every file of a folder is read"
        keys.fail("starting_offsets", problem, f"leave it out, or write {EARLIEST!r}")
    if text == LATEST and "delta" in place:
        # Spark notes where it begins with the first new rows alone, and would pass over those that come before.
        problem = "is 'latest', but the source reads a Delta table"
        remedy = 'write an instant, such as "2026-07-01T00:00:00Z"; that of now reads what is committed from now on'
        keys.fail("starting_offsets", problem, remedy)
    return text if text == LATEST else keys.instant_ms(text, "starting_offsets")


def _nan(keys: Keys, fields: Mapping[str, str]) -> NanPolicy:
    nan = keys.choice("nan", NanPolicy, NanPolicy.KEEP)
    if nan is NanPolicy.QUARANTINE and "double" not in fields.values():
        problem = f"is {nan.value!r}, but no field is a double"
        keys.fail("nan", problem, "leave it out: only doubles can be NaN", beside="fields")
    return nan


def _tombstone_time(keys: Keys, key: str | None, timestamp: str | None) -> dict[str, Any]:
    """Reads where a tombstone's time is: in a header or key field."""
    content = keys.mapping("tombstone_time", '{ header = "deleted_at" }', None)
    if content is None:
        return {}
    if key is None:
        remedy = 'write key = "id", so that tombstones delete keys'
        keys.fail("tombstone_time", "is set, but a source without a key has no tombstones", remedy, beside="key")
    if timestamp is None:
        remedy = "leave it out, or write the time field of the other records as `timestamp`"
        problem = "is set, but the other records have the time of Kafka"
        keys.fail("tombstone_time", problem, remedy, beside="timestamp")
    inner = Keys(keys.file, f"{keys.at}.tombstone_time", content)
    ((place, name),) = inner.one_of({"header": "deleted_at", "field": "deleted_at"}).items()
    inner.done()
    if "'" in name:
        inner.fail(place, f"is {name!r}", "name it without quotes")
    return {f"tombstone_{place}": name}


def _max_ahead_ms(keys: Keys) -> int | None:
    """Reads the limit of records ahead of the clock; None: unlimited."""
    if keys.text("max_ahead", "1 h", "1 h", form={"anyOf": [{"const": UNLIMITED}, LENGTH]}) == UNLIMITED:
        return None
    limit_ms: int = keys.duration("max_ahead", "1 h", HOUR_MS, zero=True)
    return limit_ms


def _written_by(keys: Keys, place: Mapping[str, str]) -> tuple[str, ...]:
    """Reads the writers of a source: a text, or a list."""
    writers = keys.one_or_more("written_by", '"flights/status"', ())
    for writer in writers:
        if not _WRITER.fullmatch(writer):
            keys.fail("written_by", f"has {writer!r}", 'name a writer as topology/sub-topology: "flights/status"')
    if writers and "files" in place:
        remedy = "leave it out: only records of a topic or a table name their writer"
        keys.fail("written_by", "is set, but the source reads files", remedy)
    return writers
