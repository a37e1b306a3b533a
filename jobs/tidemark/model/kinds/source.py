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

    *topic* or *elsewhere* names the place. Of a source over several topics *topic* is the text for people: the
    names or the pattern. Its input partitions have numbers of their own (decision 81).

    Attributes:
        topics: the topics of a source over a list of them; empty: it has none.
        topic_pattern: the pattern of a source over all topics whose names match it; None: it has none.
        topic_partitions: of a source over several topics, the partition that each input partition is, by number. It is
            empty in a topology; `with_topic_partitions` fills it in for a batch.
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
        """The topic, or the path of the table or the folder, for people."""
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
        """The pattern of the topics of a source over several."""
        return self.topic_pattern or "|".join(name.replace(".", r"\.") for name in self.topics)

    def reads(self, topic: str) -> bool:
        """Returns True if it reads *topic*."""
        if self.reads_several:
            return re.fullmatch(self.subscribed_pattern, topic, re.ASCII) is not None
        return topic == self.topic

    def with_topic_partitions(self, topic_partitions: tuple[TopicPartition, ...]) -> Self:
        """Returns it with the *topic_partitions* of its input partitions.

        A source of one topic needs none.
        """
        return replace(self, topic_partitions=topic_partitions) if self.reads_several else self

    @property
    def may_be_idle(self) -> bool:
        """True if its partitions count as idle, after a silence or by marks of their writer."""
        return self.idle_after_ms is not None or bool(self.written_by)

    def topic_partition(self, number: int) -> TopicPartition:
        """Returns the partition that the input partition *number* is."""
        return self.topic_partitions[number] if self.reads_several else TopicPartition(self.topic or "", number)

    def alone(self, topic: str) -> Self:
        """Returns it as a source of one *topic* of several."""
        return replace(self, topic=topic, topics=(), topic_pattern=None, topic_partitions=())

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
    def table_kind(cls) -> TableKind:
        """Returns the keys of its table, those of places of an open list among them."""
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
