"""Proposes a topology and SLAs for a topic from a sample.

Each line has its evidence as a comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import polars as pl

from tidemark.errors import InvalidArgument
from tidemark.kernels.records.json_fields import json_object
from tidemark.model.settings.intervals import YEAR_10_000_MS, iso
from tidemark.model.settings.lengths import for_people, length_in_toml, percent, rounded_down, rounded_up
from tidemark.model.settings.record_limits import DEFAULT_LIMITS
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.settings.toml_files import toml_text
from tidemark.model.toml_operators import name_mistake
from tidemark.sample.disorder import covering_ms
from tidemark.sample.event_times import EventTime, TimeReader, time_fields
from tidemark.sample.fields import (
    FieldsByColumn,
    by_column,
    columns_of,
    declarations,
    field_types,
    free_name,
    names_to_declare,
)
from tidemark.sample.keys import KeyColumn, KeyedRecords, key_of
from tidemark.sample.parsed import is_read, lags_ms, parse_sample, records_of, source_of, usable
from tidemark.sample.topic_sample import SampledRecord, TopicSample
from tidemark.selection import outside

NO_TIME = (
    "no field looks like one (epoch s, ms, us, ns or ISO 8601, with a time of day, in 95 % of the records), so Kafka's "
    'is used; else: timestamp = "FIELD"'
)
WORK_MS = 10_000
"""Assumed time of a stream's work on a record."""
LEAST_BOUND_MS = 1_000
OFTEN = 0.9
"""Least share of the sampled records that the shorter bound covers."""
MOST_TESTED = 3
"""Most records of the sample that are in the test."""
MOST_EXAMPLES = 10
"""Most fields without a column that a comment names."""


@dataclass(frozen=True)
class SampleTimes:
    """Disorder, delay and pauses of a sample, in ms.

    *lags_ms* are how far its records are behind newer ones of their partition.
    """

    lags_ms: Sequence[int]
    delay_ms: int
    pause_ms: int

    @property
    def bound_ms(self) -> int:
        """The proposed bound."""
        return max(LEAST_BOUND_MS, rounded_up(covering_ms(self.lags_ms)))

    @property
    def bounds_ms(self) -> tuple[int, int, int]:
        """A shorter bound, the proposed one, and one that covers the whole sample."""
        shorter_ms = min(rounded_up(covering_ms(self.lags_ms, OFTEN)), rounded_down(self.bound_ms - 1))
        longer_ms = max(rounded_up(max(self.lags_ms)), rounded_up(self.bound_ms + 1))
        return shorter_ms, self.bound_ms, longer_ms

    @property
    def coverage(self) -> str:
        """The share of the sample that each of the three bounds covers."""
        shares: list[str] = []
        for bound_ms in self.bounds_ms:
            covered = sum(lag_ms <= bound_ms for lag_ms in self.lags_ms)
            shares.append(f"{for_people(bound_ms)} {percent(covered / len(self.lags_ms), 1)}")
        return f"shares of the sample that bounds cover: {', '.join(shares)}"

    @property
    def latency_ms(self) -> int:
        """A limit of latency: twice the delay of records and the work.

        The bound is no part of it, since a table does not wait for late records.
        """
        return rounded_up(2 * (self.delay_ms + WORK_MS))

    @property
    def staleness_ms(self) -> int:
        """A limit of staleness: twice the longest pause and the work."""
        return rounded_up(2 * (min(self.pause_ms, DAY_MS) + WORK_MS))


@dataclass(frozen=True)
class Proposal:
    """The files of a new topology, and `notes` for its author. The `test` expects nothing yet."""

    name: str
    topology: str
    test: str
    slas: str
    notes: tuple[str, ...]


