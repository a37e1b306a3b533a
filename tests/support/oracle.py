"""Computes the results of a declared topology, record after record.

Purpose: tests of real drivers compare their tables with this. So it shares nothing with the engine, neither code nor
style: standard library only, every rule written out. A test declares its topology as a list of operators, with Python
functions in place of SQL.

How it works: of the engine's tables it is given `batches` alone, for what no calculation can know: which offsets a
batch read, and the instant for which it was decided. All else follows from the records. Sources are read in the order
of the list. The last one leads: its watermark is that of the sub-topology.

Instants are epoch ms, UTC; texts are JSON as the tables have it. Dictionaries by a number are by batch id.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from support.oracle_parts import (
    Batch,
    EmitOnChange,
    Fields,
    Handed,
    Late,
    Message,
    Place,
    Reached,
    Read,
    SourceTime,
    Update,
    is_closed,
    text,
)

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A row between operators, which may replace an *old* one."""

    fields: Fields
    timestamp_ms: int
    place: Place
    deletes: bool = False
    old: Fields | None = None


def key_of(key: Key, fields: Fields) -> str:
    """Returns a key as text: of several columns their JSON."""
    return fields[key[0]] if len(key) == 1 else text({name: fields[name] for name in key})


@dataclass(kw_only=True)
class Operator:
    """A named operator; `count` has the outcomes of its batch."""

    name: str
    input: str = ""
    count: Counter[str] = field(default_factory=Counter)

    def begin(self, batch: Batch, watermark_ms: int | None) -> None:
        """Starts a batch; *watermark_ms* is that of the batch before."""
        self.batch, self.was_ms, self.count = batch, watermark_ms, Counter()

    def take(self, row: Row) -> Iterator[Row]:
        """Processes *row* and yields what it sends on."""
        raise NotImplementedError

    def end(self, watermark_ms: int | None) -> Iterator[Row]:
        """Ends a batch, which brings time to *watermark_ms*."""
        yield from ()

    def judge(self, changes: EmitOnChange, *update: object, identity: str | None = None) -> bool:
        """Counts an update as emitted or suppressed; true if emitted."""
        emits = changes.offer(*update, identity=identity)
        self.count.update(("records_in", "emitted" if emits else "suppressed"))
        return emits


@dataclass(kw_only=True)
class Source(Operator):
    """Reads records by *parse*, given the newest time of their partition.

    It is late what is *late_after_ms* or more behind the watermark; None: nothing is. A record with a time alone keeps
    its partition alive.
    """

    parse: Callable[[Message, int | None], Fields | str]
    bound_ms: int
    idle_after_ms: int
    late_after_ms: int | None = None
    messages: Mapping[Place, Message]
    quarantined: list[tuple[Place, str]] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    newest_ms: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.time = SourceTime(self.bound_ms, self.idle_after_ms)

    def read(self, read: Read) -> Iterator[Row]:
        """Yields the rows of *read* that are in time."""
        timestamps_ms = []
        for place in read.places():
            self.count["records_in"] += 1
            fields = self.parse(self.messages[place], self.newest_ms.get(place.partition))
            if isinstance(fields, str):
                self.quarantined.append((place, fields))
                self.count["quarantined"] += 1
                continue
            at_ms: int = fields["event_time"]
            timestamps_ms.append(at_ms)
            self.newest_ms[place.partition] = max(at_ms, self.newest_ms.get(place.partition, at_ms))
            yield from self._in_time(Row(fields, at_ms, place, deletes=fields.get("deleted", False)))
        self.time.listen(read, timestamps_ms, self.batch.decided_at_ms)

    def _in_time(self, row: Row) -> Iterator[Row]:
        watermark_ms = self.time.watermark_ms
        if [name for name, value in row.fields.items() if value is not None] == ["event_time"]:
            self.count["filtered"] += 1
        elif None not in (watermark_ms, self.late_after_ms) and row.timestamp_ms + self.late_after_ms <= watermark_ms:
            self.late.append(Late(row.place, row.timestamp_ms, watermark_ms))
            self.count["late"] += 1
        else:
            self.count["passed"] += 1
            yield row


