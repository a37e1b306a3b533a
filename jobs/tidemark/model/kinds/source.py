"""The kind `source`: records of a topic, a Delta table or files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from tidemark.model.kinds import source_fields, source_format, source_place
from tidemark.model.kinds.kafka_end import Format, KafkaEnd
from tidemark.model.kinds.operator import KAFKA_KEY, ORDERED, PARTITION
from tidemark.model.kinds.registry import KINDS
from tidemark.model.kinds.source_fields import NanPolicy
from tidemark.model.kinds.source_place import DELTA, FILES, Elsewhere
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, TableKind, Values, optional
from tidemark.model.settings.record_limits import DEFAULT_LIMITS, RecordLimits
from tidemark.semantics.progress import TopicPartition

HOUR_MS = 3_600_000
WAS = optional(
    "was",
    value_types.name(),
    example='"old_readings"',
    meaning="the former name of the source, whose progress it [takes over](changes.md)",
)


@dataclass(frozen=True, kw_only=True)
class Source(KafkaEnd):
    """Reads records of a Kafka topic, a Delta table or files.

    *topic* or *elsewhere* says where the records are. For a source over several topics *topic* is their names or their
    pattern, as text for people. Such a source numbers its input partitions itself (decision 81).

    Attributes:
        topics: the topics of a source over a list of topics; otherwise empty.
        topic_pattern: the pattern of a source over all topics whose names match it; otherwise None.
        topic_partitions: for a source over several topics, the topic of each input partition and Kafka's number in it,
            by the number of the input partition. Empty in a topology; `with_topic_partitions` fills it in for a batch.
        fields: the columns with their types.
        named: by column, the path of its field in the record if the two have different names (`declared_fields.steps`).
        timestamp: the column with the event time; None stands for Kafka's own timestamp.
        timestamp_unit: the unit of *timestamp* if it is a number.
        timestamp_range_ms: a record with an event time outside of this range is quarantined.
        bound_ms: how far records of a partition may be out of order.
        idle_after_ms: a partition is idle after a longer silence than this; None if it never is.
        idle_advances: time advances while every partition is idle.
        allowed_lateness_ms: a strict source drops records that are so far behind its watermark; None drops none.
        max_ahead_ms: a record further ahead of the decision time than this is quarantined. Any other record ahead moves
            time up to the decision time at most. None sets no limit to either.
        key: the field that Kafka's key fills. With such a field, a record without a value deletes its key.
        other_fields: the column for undeclared fields, as JSON; None to drop them.
        max_records: most records of a topic in a batch; None for no limit.
        max_files: most files of a table or a folder in a batch; None for no limit.
        max_bytes: most bytes of these files; None for no limit.
        written_by: the writers (`topology/sub-topology`) whose headers and marks of time are trusted.
        nan: what becomes of records with NaN in a double.
        tombstone_header: the header with the time of a tombstone (a record that deletes its key).
        tombstone_field: the field with that time in the tombstone's key, a JSON object. A tombstone without either time
            gets the newest time of its partition.
        descriptors: a FileDescriptorSet with the Protobuf message of the records.
        message: the name of that message.
        registry: the registry with the schemas whose ids begin the records; None if records have no ids.
        subject: the subject of the registry whose latest version is compared with the fields at a start.
        record_limits: a record that holds more than this is quarantined.
        written_to_by: for a source of a recorded query, the sinks of other queries that write what it reads.
        was: the former name of the source; None if it had no other.
        starting_offsets: where a source without progress begins: EARLIEST, LATEST, or the first records that came from
            an instant on (epoch ms). None if the file does not say it: then it begins at the earliest.
    """

    kind: ClassVar[str] = "source"
    is_source: ClassVar[bool] = True
    reads_outside: ClassVar[bool] = True
    is_checked_in_part: ClassVar[bool] = False
    shaping: ClassVar[frozenset[str]] = frozenset({"delta", "fields", "key", "other_fields", "timestamp"})

    keys: ClassVar[tuple[Key[Any], ...]] = (
        *source_place.OF_TOPICS,
        *source_format.OF_FORMATS,
        *source_fields.OF_FIELDS,
        *source_fields.OF_TIME,
        *source_fields.OF_VALUES,
        *source_place.OF_READING,
        WAS,
        *source_format.LIMITS,
    )
    rules: ClassVar[tuple[Callable[[Values], object], ...]] = (
        *source_place.RULES,
        *source_format.RULES,
        *source_fields.RULES,
    )

    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    topic_partitions: tuple[TopicPartition, ...] = field(default=(), repr=False)
    elsewhere: Elsewhere | None = None
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
    def delta(self) -> str | None:
        """The Delta table that it reads, relative to the warehouse; None if it reads none."""
        return self._path_of(DELTA.name)

    @property
    def files(self) -> str | None:
        """The folder of files that it reads, relative to the warehouse or absolute; None if it reads none."""
        return self._path_of(FILES.name)

    def _path_of(self, kind: str) -> str | None:
        return self.elsewhere.path if self.elsewhere and self.elsewhere.kind == kind else None

    @property
    def read_from(self) -> str:
        """What it reads, as text for people: the topic, or the path of the table or the folder."""
        return self.elsewhere.path if self.elsewhere else self.topic or ""

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
        """The pattern that matches the topics of a source over several topics."""
        return self.topic_pattern or "|".join(name.replace(".", r"\.") for name in self.topics)

    def reads(self, topic: str) -> bool:
        """Returns True if it reads *topic*."""
        if self.reads_several:
            return re.fullmatch(self.subscribed_pattern, topic, re.ASCII) is not None
        return topic == self.topic

    def with_topic_partitions(self, topic_partitions: tuple[TopicPartition, ...]) -> Self:
        """Returns the source with *topic_partitions*, if it reads several topics; a source of one topic needs none."""
        return replace(self, topic_partitions=topic_partitions) if self.reads_several else self

    @property
    def may_be_idle(self) -> bool:
        """True if its partitions count as idle, after a silence or by marks of their writer."""
        return self.idle_after_ms is not None or bool(self.written_by)

    def topic_partition(self, number: int) -> TopicPartition:
        """Returns the topic and Kafka's number of the input partition *number*."""
        return self.topic_partitions[number] if self.reads_several else TopicPartition(self.topic or "", number)

    def alone(self, topic: str) -> Self:
        """Returns the source as it would be if it read only *topic*, one of its several topics."""
        return replace(self, topic=topic, topics=(), topic_pattern=None, topic_partitions=())

    def each_topic(self, existing: Iterable[str]) -> list[Self]:
        """Returns the source once for each of its topics, each time as a source of that topic alone.

        The topics of a pattern are those of *existing* that match it.
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
        """The path of the field that fills each declared column, by column."""
        return {column: self.named.get(column, column) for column in self.fields}

    @property
    def time_field(self) -> str | None:
        """The path of the field with the event time; None without one."""
        return None if self.timestamp is None else self.field_of[self.timestamp]

    @property
    def names_schemas(self) -> bool:
        """True if each of its records names the schema with which it is read."""
        return self.registry is not None and self.format in {Format.AVRO, Format.PROTOBUF}

    @property
    def is_watched(self) -> bool:
        """True if the fields of its records are watched, because a record, or its schema, names its fields."""
        return self.topic is not None and (self.format is Format.JSON or self.registry is not None)

    @property
    def types_of_fields(self) -> Mapping[str, str]:
        """The declared type of each column, by the path of the field that fills it."""
        return {self.named.get(column, column): word for column, word in self.fields.items()}

    @property
    def types_of_values(self) -> Mapping[str, str]:
        """The same as `types_of_fields` for the fields in a record's value: without the one that Kafka's key fills."""
        # The column `key` is a record's own key, and no field.
        return {self.named.get(column, column): word for column, word in self.fields.items() if column != self.key}

    @property
    def columns(self) -> Mapping[str, str]:
        """The types of its columns as DDL words, by column."""
        return {**self.fields, **({self.other_fields: "string"} if self.other_fields else {})}

    @property
    def groups(self) -> tuple[str, ...]:
        """The partitions of its topic."""
        return (PARTITION,) if self.topic else ()

    def sends_updates(self, *, reads_updates: bool) -> bool:
        """Returns False: its records are events."""
        return False

    def ordered_by(self, read: frozenset[str]) -> frozenset[str]:
        """Returns the record's key: all records of a key are in one partition of a topic."""
        if self.reads_several:
            return frozenset()  # each topic has a partition with records of the key
        # Kafka puts records of one key into one partition. A table or a folder has one partition.
        return frozenset({KAFKA_KEY, *([self.key] if self.key else [])}) if self.topic else ORDERED

    def event_times(self, read: Sequence[frozenset[str]]) -> frozenset[str]:
        """Returns the column that `timestamp` names."""
        return frozenset({self.timestamp} if self.timestamp else ())

    def on_processing_time(self) -> Self:
        """Returns the source without `max_ahead`: no record is ahead of the clock then."""
        return replace(self, max_ahead_ms=None)

    @classmethod
    def table_kind(cls) -> TableKind:
        """Returns the keys of its table, with those for the places that other packages add."""
        places = source_place.places()
        return replace(super().table_kind(), keys=(*places, *cls.keys), one_of=(places,))

    @classmethod
    def read(cls, values: Values, common: dict[str, Any]) -> Self:
        """Makes a source of the values of its table."""
        return cls(
            **common,
            **source_place.place_fields(values),
            **source_format.source_format(values),
            **source_fields.fields_and_time(values),
            was=values[WAS],
        )


KINDS.register(Source.kind, Source)
