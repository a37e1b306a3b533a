"""Simulates streams ms by ms, and knows to whom each ms of each result belongs.

A Life is one random topology with its producers, brokers, drivers and faults. `Life.facts` has what a driver could have
recorded, in rows by the name of their frame, and `Life.truth` the parts of each result's age. Both come from what
happened: nothing here reads the account of time, or shares code with it. Instants are ms of the reference clock,
`BASE_MS` at the beginning; hosts have boot clocks, and wall clocks that are wrong and step.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np

BASE_MS = 1_800_000_000_000
BEFORE_MS, AFTER_MS = 40_000, 400_000
"""The labels of a stream reach this far before and after BASE_MS."""
BEAT_MS, PAUSE_MS = 250, 1_000
Row = dict[str, Any]
Owned = tuple[str, str]
"""An owner and its detail."""
UNKNOWN_SEGMENT: Owned = ("unknown", "segment")
FIRST = ("stream", "batch_id", "input", "partition", "row", "event_ms", "arrived_ms", "arrival_error_ms")
FIRST += ("in_transaction", "left_by", "writer", "writer_place", "writer_batch", "writer_row")
"""What is noted of the first record that passed a window."""


@dataclass
class Host:
    """A host, its wall clock ahead of the reference by `ahead_ms` and by all `steps` (instant, ms) before."""

    name: str
    ahead_ms: int
    steps: list[tuple[int, int]]
    booted_ms: int
    error_ms: int | None
    """Error of the measured offset; None: nobody measures it."""

    def boot(self, at_ms: int) -> int:
        return at_ms - self.booted_ms

    def wall(self, at_ms: int) -> int:
        return at_ms + self.ahead_ms + sum(by_ms for step_ms, by_ms in self.steps if step_ms <= at_ms)


class Unread(NamedTuple):
    """Records that a stream's plan left behind, from then on, and who made it do so if the stream owes nothing."""

    stream: str
    batch_id: int
    owner: Owned
    since_ms: int


class Stretch(NamedTuple):
    """Time until an instant: of an owner, of a stream's life, or unread."""

    owner: Owned | str | Unread
    until_ms: int


@dataclass
class Record:
    """A record of a source's partition or of a hop, and whose the time until it arrived is."""

    event_ms: int
    arrived_ms: int
    path: list[Stretch]
    writer: str | None = None
    writer_batch: int | None = None
    writer_row: int | None = None
    readable_ms: int | None = None
    left_by: int | None = None
    left_ms: int | None = None
    left_to: Owned | None = None
    taken_ms: int = 0
    """The look whose plan took it; `readable_ms` is when its transaction ended, None: it was in none."""
    reading: list[Stretch] = field(default_factory=list)


@dataclass
class Planned:
    """A plan: what it read and left behind, and how many records had ever arrived at each input."""

    batch_id: int
    looked_ms: int
    read: int
    left: int = 0
    latest: Counter[str] = field(default_factory=Counter)
    done_ms: int = 2**62
    empty_before: bool = False
    excluded_ms: int | None = None


@dataclass
class Input:
    """A source or a hop with the records of its partitions, in the order in which they arrived."""

    name: str
    partitions: dict[int | None, list[Record]]
    max_records: int | None = None
    bound_ms: int = 0
    idle_after_ms: int | None = None
    writer: Stream | None = None
    created_ms: int | None = None
    """The usual delay of a topic with CreateTime; None: the broker stamps records when they arrive."""

    @property
    def is_hop(self) -> bool:
        """Whether the writer tells how far it is complete; a topic that a stream writes is read as any other one."""
        return None in self.partitions

    def copy(self) -> Input:
        """Returns the input for one more reader."""
        partitions = {n: [replace(record) for record in records] for n, records in self.partitions.items()}
        return replace(self, partitions=partitions)

    def detail(self, partition: int | None) -> str:
        return self.name if partition is None else f"{self.name}/{partition}"


@dataclass
class Result:
    """A row that became visible: its age starts at `start_ms`, and `path` ends with the stream that wrote it."""

    start_ms: int
    visible_ms: int
    wall_ms: int
    host: str
    producer: str
    path: list[Stretch]
    key: Row
    record: Record
    held_from_ms: int = 0
    held_host: Host | None = None
    due_ms: int = 2**62


@dataclass
class Closing:
    """A window that a batch closed, and whose its age is until that batch's look."""

    end_ms: int
    batch_id: int
    producer: str
    path: list[Stretch]
    visible_ms: int = 0


class Passed(NamedTuple):
    """A partition that passed a window; nobody waited for one that was not awake, unless no other passed."""

    was_awake: bool
    arrived_ms: int
    name: str
    path: list[Stretch]


class Moment(NamedTuple):
    """A batch: what it read, and newest event times, silent partitions and the newest batch read of a hop, before it
    and after it.

    `due_ms` is of the partitions that the batch stops waiting for.
    """

    batch_id: int
    reads: list[tuple[Input, int | None, Result]]
    due_ms: dict[tuple[str, int | None], int]
    newest_ms: dict[tuple[str, int | None], int]
    hop_batch: int
    was_idle: set[tuple[str, int | None]]
    reached_ms: dict[tuple[str, int | None], int]
    told_batch: int
    is_idle: set[tuple[str, int | None]]


class CrashedError(Exception):
    """The driver is gone."""


