"""Reads one operator from its table in a topology's TOML file: docs/topologies.md lists the keys of each kind."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import available_timezones

from tidemark.errors import InvalidSpec
from tidemark.semantics.change import Rule
from tidemark.semantics.strategy import Strategy
from tidemark.spec.connections import DEFAULT
from tidemark.spec.operators import (
    HOUR_MS,
    MAX_BYTES,
    MAX_FILES,
    Aggregate,
    Beyond,
    Decide,
    Emission,
    Format,
    Join,
    KeyedTable,
    Kind,
    Map,
    NewestBy,
    NotANumber,
    Operator,
    Repartition,
    Shape,
    Sink,
    Source,
    Union,
    Windows,
)
from tidemark.spec.tables import TABLES
from tidemark.spec.toml_keys import IDENTIFIER, STREAM, Keys, length, read_whole

LEAST_LOCAL_HOP_MS = 7_200_000
"""Clocks are put forward by less than that, so that hopping windows on a local clock start one after the other."""
FIELD_TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp")
TIMESTAMP_UNITS = ("s", "ms", "us", "ns")
AGGREGATE_FUNCTIONS = ("count", "sum", "avg", "min", "max", "first", "last", "approx_distinct")
TAKES_BACK = frozenset({"count", "sum", "avg"})
"""Aggregate functions that can take back what they added."""

RESERVED = frozenset({"source", "partition", "offset", "key", "value", "headers", "deleted", "timestamp_ms", "reason"})
"""Names that rows have on their way from a source to an operator."""

UNLIMITED = "unlimited"
"""What `max_ahead` says where record time is not wall time."""

LIMITS: Mapping[str, Mapping[str, int | None]] = {
    "topic": {"max_records": 200_000},
    "delta": {"max_files": MAX_FILES, "max_bytes": MAX_BYTES},
    "files": {"max_files": None, "max_bytes": MAX_BYTES},
}
"""What bounds a batch of each place, with its default: a backlog does not fill the driver."""

SHAPING = frozenset({
    "aggregates", "columns", "delta", "fields", "id", "input", "inputs", "key", "kind", "on", "other_fields", "select",
    "table", "timestamp", "window",
})  # fmt: skip
"""Keys that say what an operator reads, and which columns it hands on."""

_FIELD = re.compile(rf"(?P<column>{IDENTIFIER.pattern})\s+(?P<type>\w+)(?:\s+from\s+(?P<field>[^`]+))?")
_WRITER = re.compile(r"[\w.-]+/[\w.-]+")
_AGGREGATE = re.compile(r"(\w+)\(\s*(\w+|\*)\s*\)")
_PLAUSIBLE = '["2000-01-01", "2100-01-01"]'


def read_operator(
    file: str, name: str, content: Any, *, folder: Path | None
) -> tuple[Operator | None, list[InvalidSpec]]:
    """The operator *name* of *file*, as its table *content* says, and every mistake in that.

    Schema files are looked for in *folder*.
    """
    table = content if isinstance(content, dict) else {}
    keys = Keys(file, f"operators.{name}", table)
    try:
        _refuse_name(file, name, keys)
        kind = keys.choice("kind", Kind, None)
    except InvalidSpec as error:
        return None, [error]

    def read(keys: Keys) -> Operator:
        common = {"name": name, "kind": keys.choice("kind", Kind, None)}
        stream = keys.name("sub_topology", "status", None, form=STREAM)
        return _READERS[kind](keys, common | {"sub_topology": stream}, folder)

    return read_whole(file, keys.at, table, read)


def mistakes_of(name: str, mistakes: Iterable[InvalidSpec]) -> list[InvalidSpec]:
    """Those of *mistakes* that are in the table of the operator *name*."""
    at = f"operators.{name}"
    return [mistake for mistake in mistakes if mistake.key == at or mistake.key.startswith(f"{at}.")]


def misshapen(mistakes: Iterable[InvalidSpec]) -> bool:
    """Whether one of *mistakes* of an operator leaves open what it reads, or which columns it hands on."""
    keys = (mistake.key.split(".")[2:3] for mistake in mistakes)
    return any(not key or difflib.get_close_matches(key[0], SHAPING) for key in keys)


def name_mistake(name: str) -> tuple[str, str] | None:
    """Why no operator can have *name*, and the remedy; None if one can."""
    if not IDENTIFIER.fullmatch(name) or name.endswith("_source"):
        return "is no name for an operator", "use a lower-case letter, then those, digits and _; not …_source"
    if name in TABLES or name.startswith("hop_") or name in RESERVED:
        return "is a name of Tidemark's own tables or columns", "choose another one"
    return None


def _refuse_name(file: str, name: str, keys: Keys) -> None:
    if mistake := name_mistake(name):
        raise InvalidSpec.at(file, keys.at, *mistake)


def _source(keys: Keys, common: dict[str, Any], folder: Path | None) -> Operator:
    place = keys.one_of({"topic": "events", "delta": "reference/events", "files": "incoming/events"})
    fields, named = _fields(keys)
    timestamp = keys.text("timestamp", "event_time", None if "topic" in place else ...)
    if timestamp is not None and fields.get(timestamp) not in {"bigint", "timestamp"}:
        remedy = "name a field of type bigint or timestamp among `fields`"
        keys.fail("timestamp", f"is {timestamp!r}", remedy, beside="fields")
    unit = keys.text("timestamp_unit", "ms", "ms")
    if unit not in TIMESTAMP_UNITS:
        keys.fail("timestamp_unit", f"is {unit!r}", f"use one of {', '.join(TIMESTAMP_UNITS)}")
    low, high = keys.pair("timestamp_range", _PLAUSIBLE, ("2000-01-01", "2100-01-01"))
    key = keys.text("key", "id", None)
    if key is not None and ("topic" not in place or fields.get(key) != "string"):
        keys.fail(
            "key",
            f"is {key!r}",
            "name a field of type string, which the key of the topic's records fills",
            beside="fields",
        )
    other_fields = keys.name("other_fields", "other", None)
    if other_fields in fields:
        found = f"is {other_fields!r}, which is a field"
        keys.fail("other_fields", found, "choose a name that no field has", beside="fields")
    idle_after_ms = keys.duration("idle_after", "30 s", None)
    idle_advances = keys.get("idle_advances", bool, "true", False)
    if idle_advances and idle_after_ms is None:
        problem = "is true and there is no idle_after"
        keys.fail("idle_advances", problem, 'write idle_after = "30 s"', beside="idle_after")
    return Source(
        **common,
        **place,
        kafka=_kafka(keys, place),
        **_format(keys, place, folder),
        fields=fields,
        named=named,
        timestamp=timestamp,
        timestamp_unit=unit,
        timestamp_range_ms=(keys.instant_ms(low, "timestamp_range"), keys.instant_ms(high, "timestamp_range")),
        bound_ms=keys.duration("bound", "3 s", zero=True),
        idle_after_ms=idle_after_ms,
        idle_advances=idle_advances,
        allowed_lateness_ms=keys.duration("allowed_lateness", "1 min", None, zero=True),
        max_ahead_ms=_max_ahead_ms(keys),
        key=key,
        other_fields=other_fields,
        **_limits(keys, place),
        written_by=_written_by(keys, place),
        nan=_nan(keys, fields),
        **_tombstone_time(keys, key, timestamp),
    )


def _limits(keys: Keys, place: Mapping[str, str]) -> dict[str, Any]:
    """The most that one batch takes in: records of a topic, or files and their bytes."""
    (kind,) = place
    allowed = LIMITS[kind]
    examples = {"max_records": "100000", "max_files": "100", "max_bytes": "16000000"}
    found = {key: keys.count(key, example, allowed.get(key)) for key, example in examples.items()}
    for key in examples:
        if key in keys.content and key not in allowed:
            reads = "a topic" if kind == "topic" else "no topic"
            keys.fail(key, f"is set, but the source reads {reads}", f"leave it out, or write {' or '.join(allowed)}")
    if kind == "files" and found["max_files"] is not None:
        if "max_bytes" in keys.content:
            remedy = "keep one of the two: of a folder Spark takes one limit alone"
            keys.fail("max_files", "is there beside max_bytes", remedy, beside="max_bytes")
        found["max_bytes"] = None
    return found


def _kafka(keys: Keys, place: Mapping[str, str]) -> str:
    """The cluster of a topic."""
    name: str = keys.name("kafka", "eu", DEFAULT)
    if "kafka" in keys.content and "topic" not in place:
        keys.fail("kafka", f"is {name!r}, and there is no topic", "leave it out: a cluster is that of a topic")
    return name


def _nan(keys: Keys, fields: Mapping[str, str]) -> NotANumber:
    nan = keys.choice("nan", NotANumber, NotANumber.KEEP)
    if nan is NotANumber.QUARANTINE and "double" not in fields.values():
        problem = f"is {nan.value!r} and no field is a double"
        keys.fail("nan", problem, "leave it out: no other type has NaN", beside="fields")
    return nan


def _tombstone_time(keys: Keys, key: str | None, timestamp: str | None) -> dict[str, Any]:
    """Where a record without a value says when its key was deleted: a header, or a field of the key."""
    content = keys.mapping("tombstone_time", '{ header = "deleted_at" }', None)
    if content is None:
        return {}
    if key is None:
        remedy = 'write key = "id", with which records delete their keys'
        keys.fail("tombstone_time", "is set, but the source has no key, and so no tombstones", remedy, beside="key")
    if timestamp is None:
        remedy = "leave it out, or name the field that has the time of the others as `timestamp`"
        problem = "is not the time of the other records, which is Kafka's"
        keys.fail("tombstone_time", problem, remedy, beside="timestamp")
    inner = Keys(keys.file, f"{keys.at}.tombstone_time", content)
    ((place, name),) = inner.one_of({"header": "deleted_at", "field": "deleted_at"}).items()
    inner.done()
    if "'" in name:
        inner.fail(place, f"is {name!r}", "name it without quotes")
    return {f"tombstone_{place}": name}


def _max_ahead_ms(keys: Keys) -> int | None:
    """How far ahead of the clock a record may be; None: as far as it likes."""
    if keys.text("max_ahead", "1 h", "1 h") == UNLIMITED:
        return None
    limit_ms: int = keys.duration("max_ahead", "1 h", HOUR_MS, zero=True)
    return limit_ms


def _written_by(keys: Keys, place: Mapping[str, str]) -> tuple[str, ...]:
    """The writers that a source names: one text, or a list of them."""
    writers = keys.one_or_more("written_by", '"flights/status"', ())
    for writer in writers:
        if not _WRITER.fullmatch(writer):
            keys.fail("written_by", f"has {writer!r}", 'name a writer as topology/sub-topology: "flights/status"')
    if writers and "files" in place:
        keys.fail(
            "written_by",
            "is set, but the source reads files",
            "leave it out: what it says comes with a topic's records, or a table",
        )
    return writers


def _format(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """The format of records in a topic or in files, with the text of its Avro schema."""
    allowed = {"topic": (Format.JSON, Format.AVRO), "files": (Format.JSON, Format.CSV, Format.PARQUET)}
    (kind,) = place
    if kind not in allowed:
        return {}
    chosen = keys.choice("format", Format, Format.JSON)
    if chosen not in allowed[kind]:
        keys.fail("format", f"is {chosen.value!r}", f"a {kind} has one of {', '.join(allowed[kind])}")
    if chosen is not Format.AVRO:
        return {"format": chosen}
    name = keys.text("avro_schema", "events.avsc")
    try:
        return {"format": chosen, "avro_schema": ((folder or Path()) / name).read_text(encoding="utf-8")}
    except OSError as error:
        keys.fail("avro_schema", f"is {name!r}: {error.strerror}", f"put the schema into the folder of {keys.file}")


def _fields(keys: Keys) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The columns of a source with their types, and the fields of the record that have other names."""
    fields: dict[str, str] = {}
    named: dict[str, str] = {}
    wrong: list[str] = []
    for part in keys.text("fields", "id string, event_time bigint").split(","):
        match = _FIELD.fullmatch(part.strip())
        if not match or match["type"] not in FIELD_TYPES:
            wrong.append(repr(part.strip()))
            continue
        if match["column"] in fields:
            keys.fail("fields", f"has {match['column']!r} twice", "name each field once")
        fields[match["column"]] = match["type"]
        if match["field"]:
            named[match["column"]] = match["field"]
    if wrong:
        types = ", ".join(FIELD_TYPES)
        remedy = f"write `name type` with one of {types}; where the record has another name, `name type from itsName`"
        keys.fail("fields", f"has {', '.join(wrong)}", remedy)
    read = Counter(named.get(column, column).lower() for column in fields)
    if twice := [field for field, n in read.items() if n > 1]:
        keys.fail("fields", f"reads {twice[0]!r} twice (Spark ignores case)", "read each field once")
    return MappingProxyType(fields), MappingProxyType(named)