@dataclass(kw_only=True)
class Hop(Operator):
    """Reads what the repartition of another sub-topology *handed* on, by its batches."""

    handed: Mapping[int, Sequence[Handed]]
    watermarks: Mapping[int, int | None]

    def read(self, read: Read) -> Iterator[Row]:
        """Yields the rows of the batches of *read*."""
        for number in range(read.from_offset, read.until_offset):
            for row in self.handed.get(number, ()):
                self.count.update(("records_in", "passed"))
                place, fields = Place(self.name, row.partition, row.offset), row.old if row.new is None else row.new
                yield Row(fields or {}, row.timestamp_ms, place, row.new is None, row.old)

    def reached_ms(self) -> int | None:
        """Returns the watermark of the last batch that was read."""
        until = max(read.until_offset for read in self.batch.reads)
        return self.watermarks.get(max((n for n in self.watermarks if n < until), default=-1))


@dataclass(kw_only=True)
class Map(Operator):
    """Selects fields of rows for which *where* holds; deletions pass.

    With a *key* it emits on change, by *identity*.
    """

    select: Callable[[Fields], Fields]
    where: Callable[[Fields], bool] = lambda fields: True
    key: Key = ()
    identity: Callable[[Fields], str] = text
    rule: str = "strictly_newer"

    def __post_init__(self) -> None:
        self.changes = EmitOnChange(self.rule)

    def take(self, row: Row) -> Iterator[Row]:
        if not row.deletes and not self.where(row.fields):
            self.count.update(("records_in", "filtered"))
            return
        selected = row if row.deletes else replace(row, fields=self.select(row.fields))
        if not self.key:
            self.count.update(("records_in", "passed"))
        elif not self.judge(
            self.changes, key_of(self.key, selected.fields), text(selected.fields), row.timestamp_ms, row.place,
            identity=self.identity(selected.fields),
        ):  # fmt: skip
            return
        yield selected


