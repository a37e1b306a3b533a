"""A topology and its SLAs for a topic, derived from a sample of its records: each line with what was seen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.sampling.disorder import behind_ms, covering_ms, late_share, rounded_up
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
from tidemark.sampling.topic_sample import Sample, Sampled
from tidemark.spec.toml_keys import length
from tidemark.spec.toml_operators import name_mistake

NO_TIME = 'no field looks like one (epoch s, ms, us, ns or ISO 8601), so Kafka\'s is used; else: timestamp = "FIELD"'
DAY_MS = 86_400_000
WORK_MS = 10_000
"""What a stream may need for a record, beside the wait for late ones."""


@dataclass(frozen=True)
class Measured:
    """How far out of order a sample is, how late, and with which pauses: lengths of time in ms."""

    bound_ms: int
    covers: float
    furthest_ms: int
    delay_ms: int
    pause_ms: int

    @property
    def latency_ms(self) -> int:
        """A limit of latency: twice what the wait for late records, their delay and the work take."""
        return rounded_up(2 * (self.bound_ms + self.delay_ms + WORK_MS))

    @property
    def staleness_ms(self) -> int:
        """A limit of staleness: twice what the longest pause and the work take. The newest record is not a late one."""
        return rounded_up(2 * (min(self.pause_ms, DAY_MS) + WORK_MS))


@dataclass(frozen=True)
class Proposal:
    """What the files of a new topology say, and in `notes` what its author should know."""

    name: str
    topology: str
    slas: str
    notes: tuple[str, ...]


def propose(sample: Sample, address: str, now_ms: int, *, key: str | None = None, own_cluster: bool) -> Proposal:
    """The topology for *sample* of a topic at *address*, seen at *now_ms*; with *own_cluster* it names the address.

    *key* is the field that its author named. Raises InvalidArgument when nothing can be derived.
    """
    found = [(record, each) for record in sample.records if (each := json_object(record)) is not None]
    _refuse_unreadable(sample, len(found), address)
    seen_objects = [each for _, each in found]
    rare = rare_names_of(seen_objects)
    columns = {name: column for name, column in columns_of(seen_objects).items() if name not in rare}
    others = [name for name in names_of(seen_objects) if name not in columns]
    read = [(record, {columns[name]: each[name] for name in each if name in columns}) for record, each in found]
    objects = [each for _, each in read]
    at = event_time(objects, max(record.timestamp_ms for record, _ in read))
    types = field_types(objects)
    if at is not None and at.unit is None:
        types[at.name] = ("timestamp", types[at.name][1])
    found_key = key_of(sample.records, read, types, at, columns.get(key or "", key), address)
    if found_key.from_kafka:
        types[found_key.name] = ("string", "Kafka's key")
    measured = _measured(sample, read, at, now_ms)
    name = slug(sample.topic)
    unreadable = len(sample.records) - len(read)
    seen = f"{len(sample.records):,} of {sample.there:,} records in {len(sample.ends)} partitions"
    seen += f"; {unreadable} are no JSON objects, and quarantined unless they delete their key" if unreadable else ""
    topology = [
        f"# Proposed for the topic {sample.topic} at {address}, from its newest records:",
        f"# {seen}.",
        f'name = "{name}"',
        'window = "10 s"  # streaming window: by it operators are compared',
        'trigger = "1 s"  # a batch each second',
        'check_every = "1 min"  # how often its SLAs are checked',
        *_source(name, sample, _declared(types, columns), at, found_key, measured),
        *_others(others, types),
        *_table_and_sink(name, found_key),
    ]
    if own_cluster:
        topology += ["", "[kafka.default]", f'bootstrap = "{address}"  # where the sample was read']
    notes = (
        f"sampled {seen}",
        f"event time: {NO_TIME if at is None else f'{at.name}, {at.text}'}",
        f"key {found_key.name}: {found_key.seen}",
        f"bound {length(measured.bound_ms)} covers {measured.covers:g} % of the sample",
    )
    return Proposal(name, "\n".join([*topology, ""]), _slas(name, measured), notes)


def slug(topic: str) -> str:
    """The name of a topology and its source for *topic*.

    >>> slug("Plant-1.readings"), slug("1st"), slug("changes"), slug("orders_source")
    ('plant_1_readings', 't_1st', 't_changes', 'orders_source_t')
    """
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")[:40].rstrip("_") or "topic"
    return next(each for each in (name, f"t_{name}", f"{name}_t", f"t_{name}_t") if not name_mistake(each))


def _declared(types: Mapping[str, tuple[str, str]], columns: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """*types* with what `fields` says of each column, that of the *columns* by field included."""
    named = {column: name for name, column in columns.items() if name != column}
    return {
        column: (f"{kind} from {named[column]}" if column in named else kind, seen)
        for column, (kind, seen) in types.items()
    }


def _refuse_unreadable(sample: Sample, readable: int, address: str) -> None:
    where = f"topic {sample.topic} at {address}"
    if not sample.records:
        seen = "is empty" if sample.complete else "gave no record in time"
        msg = f"{where} {seen}: nothing can be derived; send some records first, and repeat the command"
        raise InvalidArgument(msg)
    if not readable:
        values = [record.value for record in sample.records if record.value is not None]
        example = values[0][:60].decode(errors="replace") if values else "null"
        remedy = 'send JSON objects, or write the file by hand: format = "avro" and its schema (docs/topologies.md)'
        msg = f"{where}: none of {len(sample.records)} records is a JSON object, for example {example!r}; {remedy}"
        raise InvalidArgument(msg)


def _time(record: Sampled, found: dict[str, Any], at: EventTime | None) -> int:
    return record.timestamp_ms if at is None else time_ms(found[at.name], at.unit)


def _measured(
    sample: Sample, read: Sequence[tuple[Sampled, dict[str, Any]]], at: EventTime | None, now_ms: int
) -> Measured:
    """What the times of the records that can be *read* show."""
    timed = [(r, each) for r, each in read if at is None or unit_of(each.get(at.name)) == (at.unit or "")]
    times = [(r.partition, _time(r, each, at)) for r, each in timed]
    lags = behind_ms(times, now_ms)
    bound_ms = max(1_000, rounded_up(covering_ms(lags)))
    delay_ms = covering_ms([max(0, r.timestamp_ms - ms) for (r, _), (_, ms) in zip(timed, times, strict=True)])
    came = sorted(record.timestamp_ms for record in sample.records)
    return Measured(
        bound_ms=bound_ms,
        covers=math.floor(1_000 * (1 - late_share(lags, bound_ms))) / 10,
        furthest_ms=max(lags),
        delay_ms=delay_ms if delay_ms <= DAY_MS else 0,  # else it is a replay
        pause_ms=max((after - before for before, after in pairwise(came)), default=0),
    )


def _source(
    name: str,
    sample: Sample,
    types: Mapping[str, tuple[str, str]],
    at: EventTime | None,
    key: Key,
    found: Measured,
) -> list[str]:
    """The lines of the source."""
    idle_ms, quiet = _idle(sample, found.bound_ms)
    covers = f"covers {found.covers:g} % of the sample; the furthest record is {length(found.furthest_ms)}"
    return [
        "",
        f"[operators.{name}]",
        'kind = "source"',
        f'topic = "{sample.topic}"',
        *(f"# {field} {kind}: {_plain(seen)}" for field, (kind, seen) in types.items()),
        f'fields = "{", ".join(f"{field} {kind}" for field, (kind, _) in types.items())}"',
        *_time_lines(at),
        f'bound = "{_toml(found.bound_ms)}"  # {covers} behind a newer one of its partition',
        f'idle_after = "{_toml(idle_ms)}"  # {quiet}',
        *([f'key = "{key.name}"  # filled by Kafka\'s key; a record without a value deletes it'] * key.from_kafka),
    ]


def _others(names: Sequence[str], types: Mapping[str, tuple[str, str]]) -> list[str]:
    """The line for fields with *names* that no column can have, or few records do."""
    if not names:
        return []
    column = "others_as_json" if "other_fields" in types else "other_fields"
    seen = f"as JSON, what few records have or no column can be named: {_plain(', '.join(names))[:100]}"
    return [f'other_fields = "{column}"  # {seen}']


def _table_and_sink(name: str, key: Key) -> list[str]:
    """The lines of a table of the newest records, and of the sink that writes it."""
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
    """The lines of the event time."""
    if at is None:
        return [f"# {NO_TIME}"]
    seen = f"the likeliest event time, in {100 * at.share:.4g} % of the records: {at.text}"
    unit = [f'timestamp_unit = "{at.unit}"  # by the size of its numbers'] if at.unit else []
    return [f'timestamp = "{at.name}"  # {seen}', *unit]


def _idle(sample: Sample, bound_ms: int) -> tuple[int, str]:
    """After how long a partition is idle, and which ones were silent."""
    arrivals: dict[int, list[int]] = {}
    for record in sample.records:
        arrivals.setdefault(record.partition, []).append(record.timestamp_ms)
    gaps = [max(0, b - a) for each in arrivals.values() for a, b in pairwise(each)]
    usual_ms = covering_ms(gaps)
    idle_ms = min(600_000, max(30_000, rounded_up(3 * usual_ms)))
    newest = {number: max(each) for number, each in arrivals.items()}
    last_ms = max(newest.values())
    empty = [n for n in sample.ends if n not in newest]
    silent = [n for n, at_ms in newest.items() if last_ms - at_ms > max(idle_ms, bound_ms)]
    found = [f"without records: partition {', '.join(map(str, empty))}"] if empty else []
    found += [f"silent before the others: partition {', '.join(map(str, silent))}"] if silent else []
    pauses = f"99 % of the pauses of a partition are at most {length(usual_ms)}" if gaps else "no pause was seen"
    return idle_ms, "; ".join([pauses, *(found or ["no partition was idle"])])


def _slas(name: str, found: Measured) -> str:
    """The file's part with two SLAs."""
    parts = f"records come {length(found.delay_ms)} late, bound {length(found.bound_ms)}, {length(WORK_MS)} of work"
    fresh = f"the longest pause {length(found.pause_ms)}, {length(WORK_MS)} of work"
    owned = f'owner = "owner of {name}"  # who answers for it: correct this'
    resolved = 'resolve_after = "1 min"  # so long it has to hold until an incident is resolved'
    return f"""
# Proposed for the topology {name}, from a sample of its topic.
[{name}.in_time]
subject = "{name}_now"
measure = "latency_p99"  # from a record's own time until it is visible in the table
error_after = "{_toml(found.latency_ms)}"  # twice, rounded up: {parts}
{owned}
{resolved}

[{name}.fresh]
subject = "{name}_now"
measure = "staleness"  # age of the newest record in the table
error_after = "{_toml(found.staleness_ms)}"  # twice, rounded up: {fresh}
{owned}
{resolved}
"""


def _toml(ms: int) -> str:
    return length(ms).replace(",", "")


def _plain(text: str) -> str:
    """*text* in one line of a TOML comment."""
    return "".join(char if char.isprintable() else "?" for char in text)
