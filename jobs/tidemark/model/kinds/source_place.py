"""The keys of a source that say where its records are, and how many of them a batch reads.

Records are in one topic or several, or in another kind of place. These kinds are an open list: a module of another
package adds one by `register`, as an entry point of the group `tidemark.sources`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tidemark.extensions import OpenList
from tidemark.model.kinds.kafka_end import of_a_cluster, with_headers
from tidemark.model.project.connections import DEFAULT
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import given, needs
from tidemark.model.settings.declared_tables import Key, MistakenKey, Values, defaulted, optional
from tidemark.model.settings.value_types import TEXT, TEXTS, ValueType, refuse


@dataclass(frozen=True, kw_only=True)
class RecordPlace:
    """A kind of place whose records have no offsets: they are numbered in the order of writing.

    Attributes:
        key: the key of a source whose value is the path of the place, absolute or relative to the warehouse.
        noun: what it is, for people.
        rows: the `module:name` of a function that gets a Spark session, the source and the folder of the warehouse, and
            returns the streaming frame of the rows, in the form of `stream.read.table_rows`. The module is imported
            when a stream starts.
    """

    key: Key[str | None]
    noun: str
    rows: str


class Elsewhere(NamedTuple):
    """The place of a source that reads no topic: the name of its key, and its path."""

    kind: str
    path: str


RECORD_PLACES: OpenList[RecordPlace] = OpenList("place of records", group="tidemark.sources")
"""The kinds of places that are no topics, by the names of their keys."""


def register(place: RecordPlace) -> RecordPlace:
    """Adds *place* to the list, and returns it. Raises ValueError if another place has the same key."""
    return RECORD_PLACES.register(place.key.name, place)


MAX_RECORDS_PER_BATCH = 200_000
"""Default limit of records per batch of a topic, with which a backlog does not fill the driver."""
MAX_FILES_PER_BATCH = 1_000
"""Default limit of a table's files per batch: Delta's own."""
MAX_BYTES_PER_BATCH = 64_000_000
"""Default limit of bytes per batch of a table or a folder.

At least one file is always read.
"""
EARLIEST, LATEST = "earliest", "latest"
"""Values of `starting_offsets` beside instants."""
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

Of other forms one of the two refuses some: for example Java `a{,3}`, and Python `a{2}{2}`.
"""


def _folder(files: str, *_: str) -> str:
    if "://" in files:
        remedy = "write a folder of a disk: relative to the warehouse, or an absolute path such as /srv/incoming"
        refuse(f"is {files!r}, a URL", remedy)
    return files


def _topics(topics: list[object] | str, _: str, example: str) -> tuple[str, ...] | str:
    return _pattern(topics) if isinstance(topics, str) else _list(topics, example)


def _list(topics: list[object], example: str) -> tuple[str, ...]:
    """Returns a list of topics."""
    names = tuple(name for name in topics if isinstance(name, str) and _TOPIC.fullmatch(name))
    if not topics or len(names) < len(topics):
        remedy = f'write topics = {example} with names of topics, or a pattern such as "orders-.*" without brackets'
        refuse(f"is {topics!r}", remedy)
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        refuse(f"has {twice[0]!r} twice", "name each topic once")
    return names


def _pattern(pattern: str) -> str:
    """Returns a pattern of topics that Java and Python read alike."""
    if _TOPIC.fullmatch(pattern) and "." not in pattern:
        refuse(f"is {pattern!r}, the name of one topic", f'write topic = "{pattern}", or a pattern')
    try:
        re.compile(pattern if _OF_PATTERN.fullmatch(pattern) else "(")
    except re.error:
        remedy = r'use letters, digits and . * + ? | ( ) [ ] { } \. \d \w, such as topics = "orders-.*"'
        refuse(f"is {pattern!r}, which is not a pattern that Spark and Python read alike", remedy)
    return pattern