def propose(sample: TopicSample, address: str, now_ms: int, *, key: str | None = None, own_cluster: bool) -> Proposal:
    """Proposes a topology for *sample* of a topic.

    Args:
        sample: the sample.
        address: of the cluster.
        now_ms: when the sample was read.
        key: the key field that the author named; None: it is derived.
        own_cluster: the topology names the address.

    Raises:
        InvalidArgument: nothing can be derived.
    """
    records = records_of(sample)
    readable, columns, others = _readable(records, key)
    _refuse_unreadable(sample, len(readable), address)
    read, objects = [record for record, _ in readable], [fields for _, fields in readable]
    times = time_fields(TimeReader(sample, now_ms), columns.values(), readable)
    at = times.likeliest
    types = field_types(objects, read, columns, {at.name: at.word} if at else {})
    table_key = key_of(KeyedRecords(records, readable, times.names), columns, key)
    if table_key.from_kafka:
        types[table_key.name] = ("string", "Kafka's key")
    declared = declarations({column: word for column, (word, _) in types.items()}, columns)
    source_keys = _source_keys(at, table_key, declared, others, read)
    rows = parse_sample(source_of(declared.values(), **source_keys), sample, now_ms)
    quarantined = rows.filter(pl.col("reason").is_not_null())
    if usable(rows).is_empty():
        msg = f"topic {sample.topic} at {address}: a stream can use none of its records: {_reasons(quarantined)}"
        raise InvalidArgument(msg)
    measured = _measure(sample, rows, now_ms)
    name = slug(sample.topic)
    extent = f"{len(records):,} of {sample.there:,} records in {len(sample.ends)} partitions"
    if not quarantined.is_empty():
        extent += f"; {quarantined.height:,} of them would be quarantined: {_reasons(quarantined)}"
    topology = [
        f"# Proposed for the topic {sample.topic} at {address}, from its newest records:",
        f"# {extent}.",
        f'name = "{name}"',
        'window = "10 s"  # streaming window: by it operators are compared',
        'trigger = "1 s"  # a batch each second',
        'check_every = "1 min"  # how often a check of its SLAs is stored at least',
        *_source(name, sample, types, declared, at, table_key, measured),
        *_line_of_others(others, source_keys),
        *_table_and_sink(name, table_key),
    ]
    if own_cluster:
        topology += ["", "[kafka.default]", f'bootstrap = "{address}"  # where the sample was read']
    notes = (
        f"sampled {extent}",
        f"event time: {NO_TIME if at is None else f'{at.name}, {at.text}'}",
        f"key {table_key.name}: {table_key.seen}",
        f"bound {for_people(measured.bound_ms)}; {measured.coverage}",
    )
    return Proposal(name, "\n".join([*topology, ""]), _test(name, read), _slas(name, measured), notes)


def _readable(
    records: Sequence[SampledRecord], key: str | None
) -> tuple[list[tuple[SampledRecord, FieldsByColumn]], dict[str, str], list[str]]:
    """Returns the *records* that a stream can read with their objects, the columns, and the names of other fields."""
    raw: list[tuple[SampledRecord, dict[str, Any]]] = []
    for record in records:
        with suppress(Exception):
            raw.append((record, json_object(record.value or b"", DEFAULT_LIMITS.max_depth)))
    columns = columns_of(names_to_declare([each for _, each in raw], key), key)
    # A text can hold every value. A record that is not read now never is, whatever types are declared.
    texts = declarations(dict.fromkeys(columns.values(), "string"), columns)
    can_be_read = [True] * len(raw)
    if columns:
        can_be_read = is_read(source_of(texts.values()), [record for record, _ in raw])
    kept = [pair for pair, is_good in zip(raw, can_be_read, strict=True) if is_good]
    names = dict.fromkeys(chain.from_iterable(each for _, each in kept))
    columns = {name: column for name, column in columns.items() if name in names}
    readable = [(record, by_column(each, columns)) for record, each in kept]
    return readable, columns, outside(names, columns)


def _source_keys(
    at: EventTime | None,
    key: KeyColumn,
    declared: Mapping[str, str],
    others: Sequence[str],
    read: Sequence[SampledRecord],
) -> dict[str, str]:
    """Returns the keys of the source beside its fields; `other_fields` unless it keeps records from being read."""
    keys = dict(at.keys) if at else {}
    if key.from_kafka:
        keys["key"] = key.name
    other_fields = free_name("other_fields", declared)
    with_others = source_of(declared.values(), other_fields=other_fields)
    if others and is_read(with_others, read) == is_read(source_of(declared.values()), read):
        keys["other_fields"] = other_fields
    return keys


def _reasons(quarantined: pl.DataFrame) -> str:
    """Returns how many rows are *quarantined* for each reason, the most frequent first."""
    counts = Counter(quarantined["reason"]).most_common()
    return ", ".join(f"{n:,} {reason}" for reason, n in counts)