def _emission(keys: Keys, rule: Rule, *, windowed: bool = False) -> Emission:
    """The keys that say when updates are sent on."""
    emission = Emission(
        strategy=keys.choice("strategy", Strategy, Strategy.ON_CHANGE),
        rule=keys.choice("rule", Rule, rule),
        decide=keys.choice("decide", Decide, Decide.RECORD),
        interval_ms=keys.duration("interval", "10 s", None),
    )
    if (emission.strategy is Strategy.PERIODIC) != (emission.interval_ms is not None):
        found = f"is {keys.content.get('interval')!r} and strategy is {emission.strategy.value!r}"
        remedy = 'give an interval, such as "10 s", to the strategy "periodic" and to no other'
        keys.fail("interval", found, remedy, beside="strategy")
    if emission.strategy is Strategy.ON_WINDOW_CLOSE and not windowed:
        problem = 'is "on_window_close" and there is no window'
        keys.fail("strategy", problem, "give an aggregate a window, or use another", beside="window")
    return emission


def _map(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    judges = "strategy" in keys.content
    return Map(
        **common,
        inputs=(keys.text("input", "events"),),
        select=keys.columns("select", '{ id = "id" }'),
        where=keys.text("where", "id is not null", None),
        emission=_emission(keys, Rule.STRICTLY_NEWER) if judges else None,
        key=keys.names("key", '["id"]', ()) if judges else (),
        identity=keys.text("identity", "round(amount)", None) if judges else None,
    )


def _table(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    return KeyedTable(
        **common,
        inputs=(keys.text("input", "events"),),
        key=keys.names("key", '["id"]'),
        columns=keys.names("columns", '["status"]', ()),
        emission=_emission(keys, Rule.STRICTLY_NEWER),
        history_ms=keys.duration("history", "1 h", None),
        beyond_history=keys.choice("beyond_history", Beyond, Beyond.OLDEST),
        newest_by=keys.choice("newest_by", NewestBy, NewestBy.ARRIVAL) if "newest_by" in keys.content else None,
    )


def _join(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    found = keys.one_of({"table": "weather_now", "delta": "reference/airports"})
    inputs = (keys.text("input", "events"), *(found[k] for k in ("table",) if k in found))
    how = keys.text("how", "left", "left")
    if how not in {"left", "inner"}:
        keys.fail("how", f"is {how!r}", "use left (columns without a match are null) or inner (the record is left out)")
    return Join(**common, **found, inputs=inputs, on=keys.mapping("on", '{ id = "id" }'), inner=how == "inner")


def _union(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    inputs = keys.names("inputs", '["events", "older_events"]')
    if len(inputs) < 2:
        keys.fail("inputs", f"is {list(inputs)}", "name two operators or more; one alone needs no union")
    return Union(**common, inputs=inputs)


def _repartition(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    partitions = keys.get("partitions", int, "2", 1)
    if partitions < 1:
        keys.fail("partitions", f"is {partitions}", "use 1 or more")
    id_ = keys.names("id", '["id"]', ())
    return Repartition(
        **common,
        inputs=(keys.text("input", "events"),),
        id=id_,
        key=keys.names("key", '["group"]'),
        columns=keys.names("columns", '["amount"]'),
        partitions=partitions,
        emission=_emission(keys, Rule.STRICTLY_NEWER) if id_ else Emission(),
    )


def _aggregate(keys: Keys, common: dict[str, Any], _: Path | None) -> Operator:
    calls = {}
    for name, call in keys.columns("aggregates", '{ n = "count(*)" }').items():
        match = _AGGREGATE.fullmatch(call)
        if not match or match[1] not in AGGREGATE_FUNCTIONS or (match[2] == "*" and match[1] != "count"):
            known = ", ".join(f"{function}(column)" for function in AGGREGATE_FUNCTIONS)
            keys.fail(f"aggregates.{name}", f"is {call!r}, which cannot be merged", f"use count(*) or {known}")
        calls[name] = (match[1], match[2])
    windows = _windows(keys)
    return Aggregate(
        **common,
        inputs=(keys.text("input", "by_group"),),
        key=keys.names("key", '["group"]', ()),
        windows=windows,
        aggregates=MappingProxyType(calls),
        select=keys.columns("select", '{ n = "n" }', {name: name for name in calls}),
        emission=_emission(keys, Rule.SAME_INSTANT, windowed=windows is not None),
    )


def _windows(keys: Keys) -> Windows | None:
    content = keys.mapping("window", '{ tumbling = "1 min" }', None)
    allowed_lateness_ms = keys.duration("allowed_lateness", "1 min", None, zero=True)
    reopen_for_ms = keys.duration("reopen_for", "1 d", None)
    if content is None:
        for key in ("allowed_lateness", "reopen_for"):
            if key in keys.content:
                remedy = 'write window = { tumbling = "1 min" }, or leave it out'
                keys.fail(key, "is set, but there is no window", remedy, beside="window")
        return None
    inner = Keys(keys.file, f"{keys.at}.window", content)
    ((shape, _),) = inner.one_of({shape.value: "1 min" for shape in Shape}).items()
    size_ms = inner.duration(shape, "1 min")
    hop_ms = inner.duration("every", "10 s") if shape == Shape.HOPPING else size_ms
    offset_ms = inner.duration("offset", "15 min", 0, zero=True) if shape != Shape.SESSION else 0
    timezone = _timezone(inner, Shape(shape), hop_ms)
    inner.done()
    if hop_ms > size_ms:
        inner.fail(
            "every", f"is longer than the window ({content})", "make it at most as long, or records fall between"
        )
    if reopen_for_ms is not None and shape == Shape.SESSION:
        remedy = 'leave it out, and give late records time with allowed_lateness = "1 d"'
        keys.fail("reopen_for", "is set for a session, whose bounds depend on all of its records", remedy)
    return Windows(
        shape=Shape(shape),
        size_ms=size_ms,
        hop_ms=hop_ms,
        offset_ms=offset_ms,
        allowed_lateness_ms=allowed_lateness_ms or 0,
        timezone=timezone,
        reopen_for_ms=reopen_for_ms,
    )


def _timezone(keys: Keys, shape: Shape, hop_ms: int) -> str | None:
    """The IANA name of the clock by which windows begin; None: UTC."""
    name: str | None = keys.text("timezone", "America/New_York", None)
    if name is None:
        return None
    if shape is Shape.SESSION:
        keys.fail(
            "timezone", f"is {name!r} and the window is a session", "leave it out: a gap is as long in every zone"
        )
    known = available_timezones() - {"Factory", "localtime"}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"use an IANA name, such as {near[0] if near else 'America/New_York'}"
        keys.fail("timezone", f"is {name!r}, which is no known time zone", remedy)
    if shape is Shape.HOPPING and hop_ms < LEAST_LOCAL_HOP_MS:
        found, remedy = f"is {name!r} and windows start every {length(hop_ms)}", 'start them every "2 h" or more'
        keys.fail("timezone", found, f"{remedy}: several would start at once when the clock is put forward")
    return name


def _sink(keys: Keys, common: dict[str, Any], folder: Path | None) -> Operator:
    place = keys.one_of({"topic": "alerts", "table": "alerts"})
    if (table := place.get("table")) is not None and not IDENTIFIER.fullmatch(table):
        keys.fail("table", f"is {table!r}", "use a lower-case letter, then lower-case letters, digits and _")
    if table in TABLES or (table or "").startswith("hop_"):
        keys.fail("table", f"is {table!r}, a table of Tidemark's own", "choose another name")
    mode = keys.text("mode", "append", "append") if table else "append"
    if mode not in {"append", "current"}:
        keys.fail("mode", f"is {mode!r}", "use append (every record) or current (the current row of each key)")
    return Sink(
        **common,
        **place,
        kafka=_kafka(keys, place),
        **_sink_format(keys, place, folder),
        inputs=(keys.text("input", "events"),),
        key=keys.names("key", '["id"]') if mode == "current" else (),
        last_seen_at=_last_seen_at(keys, mode),
        **_marks(keys, place, mode),
    )


def _last_seen_at(keys: Keys, mode: str) -> bool:
    """Whether current rows say when their key was last asserted."""
    wanted: bool = keys.get("last_seen_at", bool, "true", False)
    if wanted and mode != "current":
        keys.fail(
            "last_seen_at", 'is true, but mode is not "current"', 'write mode = "current" and a key', beside="mode"
        )
    return wanted


def _marks(keys: Keys, place: Mapping[str, str], mode: str) -> dict[str, Any]:
    """Whether, and how often, a sink's topic gets marks of time, or a table that is appended to: there always."""
    if mode == "current":
        return {}
    marks = keys.get("marks", bool, "true", False) if "topic" in place else False
    every_ms = keys.duration("mark_every", "10 s", None)
    if every_ms is not None and "topic" in place and not marks:
        keys.fail("mark_every", "is set, but marks is not true", "write marks = true, or leave it out", beside="marks")
    return {"marks": marks, "mark_every_ms": every_ms or 10_000}


def _sink_format(keys: Keys, place: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    return _format(keys, place, folder) if "topic" in place else {}


_READERS: Mapping[Kind, Callable[[Keys, dict[str, Any], Path | None], Operator]] = MappingProxyType(
    {
        Kind.SOURCE: _source,
        Kind.MAP: _map,
        Kind.TABLE: _table,
        Kind.JOIN: _join,
        Kind.UNION: _union,
        Kind.REPARTITION: _repartition,
        Kind.AGGREGATE: _aggregate,
        Kind.SINK: _sink,
    }
)