@dataclass(kw_only=True)
class Table(Operator):
    """Keeps the newest *columns* by key and emits on change.

    An equal value that was suppressed belongs to the history all the same.
    """

    key: str
    columns: Key
    rule: str = "strictly_newer"
    history: dict[str, list[tuple[int, Fields]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.changes = EmitOnChange(self.rule)

    def take(self, row: Row) -> Iterator[Row]:
        key = row.fields[self.key]
        value = None if row.deletes else {name: row.fields[name] for name in self.columns}
        if value is not None:
            self.history[key].append((row.timestamp_ms, value))
        if self.judge(self.changes, key, value and text(value), row.timestamp_ms, row.place):
            yield replace(row, fields={self.key: key, **(value or {})})

    def valid(self, key: str, at_ms: int) -> Fields | None:
        """Returns the newest value at *at_ms*; of one instant the last."""
        versions = [version for version in self.history[key] if version[0] <= at_ms]
        return max(reversed(versions), key=lambda version: version[0])[1] if versions else None


@dataclass(kw_only=True)
class Join(Operator):
    """Adds the row of *table* that is valid at the record's time.

    Without one, the record is left out if *inner*, and the columns are null otherwise.
    """

    table: Table
    inner: bool = False

    def take(self, row: Row) -> Iterator[Row]:
        joined = self.table.valid(row.fields[self.table.key], row.timestamp_ms)
        if joined is None and self.inner:
            self.count.update(("records_in", "filtered"))
            return
        self.count.update(("records_in", "passed"))
        yield replace(row, fields={**row.fields, **dict.fromkeys(self.table.columns), **(joined or {})})


@dataclass(kw_only=True)
class Sink(Operator):
    """Has all rows, and with a *key* the current one of each."""

    key: Key = ()
    rows: list[Row] = field(default_factory=list)
    current: dict[str, Fields] = field(default_factory=dict)

    def take(self, row: Row) -> Iterator[Row]:
        self.count.update(("records_in", "passed"))
        self.rows.append(row)
        if row.deletes:
            self.current.pop(key_of(self.key, row.fields), None)
        elif self.key:
            stamped = {**row.fields, "timestamp": row.timestamp_ms, "batch_id": self.batch.batch_id}
            self.current[key_of(self.key, row.fields)] = stamped
        yield from ()


@dataclass(kw_only=True)
class Repartition(Operator):
    """Hands rows on by another *key*.

    With an *id* it sends changes, and what each replaces: in two rows if that had another key.
    """

    id: str | None = None
    key: Key
    columns: Key
    handed: dict[int, list[Handed]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changes = EmitOnChange()

    def begin(self, batch: Batch, watermark_ms: int | None) -> None:
        super().begin(batch, watermark_ms)
        self.handed[batch.batch_id] = []

    def take(self, row: Row) -> Iterator[Row]:
        new = None if row.deletes else {name: row.fields[name] for name in (*self.key, *self.columns)}
        old = None
        if self.id is None:
            self.count.update(("records_in", "passed"))
        else:
            stored, _ = self.changes.stored.get(row.fields[self.id], (None, None))
            if not self.judge(self.changes, row.fields[self.id], new and text(new), row.timestamp_ms, row.place):
                return
            old = None if stored is None else json.loads(stored)
        is_another = old is not None and (new is None or key_of(self.key, new) != key_of(self.key, old))
        pairs = [(old, None), (None, new)] if is_another else [(old, new)]
        for was, now in pairs:
            if value := now or was:
                self.count["fan_out"] += 1
                at = (row.timestamp_ms, row.place.partition, row.place.offset)
                self.handed[self.batch.batch_id].append(Handed(key_of(self.key, value), was, now, *at))
        yield from ()


@dataclass
class Group:
    """Rows of a key, and of a window that ends before *end_ms*."""

    key: Fields
    end_ms: int = 0
    rows: list[Row] = field(default_factory=list)
    newest_ms: int = 0

    def add(self, row: Row) -> None:
        """Adds a row, in place of the one that it replaces."""
        if row.old is not None:
            values = [each.fields for each in self.rows]
            del self.rows[values.index(row.old)]
        if not row.deletes:
            self.rows.append(row)
        self.newest_ms = max(self.newest_ms, row.timestamp_ms)
        self.place = row.place

    @property
    def start_ms(self) -> int:
        """Returns the first instant of its rows."""
        return min(row.timestamp_ms for row in self.rows)


@dataclass(kw_only=True)
class Aggregate(Operator):
    """Emits the *result* of all values of a key when it changes."""

    key: Key
    result: Callable[[list[Fields]], Fields]
    groups: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changes = EmitOnChange("value_only")

    def value(self, group: Group) -> Fields:
        """Returns the result of *group*."""
        return self.result([row.fields for row in group.rows])

    def keys(self, fields: Fields) -> Fields:
        """Returns the key columns of *fields*."""
        return {name: fields[name] for name in self.key}

    def added(self, row: Row) -> Group:
        """Returns the group of *row*, which has it now."""
        group = self.groups.setdefault(key_of(self.key, row.fields), Group(self.keys(row.fields)))
        group.add(row)
        return group

    def take(self, row: Row) -> Iterator[Row]:
        group = self.added(row)
        key, value = key_of(self.key, row.fields), self.value(group)
        if self.judge(self.changes, key, text(value), group.newest_ms, row.place):
            yield Row({**group.key, **value}, group.newest_ms, row.place)


@dataclass(kw_only=True)
class PeriodicAggregate(Aggregate):
    """Sends all current results once an interval.

    `sent` has those that changed, by key.
    """

    interval_ms: int
    sent: dict[int, list[Update]] = field(default_factory=dict)
    sent_ms: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    decided_at_ms: int | None = None

    def begin(self, batch: Batch, watermark_ms: int | None) -> None:
        super().begin(batch, watermark_ms)
        self.count["held_before"] = len(self.held)

    def take(self, row: Row) -> Iterator[Row]:
        self.added(row)
        key = key_of(self.key, row.fields)
        self.count.update({"records_in": 1, "superseded": key in self.held})
        self.held.add(key)
        yield from ()

    def end(self, watermark_ms: int | None) -> Iterator[Row]:
        was_ms, self.decided_at_ms = self.decided_at_ms, self.batch.decided_at_ms
        sent = self.sent[self.batch.batch_id] = []
        if was_ms is not None and self.decided_at_ms // self.interval_ms > was_ms // self.interval_ms:
            for key, group in self.groups.items():
                value, place = self.value(group), group.place
                if key in self.held:
                    before_ms, self.sent_ms[key] = self.sent_ms.get(key), group.newest_ms
                    sent.append(Update(key, text(value), group.newest_ms, before_ms, place.partition, place.offset))
                yield Row({**group.key, **value}, group.newest_ms, place)
            sent.sort()
            self.held.clear()
            self.count.update({"emitted": len(sent), "repeated": len(self.groups) - len(sent)})
        self.count["held_after"] = len(self.held)


@dataclass(kw_only=True)
class WindowedAggregate(Aggregate):
    """Has a group for each window of *size_ms*, one every *every_ms*.

    It sends each update; a row is late if all of its windows are closed.
    """

    size_ms: int
    every_ms: int
    allowed_lateness_ms: int = 0
    late: list[Late] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def closed(self, end_ms: int, watermark_ms: int | None) -> bool:
        """Returns true if a window until *end_ms* accepts no records."""
        return is_closed(end_ms, self.allowed_lateness_ms, watermark_ms)

    def open_groups(self, row: Row) -> Iterator[tuple[str, Group]]:
        """Yields the open windows of *row* with their keys.

        Without any it is late.
        """
        last_ms = row.timestamp_ms // self.every_ms * self.every_ms
        starts_ms = range(last_ms - self.size_ms + self.every_ms, last_ms + 1, self.every_ms)
        open_ms = [start_ms for start_ms in starts_ms if not self.closed(start_ms + self.size_ms, self.was_ms)]
        self.count["records_in"] += len(open_ms)
        if not open_ms:
            self.set_aside(row)
        for start_ms in open_ms:
            key = {**self.keys(row.fields), "window_start": start_ms}
            yield text(key), self.groups.get(text(key), Group(key, start_ms + self.size_ms))

    def set_aside(self, row: Row) -> None:
        """Counts *row* as late."""
        self.count.update(("records_in", "late"))
        place = Place(self.name, row.place.partition, row.place.offset)
        self.late.append(Late(place, row.timestamp_ms, self.was_ms or 0))

    def take(self, row: Row) -> Iterator[Row]:
        for key, group in self.open_groups(row):
            before_ms = group.newest_ms or None
            group.add(row)
            self.groups[key] = group
            value = self.value(group)
            at = (group.newest_ms, before_ms, row.place.partition, row.place.offset)
            self.updates.append(Update(key, text(value), *at))
            self.count["emitted"] += 1
            yield Row({**group.key, **value}, group.newest_ms, row.place)


@dataclass(kw_only=True)
class FinalAggregate(WindowedAggregate):
    """Sends one result of a window, when it closes."""

    sent: dict[int, list[Update]] = field(default_factory=dict)

    def begin(self, batch: Batch, watermark_ms: int | None) -> None:
        super().begin(batch, watermark_ms)
        self.count["held_before"] = len(self.groups)

    def take(self, row: Row) -> Iterator[Row]:
        for key, group in self.open_groups(row):
            self.count["superseded"] += key in self.groups
            group.add(row)
            self.groups[key] = group
        yield from ()

    def end(self, watermark_ms: int | None) -> Iterator[Row]:
        sent = self.sent[self.batch.batch_id] = []
        for name, group in list(self.groups.items()):
            if self.closed(group.end_ms, watermark_ms):
                del self.groups[name]
                value, place = self.value(group), group.place
                sent.append(Update(text(group.key), text(value), group.end_ms - 1, None, place.partition, place.offset))
                yield Row({**group.key, **value}, group.end_ms - 1, place)
        sent.sort()
        self.count.update({"emitted": len(sent), "held_after": len(self.groups)})


@dataclass(kw_only=True)
class SessionAggregate(FinalAggregate):
    """Has a group per session: rows at most *size_ms* apart.

    A row is late if it opens a session that is closed already. Deletions are no rows.
    """

    every_ms: int = 0

    def take(self, row: Row) -> Iterator[Row]:
        if row.deletes:
            self.count.update(("records_in", "filtered"))
            return
        at_ms, of_key = row.timestamp_ms, self.keys(row.fields)
        joined = {
            name: group
            for name, group in self.groups.items()
            if of_key.items() <= group.key.items() and group.start_ms - self.size_ms <= at_ms <= group.end_ms
        }
        if not joined and self.closed(at_ms + self.size_ms, self.was_ms):
            self.set_aside(row)
            return
        self.count.update({"records_in": 1, "superseded": len(joined)})
        merged = Group(of_key, max([at_ms + self.size_ms, *(group.end_ms for group in joined.values())]))
        for name, group in joined.items():
            merged.rows += group.rows
            del self.groups[name]
        merged.add(row)
        merged.key = {**of_key, "window_start": merged.start_ms}
        self.groups[text(merged.key)] = merged
        yield from ()


class Oracle:
    """Computes the results of *operators* after *batches*."""

    def __init__(self, operators: Iterable[Operator], batches: Iterable[Batch]) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._sources = [each for each in self._operators.values() if isinstance(each, Source | Hop)]
        self.outcomes: dict[int, dict[str, Counter[str]]] = {}
        self.times: dict[int, dict[tuple[str, int | None], Reached]] = {}  # partition None: the source
        self.watermarks: dict[int, int | None] = {}
        self.watermark_ms: int | None = None
        for batch in batches:
            self._run(batch)

    def __getitem__(self, operator: str) -> Operator:
        return self._operators[operator]

    @property
    def quarantined(self) -> list[tuple[Place, str]]:
        """Returns unusable records of all sources, with their reasons."""
        return [bad for source in self._sources if isinstance(source, Source) for bad in source.quarantined]

    def times_of(self, source: str) -> dict[int, dict[int | None, Reached]]:
        """Returns the time of *source* and its partitions after each batch."""
        return {
            batch_id: {partition: reached for (name, partition), reached in times.items() if name == source}
            for batch_id, times in self.times.items()
        }

    def _run(self, batch: Batch) -> None:
        for operator in self._operators.values():
            operator.begin(batch, self.watermark_ms)
        for source in self._sources:
            for read in sorted(batch.reads):
                if read.topic == source.name:
                    self._send(source, source.read(read))
        self._move(batch)
        for operator in self._operators.values():
            self._send(operator, operator.end(self.watermark_ms))
        self.outcomes[batch.batch_id] = {name: operator.count for name, operator in self._operators.items()}

    def _send(self, sender: Operator, rows: Iterable[Row]) -> None:
        """Takes each row through all operators before the next one."""
        for row in rows:
            for operator in self._operators.values():
                if operator.input == sender.name:
                    self._send(operator, operator.take(row))

    def _move(self, batch: Batch) -> None:
        """Moves time at the end of a batch."""
        times: dict[tuple[str, int | None], Reached] = {}
        for source in self._sources:
            if isinstance(source, Hop):
                self.watermark_ms = source.reached_ms()
            else:
                times |= {(source.name, n): reached for n, reached in source.time.move().items()}
                self.watermark_ms = source.time.watermark_ms
        self.times[batch.batch_id], self.watermarks[batch.batch_id] = times, self.watermark_ms
