"""Proposes a topology and SLAs for a topic from a sample.

Each line has its evidence as a comment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tidemark.collecting import outside
from tidemark.errors import InvalidArgument
from tidemark.model.settings.declared_fields import path_of
from tidemark.model.settings.lengths import rounded_up
from tidemark.model.settings.toml_keys import length, length_in_toml
from tidemark.model.toml_operators import name_mistake
from tidemark.sampling.disorder import behind_ms, covering_ms, late_share
from tidemark.sampling.fields import (
    EventTime,
    columns_of,
    event_time,
    field_types,
    json_object,
    names_of,
    rare_names_of,
    time_ms,
    unit_of,
)
from tidemark.sampling.keys import Key, key_of
from tidemark.sampling.topic_sample import SampledRecord, TopicSample

NO_TIME = 'no field looks like one (epoch s, ms, us, ns or ISO 8601), so Kafka\'s is used; else: timestamp = "FIELD"'
DAY_MS = 86_400_000
WORK_MS = 10_000
"""Assumed time of a stream's work on a record.

The wait for late records comes on top.
"""


@dataclass(frozen=True)
class SampleTimes:
    """Disorder, delay and pauses of a sample, in ms."""

    bound_ms: int
    covers: float
    furthest_ms: int
    delay_ms: int
    pause_ms: int

    @property
    def latency_ms(self) -> int:
        """A limit of latency.

        It is twice the wait for late records, their delay and the work.
        """
        return rounded_up(2 * (self.bound_ms + self.delay_ms + WORK_MS))

    @property
    def staleness_ms(self) -> int:
        """A limit of staleness: twice the longest pause and the work."""
        # The newest record is not late, so the disorder does not count here.
        return rounded_up(2 * (min(self.pause_ms, DAY_MS) + WORK_MS))


@dataclass(frozen=True)
class Proposal:
    """The files of a new topology, and `notes` for its author."""

    name: str
    topology: str
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
    readable: list[SampledRecord] = []
    raw_objects: list[dict[str, Any]] = []
    for record in sample.records:
        if (raw_object := json_object(record)) is not None:
            readable.append(record)
            raw_objects.append(raw_object)
    _refuse_unreadable(sample, len(readable), address)
    columns = columns_of(raw_objects)
    for rare_name in rare_names_of(raw_objects):
        columns.pop(rare_name, None)
    others = outside(names_of(raw_objects), columns)
    objects = [_fields_by_column(raw_object, columns) for raw_object in raw_objects]
    read = list(zip(readable, objects, strict=True))
    at = event_time(objects, max(record.timestamp_ms for record in readable))
    types = field_types(objects)
    if at is not None and at.unit is None:
        types[at.name] = ("timestamp", types[at.name][1])
    table_key = key_of(sample.records, read, types, at, columns.get(key or "", key), address)
    if table_key.from_kafka:
        types[table_key.name] = ("string", "Kafka's key")
    measured = _measure(sample, read, at, now_ms)
    name = slug(sample.topic)
    unreadable = len(sample.records) - len(read)
    extent = f"{len(sample.records):,} of {sample.there:,} records in {len(sample.ends)} partitions"
    extent += f"; {unreadable} are no JSON objects, and quarantined unless they delete their key" if unreadable else ""
    topology = [
        f"# Proposed for the topic {sample.topic} at {address}, from its newest records:",
        f"# {extent}.",
        f'name = "{name}"',
        'window = "10 s"  # streaming window: by it operators are compared',
        'trigger = "1 s"  # a batch each second',
        'check_every = "1 min"  # how often its SLAs are checked',
        *_source(name, sample, _declared_types(types, columns), at, table_key, measured),
        *_line_of_others(others, types),
        *_table_and_sink(name, table_key),
    ]
    if own_cluster:
        topology += ["", "[kafka.default]", f'bootstrap = "{address}"  # where the sample was read']
    notes = (
        f"sampled {extent}",
        f"event time: {NO_TIME if at is None else f'{at.name}, {at.text}'}",
        f"key {table_key.name}: {table_key.seen}",
        f"bound {length(measured.bound_ms)} covers {measured.covers:g} % of the sample",
    )
    return Proposal(name, "\n".join([*topology, ""]), _slas(name, measured), notes)


def _fields_by_column(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of *record* that have *columns*, by column."""
    return {columns[name]: value for name, value in record.items() if name in columns}


def slug(topic: str) -> str:
    """Returns the name of a topology and its source for *topic*.

    >>> slug("Plant-1.readings"), slug("1st"), slug("changes"), slug("orders_source")
    ('plant_1_readings', 't_1st', 't_changes', 'orders_source_t')
    """
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")[:40].rstrip("_") or "topic"
    return next(each for each in (name, f"t_{name}", f"{name}_t", f"t_{name}_t") if not name_mistake(each))


