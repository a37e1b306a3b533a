"""Reads files of tests of topologies, for `tidemark test`.

A test gives records to the sources of a topology, and says what its operators make of them. docs/testing.md explains
the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple

from tidemark.errors import InvalidArgument
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import (
    Key,
    TableForm,
    TableKind,
    Values,
    defaulted,
    inner_tables,
    optional,
    refuse_mistakes,
    required,
)
from tidemark.model.settings.intervals import INSTANT, epoch_ms, instant_ms
from tidemark.model.settings.lengths import DURATION, duration_ms
from tidemark.model.settings.value_types import ValueType, refuse
from tidemark.model.tables import catalog
from tidemark.selection import outside

START = "2026-01-01T00:00:00Z"
DEAD_LETTERS = catalog.DEAD_LETTERS.name
"""Stands for an operator whose rows are the records that did not go on."""
COUNTS = tuple(outside(catalog.COUNTED, ["held_before"]))
"""The counts of `operator_batches` that a test may expect; of held updates, the number after the last batch."""

Row = Mapping[str, Any]


class WrittenTime(NamedTuple):
    """A time as a file has it: epoch ms, or ms after the start of its test."""

    ms: int
    is_relative: bool = False

    def at_ms(self, start_ms: int) -> int:
        """Returns the time in epoch ms; the test starts at *start_ms*."""
        return start_ms + self.ms if self.is_relative else self.ms


def written_time(value: str | datetime) -> WrittenTime | None:
    """Returns the time that *value* is: an instant, by default in UTC, or a length; None if it is neither.

    >>> written_time("-5 s"), written_time("1970-01-01T00:00:01Z"), written_time("soon")
    (WrittenTime(ms=-5000, is_relative=True), WrittenTime(ms=1000, is_relative=False), None)
    """
    if isinstance(value, datetime):
        return WrittenTime(epoch_ms(value if value.tzinfo else value.replace(tzinfo=UTC)))
    sign = -1 if value.startswith("-") else 1
    if (length_ms := duration_ms(value.removeprefix("-"))) is not None:
        return WrittenTime(sign * length_ms, is_relative=True)
    try:
        return WrittenTime(instant_ms(value))
    except InvalidArgument:
        return None


def _time() -> ValueType[WrittenTime]:
    def judge(value: str | datetime, key: str, example: str) -> WrittenTime:
        if (time := written_time(value)) is None:
            refuse(f"is {value!r}", f"write an instant, or a length after `start`, such as {key} = {example}")
        return time

    form = {"type": "string", "pattern": rf"^(-?{DURATION.pattern}|{INSTANT.pattern})$"}
    return ValueType("instant or length of time", (str, datetime), form, judge)


def _rows() -> ValueType[tuple[Row, ...]]:
    """The type of lists of rows: tables, or JSON objects as text."""

    def judge(value: list[object], key: str, example: str) -> tuple[Row, ...]:
        rows = []
        for item in value:
            try:
                row = json.loads(item) if isinstance(item, str) else item
            except ValueError:
                row = None
            if not isinstance(row, dict):
                refuse(f"has {item!r}, which is no row", f"write {key} = {example}, or rows as JSON objects in text")
            rows.append(row)
        return tuple(rows)

    form = {"type": "array", "items": {"type": ["object", "string"]}}
    return ValueType("list of rows", (list,), form, judge)


def _counts() -> ValueType[Mapping[str, int]]:
    def judge(value: dict[str, Any], key: str, example: str) -> Mapping[str, int]:
        among = value_types.word(COUNTS)
        for name, n in value.items():
            among.read(name, key, example)
            if not isinstance(n, int) or isinstance(n, bool) or n < 0:
                refuse(f"is {n!r}", f"write a whole number of 0 or more: {key} = {example}", part=name)
        return value

    number = {"type": "integer", "minimum": 0}
    form = {"type": "object", "properties": dict.fromkeys(COUNTS, number), "additionalProperties": False}
    return ValueType("table", (dict,), form, judge)


TIMESTAMP = optional(
    "timestamp",
    _time(),
    example='"2 s"',
    without="that of its arrival, for Kafka; the value has its own",
    meaning="its time. It fills the field that is the `timestamp` of the source, unless the value has that field",
)
PARTITION = defaulted(
    "partition",
    value_types.count(0),
    example="1",
    default=0,
    meaning="partition of the topic; a topic has as many as a test names",
)
KEY = optional("key", value_types.plain(str, dict), example='"UA1"', meaning="Kafka's key: text, or a table for JSON")
VALUE = optional(
    "value",
    value_types.plain(str, dict),
    example='{ flight = "UA1", delay_min = 12 }',
    without="a record without a value, which deletes its key",
    meaning=(
        "its fields as a table; or text, as it is: of JSON, which may have `null` and fields that are not declared, or "
        "one that cannot be read"
    ),
)
HEADERS = optional("headers", value_types.mapping(), example='{ trace = "1" }', meaning="Kafka's headers")
RECORD = TableForm(keys=(TIMESTAMP, PARTITION, KEY, VALUE, HEADERS))
"""A record of a source."""

SOURCE = required("source", value_types.text(), example='"flight_events"', meaning="the source that gets the records")
AT = optional(
    "at",
    _time(),
    example='"5 s"',
    without="the newest time of its records, or that of the arrival before it if this is later",
    meaning="when they arrive. What arrives at one instant is one batch",
)
RECORDS = inner_tables(
    "records", RECORD, example='[{ timestamp = "2 s", value = { flight = "UA1" } }]', meaning="the records"
)
DELTA = required(
    "delta", value_types.text(), example='"reference/airports"', meaning="the Delta table that a join looks up"
)
ROWS_OF_TABLE = required("rows", _rows(), example='[{ faa = "JFK", city = "New York" }]', meaning="its rows")


def _refuse_neither(given: Values) -> None:
    if given.kind is None:
        given.fail(SOURCE, "is missing", f"write {SOURCE.name} = {SOURCE.example}, or {DELTA.name} = {DELTA.example}")


GIVEN = TableForm(
    keys=(),
    kinds=(
        TableKind(name="records", key=SOURCE.name, word=None, keys=(SOURCE, AT, RECORDS)),
        TableKind(name="a joined table", key=DELTA.name, word=None, keys=(DELTA, ROWS_OF_TABLE)),
    ),
    rules=(_refuse_neither,),
)
"""Records of a source, or the rows of a Delta table that a join looks up."""

OPERATOR = required(
    "operator",
    value_types.text(),
    example='"flight_board"',
    meaning=f"an operator, or `{DEAD_LETTERS}`: the records that were late or quarantined, at any operator",
)
ROWS = optional(
    "rows",
    _rows(),
    example='[{ flight = "UA1", status = "landed" }]',
    without="not compared",
    meaning=(
        "all that it sends on, in any order: what a sink writes, the changes of a table. A column that one of the rows "
        "has is compared in all of them, and is null in a row without it; other columns are not compared"
    ),
)
CURRENT = optional(
    "current",
    _rows(),
    example='[{ flight = "UA1", status = "landed" }]',
    without="not compared",
    meaning="the newest row of each key at the end of the test, without deleted ones, of operators with a key",
)
EXPECTED_COUNTS = optional(
    "counts",
    _counts(),
    example="{ late = 1, suppressed = 2 }",
    without="not compared",
    meaning=f"its updates by outcome: {', '.join(f'`{name}`' for name in COUNTS)}",
)


def _refuse_nothing(expected: Values) -> None:
    if all(expected[key] is None for key in (ROWS, CURRENT, EXPECTED_COUNTS)):
        expected.fail(ROWS, "is missing", f"write {ROWS.name}, {CURRENT.name} or {EXPECTED_COUNTS.name}")


EXPECTED = TableForm(keys=(OPERATOR, ROWS, CURRENT, EXPECTED_COUNTS), rules=(_refuse_nothing,))
"""What an operator makes of the records."""

NAME = required("name", value_types.text(), example='"a late flight is set aside"', meaning="what the test shows")
STARTS = defaulted(
    "start",
    _time(),
    example='"2013-01-01T12:00:00Z"',
    default=START,
    meaning="when the streams start; lengths of time count from here",
)
UNTIL = optional(
    "until",
    _time(),
    example='"1 min"',
    without="the last arrival",
    meaning="until when the streams run. After the last arrival partitions become idle, and windows close",
)
GIVENS = inner_tables(
    "given", GIVEN, example='[{ source = "weather", records = [] }]', meaning="what arrives, in its order"
)
EXPECTEDS = inner_tables(
    "expect",
    EXPECTED,
    example='[{ operator = "flight_board", rows = [] }]',
    meaning="what is expected; without it nothing is",
)


def _refuse_relative_start(test: Values) -> None:
    if test[STARTS].is_relative:
        test.fail(STARTS, "is a length of time", f"write an instant: {STARTS.name} = {STARTS.example}")


TEST = TableForm(keys=(NAME, STARTS, UNTIL, GIVENS, EXPECTEDS), rules=(_refuse_relative_start,))
"""A test."""

TOPOLOGY = optional(
    "topology",
    value_types.text(),
    example='"flights"',
    without="the name of the file",
    meaning="the topology that is tested",
)
TESTS: Key[Sequence[Values]] = inner_tables(
    "test", TEST, example='[{ name = "nothing comes of nothing" }]', meaning="the tests"
)
FORM = TableForm(keys=(TOPOLOGY, TESTS))
"""A file of tests."""


@dataclass(frozen=True, kw_only=True)
class GivenRecord:
    """A record for a source; *timestamp_ms* is epoch ms. A *value* that is text is used as it is."""

    timestamp_ms: int | None
    partition: int
    key: str | None
    value: str | Row | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class GivenRecords:
    """Records for *source*, at *place* of the file.

    They arrive at *at_ms*, epoch ms. If that is None, they arrive at the newest of their own times.
    """

    place: str
    source: str
    at_ms: int | None
    records: Sequence[GivenRecord]


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a test at *place* of the file expects of *operator*; None for what it does not check.

    *rows* are the records that it sends on, *current* the last record of each key in the end, and *counts* the numbers
    of updates by outcome.
    """

    place: str
    operator: str
    rows: Sequence[Row] | None
    current: Sequence[Row] | None
    counts: Mapping[str, int] | None