def slug(topic: str) -> str:
    """Returns the name of a topology and its source for *topic*.

    >>> slug("Plant-1.readings"), slug("1st"), slug("changes"), slug("orders_source")
    ('plant_1_readings', 't_1st', 't_changes', 'orders_source_t')
    """
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")[:40].rstrip("_") or "topic"
    return next(each for each in (name, f"t_{name}", f"{name}_t", f"t_{name}_t") if not name_mistake(each))


def _refuse_unreadable(sample: TopicSample, readable: int, address: str) -> None:
    where = f"topic {sample.topic} at {address}"
    if not sample.records:
        msg = f"{where} {sample.why_empty}: nothing can be derived; send some records first, and repeat the command"
        raise InvalidArgument(msg)
    if not readable:
        values = [record.value for record in sample.records if record.value is not None]
        example = values[0][:60].decode(errors="replace") if values else "null"
        remedy = 'send JSON objects, or write the file by hand: format = "avro" or "protobuf" (docs/topologies.md)'
        none = f"none of {len(sample.records)} records is a JSON object that can be read"
        msg = f"{where}: {none}, for example {example!r}; {remedy}"
        raise InvalidArgument(msg)


def _measure(sample: TopicSample, rows: pl.DataFrame, now_ms: int) -> SampleTimes:
    """Measures the times of the *rows* that a stream has of *sample*."""
    clock_ms = {(record.partition, record.offset): record.timestamp_ms for record in sample.records}
    delays_ms: list[int] = []
    for partition, offset, time_ms in usable(rows).select("partition", "offset", "timestamp_ms").iter_rows():
        delays_ms.append(max(0, clock_ms[partition, offset] - time_ms))
    delay_ms = covering_ms(delays_ms)
    arrivals_ms = sorted(record.timestamp_ms for record in sample.records)
    pauses_ms = [after - before for before, after in pairwise(arrivals_ms)]
    return SampleTimes(
        lags_ms=lags_ms(rows, now_ms),
        delay_ms=delay_ms if delay_ms <= DAY_MS else 0,  # else it is a replay
        pause_ms=max(pauses_ms, default=0),
    )


def _source(
    name: str,
    sample: TopicSample,
    types: Mapping[str, tuple[str, str]],
    declared: Mapping[str, str],
    at: EventTime | None,
    key: KeyColumn,
    measured: SampleTimes,
) -> list[str]:
    """Returns the lines of the source, whose columns are *declared*."""
    idle_ms, quiet = _idle(sample, measured.bound_ms)
    furthest = f"the furthest record is {for_people(max(measured.lags_ms))} behind a newer one of its partition"
    comments = [f"# {declared[column]}: {_plain(remark)}" for column, (_, remark) in types.items()]
    return [
        "",
        f"[operators.{name}]",
        'kind = "source"',
        f'topic = "{sample.topic}"',
        *comments,
        f'fields = "{", ".join(declared.values())}"',
        *_time_lines(at),
        f'bound = "{length_in_toml(measured.bound_ms)}"  # {measured.coverage}; {furthest}',
        f'idle_after = "{length_in_toml(idle_ms)}"  # {quiet}',
        *([f'key = "{key.name}"  # filled by Kafka\'s key; a record without a value deletes it'] * key.from_kafka),
    ]


def _line_of_others(names: Sequence[str], source_keys: Mapping[str, str]) -> list[str]:
    """Returns the line for the fields *names*, which have no column of their own."""
    if not names:
        return []
    examples = _plain(", ".join(names[:MOST_EXAMPLES])[:100])
    fields = f"fields that few records have or that cannot be columns ({len(names):,}): {examples}"
    if "other_fields" not in source_keys:
        return [f"# without other_fields: half characters in some records cannot be kept; {fields}"]
    remark = f"as JSON, {fields}"
    return [f'other_fields = "{source_keys["other_fields"]}"  # {remark}']


def _table_and_sink(name: str, key: KeyColumn) -> list[str]:
    """Returns the lines of a table of newest records with its sink."""
    return [
        "",
        f"[operators.{name}_newest]",
        'kind = "table"',
        f'input = "{name}"',
        f'key = ["{key.name}"]  # {_plain(key.seen)}',
        'newest_by = "event_time"  # a late record does not replace a newer one',
        "",
        f"[operators.{name}_now]",
        'kind = "sink"',
        f'input = "{name}_newest"',
        f'table = "{name}_now"  # a Delta table',
        'mode = "current"  # with a row per key: the newest one',
        f'key = ["{key.name}"]',
    ]