@dataclass
class Stream:
    """One streaming query with its drivers, one after the other, each on a host of its own."""

    life: Life
    name: str
    inputs: list[Input]
    operators: list[str]
    places: list[str]
    hop: str | None
    hosts: list[Host]
    trigger_ms: int
    pauses: list[tuple[int, int]]
    crashes: list[tuple[int, int]]
    """When a driver dies, and how long after that the next one starts."""
    interval_ms: int | None
    """How long results are held; None: they are not."""
    sessions: list[int]
    """Ends of windows that nobody knew before their records came."""
    most: int | None
    """A batch with more records is carried out in parts of so many of each partition; None: it is not."""
    shards: list[Host]
    """The hosts of tasks that run the operators; none: the driver does."""
    now_ms: int = BASE_MS
    driver: int = 1
    batch: int = 0
    labels: Any = None
    written: list[Record] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """When a batch was visible in the hop, with records or without: how far it is complete is told there, too."""
    done: int = 0

    def __post_init__(self) -> None:
        self.labels = np.zeros(BEFORE_MS + AFTER_MS, np.int32)
        self._label(BASE_MS - BEFORE_MS, self.now_ms, ("absence", self.name))
        self.inputs = [source.copy() for source in self.inputs]
        self.segments: list[Row] = []
        self.taken: dict[tuple[str, int | None], int] = {}
        self.batches: list[Planned] = []
        self.began_ms, self.gil = self.now_ms, []
        self.newest_ms: dict[tuple[str, int | None], int] = {}
        self.read_ms: dict[tuple[str, int | None], int] = {}
        self.idle: dict[tuple[str, int | None], int] = {}
        """Partitions that the stream does not wait for, with the batch that stopped waiting."""
        self.hop_batch = -1
        self.moments: list[Moment] = []
        self.watermark_ms, self.has_moved, self.next_end_ms = 0, False, BASE_MS + self.life.every_ms
        self.watermarks: dict[int, int] = {}
        """How far the inputs were complete after each batch that is visible in the hop."""
        self.closings: dict[int, Closing] = {}
        self.closing: list[Closing] = []
        self.looks: list[int] = []
        self.held: list[Result] = []
        self.open_batch = 0
        self.told: dict[tuple[str, int | None, int], Row] = {}
        """What the newest batch noted of the records that it read."""

    @property
    def host(self) -> Host:
        return self.hosts[min(self.driver, len(self.hosts)) - 1]

    # What happens

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms:
            self.began_ms, self.gil, self.segments, self.tasks = self.now_ms, [], [], []
            self.work_ms = self.decided_ms = None
            self.open: list[Result] = []
            self.closing, self.has_moved = [], False
            try:
                self._live(until_ms)
                self._tell(self.now_ms)
                return
            except CrashedError:
                dead_ms, pause_ms = self.crashes.pop(0)
                last_ms = self._tell(dead_ms, crashed=True)
                # Of a batch that had begun after the last sign nobody knows.
                planned = [row["began_ms"] for row in self.segments if row["owner"] == "spark"]
                is_known = self.work_ms is not None and any(self.work_ms <= at_ms < last_ms for at_ms in planned)
                lost_ms = self.work_ms if is_known else last_ms
                self.batch = len(self.batches)
                for planned in self.batches[-1:]:
                    planned.done_ms = min(planned.done_ms, dead_ms)
                self.driver += 1
                self.now_ms = dead_ms + pause_ms
                self._recover()
                # The pulse of each driver beats at multiples of its rhythm, so that `Life.exact` means something.
                self.now_ms += -self.now_ms % BEAT_MS
                self._label(lost_ms, self.now_ms, ("absence", self.name))
                until_ms = max(until_ms, self.now_ms + 5_000)

    def _recover(self) -> None:
        """The next driver carries out what the one before had decided and not done, before it looks for records."""
        for place in self.places[self.done :] if self.open or self.closing or self.has_moved else ():
            self.now_ms += self.life.draw.randint(20, 200)
            self._make_visible(place)

    def _live(self, until_ms: int) -> None:
        draw, started_ms, looked_ms = self.life.draw, None, None
        while self.now_ms < until_ms:
            if started_ms is not None and self.now_ms < started_ms + self.trigger_ms:
                self._spend("trigger", "", started_ms + self.trigger_ms - self.now_ms)
            started_ms = self.now_ms
            self._spend("broker", self.inputs[0].name, draw.randint(3, 60))
            excluded_ms, looked_ms = looked_ms, self.now_ms
            self.looks.append(looked_ms)
            plan = self._plan()
            if self.life.dense:
                self._tell_look(plan, looked_ms)
            has_news = any(until > start for _, _, start, until, _, _ in plan) or self._told() > self.hop_batch
            if has_news or self._is_due(plan, looked_ms):
                self.work_ms = started_ms
                began_ms = looked_ms
                for part in self._parts(plan):
                    self._batch(part, excluded_ms, began_ms)
                    # The same look has seen the next part, which begins now.
                    excluded_ms, began_ms, self.work_ms = looked_ms, self.now_ms, self.now_ms
                self.work_ms = None

    def _plan(self) -> list[tuple[Input, int | None, int, int, int, str | None]]:
        plan = []
        for source in self.inputs:
            room = source.max_records
            for partition, records in source.partitions.items():
                start = self.taken.get((source.name, partition), 0)
                latest = start
                while (
                    latest < len(records) and (records[latest].readable_ms or records[latest].arrived_ms) <= self.now_ms
                ):
                    latest += 1
                until = latest if room is None else min(latest, start + room)
                room = None if room is None else room - (until - start)
                plan.append((source, partition, start, until, latest, "max_records" if until < latest else None))
        return plan

    def _parts(self, plan: list[Any]) -> Iterator[list[Any]]:
        """Yields the parts of a plan."""
        starts = [start for _, _, start, _, _, _ in plan]
        while True:
            ends = [
                until if self.most is None or source.is_hop else min(until, start + self.most)
                for (source, _, _, until, _, _), start in zip(plan, starts, strict=True)
            ]
            yield [(*planned[:2], *span, *planned[4:]) for planned, *span in zip(plan, starts, ends, strict=True)]
            if ends == [planned[3] for planned in plan]:
                return
            starts = ends

    def _told(self) -> int:
        """Returns the newest batch that is visible in a hop; −1: there is none."""
        marks = [mark for source in self.inputs if source.is_hop for mark in source.writer.marks]
        return max((batch for at_ms, batch in marks if at_ms <= self.now_ms), default=-1)

    def _tell_look(self, plan: list[Any], looked_ms: int) -> None:
        for source, partition, _, _, stable, _ in plan:
            arrived = bisect(source.partitions[partition], looked_ms, key=lambda record: record.arrived_ms)
            self.life.row(
                "looks", stream=self.name, driver=self.driver, looked_ms=self.host.boot(looked_ms), input=source.name,
                partition=partition, until_offset=arrived, stable_offset=stable,
            )  # fmt: skip

    def _is_due(self, plan: list[Any], looked_ms: int) -> bool:
        return bool(self._newly_idle(plan, looked_ms)) or any(result.due_ms <= looked_ms for result in self.held)

    def _newly_idle(self, plan: list[Any], looked_ms: int) -> list[tuple[Input, int | None, int]]:
        """Returns the partitions that have been silent for `idle_after`, with the instant since which it is enough."""
        found = []
        for source, partition, start, _, latest, _ in plan:
            key = source.name, partition
            if source.idle_after_ms is not None and start == latest and key not in self.idle:
                due_ms = self.read_ms.get(key, BASE_MS) + source.idle_after_ms
                if due_ms <= looked_ms:
                    found.append((source, partition, due_ms))
        return found

    def _close(
        self, plan: list[Any], reads: list[tuple[Input, int | None, Result]], looked_ms: int, told_batch: int
    ) -> None:
        """Closes the windows that the batch lets the watermark pass; it has read hops until *told_batch*."""
        was_idle = {*self.idle}
        silent = self._newly_idle(plan, looked_ms)
        for source, partition, due_ms in silent:
            self.idle[source.name, partition] = self.batch
            self.life.row(
                "silences", stream=self.name, batch_id=self.batch, input=source.name, partition=partition,
                setting="idle_after", due_ms=self.host.boot(due_ms),
            )  # fmt: skip
        before = dict(self.newest_ms), self.hop_batch, was_idle
        for source, partition, result in reads:
            key = source.name, partition
            self.idle.pop(key, None)
            self.read_ms[key] = looked_ms
            self.newest_ms[key] = max(self.newest_ms.get(key, 0), result.start_ms)
        self.hop_batch = told_batch
        due_ms = {(of.name, n): at_ms for of, n, at_ms in silent}
        moment = Moment(self.batch, reads, due_ms, *before, dict(self.newest_ms), told_batch, {*self.idle})
        self.moments.append(moment)
        self.closing, was_at_ms = [], self.watermark_ms
        self.watermark_ms = max(self.watermark_ms, self._complete_to(moment))
        self.has_moved = was_at_ms < self.watermark_ms
        while self.next_end_ms <= self.watermark_ms:
            self._tell_firsts(self.next_end_ms, moment)
            self._close_in(self.next_end_ms, moment)
            self.next_end_ms += self.life.every_ms
        for end_ms in self.sessions:
            if was_at_ms < end_ms <= self.watermark_ms:
                self._close_in(end_ms, moment)

    def _close_in(self, end_ms: int, moment: Moment) -> None:
        closing = self._closing_in(end_ms, moment)
        if closing.path:
            self.closing.append(closing)

    def _complete_to(self, moment: Moment) -> int:
        """Returns the record time up to which the inputs are complete; 0: it is not known."""
        inputs = [(source, n) for source in self.inputs for n in source.partitions]
        awake = [(source, n) for source, n in inputs if (source.name, n) not in moment.is_idle]
        reached_ms = [
            source.writer.watermarks.get(moment.told_batch, 0) if source.is_hop
            else moment.reached_ms.get((source.name, n), 0) - source.bound_ms
            for source, n in awake
        ]  # fmt: skip
        return min(reached_ms, default=0)

    def _tell_firsts(self, end_ms: int, moment: Moment) -> None:
        """Notes the first record of each partition for which the window had waited."""
        for source in self.inputs:
            for partition in source.partitions if not source.is_hop else ():
                of_partition = [r for of, n, r in moment.reads if of is source and n == partition]
                reached_ms = moment.newest_ms.get((source.name, partition))
                for row, result in enumerate(of_partition):
                    if (reached_ms or 0) < end_ms + source.bound_ms <= result.start_ms:
                        first = {name: self.told[source.name, partition, row][name] for name in FIRST}
                        if first | {"reached_ms": reached_ms} not in self.life.rows.setdefault("firsts", []):
                            self.life.row("firsts", **first, reached_ms=reached_ms)
                    reached_ms = max(reached_ms or 0, result.start_ms)

    def closing_of(self, end_ms: int) -> Closing:
        """Returns how a window that ends then closed for the readers of the hop."""
        if end_ms not in self.closings:
            moment = next(m for m in self.moments if self._complete_to(m) >= end_ms)
            closing = self._closing_in(end_ms, moment)
            visible_ms = next(at_ms for at_ms, batch in self.marks if batch == closing.batch_id)
            path = [*closing.path, Stretch(self.name, visible_ms)] if closing.path else []
            self.closings[end_ms] = replace(closing, path=path, visible_ms=visible_ms)
        return self.closings[end_ms]

    def _closing_in(self, end_ms: int, moment: Moment) -> Closing:
        """Returns how the window that ends then closes in a batch that lets the watermark pass it."""
        passed: list[Passed] = []
        for source, partition in ((each, n) for each in self.inputs for n in each.partitions):
            if (source.name, partition) in moment.is_idle:
                passed += self._by_silence(source, partition, end_ms, moment)
            elif source.is_hop:
                written = source.writer.closing_of(end_ms)
                if not written.path:
                    return Closing(end_ms, moment.batch_id, "", [])
                passed += self._by_hop(source, written, moment)
            else:
                passed += self._by_record(source, partition, end_ms, moment)
        _, _, name, path = max(passed, key=lambda each: each[:3], default=(True, 0, "", []))
        return Closing(end_ms, moment.batch_id, name, path)

    def _by_silence(self, source: Input, partition: int | None, end_ms: int, moment: Moment) -> Iterator[Passed]:
        key, name, needed_ms = (source.name, partition), source.detail(partition), end_ms + source.bound_ms
        if key in moment.due_ms and moment.newest_ms.get(key, 0) < needed_ms:
            silence = Stretch(("silence", f"{name} idle_after"), moment.due_ms[key])
            path = [Stretch(("bound", source.name), needed_ms), silence]
            yield Passed(was_awake=True, arrived_ms=moment.due_ms[key], name=name, path=path)

    def _by_hop(self, source: Input, written: Closing, moment: Moment) -> Iterator[Passed]:
        if written.batch_id > moment.hop_batch:
            # A hop is read to its end.
            yield Passed(was_awake=True, arrived_ms=written.visible_ms, name=source.name, path=written.path)

    def _by_record(self, source: Input, partition: int | None, end_ms: int, moment: Moment) -> Iterator[Passed]:
        key, name, needed_ms = (source.name, partition), source.detail(partition), end_ms + source.bound_ms
        if moment.newest_ms.get(key, 0) < needed_ms:
            row = next(r for of, n, r in moment.reads if (of.name, n) == key and r.start_ms >= needed_ms)
            waited = [Stretch(("bound", source.name), needed_ms), Stretch(("next_record", name), row.start_ms)]
            yield Passed(key not in moment.was_idle, row.record.arrived_ms, name, [*waited, *row.path])

    def _batch(self, plan: list[Any], excluded_ms: int | None, looked_ms: int) -> None:
        draw, host = self.life.draw, self.host
        records = [
            (source, partition, record)
            for source, partition, start, until, _, _ in plan
            for record in source.partitions[partition][start:until]
        ]
        wall_at_ms = looked_ms
        told_batch = self._told()
        self._spend("spark", "", draw.randint(2, 40))
        if draw.random() < 0.2:
            self._spend("slots", f"t/{draw.choice('xyz')}", draw.randint(50, 1500))
        self._spend("broker", self.inputs[0].name, draw.randint(5, 50) + 3 * len(records) // self.life.many)
        tasks = self._work(len(records))
        worked_ms = self.now_ms
        self._spend("target", "journal", draw.randint(5, 60))
        self.decided_ms, self.work_ms = self.now_ms, None
        for source, partition, start, until, latest, cut_by in plan:
            self.taken[source.name, partition] = until
            for record in source.partitions[partition][until:latest]:
                if record.left_by is None:
                    record.left_by, record.left_ms = self.batch, looked_ms
                    record.left_to = (cut_by, source.name) if cut_by else ("capacity", self.name)
            newest = told_batch + 1
            offsets = (self.hop_batch + 1, newest, newest) if source.is_hop else (start, until, latest)
            self.life.row(
                "plans", stream=self.name, batch_id=self.batch, input=source.name, partition=partition,
                from_offset=offsets[0], until_offset=offsets[1], latest_offset=offsets[2],
                writer=source.writer.name if source.is_hop else None,
                cut_by=cut_by, cut_detail=source.name if cut_by else None, n=until - start,
                newest_ms=max((record.event_ms for record in source.partitions[partition][:until]), default=None),
            )  # fmt: skip
        self.life.row(
            "batches", stream=self.name, batch_id=self.batch, driver=self.driver, host=host.name,
            wall_ms=host.wall(wall_at_ms), boot_ms=host.boot(wall_at_ms),
            excluded_ms=None if excluded_ms is None else host.boot(excluded_ms),
            looked_ms=host.boot(looked_ms),
        )  # fmt: skip
        planned = Planned(self.batch, looked_ms, sum(until - start for _, _, start, until, _, _ in plan))
        planned.excluded_ms = excluded_ms
        planned.empty_before = excluded_ms is not None and all(each.looked_ms < excluded_ms for each in self.batches)
        for source, _, _, until, latest, _ in plan:
            planned.left += latest - until
            planned.latest[source.name] += latest
        self.batches.append(planned)
        rows: Counter[tuple[str, int | None]] = Counter()
        reads, self.told = [], {}
        for source, partition, record in records:
            result = self._read(source, partition, record, looked_ms, rows[source.name, partition])
            rows[source.name, partition] += 1
            reads.append((source, partition, record, result))
        for row in tasks:
            self.tasks.append(row)
        self.open_batch = self.batch
        self.open = [result for _, _, _, result in reads]
        read = [(source, partition, result) for source, partition, _, result in reads]
        self._close(plan, read, looked_ms, told_batch)
        if self.interval_ms is not None:
            self._hold(worked_ms, looked_ms)
        for done, place in enumerate(self.places):
            self.done = done
            slow_ms = draw.randint(1_000, 5_000) if draw.random() < 0.05 else 0
            self._spend("target", place, draw.randint(20, 300) + len(records) // self.life.many + slow_ms)
            self._make_visible(place, wall_at_ms)
        self.open, self.closing, self.has_moved = [], [], False
        self._spend("spark", "", draw.randint(5, 50))
        planned.done_ms = self.now_ms
        self.batch += 1

    def _work(self, records: int) -> list[tuple[int, int, Owned]]:
        """Lets the operators work, in the driver or in tasks; returns the work of the task that ended last."""
        draw, lengths_ms = self.life.draw, []
        for operator in self.operators:
            slow_ms = draw.randint(1_000, 6_000) if draw.random() < 0.05 else 0
            gil = slow_ms > 0 and not self.pauses and draw.random() < 0.5
            ms = draw.randint(5, 100) + 3 * records // self.life.many + slow_ms
            lengths_ms.append(ms)
            if not self.shards:
                self._spend("operator", operator, ms, gil=gil)
        if not self.shards:
            return []
        began_ms, of_tasks = self.now_ms, []
        # A key with most of the records makes its shard slower.
        hot = draw.choice([None, None, *range(len(self.shards))])
        tasks = [f"shard {n} key k{n}" if n == hot else f"shard {n}" for n in range(len(self.shards))]
        for n, host in enumerate(self.shards):
            at_ms, rows = began_ms + draw.randint(1, 80), []
            for operator, ms in zip(self.operators, lengths_ms, strict=True):
                took_ms = draw.randint(ms // 2, ms) * (3 if n == hot else 1)
                rows.append((at_ms, at_ms := at_ms + took_ms, ("operator", f"{operator} {tasks[n]}")))
            of_tasks.append((at_ms, rows, host))
        self._spend("spark", "tasks", max(task[0] for task in of_tasks) - began_ms + draw.randint(1, 60))
        for n, (_, rows, host) in enumerate(of_tasks):
            for since_ms, until_ms, (_, detail) in rows:
                self.life.row(
                    "tasks", stream=self.name, driver=self.driver, batch_id=self.batch, host=host.name,
                    task=tasks[n], operator=detail.split()[0], began_ms=host.wall(since_ms),
                    ended_ms=host.wall(until_ms),
                )  # fmt: skip
        return max(enumerate(of_tasks), key=lambda each: (each[1][0], each[0]))[1][1]

    def _hold(self, worked_ms: int, looked_ms: int) -> None:
        """Holds the results of the batch until their interval is due, and gives those that were due."""
        due_ms = worked_ms + self.interval_ms - worked_ms % self.interval_ms
        held = [Stretch(self.name, worked_ms), Stretch(("interval", self.operators[-1]), due_ms)]
        self.open = [
            replace(result, held_from_ms=worked_ms, held_host=self.host, due_ms=due_ms, path=[*result.path, *held])
            for result in self.open
        ]
        due = [result for result in self.held if result.due_ms <= looked_ms]
        self.held = [*(result for result in self.held if result.due_ms > looked_ms), *self.open]
        self.open = due

    def _read(self, source: Input, partition: int | None, record: Record, looked_ms: int, row: int) -> Result:
        record.taken_ms = looked_ms
        seen_ms, detail = record.left_ms or looked_ms, source.detail(partition)
        readable_ms = record.readable_ms
        in_transaction = readable_ms is not None and any(
            record.arrived_ms <= at_ms < readable_ms for at_ms in self.looks
        )
        stamp_ms, error_ms = self._stamp(source, record)
        self.told[source.name, partition, row] = self.life.row(
            "reads", stream=self.name, batch_id=self.batch, input=source.name, partition=partition, row=row,
            event_ms=record.event_ms, n=1, newest_ms=record.event_ms, arrived_ms=stamp_ms, arrival_error_ms=error_ms,
            in_transaction=in_transaction, left_by=record.left_by, writer=record.writer,
            writer_place=source.name if record.writer else None,
            writer_batch=record.writer_batch, writer_row=record.writer_row,
        )  # fmt: skip
        self.life.read.append((self.name, record, looked_ms))
        path = [*record.path] or [Stretch(("producer", detail), record.arrived_ms)]
        if in_transaction:
            path.append(Stretch(("open_transaction", detail), seen_ms))
        if record.left_ms is not None:
            path.append(Stretch(self.name, record.left_ms))
            left_to = record.left_to or UNKNOWN_SEGMENT
            path.append(Stretch(Unread(self.name, record.left_by or 0, left_to, record.left_ms), looked_ms))
        record.reading = path
        key = {"read_batch": self.batch, "input": source.name, "partition": partition, "read_row": row}
        return Result(record.event_ms, 0, 0, "", source.detail(partition), path, key, record)

    def _stamp(self, source: Input, record: Record) -> tuple[int | None, int | None]:
        """Returns what is known of a record's arrival, with the error."""
        if record.writer:
            return None, None
        if source.created_ms is None:
            return record.arrived_ms, 0
        excluded_ms = max((at_ms for at_ms in self.looks if at_ms < record.arrived_ms), default=BASE_MS)
        included_ms = min(at_ms for at_ms in self.looks if at_ms >= record.arrived_ms)
        stamp_ms = max(excluded_ms, min(included_ms, record.event_ms + source.created_ms))
        return stamp_ms, max(stamp_ms - excluded_ms, included_ms - stamp_ms)

    def _make_visible(self, place: str, wall_at_ms: int | None = None) -> None:
        at_ms, host = self.now_ms, self.host
        wall_ms = host.wall(at_ms) if wall_at_ms is None else host.wall(wall_at_ms) + at_ms - wall_at_ms
        filters = self.life.dense and place != self.hop
        kept = [result for result in self.open if result.start_ms % 3 == 0] if filters else self.open
        for row, result in enumerate(kept):
            path = [*result.path, Stretch(self.name, at_ms)]
            key = {
                "stream": self.name, "batch_id": self.open_batch, "driver": self.driver, "place": place, "row": row,
                "visible_ms": wall_ms, "visible_boot_ms": host.boot(at_ms), **result.key,
                "event_ms": result.start_ms, "n": 1,
                "held_by": None, "held_detail": None, "held_from_ms": None, "due_ms": None,
            }  # fmt: skip
            if result.held_host:
                key |= {
                    "held_by": "interval", "held_detail": self.operators[-1],
                    "held_from_ms": result.held_host.boot(result.held_from_ms),
                    "due_ms": result.due_ms + wall_ms - at_ms,
                }  # fmt: skip
            self.life.row("results", **key)
            seen = Result(result.start_ms, at_ms, wall_ms, host.name, result.producer, path, key, result.record)
            self.life.results.append(seen)
            if place == self.hop:
                self.written.append(Record(result.start_ms, at_ms, path, self.name, key["batch_id"], row))
        if place == self.hop and (kept or self.has_moved):
            self.marks.append((at_ms, self.open_batch))
            self.watermarks[self.open_batch] = self.watermark_ms
            self.life.row(
                "marks", stream=self.name, batch_id=self.open_batch, driver=self.driver, place=place,
                watermark_ms=self.watermark_ms or None, visible_ms=wall_ms, visible_boot_ms=host.boot(at_ms),
            )  # fmt: skip
        for closing in self.closing:
            path = [*closing.path, Stretch(self.name, at_ms)]
            key = {
                "stream": self.name, "batch_id": closing.batch_id, "driver": self.driver, "place": place,
                "end_ms": closing.end_ms, "allowed_ms": None, "visible_ms": wall_ms,
                "visible_boot_ms": host.boot(at_ms),
            }  # fmt: skip
            self.life.row("windows", **key)
            record = Record(closing.end_ms, at_ms, path)
            self.life.windows.append(
                Result(closing.end_ms, at_ms, wall_ms, host.name, closing.producer, path, key, record)
            )

    # What is seen of it

    def _spend(self, owner: str, detail: str, ms: int, *, gil: bool = False) -> None:
        """Lets the main thread do one thing for *ms*; pauses of the process make it longer, a crash ends it."""
        began_ms, left_ms = self.now_ms, ms
        for pause_ms, resumed_ms in self.pauses:
            if began_ms <= pause_ms < self.now_ms + left_ms:
                gil = False
                left_ms -= pause_ms - self.now_ms
                self.now_ms = resumed_ms
        self.now_ms += left_ms
        dead_ms = self.crashes[0][0] if self.crashes else None
        if dead_ms is not None and dead_ms <= self.now_ms:
            self.now_ms = max(began_ms, dead_ms)
        if gil:
            self.gil.append((began_ms, self.now_ms))
        self.segments.append(
            {"owner": owner, "detail": detail, "batch_id": self.batch, "began_ms": began_ms, "ended_ms": self.now_ms}
        )
        if dead_ms is not None and dead_ms <= self.now_ms:
            raise CrashedError

    def _tell(self, end_ms: int, *, crashed: bool = False) -> int:
        """Notes what the driver could tell of its life, and labels it; returns the last instant of which it could."""
        stuck = sorted([*self.pauses, *self.gil])
        stuck = [
            (max(began, self.began_ms), ended) for began, ended in stuck if self.began_ms < ended and began < end_ms
        ]
        beats = self._beats(stuck, BEAT_MS, end_ms)
        heartbeats = self._beats(stuck, 2_000, end_ms)
        if not crashed and heartbeats[-1] < end_ms:
            heartbeats.append(end_ms)
        known_ms = heartbeats[-1] if crashed else end_ms
        if self.decided_ms is not None:
            known_ms = max(known_ms, self.decided_ms)
        self._tell_segments(known_ms)
        for host in self.shards:
            self._measure(host, end_ms, end_ms)
        gaps = [(since, until) for since, until in pairwise(beats) if until - since >= PAUSE_MS]
        for before_ms, sent_ms in pairwise(heartbeats):
            self.life.row(
                "heartbeats", stream=self.name, driver=self.driver, host=self.host.name,
                began_ms=self.host.boot(before_ms), ended_ms=self.host.boot(sent_ms),
                wall_ms=self.host.wall(sent_ms),
                gaps=[self._gap(*gap) for gap in gaps if before_ms < gap[1] <= sent_ms],
            )  # fmt: skip
            if self.life.exact or self.life.draw.random() < 0.5:
                self._measure(self.host, sent_ms, sent_ms)
        return known_ms

    def _tell_segments(self, known_ms: int) -> None:
        for segment in self.segments:
            span = segment["began_ms"], min(segment["ended_ms"], known_ms)
            if span[0] < span[1]:
                self._label(*span, (segment["owner"], segment["detail"]))
                boots = {"began_ms": self.host.boot(span[0]), "ended_ms": self.host.boot(span[1])}
                self.life.row("segments", stream=self.name, driver=self.driver, **{**segment, **boots})
        for began_ms, ended_ms, owned in self.tasks:
            self._label(began_ms, ended_ms, owned)

    def _gap(self, began_ms: int, ended_ms: int) -> Row:
        """Returns a gap of the pulse; if the process did not use CPU for over half of it, it paused."""
        paused = [pause for pause in self.pauses if began_ms <= pause[0] and pause[1] <= ended_ms]
        cpu_ms = ended_ms - began_ms - sum(until - since for since, until in paused)
        if 2 * cpu_ms <= ended_ms - began_ms:
            for pause in paused:
                self._label(*pause, ("pause", self.name))
        return {"began_ms": self.host.boot(began_ms), "ended_ms": self.host.boot(ended_ms), "cpu_ms": cpu_ms}

    def _measure(self, host: Host, at_ms: int, told_ms: int) -> None:
        """Notes how far the clock of *host* is off, if anybody measures it."""
        if host.error_ms is not None:
            noise_ms = self.life.draw.randint(-host.error_ms, host.error_ms)
            self.life.row(
                "clocks", stream=self.name, driver=self.driver, host=host.name, at_ms=self.host.boot(told_ms),
                offset_ms=at_ms - host.wall(at_ms) + noise_ms, error_ms=host.error_ms,
            )  # fmt: skip

    # Who made records wait

    def settle(self, lost: int | None = None, unplaced: int | None = None) -> None:
        """Finds the debts at each plan, and books the work on more than a usual batch as theirs.

        Something about the plan of the batch *lost* is not known, and nothing about that of *unplaced*.
        """
        self.debts: dict[int, dict[Owned, float]] = {}
        if not self.life.exact:
            return
        self.labels = self.raw.copy()
        debts: dict[Owned, float] = {}
        moved: list[tuple[int, int, Owned]] = []
        before, share, paid, begun = None, 0.0, 0.0, False
        for planned in self.batches:
            if planned.batch_id == unplaced:
                continue
            follows = before is None or planned.batch_id == before.batch_id + 1
            was_begun = begun and follows and planned.batch_id != lost
            took: Counter[Owned] = Counter()
            if before is not None:
                took = self._took(before, planned.looked_ms, debts, share, moved)
            if was_begun and before is not None:
                kept = {owner: each * (1 - paid) for owner, each in debts.items()} if before.left else {}
                debts = self._grown(kept, took, before, planned)
            else:
                debts = {}
                begun = follows and planned.batch_id != lost and (planned.empty_before or not planned.left)
            self.debts[planned.batch_id] = debts if was_begun else {("unknown", "backlog"): 1.0}
            pays = min(max(0, planned.read - self.usual[2]), sum(debts.values()))
            share, paid = (pays / planned.read, pays / sum(debts.values())) if pays else (0.0, 0.0)
            before = planned
        if before is not None:
            self._took(before, self.now_ms, debts, share, moved)
        for began_ms, ended_ms, owned in moved:
            self._label(began_ms, ended_ms, owned)

    def _took(
        self,
        before: Planned,
        until_ms: int,
        debts: Mapping[Owned, float],
        share: float,
        moved: list[tuple[int, int, Owned]],
    ) -> Counter[Owned]:
        """Returns whose the time was from a look on; a *share* of the work of its batch is moved to *debts*."""
        took: Counter[Owned] = Counter()
        owing = sum(debts.values())
        pieces = [*self._pieces(before.looked_ms, until_ms)]
        works = [
            each for each in pieces if each[2][0] in ("operator", "target", "broker") and each[1] <= before.done_ms
        ]
        whole: Counter[Owned] = Counter()
        for began_ms, ended_ms, owned in works:
            whole[owned] += ended_ms - began_ms
        for piece in pieces:
            began_ms, ended_ms, owned = piece
            ms: float = ended_ms - began_ms
            if share and piece in works and ms:
                # More records take as much longer as they usually do.
                usual_ms = self.usual[0].get(owned, math.inf)
                extra = min(share, usual_ms * share / (1 - share) / whole[owned]) if share < 1 else share
                at_ms, part = began_ms + int(ms * (1 - extra) + 1e-9), 0.0
                for owner, each in debts.items():
                    part += each
                    next_ms = began_ms + int(ms * (1 - extra + extra * part / owing) + 1e-9)
                    moved.append((at_ms, next_ms, owner))
                    took[owner] += ms * extra * each / owing
                    at_ms = next_ms
                ms *= 1 - extra
            took[owned] += ms
        return took

    def _grown(
        self, debts: dict[Owned, float], took: Counter[Owned], before: Planned, planned: Planned
    ) -> dict[Owned, float]:
        usual_ms, rates, _ = self.usual
        for owned, ms in took.items():
            if ms > usual_ms.get(owned, 0):
                debts[owned] = debts.get(owned, 0) + (ms - usual_ms.get(owned, 0)) * sum(rates.values())
        for source, rate in rates.items():
            volume = "topic_volume", source
            more = planned.latest[source] - before.latest[source] - rate * (planned.looked_ms - before.looked_ms)
            debts[volume] = max(0, debts.get(volume, 0) + more)
        return {owner: each for owner, each in sorted(debts.items()) if each > 1e-6}

    def _pieces(self, began_ms: int, ended_ms: int) -> Iterator[tuple[int, int, Owned]]:
        """Yields the pieces of the stream's life between two instants, with their owners."""
        owners = self.life.owners()
        labels = self.labels[began_ms - BASE_MS + BEFORE_MS : ended_ms - BASE_MS + BEFORE_MS]
        ends = [*(np.flatnonzero(np.diff(labels)) + 1), len(labels)]
        first = 0
        for last in map(int, ends):
            yield began_ms + first, began_ms + last, owners[int(labels[first])]
            first = last

    def _beats(self, stuck: list[tuple[int, int]], every_ms: int, end_ms: int) -> list[int]:
        """Returns when something that is due *every_ms* was done: after the process was stuck, if it was due then."""
        done = set()
        for due_ms in range(self.began_ms, end_ms + 1, every_ms):
            until_ms = next((ended for began, ended in stuck if began < due_ms < ended), due_ms)
            if until_ms <= end_ms:
                done.add(until_ms)
        return sorted(done)

    def _label(self, began_ms: int, ended_ms: int, owned: Owned) -> None:
        self.labels[began_ms - BASE_MS + BEFORE_MS : ended_ms - BASE_MS + BEFORE_MS] = self.life.code(owned)


@dataclass
class Life:
    """A topology and what happens to it.

    Args:
        draw: makes the choices.
    """

    draw: Random
    exact: bool = True
    """Whether all clocks are measured without error, and pauses begin where the pulse is taken to have stopped. If
    not, no plan is cut: debts would multiply the errors."""
    dense: bool = False
    """Whether partitions have many records in a batch, and sinks filter them. What a look saw of a partition is then
    noted, too, in rows of `looks`."""

    def __post_init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.results: list[Result] = []
        self.read: list[tuple[str, Record, int]] = []
        self.windows: list[Result] = []
        self.codes: dict[Owned, int] = {UNKNOWN_SEGMENT: 0}
        self.streams: dict[str, Stream] = {}
        self.events: set[int] = set()
        self.is_stamped = True
        """Whether brokers stamp all records when they arrive."""
        self.every_ms = self.draw.choice([5_000, 5_000, 2_000])
        """How far apart the ends of windows are, tumbling or hopping ones; of them everybody knows before."""
        self.has_topics = False
        """Whether a stream writes a topic that the next one reads."""
        self.many, self.length_ms = (100, 20_000) if self.dense else (1, 40_000)
        self._build()

    def row(self, frame: str, **columns: object) -> Row:
        self.rows.setdefault(frame, []).append(columns)
        return columns

    def code(self, owned: Owned) -> int:
        return self.codes.setdefault(owned, len(self.codes))

    # The topology

    def _build(self) -> None:
        draw = self.draw
        sources = [self._source(f"source{n}") for n in range(draw.randint(1, 2 if self.dense else 3))]
        names = [f"t/s{n}" for n in range(draw.randint(1, 3))]
        hops: list[Input] = []
        for n, name in enumerate(names):
            # Each source is read once: a row that came two ways could not be told apart behind the next hop.
            here = sources[: 1 if n == 0 else draw.randint(0, 1)] if n < len(names) - 1 else sources
            sources = sources[len(here) :]
            inputs = [*here, *hops]
            hop = f"hop{n}" if n < len(names) - 1 else None
            places = [place for place in (f"sink{n}", hop) if place]
            draw.shuffle(places)
            stream = Stream(
                self, name, inputs, [f"{name}/op{m}" for m in range(draw.randint(1, 3))], places, hop,
                [self._host(f"host{n}{m}") for m in range(3)], draw.choice([0, 200, 1_000, 3_000]),
                self._pauses(), self._crashes(), draw.choice([None, None, None, 2_500]),
                [BASE_MS + draw.randint(1, self.length_ms) for _ in range(draw.choice([0, 0, 3]))],
                draw.choice([None, None, None, 4 * self.many]) if self.exact else None,
                [self._host(f"worker{n}{m}", steps=False) for m in range(draw.choice([0, 0, 0, 3]))],
            )  # fmt: skip
            self.streams[name] = stream
            for source in inputs:
                if source.is_hop:
                    continue
                self.row("bounds", stream=name, input=source.name, bound_ms=source.bound_ms)
            stream.run(BASE_MS + self.length_ms)
            stream.raw, stream.usual = stream.labels, self.usual(stream) if self.exact else None
            stream.settle()
            hops = [self._written(hop, stream)] if hop else []

    def _written(self, hop: str, stream: Stream) -> Input:
        """Returns a stream's hop, or its topic of two partitions."""
        if self.draw.random() < 0.6:
            return Input(hop, {None: stream.written}, writer=stream)
        self.has_topics = True
        partitions = {n: [record for record in stream.written if record.event_ms % 2 == n] for n in range(2)}
        limit, idle_after_ms = self._limit(), self.draw.choice([None, 4_000])
        return Input(hop, partitions, limit, self.draw.choice([0, 800]), idle_after_ms, stream)

    def _limit(self) -> int | None:
        return self.draw.choice([None, None, 3 * self.many, 10 * self.many]) if self.exact else None

    def _host(self, name: str, *, steps: bool = True) -> Host:
        draw = self.draw
        wrong = draw.random() < 0.3
        stepped = (
            [(BASE_MS + draw.randint(0, self.length_ms), draw.choice([-8_000, 8_000]))] if draw.random() < 0.15 else []
        )
        return Host(
            name, draw.randint(-3_000, 3_000) if wrong else 0, stepped if steps else [],
            BASE_MS - draw.randint(10**6, 10**9),
            # Which of two tasks ended last cannot be told within the error of their clocks.
            0 if self.exact else draw.choice([0, 0, 40, None] if steps else [0, None]),
        )  # fmt: skip

    def _pauses(self) -> list[tuple[int, int]]:
        if self.draw.random() < 0.6:
            return []
        began_ms = BASE_MS + 250 * self.draw.randint(8, self.length_ms // 333) + 125
        if not self.exact:
            began_ms += self.draw.randint(-124, 124)
        return [(began_ms, began_ms + self.draw.choice([300, 1_500, 5_000, 12_000]))]

    def _crashes(self) -> list[tuple[int, int]]:
        if self.draw.random() < 0.6:
            return []
        return [(BASE_MS + self.draw.randint(2_500, self.length_ms * 3 // 4), self.draw.randint(500, 15_000))]

    def usual(self, stream: Stream) -> tuple[dict[Owned, float], dict[str, float], float]:
        """Returns usual lengths from look to look, arrivals per ms by input, and records per batch; notes them, too."""
        draw = self.draw
        lengths: dict[Owned, float] = {("trigger", ""): 3_000.0, ("spark", ""): 45.0, ("target", "journal"): 30.0}
        lengths |= {("broker", stream.inputs[0].name): 90.0}
        lengths |= {("operator", name): 70.0 for name in stream.operators}
        lengths |= {("target", name): 170.0 for name in stream.places}
        rates = {
            source.name: len(source.partitions) * self.many / draw.choice([400, 1_500, 4_000])
            for source in stream.inputs
        }
        batch = draw.choice([2.0, 5.0]) * self.many
        for (owner, detail), usual_ms in lengths.items():
            self.row("usual_lengths", stream=stream.name, owner=owner, detail=detail, usual_ms=usual_ms)
        for source, per_ms in rates.items():
            self.row("usual_arrivals", stream=stream.name, input=source, per_ms=per_ms, per_batch=batch)
        return lengths, rates, batch * len(rates)

    def owners(self) -> dict[int, Owned]:
        return {code: owned for owned, code in self.codes.items()}

    def _source(self, name: str) -> Input:
        draw = self.draw
        partitions = range(draw.randint(1, 2 if self.dense else 3))
        created_ms = draw.choice([None, None, 150]) if self.dense or not self.exact else None
        self.is_stamped &= created_ms is None
        return Input(
            name, {n: self._records() for n in partitions}, self._limit(), draw.choice([0, 800, 3_000]),
            draw.choice([None, None, 4_000]), created_ms=created_ms,
        )  # fmt: skip

    def _records(self) -> list[Record]:
        draw = self.draw
        usual_ms = draw.randint(0, 300)
        skew_ms = draw.choice([0, 0, 0, -500, 700])
        records, at_ms = [], BASE_MS
        every_ms = draw.choice([1_000 if self.dense else 500, 2_000, 6_000]) // self.many
        while (at_ms := at_ms + draw.randint(every_ms // 2, every_ms)) < BASE_MS + self.length_ms - 2_000:
            delay_ms = usual_ms + (draw.randint(1_000, 20_000) if draw.random() < 0.1 else draw.randint(0, 50))
            event_ms = at_ms + skew_ms
            while event_ms in self.events:
                event_ms += 1
            self.events.add(event_ms)
            records.append((event_ms, at_ms + delay_ms))
        records.sort(key=lambda pair: pair[1])
        since_ms = BASE_MS + draw.randint(0, self.length_ms * 3 // 4) if draw.random() < 0.2 else 2**62
        until_ms = since_ms + draw.randint(500, 6_000)
        return [
            Record(event_ms, arrived_ms, [], readable_ms=until_ms if since_ms <= arrived_ms < until_ms else None)
            for event_ms, arrived_ms in records
        ]

    # A missing fact

    def lose(self, draw: Random) -> str:
        """Removes a fact, and makes the time that it explains unknown; returns the name of its frame."""
        frame = draw.choice(["segments", "heartbeats", "reads", "arrivals", "results", "plans", "batches"])
        rows = self.rows.get("reads" if frame == "arrivals" else frame, [])
        candidates = [n for n, row in enumerate(rows) if self._is_alone(frame, row)]
        if not candidates:
            return ""
        place = draw.choice(candidates)
        getattr(self, f"_lose_{frame}")(place, rows[place])
        if frame != "arrivals":
            del rows[place]
        return frame

    def _is_alone(self, frame: str, row: Row) -> bool:
        """Returns False for a fact of which others tell that it is missing, or of which nothing can tell."""
        stream = self.streams[row["stream"]]
        mine = {
            name: [
                other
                for other in self.rows[name]
                if other["stream"] == row["stream"] and other.get("driver") == row.get("driver")
            ]
            for name in ("heartbeats", "batches")
        }
        if frame == "segments":
            # The work that a dead driver had not decided is one fact, and so is the last sign of it.
            newest = max((other["batch_id"] for other in mine["batches"]), default=-1)
            is_last = row["driver"] == stream.driver
            vouched_ms = max(other["ended_ms"] for other in mine["heartbeats"])
            return (is_last or row["batch_id"] <= newest) and row["ended_ms"] <= vouched_ms
        if frame == "heartbeats":
            return row["ended_ms"] < max(other["ended_ms"] for other in mine["heartbeats"])
        if frame == "batches":
            newest = max(other["batch_id"] for other in mine["batches"])
            return (
                row["batch_id"] > 0
                and (row["batch_id"] < newest or row["driver"] == stream.driver)
                and stream.interval_ms is None
            )
        if frame == "plans":
            return row["batch_id"] > 0
        if frame == "arrivals":
            return row["arrived_ms"] is not None
        if frame == "results":
            return row["place"] == stream.hop
        return True

    def _lose_segments(self, place: int, row: Row) -> None:
        self._unlabel(row, {"pause", "absence"})

    def _lose_heartbeats(self, place: int, row: Row) -> None:
        self._unlabel(row, {"absence"})
        same = ("stream", "driver", "host")
        self.rows["clocks"] = [
            clock for clock in self.rows["clocks"]
            if any(clock[name] != row[name] for name in same) or clock["at_ms"] != row["ended_ms"]
        ]  # fmt: skip

    def _unlabel(self, row: Row, but: set[str]) -> None:
        stream = self.streams[row["stream"]]
        booted_ms = stream.hosts[min(row["driver"], len(stream.hosts)) - 1].booted_ms
        span = slice(*(row[name] + booted_ms - BASE_MS + BEFORE_MS for name in ("began_ms", "ended_ms")))
        kept = [code for (owner, _), code in self.codes.items() if owner in but]
        stream.raw[span] = np.where(np.isin(stream.raw[span], kept), stream.raw[span], 0)
        stream.settle()

    def _lose_reads(self, place: int, row: Row) -> None:
        _, record, looked_ms = self.read[place]
        self._replace(record, record.reading, [Stretch(("unknown", "read"), looked_ms)])

    def _lose_arrivals(self, place: int, row: Row) -> None:
        """Without its stamp a record has arrived between the looks around it."""
        row["arrived_ms"] = row["arrival_error_ms"] = None
        name, record, _ = self.read[place]
        seen = record.left_by if record.left_by is not None else row["batch_id"]
        batches = self.streams[name].batches
        excluded_ms = batches[seen].excluded_ms or (batches[seen - 1].looked_ms if seen else None)
        producer = [Stretch(record.reading[0].owner, excluded_ms)] if excluded_ms else []
        unknown = Stretch(("unknown", "arrival"), batches[seen].looked_ms)
        self._replace(record, record.reading, [*producer, unknown, *record.reading[1:]])

    def _lose_results(self, place: int, row: Row) -> None:
        written = self.results.pop(place)
        for stream in self.streams.values():
            for source in stream.inputs:
                for record in (record for records in source.partitions.values() for record in records):
                    if record.path == written.path:
                        seen_ms = record.left_ms or record.taken_ms
                        self._replace(record, written.path, [Stretch(("unknown", "hop"), seen_ms)])

    def _lose_plans(self, place: int, row: Row) -> None:
        others = [o for o in self.rows["plans"] if (o["stream"], o["batch_id"]) == (row["stream"], row["batch_id"])]
        lost = "unplaced" if len(others) == 1 else "lost"
        self.streams[row["stream"]].settle(**{lost: row["batch_id"]})

    def _lose_batches(self, place: int, row: Row) -> None:
        """Without the batch it is not known when its plan left records behind, or took those that had been left."""
        stream, batch_id = self.streams[row["stream"]], row["batch_id"]
        stream.settle(unplaced=batch_id)
        looked_ms, mine = stream.batches[batch_id].looked_ms, {source.name for source in stream.inputs}
        for result in self.results:
            path: list[Stretch] = []
            was_taken = False
            for owner, until_ms in result.path:
                is_unread = isinstance(owner, Unread) and owner.stream == stream.name
                was_left = is_unread and owner.batch_id == batch_id
                if was_left:
                    path.pop()
                was_open = owner[0] == "open_transaction" and owner[1].split("/")[0] in mine
                lost = was_left or was_taken or ((is_unread or was_open) and until_ms == looked_ms)
                path.append(Stretch(("unknown", "batch") if lost else owner, until_ms))
                was_taken = (is_unread or was_open) and until_ms == looked_ms
            result.path = path

    def _replace(self, record: Record, prefix: list[Stretch], other: list[Stretch]) -> None:
        for result in self.results:
            if result.start_ms == record.event_ms and result.path[: len(prefix)] == prefix != result.path:
                result.path = [*other, *result.path[len(prefix) :]]

    # The truth

    def truth(self, result: Result) -> Counter[Owned]:
        """Returns the true parts of a result's age."""
        parts: Counter[Owned] = Counter()
        parts["clock", result.host] += result.wall_ms - result.visible_ms
        if result.visible_ms < result.start_ms:
            parts["producer", result.producer] += result.visible_ms - result.start_ms
            return parts
        at_ms = result.start_ms
        owners = self.owners()
        for owner, until_ms in self._resolved(result.path):
            until_ms = min(until_ms, result.visible_ms)
            if at_ms < until_ms and isinstance(owner, str):
                labels = self.streams[owner].labels[at_ms - BASE_MS + BEFORE_MS : until_ms - BASE_MS + BEFORE_MS]
                for code, ms in zip(*np.unique(labels, return_counts=True), strict=True):
                    parts[owners[int(code)]] += int(ms)
            elif at_ms < until_ms:
                parts[owner] += until_ms - at_ms
            at_ms = max(at_ms, until_ms)
        return parts

    def _resolved(self, path: list[Stretch]) -> Iterator[Stretch]:
        """Yields the stretches of *path*, with the debts that made a record wait unread."""
        for stretch in path:
            if not isinstance(stretch.owner, Unread):
                yield stretch
                continue
            stream, batch_id, owner, at_ms = stretch.owner
            for planned in self.streams[stream].batches[batch_id + 1 :]:
                debts = self.streams[stream].debts.get(planned.batch_id)
                if debts is None or at_ms >= stretch.until_ms:
                    continue
                sum_owed, since_ms = 0.0, at_ms
                for owned, owed in (debts or {owner: 1.0}).items():
                    sum_owed += owed
                    share = sum_owed / (sum(debts.values()) or 1.0)
                    # The plan that took the record may be one of which nothing is known.
                    at_ms = min(stretch.until_ms, since_ms + int((planned.looked_ms - since_ms) * share + 1e-9))
                    yield Stretch(owned, at_ms)