@dataclass(frozen=True, kw_only=True)
class TopologyTest:
    """A test at *place* of *file*; times are epoch ms.

    *tables* has the rows of the Delta tables that joins look up, by their places in the warehouse.
    """

    file: str
    place: str
    name: str
    start_ms: int
    until_ms: int | None
    arrivals: Sequence[GivenRecords]
    tables: Mapping[str, Sequence[Row]]
    expected: Sequence[Expectation]


def parse(content: Mapping[str, Any], *, file: str) -> tuple[str | None, list[TopologyTest]]:
    """Returns the topology and the tests of *content*, a parsed file; the topology is None if it has the file's name.

    Raises:
        InvalidSpec: with a line for each mistake, which names *file*.
    """
    values = FORM.read(file, "", content)
    if not values.mistakes:
        names = Counter(test[NAME] for test in values[TESTS])
        for test in values[TESTS]:
            if names[test[NAME]] > 1:
                values.note(f"{test.at}.{NAME.name}", f"is {test[NAME]!r} twice", "give each test a name of its own")
    refuse_mistakes([values])
    return values[TOPOLOGY], [_test(file, test) for test in values[TESTS]]


def _test(file: str, test: Values) -> TopologyTest:
    start_ms = test[STARTS].ms
    of_sources = [given for given in test[GIVENS] if given.kind is GIVEN.kinds[0]]
    of_tables = [given for given in test[GIVENS] if given.kind is GIVEN.kinds[1]]
    return TopologyTest(
        file=file,
        place=test.at,
        name=test[NAME],
        start_ms=start_ms,
        until_ms=_ms(test[UNTIL], start_ms),
        arrivals=[_arrival(given, start_ms) for given in of_sources],
        tables={given[DELTA]: given[ROWS_OF_TABLE] for given in of_tables},
        expected=[
            Expectation(
                place=each.at,
                operator=each[OPERATOR],
                rows=each[ROWS],
                current=each[CURRENT],
                counts=each[EXPECTED_COUNTS],
            )
            for each in test[EXPECTEDS]
        ],
    )


def _arrival(given: Values, start_ms: int) -> GivenRecords:
    records = [
        GivenRecord(
            timestamp_ms=_ms(record[TIMESTAMP], start_ms),
            partition=record[PARTITION],
            key=json.dumps(record[KEY], default=in_json) if isinstance(record[KEY], dict) else record[KEY],
            value=record[VALUE],
            headers=record[HEADERS],
        )
        for record in given[RECORDS]
    ]
    return GivenRecords(place=given.at, source=given[SOURCE], at_ms=_ms(given[AT], start_ms), records=records)


def in_json(value: object) -> str:
    """Returns a *value* of TOML that JSON does not have, a time, as text: for `json.dumps`."""
    assert isinstance(value, date | datetime | time)
    return value.isoformat()


def _ms(time: WrittenTime | None, start_ms: int) -> int | None:
    return None if time is None else time.at_ms(start_ms)