def _time_lines(at: EventTime | None) -> list[str]:
    """Returns the lines of the event time."""
    if at is None:
        return [f"# {NO_TIME}"]
    remark = f"the likeliest event time, in {100 * at.share:.4g} % of the records: {at.text}"
    unit = [f'timestamp_unit = "{at.unit}"  # by the size of its numbers'] if at.unit else []
    return [f'timestamp = "{at.name}"  # {remark}', *unit]


def _idle(sample: TopicSample, bound_ms: int) -> tuple[int, str]:
    """Returns after how long a partition is idle, and the evidence."""
    arrivals: dict[int, list[int]] = {}
    for record in sample.records:
        arrivals.setdefault(record.partition, []).append(record.timestamp_ms)
    gaps: list[int] = []
    for times_ms in arrivals.values():
        gaps += [max(0, after - before) for before, after in pairwise(times_ms)]
    usual_ms = covering_ms(gaps)
    # Three usual pauses, but half a minute at least, and ten minutes at most: a silent partition delays all results.
    idle_ms = min(600_000, max(30_000, rounded_up(3 * usual_ms)))
    last_ms = max(map(max, arrivals.values()))
    empty = sorted(sample.ends.keys() - arrivals.keys())
    silent = [str(n) for n, times_ms in arrivals.items() if last_ms - max(times_ms) > max(idle_ms, bound_ms)]
    quiet = []
    if empty:
        quiet.append(f"without records: partition {', '.join(map(str, empty))}")
    if silent:
        quiet.append(f"silent before the others: partition {', '.join(silent)}")
    pauses = f"99 % of the pauses of a partition are at most {for_people(usual_ms)}" if gaps else "no pause was seen"
    return idle_ms, "; ".join([pauses, *(quiet or ["no partition was idle"])])


def _test(name: str, read: Sequence[SampledRecord]) -> str:
    """Returns the file of a test with the newest of the records *read*, which expects nothing yet."""
    dated = [record for record in read if 0 <= record.timestamp_ms < YEAR_10_000_MS]
    records = sorted(dated, key=lambda record: record.timestamp_ms)[-MOST_TESTED:]
    lines = [
        "# Records of the sample, and what came of them. Replace what must not be in this repository, correct what is",
        "# expected, and run `tidemark test`.",
        "[[test]]",
        'name = "records of the sample reach the table"',
    ]
    if records:
        first, last = iso(records[0].timestamp_ms), iso(records[-1].timestamp_ms)
        lines += [f'start = "{first}"', "", "[[test.given]]", f'source = "{name}"', f'at = "{last}"', "records = ["]
        lines += [f"  {{ {_as_given(record)} }}," for record in records]
        lines.append("]")
    return "\n".join([*lines, ""])


def _as_given(record: SampledRecord) -> str:
    """Returns the keys of *record* as a test has them."""
    texts = {"key": record.key, "value": record.value}
    written = [
        f"{name} = {toml_text(each.decode(errors='replace'))}" for name, each in texts.items() if each is not None
    ]
    return ", ".join([f'timestamp = "{iso(record.timestamp_ms)}"', f"partition = {record.partition}", *written])


def _slas(name: str, measured: SampleTimes) -> str:
    """Returns the part of the file with two SLAs."""
    parts = f"records come {for_people(measured.delay_ms)} late, {for_people(WORK_MS)} of work"
    fresh = f"the longest pause {for_people(measured.pause_ms)}, {for_people(WORK_MS)} of work"
    owned = f'owner = "owner of {name}"  # the responsible team: correct this'
    resolved = 'resolve_after = "1 min"  # an incident is resolved after the SLA has held this long'
    return f"""
# Proposed for the topology {name}, from a sample of its topic.
[{name}.in_time]
subject = "{name}_now"
measure = "latency_p99"  # from a record's own time until it is visible in the table
error_after = "{length_in_toml(measured.latency_ms)}"  # twice, rounded up: {parts}
{owned}
{resolved}

[{name}.fresh]
subject = "{name}_now"
measure = "staleness"  # age of the newest record in the table
error_after = "{length_in_toml(measured.staleness_ms)}"  # twice, rounded up: {fresh}
{owned}
{resolved}
"""


def _plain(text: str) -> str:
    """Returns *text* on one line of a TOML comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