def instant_ms(text: str, *_: str) -> int:
    """Returns epoch ms of an ISO date or instant, by default UTC.

    Raises:
        UnfitValue: *text* is neither.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        refuse(f"is {text!r}", 'write an ISO date, such as "2000-01-01"')
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)


def _beginning(text: str, *_: str) -> str | int:
    return text if text in {EARLIEST, LATEST} else instant_ms(text)


def _writers(writers: tuple[str, ...], _: str, example: str) -> tuple[str, ...]:
    for writer in writers:
        if not _WRITER.fullmatch(writer):
            refuse(f"has {writer!r}", f"name a writer as topology/sub-topology: {example}")
    return writers


TOPICS_OR_PATTERN: ValueType[tuple[str, ...] | str] = ValueType(
    "string or list", (str, list), {"anyOf": [TEXT, {**TEXTS, "items": TEXT}]}, _topics
)
"""The type of lists of topics, a tuple, and of patterns, a text."""
TOPIC = optional(
    "topic",
    value_types.text(),
    example='"readings"',
    meaning="a Kafka topic",
)
TOPICS = optional(
    "topics",
    TOPICS_OR_PATTERN,
    example='["readings", "alarms"]',
    meaning=(
        'several topics: a list of names, or a pattern such as `"readings-.*"`, which also finds topics that are '
        "created later; requires `idle_after` (see [below](#several-topics))"
    ),
)
DELTA = optional(
    "delta",
    value_types.text(),
    example='"reference/readings"',
    meaning=(
        "a Delta table that other programs append to, relative to the warehouse ([what may "
        "change](#a-delta-table-as-a-source))"
    ),
)
FILES = optional(
    "files",
    value_types.text().then(_folder),
    example='"incoming/readings"',
    meaning="a folder of [files](files.md) on a disk, relative to the warehouse or an absolute path",
)
KAFKA = defaulted(
    "kafka",
    value_types.name(),
    example='"eu"',
    default=DEFAULT,
    meaning="with `topic` or `topics`: the Kafka cluster, here `[kafka.eu]` ([connections.md](connections.md))",
    needs=[of_a_cluster(TOPIC, TOPICS)],
)
TRACES = defaulted(
    "traces",
    value_types.flag(),
    example="true",
    default=False,
    meaning=(
        "with `topic` or `topics`: notes the headers `traceparent` (W3C) of the records, for [spans](metrics.md#spans)"
    ),
    needs=[with_headers(TOPIC, TOPICS)],
)
MAX_RECORDS = defaulted(
    "max_records",
    value_types.count(),
    example="100000",
    default=MAX_RECORDS_PER_BATCH,
    meaning=(
        "the most records of the topic, or of all `topics`, per batch. Lower it if a batch is too large for the "
        "driver: a batch that was planned before is then [read in parts](reliability.md)"
    ),
    needs=[needs(given(TOPIC, TOPICS), because="a table or a folder has max_files and max_bytes")],
)
MAX_FILES = optional(
    "max_files",
    value_types.count(),
    example="100",
    without="`1000`",
    meaning=(
        "the most files of a Delta table or a folder per batch. A folder has this limit only if you set it; it "
        "then has no limit of bytes"
    ),
    needs=[needs(given(DELTA, FILES), because="a topic has max_records")],
)
MAX_BYTES = defaulted(
    "max_bytes",
    value_types.count(),
    example="16000000",
    default=MAX_BYTES_PER_BATCH,
    meaning=(
        "the most bytes of files per batch, of a Delta table, or of a folder without `max_files`. A larger file "
        "is read alone"
    ),
    needs=[needs(given(DELTA, FILES), because="a topic has max_records")],
)
WRITTEN_BY = optional(
    "written_by",
    value_types.one_or_more().then(_writers),
    example='"flights/status"',
    meaning=(
        "the writer of the topic or the Delta table, as `topology/sub-topology`, or a list of writers. If such a "
        "driver sends a record twice, the second is dropped as `duplicate` (by its `tidemark-id`). If there is "
        "exactly one writer, its [marks of time](#sink) are used, too. Without this key the headers `tidemark-id` "
        "and `tidemark-mark` have no effect. Set it if the topic or the table is the sink of another topology"
    ),
    needs=[needs(given(TOPIC, TOPICS, DELTA), because="only records of a topic or a table name their writer")],
)
STARTING_OFFSETS = optional(
    "starting_offsets",
    value_types.text().then(_beginning),
    example='"latest"',
    meaning=(
        'where a source begins that has no progress yet: with the `"earliest"` records (as without this key), the '
        '`"latest"`, or those that came from an instant on, such as `"2026-07-01T00:00:00Z"` (of a topic by '
        'Kafka\'s timestamp, of a Delta table by its commits, without `"latest"`). A folder is read from its '
        "earliest file. It also lets a source [begin at another place](changes.md)"
    ),
)
register(RecordPlace(key=DELTA, noun="table", rows="tidemark.stream.read.sources:rows_of_table"))
register(RecordPlace(key=FILES, noun="folder", rows="tidemark.stream.read.sources:rows_of_folder"))
OF_TOPICS = (KAFKA, TRACES)
"""The keys about topics."""
OF_READING = (WRITTEN_BY, MAX_RECORDS, MAX_FILES, MAX_BYTES, STARTING_OFFSETS)
"""The keys about what is read."""


def places() -> tuple[Key[Any], ...]:
    """Returns the keys of which a source has exactly one."""
    return (TOPIC, TOPICS, *(place.key for place in RECORD_PLACES.values()))


def place_of(values: Values) -> Key[Any]:
    """Returns the key that says where a source reads, of which it has exactly one.

    Raises:
        MistakenKey: the file has none of these keys, or several.
    """
    for key in places():
        if values[key] is not None:
            return key
    raise MistakenKey(TOPIC.name)


def reads_topics(values: Values) -> bool:
    """Returns True if a source reads one topic or several; raises as `place_of`."""
    return place_of(values) in {TOPIC, TOPICS}


def _refuse_two_limits_of_a_folder(values: Values) -> None:
    if place_of(values) is FILES and values.has(MAX_FILES) and values.has(MAX_BYTES):
        remedy = "keep one of the two: for a folder Spark accepts only one limit"
        values.fail(MAX_FILES, "is set together with max_bytes", remedy)


def _refuse_beginning(values: Values) -> None:
    """Refuses `starting_offsets` that a source cannot have where it reads."""
    start, place = values[STARTING_OFFSETS], place_of(values)
    if start in {None, EARLIEST} or reads_topics(values):
        return
    if place is not DELTA:
        written, noun = values.written[STARTING_OFFSETS.name], RECORD_PLACES[place.name].noun
        problem = f"is {written!r}, but the source reads a {noun}, from its beginning"
        values.fail(STARTING_OFFSETS, problem, f"leave it out, or write {EARLIEST!r}")
    if start == LATEST:
        # Spark notes where it begins with the first new rows alone, and would pass over those that come before.
        problem = "is 'latest', but the source reads a Delta table"
        remedy = 'write an instant, such as "2026-07-01T00:00:00Z"; that of now reads what is committed from now on'
        values.fail(STARTING_OFFSETS, problem, remedy)


RULES = (_refuse_two_limits_of_a_folder, _refuse_beginning)
"""The rules about the keys of this module."""


def place_fields(values: Values) -> dict[str, Any]:
    """Returns the attributes of a `Source` that follow from the keys of this module, by name."""
    topics, place = values[TOPICS], place_of(values)
    is_of_topics = reads_topics(values)
    return {
        "topic": values[TOPIC] if topics is None else topics if isinstance(topics, str) else ", ".join(topics),
        "topics": topics if isinstance(topics, tuple) else (),
        "topic_pattern": topics if isinstance(topics, str) else None,
        "elsewhere": None if is_of_topics else Elsewhere(place.name, values[place]),
        "kafka": values[KAFKA],
        "traces": values[TRACES],
        "max_records": values[MAX_RECORDS] if is_of_topics else None,
        **_limits_of_files(values),
        "written_by": values[WRITTEN_BY] or (),
        "starting_offsets": values[STARTING_OFFSETS],
    }


def _limits_of_files(values: Values) -> Mapping[str, int | None]:
    """Returns the limits of a table or a folder. A folder has only one of the two, because Spark accepts no more."""
    max_files, max_bytes, place = values[MAX_FILES], values[MAX_BYTES], place_of(values)
    if place is FILES:
        return {"max_files": max_files, "max_bytes": None if max_files else max_bytes}
    if place is DELTA:
        return {"max_files": max_files or MAX_FILES_PER_BATCH, "max_bytes": max_bytes}
    return {}
