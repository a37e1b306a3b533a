"""The keys of a source about the fields of its records: columns, event time and key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.source_format import FORMAT
from tidemark.model.kinds.source_place import TOPIC, TOPICS, instant_ms
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, left_out, needs
from tidemark.model.settings.declared_fields import PATH, decimal_word, digits_of, path_of, split_fields, steps
from tidemark.model.settings.declared_tables import TableForm, Values, defaulted, inner_table, optional, required
from tidemark.model.settings.value_types import IDENTIFIER, refuse

FIELD_TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp")
TIMESTAMP_UNITS = ("s", "ms", "us", "ns")
TIME_TYPES = ("bigint", "double", "timestamp")
"""Types of the field with the event time, which may also be a decimal."""
UNLIMITED = "unlimited"
"""The value of `max_ahead` where record time is not wall time."""
_FIELD = re.compile(
    rf"(?P<column>{IDENTIFIER.pattern})\s+(?P<type>\w+(?:\s*\([^()]*\))?)(?:\s+from\s+(?P<path>{PATH}))?"
)


class NanPolicy(StrEnum):
    """What becomes of records with NaN in a double: they are used, or quarantined."""

    KEEP = "keep"
    QUARANTINE = "quarantine"


class SourceColumns(NamedTuple):
    """The columns of a source.

    *types* has the type of each column. *named* has the path of the field that fills a column, for each column that has
    another name than its field.
    """

    types: Mapping[str, str]
    named: Mapping[str, str]


def _fields(text: str, *_: str) -> SourceColumns:
    """Reads the key `fields`."""
    fields: dict[str, str] = {}
    named: dict[str, str] = {}
    wrong: list[str] = []
    for part in split_fields(text):
        match = _FIELD.fullmatch(part)
        word = None if match is None else _type_word(match["type"])
        if match is None or word is None:
            wrong.append(repr(part))
            continue
        if match["column"] in fields:
            refuse(f"has {match['column']!r} twice", "name each field once")
        fields[match["column"]] = word
        if match["path"]:
            named[match["column"]] = path_of(steps(match["path"]))
    if wrong:
        types = ", ".join((*FIELD_TYPES, "decimal(12,2)"))
        remedy = (
            f"write `name type` with one of {types}; where the record has another name, `name type from itsName`, and "
            "for a field inside an object, `name type from object.field` (a name with a dot is in backquotes)"
        )
        refuse(f"has {', '.join(wrong)}", remedy)
    read = Counter(named.get(column, column).lower() for column in fields)
    if twice := [field for field, n in read.items() if n > 1]:
        refuse(f"reads {twice[0]!r} twice (Spark ignores case)", "read each field once")
    return SourceColumns(MappingProxyType(fields), MappingProxyType(named))


def _type_word(text: str) -> str | None:
    """Returns the type that *text* names, as `fields` stores it; None where there is no such type."""
    return text if text in FIELD_TYPES else decimal_word(text)


def _range_ms(instants: tuple[str, str], *_: str) -> tuple[int, int]:
    first, last = instants
    return instant_ms(first), instant_ms(last)


def _without_quotes(name: str, *_: str) -> str:
    if "'" in name:
        refuse(f"is {name!r}", "name it without quotes")
    return name


FIELDS = required(
    "fields",
    value_types.text().then(_fields),
    example='"device string, temp_c double, event_time bigint"',
    meaning=(
        "columns, each `string`, `boolean`, `int`, `bigint`, `double`, `decimal(p,s)` (see [below](#decimals)) or "
        "`timestamp` (see [below](#timestamps)). A `string` can have an object or a list as JSON text; a `map` "
        "downstream extracts values: `payload ->> '$.after.id'`. Column names are lower case. If the field has "
        "another name, or is inside an object, write `event_time bigint from eventTime` or `event_time timestamp "
        "from data.occurredAt` (see [below](#fields-inside-objects)); `timestamp`, `key` and all operators use "
        "the name of the column"
    ),
)
OTHER_FIELDS = optional(
    "other_fields",
    value_types.name(),
    example='"other"',
    meaning=(
        "a column with all undeclared fields as JSON, so that new fields of a producer are not lost. If a record "
        "has a field twice, the last value counts"
    ),
)
TIMESTAMP = optional(
    "timestamp",
    value_types.text(),
    example='"event_time"',
    meaning=(
        "the column with the event time: a `timestamp`, `bigint`, `decimal(p,s)` or `double`; "
        "[recipes.md](recipes.md#event-times) has what is read. A topic without this key uses Kafka's timestamp; "
        "a record whose Kafka timestamp is beyond the year 294,000, such as nanoseconds, is then quarantined as "
        "`invalid_timestamp`"
    ),
    required_if=needs(left_out(TOPIC), left_out(TOPICS)),
)
TIMESTAMP_UNIT = defaulted(
    "timestamp_unit",
    value_types.word(TIMESTAMP_UNITS),
    example='"ms"',
    default="ms",
    meaning="unit of an event time that is a number: `s`, `ms`, `us` or `ns`; a `double` cannot be in `ns`",
)
TIMESTAMP_RANGE = defaulted(
    "timestamp_range",
    value_types.pair().then(_range_ms),
    example='["2000-01-01", "2100-01-01"]',
    default=["2000-01-01", "2100-01-01"],
    meaning="a record with an event time outside of this range is quarantined",
)
BOUND = required(
    "bound",
    value_types.length(zero=True),
    example='"2 s"',
    meaning=(
        "how far records of a partition may be out of order. The watermark of the partition is that far behind "
        "its newest record. `tidemark bound` prints the cost of each bound"
    ),
)
IDLE_AFTER = optional(
    "idle_after",
    value_types.length(),
    example='"30 s"',
    meaning=(
        "a partition that is read to its end and silent for longer is idle and no longer holds the watermark "
        "back. A partition with an open transaction is not read to its end. Without this key a partition is never "
        "idle"
    ),
    required_if=needs(given(TOPICS), because="a new topic without records holds time back"),
)
IDLE_ADVANCES = defaulted(
    "idle_advances",
    value_types.flag(),
    example="true",
    default=False,
    meaning=(
        "while every partition is idle, the watermark advances with the clock since the last record, in steps "
        "that double, so that windows before a quiet night close before morning. Not for topics that are filled "
        "with old records."
    ),
    needs=[needs(given(IDLE_AFTER))],
)
ALLOWED_LATENESS = optional(
    "allowed_lateness",
    value_types.length(zero=True),
    example='"0 ms"',
    meaning=(
        "makes the source strict: a record further than that behind the watermark is late at the source, and no "
        "operator receives it. Without this key no record is late at a source: see [below](#late-records)"
    ),
)
MAX_AHEAD = defaulted(
    "max_ahead",
    value_types.length_or(UNLIMITED, zero=True),
    example='"1 h"',
    default="1 h",
    meaning=(
        "a record further than that ahead of the decision time is quarantined as `timestamp_in_future`. A record "
        'less far ahead is accepted, and advances the watermark to the decision time at most. `"unlimited"` '
        "switches both rules off, for record time that is not wall time: see [below](#records-from-the-future)"
    ),
)
NAN = defaulted(
    "nan",
    value_types.choice(NanPolicy),
    example='"quarantine"',
    default=NanPolicy.KEEP.value,
    meaning=(
        '`"quarantine"`: a record with NaN in a `double` field is quarantined as `not_a_number`. `"keep"`: NaN is '
        "a value that equals itself; `sum` and `avg` are NaN until it is retracted. In JSON NaN is `NaN` or "
        '`"NaN"`. Infinities are always kept'
    ),
)
KEY = optional(
    "key",
    value_types.text(),
    example='"device"',
    meaning=(
        "the field that gets Kafka's key, which must be text. A record without a value (a tombstone) then deletes "
        "its key"
    ),
    needs=[needs(given(TOPIC, TOPICS), because="only records of a topic have keys")],
)
HEADER = optional(
    "header",
    value_types.text().then(_without_quotes),
    example='"deleted_at"',
    meaning="the Kafka header with the instant",
)
FIELD = optional(
    "field",
    value_types.text().then(_without_quotes),
    example='"deleted_at"',
    meaning="the field of the key with the instant",
)
TOMBSTONE_TIME = inner_table(
    "tombstone_time",
    TableForm(keys=(HEADER, FIELD), one_of=((HEADER, FIELD),)),
    example='{ header = "deleted_at" }',
    meaning=(
        'where a tombstone has the instant of its deletion: in a Kafka header, or with `{ field = "deleted_at" }` '
        "a field of the key, which is then a JSON object. Its format is that of `timestamp`: a number in "
        "`timestamp_unit`, or ISO 8601. Requires `key` and `timestamp`. Without this key, see "
        "[below](#tombstones)"
    ),
    needs=[
        needs(given(KEY)),
        needs(given(TIMESTAMP)),
    ],
)
OF_FIELDS = (FIELDS, OTHER_FIELDS, TIMESTAMP, TIMESTAMP_UNIT, TIMESTAMP_RANGE)
"""The keys about fields and their event time."""
OF_TIME = (BOUND, IDLE_AFTER, IDLE_ADVANCES, ALLOWED_LATENESS, MAX_AHEAD)
"""The keys about the time of partitions."""
OF_VALUES = (NAN, KEY, TOMBSTONE_TIME)
"""The keys about values and keys."""


def _refuse_timestamp(values: Values) -> None:
    """Refuses an event time that is not one of the fields, or whose type cannot have a time."""
    timestamp = values[TIMESTAMP]
    word = values[FIELDS].types.get(timestamp or "", "")
    if timestamp is not None and word not in TIME_TYPES and digits_of(word) is None:
        remedy = "name a field of type bigint, decimal(p,s), double or timestamp among `fields`"
        values.fail(TIMESTAMP, f"is {timestamp!r}", remedy)


def _refuse_nanoseconds(values: Values) -> None:
    timestamp = values[TIMESTAMP]
    if values[TIMESTAMP_UNIT] == "ns" and values[FIELDS].types.get(timestamp or "") == "double":
        remedy = f"declare {timestamp} as bigint: a double has no nanoseconds of the present time"
        values.fail(TIMESTAMP_UNIT, f"is 'ns', but {timestamp!r} is a double", remedy)


def _refuse_key(values: Values) -> None:
    key = values[KEY]
    if key is not None and values[FIELDS].types.get(key) != "string":
        remedy = "name a field of type string, to be filled with the key of the topic's records"
        values.fail(KEY, f"is {key!r}", remedy)


def _refuse_objects(values: Values) -> None:
    """Refuses fields inside objects where records have no objects."""
    inner = [path for path in values[FIELDS].named.values() if len(steps(path)) > 1]
    if inner and values[FORMAT] == Format.CSV:
        remedy = f"write `{inner[0]}` in backquotes if that is the name of a column"
        values.fail(FIELDS, f"has the path {inner[0]!r}, and rows of CSV have no objects", remedy)


def _refuse_column_of_others(values: Values) -> None:
    other_fields = values[OTHER_FIELDS]
    if other_fields in values[FIELDS].types:
        values.fail(OTHER_FIELDS, f"is {other_fields!r}, which is a field", "choose a name that no field has")


def _refuse_nan(values: Values) -> None:
    nan = values[NAN]
    if nan is NanPolicy.QUARANTINE and "double" not in values[FIELDS].types.values():
        values.fail(NAN, f"is {nan.value!r}, but no field is a double", "leave it out: only doubles can be NaN")


RULES = (
    _refuse_timestamp,
    _refuse_nanoseconds,
    _refuse_key,
    _refuse_objects,
    _refuse_column_of_others,
    _refuse_nan,
)
"""The rules about the keys of this module."""


def fields_and_time(values: Values) -> dict[str, Any]:
    """Returns the attributes of a `Source` that follow from the keys of this module, by name."""
    types, named = values[FIELDS]
    tombstone = values[TOMBSTONE_TIME]
    return {
        "fields": types,
        "named": named,
        "other_fields": values[OTHER_FIELDS],
        "timestamp": values[TIMESTAMP],
        "timestamp_unit": values[TIMESTAMP_UNIT],
        "timestamp_range_ms": values[TIMESTAMP_RANGE],
        "bound_ms": values[BOUND],
        "idle_after_ms": values[IDLE_AFTER],
        "idle_advances": values[IDLE_ADVANCES],
        "allowed_lateness_ms": values[ALLOWED_LATENESS],
        "max_ahead_ms": values[MAX_AHEAD],
        "nan": values[NAN],
        "key": values[KEY],
        "tombstone_header": tombstone[HEADER] if tombstone else None,
        "tombstone_field": tombstone[FIELD] if tombstone else None,
    }