def _declared_types(types: Mapping[str, tuple[str, str]], columns: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns *types* as `fields` declares them.

    A column with another name than its field names the field.
    """
    named = {column: name for name, column in columns.items() if name != column}
    declared: dict[str, tuple[str, str]] = {}
    for column, (kind, remark) in types.items():
        declared[column] = (f"{kind} from {path_of((named[column],))}" if column in named else kind, remark)
    return declared


def _refuse_unreadable(sample: TopicSample, readable: int, address: str) -> None:
    where = f"topic {sample.topic} at {address}"
    if not sample.records:
        problem = "is empty" if sample.complete else "gave no record in time"
        msg = f"{where} {problem}: nothing can be derived; send some records first, and repeat the command"
        raise InvalidArgument(msg)
    if not readable:
        values = [record.value for record in sample.records if record.value is not None]
        example = values[0][:60].decode(errors="replace") if values else "null"
        remedy = 'send JSON objects, or write the file by hand: format = "avro" or "protobuf" (docs/topologies.md)'
        msg = f"{where}: none of {len(sample.records)} records is a JSON object, for example {example!r}; {remedy}"
        raise InvalidArgument(msg)


def _time(record: SampledRecord, fields: dict[str, Any], at: EventTime | None) -> int:
    return record.timestamp_ms if at is None else time_ms(fields[at.name], at.unit)


def _measure(
    sample: TopicSample, read: Sequence[tuple[SampledRecord, dict[str, Any]]], at: EventTime | None, now_ms: int
) -> SampleTimes:
    """Measures the times of the records that can be *read*."""
    times: list[tuple[int, int]] = []
    delays_ms: list[int] = []
    for record, fields in read:
        # A number in another unit would be decades away from the others.
        if at is None or unit_of(fields.get(at.name)) == (at.unit or ""):
            time_of_record = _time(record, fields, at)
            times.append((record.partition, time_of_record))
            delays_ms.append(max(0, record.timestamp_ms - time_of_record))
    lags = behind_ms(times, now_ms)
    bound_ms = max(1_000, rounded_up(covering_ms(lags)))
    delay_ms = covering_ms(delays_ms)
    arrivals_ms = sorted(record.timestamp_ms for record in sample.records)
    pauses_ms = [after - before for before, after in pairwise(arrivals_ms)]
    return SampleTimes(
        bound_ms=bound_ms,
        covers=math.floor(1_000 * (1 - late_share(lags, bound_ms))) / 10,
        furthest_ms=max(lags),
        delay_ms=delay_ms if delay_ms <= DAY_MS else 0,  # else it is a replay
        pause_ms=max(pauses_ms, default=0),
    )


def _source(
    name: str,
    sample: TopicSample,
    types: Mapping[str, tuple[str, str]],
    at: EventTime | None,
    key: Key,
    measured: SampleTimes,
) -> list[str]:
    """Returns the lines of the source."""
    idle_ms, quiet = _idle(sample, measured.bound_ms)
    covers = f"covers {measured.covers:g} % of the sample; the furthest record is {length(measured.furthest_ms)}"
    comments, declared = [], []
    for field, (kind, remark) in types.items():
        comments.append(f"# {field} {kind}: {_plain(remark)}")
        declared.append(f"{field} {kind}")
    return [
        "",
        f"[operators.{name}]",
        'kind = "source"',
        f'topic = "{sample.topic}"',
        *comments,
        f'fields = "{", ".join(declared)}"',
        *_time_lines(at),
        f'bound = "{length_in_toml(measured.bound_ms)}"  # {covers} behind a newer one of its partition',
        f'idle_after = "{length_in_toml(idle_ms)}"  # {quiet}',
        *([f'key = "{key.name}"  # filled by Kafka\'s key; a record without a value deletes it'] * key.from_kafka),
    ]


def _line_of_others(names: Sequence[str], types: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns the line for fields without a column of their own.

    No column can have their names, or few records have them.
    """
    if not names:
        return []
    column = "others_as_json" if "other_fields" in types else "other_fields"
    remark = f"as JSON, what few records have or no column can be named: {_plain(', '.join(names))[:100]}"
    return [f'other_fields = "{column}"  # {remark}']


def _table_and_sink(name: str, key: Key) -> list[str]:
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
    pauses = f"99 % of the pauses of a partition are at most {length(usual_ms)}" if gaps else "no pause was seen"
    return idle_ms, "; ".join([pauses, *(quiet or ["no partition was idle"])])


def _slas(name: str, measured: SampleTimes) -> str:
    """Returns the part of the file with two SLAs."""
    parts = (
        f"records come {length(measured.delay_ms)} late, bound {length(measured.bound_ms)}, {length(WORK_MS)} of work"
    )
    fresh = f"the longest pause {length(measured.pause_ms)}, {length(WORK_MS)} of work"
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
