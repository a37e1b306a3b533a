"""The drivers of a world: Spark's loop and the process around the real engine, its journal and its Delta tables.

Time goes on only where a driver spends it (`Driver.spend`), always with an owner, so `Driver.life` says to whom each ms
of a stream belongs. Spark, the brokers' answers and the pulse are played.

Instants are true epoch ms unless a clock is named.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import polars as pl

from support.play import Row, ms
from support.quiet_broker import Silence
from tidemark.control.folder import StreamState
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import BROKERS, HEARTBEATS
from tidemark.semantics.segments import NEXT, SegmentOwner
from tidemark.storage.delta.tables import Appender, Committer, create, scan
from tidemark.storage.fence import Fence
from tidemark.stream import wiring
from tidemark.stream.engine import Engine
from tidemark.stream.journal.batch import NOT_QUEUED, QueueWait
from tidemark.stream.journal.entries import CARRIED_OUT
from tidemark.stream.journal.timeline import Timeline
from tidemark.stream.kafka.outgoing import OutgoingRows
from tidemark.stream.write import measurement
from tidemark.testing.rows import rows_of_hop

if TYPE_CHECKING:
    from support.world import Host, Sent, World


BEAT_MS = 250
"""The pulse beats this often."""
BEATEN_MS = 10_000
"""A row of `heartbeats` is written this often."""
FLUSHED_MS = 10_000
"""After so long the timer has written the facts of a batch."""
SIGN_MS = 60_000
"""The longest time between two batches (stream/driver/waking.py)."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a driver's life, and whose it was."""

    owner: str
    detail: str
    began_ms: int
    ended_ms: int


@dataclass(frozen=True)
class Look:
    """A look for records: the ends that were known at `at_ms`, and the look before it, which did not see more."""

    at_ms: int
    excluded_ms: int | None
    ends: Mapping[tuple[str, int], int]


class HorizonError(BaseException):
    """What a driver does goes on beyond the end of the play. No handler of errors may see it."""


class KilledError(BaseException):
    """The driver is killed. No handler of errors may see it."""


@dataclass(eq=False)
class Driver:
    """The driver of a stream: Spark's loop and the process around the real engine.

    Attributes:
        life: whose each ms was, without a gap.
        looks: when it looked for records.
        visible: by place, the batches that it made visible, each with the instant.
        batches: the batches that were carried out: their numbers, and when they began and ended.
        reads: the records of topics that each batch read.
        hop_ends: by batch, the number of the writer's first batch that it did not read.
        taken: up to where batches have read, by topic and partition; of a hop in batches.
        leaves_behind: whether a plan has left records behind.
    """

    world: World
    sub: str
    now_ms: int = ms(0)
    epoch: int = 1
    life: list[Stretch] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    visible: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    reads: dict[int, list[Sent]] = field(default_factory=dict)
    hop_ends: dict[int, int] = field(default_factory=dict)
    taken: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    plan: tuple[Mapping[tuple[str, int], int], int] | None = None
    next_ms: int = 0
    back_ms: int = 0
    began_ms: int | None = None
    beaten_ms: int = 0

    def __post_init__(self) -> None:
        topology = self.world.topology
        of_stream = topology.sub_topology(self.sub)
        self.name = f"{topology.name}/{self.sub}"
        self.topics = {o.topic: o.name for o in of_stream.operators if isinstance(o, Source) and o.topic}
        self.hops = {
            str(topology.operators[o.repartition].hop_table): o for o in of_stream.operators if isinstance(o, HopSource)
        }
        self.operators = [o.name for o in of_stream.operators if not o.is_source]
        outputs = {o.appends_to or o.name for o in of_stream.handing_out}
        self.tables = {str(o.table) for o in of_stream.sinks if o.table}
        self.outputs = {"changes", *outputs, *self.tables}
        self.leaves_behind = False
        self._engine: Engine | None = None
        self._broker = Client(self)
        self._horizon_ms = 0
        self._read_n = 0
        self._target = ""
        self._is_writing = self._is_decided = False
        self._asked = ""
        self._queued = NOT_QUEUED
        self._timeline = Timeline(lambda: self.host.boot_ms(self.now_ms))
        self._told_ms: int | None = None

    def copy(self, world: World) -> Driver:
        """Returns the driver in another world, with an engine that starts again."""
        other = copy(self)
        other.world = world
        for name in ("life", "looks", "batches"):
            setattr(other, name, [*getattr(self, name)])
        other.reads, other.hop_ends = dict(self.reads), dict(self.hop_ends)
        other.taken = defaultdict(int, self.taken)
        other.visible = defaultdict(list, {place: [*seen] for place, seen in self.visible.items()})
        other.__post_init__()
        # The process goes on: it knows what it did, and what it has told.
        known = {id(each): each for each in (vars(self._timeline)["_lock"],)}
        known[id(self._timeline.clock)] = other._timeline.clock
        other._timeline, other._told_ms = deepcopy(self._timeline, known), self._told_ms
        return other

    @property
    def host(self) -> Host:
        return self.world.hosts[self.sub]

    # The loop

    def run(self, until_ms: int) -> None:
        """Lives until then, and writes the heartbeats of that time."""
        self._horizon_ms = until_ms
        while True:
            try:
                self._turn()
            except KilledError:
                self._die()
            except HorizonError:
                break
        self._beat(until_ms, is_last=True)
        self.flush()
        if self.began_ms is not None:
            # The batch goes on; what it had in memory is lost to whoever goes on with the play.
            self._engine = None
            self._write_plan()

    def _die(self) -> None:
        at_ms, absent_ms = self._kills()[0]
        self._beat(at_ms, is_last=True)
        if self.began_ms is None and at_ms - self.batches[-1][2] >= FLUSHED_MS:
            self.flush()
        self.back_ms, self.began_ms, self._engine = at_ms + absent_ms, None, None
        self._timeline, self._told_ms = Timeline(self._timeline.clock), None
        self.epoch += 1

    def _kills(self) -> list[tuple[int, int]]:
        """Returns the kills to come: each driver dies of one."""
        return sorted(kill for fault in self.world.faults for kill in fault.kills(self.sub))[self.epoch - 1 :]

    def _turn(self) -> None:
        """Waits for the trigger, looks for records, and runs a batch if there are some or something is due."""
        if self.now_ms < self.back_ms:
            self._live("absence", self.name, self.back_ms)
            self.beaten_ms = self.now_ms
        if self.now_ms < self.next_ms:
            self._timeline.begin(SegmentOwner.TRIGGER, batch_id=NEXT)
            self.spend("trigger", "", self.next_ms - self.now_ms)
        began_ms = self.now_ms
        engine = self._running_engine()
        self._timeline.begin(SegmentOwner.BROKER, self._first_input, batch_id=NEXT)
        self.spend("broker", self._first_input, self.world.costs.look, is_usual=True)
        excluded_ms = self.looks[-1].at_ms if self.looks else None
        self.looks.append(look := Look(self.now_ms, excluded_ms, self._ends()))
        self.next_ms = began_ms + self.world.topology.trigger_ms
        has_news = any(self.taken[place] < end for place, end in look.ends.items())
        is_due = engine.due_at_ms is not None and engine.due_at_ms <= self.host.wall_ms(self.now_ms)
        is_sign = self.now_ms - (self.batches[-1][1] if self.batches else 0) >= SIGN_MS
        if self.plan or has_news or is_due or is_sign:
            # After a crash Spark runs the batch that it had planned.
            self.plan = self.plan or (self._cut(look.ends), self.host.wall_ms(self.now_ms))
            self._batch(engine, *self.plan)

    @property
    def _first_input(self) -> str:
        return next(iter([*self.topics.values(), *(hop.name for hop in self.hops.values())]))

    def _ends(self) -> dict[tuple[str, int], int]:
        """Returns the ends of what can be read now, by topic and partition; of a hop its newest batch, behind it."""
        world = self.world
        ends = {
            (topic, partition): world.stable_end(topic, partition, self.now_ms)
            for topic in self.topics
            for partition in range(world.partitions)
        }
        for name, source in self.hops.items():
            written = world.drivers[source.upstream].visible[name]
            ends[name, 0] = max((batch + 1 for batch, at_ms in written if at_ms <= self.now_ms), default=0)
        return ends

    def _cut(self, ends: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Returns the ends of a plan with at most `max_records` of each topic, as Spark shares them out."""
        cut = dict(ends)
        for topic, source in self.topics.items():
            limit = self.world.topology.operators[source].max_records  # type: ignore[attr-defined]
            places = [place for place in ends if place[0] == topic]
            unread = sum(ends[place] - self.taken[place] for place in places)
            if limit is not None and unread > limit:
                self.leaves_behind = True
                for place in places:
                    share = (ends[place] - self.taken[place]) * limit / unread
                    cut[place] = self.taken[place] + math.ceil(share)
        return cut

    def _batch(self, engine: Engine, ends: Mapping[tuple[str, int], int], planned_at_ms: int) -> None:
        costs, batch_id = self.world.costs, len(self.batches)
        self.began_ms, self._is_decided = self.now_ms, False
        self._timeline.begin(SegmentOwner.SPARK, batch_id=NEXT)
        self.spend("spark", "", costs.plan)
        self._timeline.begin(SegmentOwner.ENGINE, batch_id=NEXT)
        rows = [*self._records(batch_id, ends), *self._hop_rows(batch_id, ends)]
        self._read_n = len(rows)
        self._queued = NOT_QUEUED
        frame = self.world.play.frame(rows, self.sub)
        of_topics: dict[str, dict[int, int]] = {topic: {} for topic in self.topics}
        for (name, partition), end in ends.items():
            if name in of_topics:
                of_topics[name][partition] = end
        before_ms = self.batches[-1][1] if self.batches else None
        looks = [look.at_ms for look in self.looks[:-1] if before_ms is not None and look.at_ms > before_ms]
        engine.process(
            batch_id, lambda: self._collected(frame), of_topics, planned_at_ms=planned_at_ms,
            excluded_boot_ms=self.host.boot_ms(looks[-1]) if looks else None,
        )  # fmt: skip
        self.taken.update(ends)
        self._stamp_journal()
        self._timeline.begin(SegmentOwner.SPARK)
        self.spend("spark", "", costs.spark, is_usual=True)
        self.batches.append((batch_id, self.began_ms, self.now_ms))
        self.plan = self.began_ms = None

    def _write_plan(self) -> None:
        """Writes the plan of the batch that runs to where Spark has it: the ends of all its topics."""
        assert self.plan is not None
        ends, planned_ms = self.plan
        of_topics = {topic: {str(n): end for (name, n), end in ends.items() if name == topic} for topic in self.topics}
        folder = self.world.layout.control(self.world.topology.name, self.sub) / "checkpoint" / "offsets"
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["v1", json.dumps({"batchTimestampMs": planned_ms}), json.dumps(of_topics)]
        (folder / str(len(self.batches))).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _stamp_journal(self) -> None:
        """Gives the file that says when the batch was carried out the time of the driver's host, as its disk would."""
        path = self.world.layout.control(self.world.topology.name, self.sub) / "journal" / CARRIED_OUT
        at_ns = self.host.wall_ms(self.now_ms) * 1_000_000
        with suppress(FileNotFoundError):
            os.utime(path, ns=(at_ns, at_ns))

    def _collected(self, frame: pl.DataFrame) -> pl.DataFrame:
        for other in self.world.topology.sub_topologies:
            holder = f"{self.world.topology.name}/{other.name}"
            if waited_ms := self.world.extra_ms(self, "slots", holder):
                self.spend("slots", holder, waited_ms, is_usual=True)
                self._queued = QueueWait(waited_ms, (holder,))
        self.spend("broker", self._first_input, self.world.costs.read)
        return frame

    def _records(self, batch_id: int, ends: Mapping[tuple[str, int], int]) -> list[Row]:
        found = [
            pair
            for topic in self.topics
            for partition in range(self.world.partitions)
            for pair in self.world.arrived[topic, partition][self.taken[topic, partition] : ends[topic, partition]]
        ]
        self.reads[batch_id] = [sent for sent, _ in found]
        return [row for _, row in found]

    def _hop_rows(self, batch_id: int, ends: Mapping[tuple[str, int], int]) -> list[Row]:
        rows: list[Row] = []
        for name, source in self.hops.items():
            path = self.world.layout.hop(self.world.topology.name, source.upstream, source.repartition)
            if self.taken[name, 0] < ends[name, 0]:
                self.hop_ends[batch_id] = ends[name, 0]
                is_new = pl.col("batch_id").is_between(self.taken[name, 0], ends[name, 0] - 1)
                rows += rows_of_hop(source, scan(path).filter(is_new).collect()).to_dicts()
        return rows

    # The process

    def spend(self, owner: str, detail: str, ms: int, *, is_usual: bool = False) -> None:
        """Lets the main thread do one thing for *ms*, and for longer where a fault wants it; *is_usual*: never.

        While the process is stopped nothing goes on but the boot clock.
        """
        ms += 0 if is_usual else self.world.extra_ms(self, owner, detail)
        until_ms = self.now_ms + ms
        stops = sorted(stop for fault in self.world.faults for stop in fault.stops(self.sub))
        for at_ms, stopped_ms in stops:
            if self.now_ms <= at_ms < until_ms:
                self._live(owner, detail, at_ms)
                self._live("pause", self.name, at_ms + stopped_ms)
                until_ms += stopped_ms
        self._live(owner, detail, until_ms)

    def _live(self, owner: str, detail: str, until_ms: int) -> None:
        killed_ms = next((at_ms for at_ms, _ in self._kills()), until_ms)
        reached_ms = min(until_ms, killed_ms, self._horizon_ms)
        if self.now_ms < reached_ms:
            self.life.append(Stretch(owner, detail, self.now_ms, reached_ms))
            self.now_ms = reached_ms
        if reached_ms < until_ms:
            raise KilledError if reached_ms == killed_ms else HorizonError

    def works(self) -> None:
        """Lets the operator that was asked for last do its work."""
        usual_ms = self.world.costs.work + round(self.world.costs.per_record * self._read_n)
        self.spend("operator", self._asked, usual_ms)

    def asked(self, operator: str) -> None:
        """The engine is about to let *operator* sleep."""
        self._asked = operator

    def pulse_gaps(self, began_ms: int, ended_ms: int) -> list[tuple[int, int]]:
        """Returns the stretches of at least 1 s between two beats of the pulse in that time, by the boot clock.

        The process used no CPU in them.
        """
        gaps = []
        for stretch in self.life:
            if stretch.owner == "pause" and began_ms < stretch.ended_ms <= ended_ms:
                last_ms, next_ms = stretch.began_ms // BEAT_MS * BEAT_MS, stretch.ended_ms
                if next_ms - last_ms >= 1_000:
                    gaps.append((self.host.boot_ms(last_ms), self.host.boot_ms(next_ms)))
        return gaps

    def _beat(self, until_ms: int, *, is_last: bool = False) -> None:
        """Writes the heartbeats until then: none of the time in which the process was stopped or gone.

        *is_last*: the last beat that the control folder had becomes a row, as the next driver makes it one.
        """
        # What the play ends in goes on after it.
        lasts = [replace(each, ended_ms=each.ended_ms + 1) for each in self.life[-1:]]
        life = [*self.life[:-1], *lasts]
        still = [(each.began_ms, each.ended_ms) for each in life if each.owner in {"pause", "absence"}]
        first_ms = max(self.beaten_ms, ms(0))
        beats = [*range(first_ms - first_ms % BEATEN_MS + BEATEN_MS, until_ms + 1, BEATEN_MS)]
        beats += [until_ms] if is_last and until_ms not in beats else []
        alive = [at_ms for at_ms in beats if not any(began <= at_ms < ended for began, ended in still)]
        self.beaten_ms = until_ms
        if not alive or not self.life:  # before its first look it has nothing to tell
            return
        path = self.world.layout.stream(self.world.topology.name, self.sub) / HEARTBEATS.name
        create(path, arrow_schema(HEARTBEATS), description=HEARTBEATS.row)
        same = {"topology": self.world.topology.name, "sub_topology": self.sub}
        Appender(path).append(rows_of(HEARTBEATS, [self._heartbeat(at_ms) for at_ms in alive], **same))

    @property
    def _began_to_live_ms(self) -> int:
        """When this driver began, after the absence of the one before."""
        absences = [each.ended_ms for each in self.life if each.owner == "absence"]
        return absences[-1] if absences else self.life[0].began_ms

    def _heartbeat(self, at_ms: int) -> dict[str, object]:
        running = [began_ms for _, began_ms, ended_ms in self.batches if began_ms <= at_ms < ended_ms]
        if self.began_ms is not None and self.began_ms <= at_ms:
            running.append(self.began_ms)
        skew, told_ms = self.host.skew(at_ms), self._told_ms
        self._told_ms = at_ms
        since_ms = self._began_to_live_ms if told_ms is None else told_ms
        gaps = self.pulse_gaps(since_ms, at_ms)
        measured = {
            "host": self.host.name, "estimated_at": utc(self.host.wall_ms(at_ms)), "samples": 5, "reference": BROKERS,
        }  # fmt: skip
        return {
            "beat_at": self.host.wall_ms(at_ms),
            "state": StreamState.RUNNING.value,
            "epoch": self.epoch,
            "thread_id": "t",
            "batch_id": max((number for number, _, ended_ms in self.batches if ended_ms <= at_ms), default=-1),
            "batch_started_at": self.host.wall_ms(running[0]) if running else None,
            "host": self.host.name,
            "pulse_from_boot_ms": self.host.boot_ms(since_ms),
            "pulse_boot_ms": self.host.boot_ms(at_ms),
            "gaps": [{"began_ms": began_ms, "ended_ms": ended_ms, "cpu_ms": 0} for began_ms, ended_ms in gaps] or None,
            "segments": [each._asdict() for each in self._timeline.open()] or None if at_ms == self.now_ms else None,
            "open_transactions": self._open_transactions(at_ms) or None,
            "clock_offsets": [measured | {"offset_ms": skew.offset_ms, "error_ms": skew.error_ms}] if skew else None,
        }

    def _open_transactions(self, at_ms: int) -> list[dict[str, object]]:
        """Returns the partitions in which a record that has arrived cannot be read yet, as a driver tells of them."""
        found = []
        for (topic, partition), records in self.world.arrived.items():
            waits = [
                (offset, sent) for offset, (sent, _) in enumerate(records)
                if sent.arrived_ms <= at_ms < (sent.readable_ms or 0)
            ]  # fmt: skip
            if waits and topic in self.topics:
                offset, sent = waits[0]
                place = {
                    "source": self.topics[topic],
                    "partition": partition,
                    "topic_partition": f"{topic}/{partition}",
                }
                found.append(place | {"stable_offset": offset, "found_at": utc(self.host.wall_ms(sent.arrived_ms))})
        return found

    # What the engine asks

    def flush(self) -> None:
        """Writes the facts that wait, as the timer of facts does, also while a batch hangs; it takes no time."""
        if self._engine is not None:
            self._is_decided = True
            self._engine.flush()

    def _running_engine(self) -> Engine:
        if self._engine is None:
            topology, host = self.world.topology, self.host
            with patch.object(wiring, "Committer", committer_of(self)):
                self._engine = wiring.build_engine(
                    self.world.play.stream(self.sub),
                    self._broker,
                    thread_id="t",
                    epoch=self.epoch,
                    slow_ms=WorkOnRequest(topology.operators, self),
                    fence=Fence(self._at_write, self._until_written, self._reached, lambda: host.wall_ms(self.now_ms)),
                    host=measurement.Host(host.name, lambda: host.skew(self.now_ms)),
                    queued=lambda since_ms: self._queued,
                    timeline=self._timeline,
                )
        return self._engine

    @contextmanager
    def writes(self, target: str) -> Iterator[None]:
        """Says what is written until the context ends."""
        before, self._target = self._target, target
        try:
            yield
        finally:
            self._target = before

    def _until_written(self, write: Callable[[], Any]) -> Any:
        self._is_writing = True
        try:
            return write()
        finally:
            self._is_writing = False

    def _at_write(self) -> None:
        """A write begins: its length goes by before its clock is read."""
        if not self._is_writing:
            return
        self._is_writing = False
        if self._target in self.outputs:
            self.spend("target", self._target, self.world.costs.write)
        elif not self._target and not self._is_decided:
            self.spend("target", "journal", self.world.costs.journal)

    def _reached(self, step: str) -> None:
        self._is_decided |= step == "decided"
        place = step.removeprefix("committed ")
        seen = self.visible[place]
        # A driver that finds a batch written, because the one before was killed, writes nothing.
        batch_id = self._timeline.open()[-1].batch_id
        if place in self.outputs and (not seen or seen[-1][0] < batch_id):
            seen.append((batch_id, self.now_ms))

    def sends(self, topic: str) -> None:
        """The broker takes records for *topic*."""
        self.spend("target", topic, self.world.costs.write)


class WorkOnRequest(dict[str, int]):
    """The engine's `slow_ms`: each operator but sources works as long as its driver says."""

    def __init__(self, operators: Iterable[str], driver: Driver) -> None:
        super().__init__(dict.fromkeys(operators, 0))
        self._driver = driver

    def __contains__(self, operator: object) -> bool:
        return operator in self._driver.operators

    def __getitem__(self, operator: str) -> int:
        self._driver.asked(operator)
        return 0


def committer_of(driver: Driver) -> type[Committer]:
    """Returns a committer whose writes *driver* knows by name: a Fence does not tell it what is written."""

    class NamedCommitter(Committer):
        def commit(self, path: Path, *args: Any, **keys: Any) -> int:
            with driver.writes(path.name):
                return super().commit(path, *args, **keys)

        def commit_accepted(self, path: Path, *args: Any, **keys: Any) -> int:
            with driver.writes(path.name):
                return super().commit_accepted(path, *args, **keys)

        def upsert(self, path: Path, *args: Any, **keys: Any) -> int:
            with driver.writes(path.name):
                return super().upsert(path, *args, **keys)

    return NamedCommitter


class Client(Silence):
    """The brokers as one driver finds them at its instant."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(1)
        self._driver = driver

    def topic(self, source: Source) -> Any:
        self.partitions = self._driver.world.partitions
        return super().topic(source)

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        world, topic, at_ms = self._driver.world, source.topic or "", self._driver.now_ms
        return {number: (0, world.stable_end(topic, number, at_ms)) for number in partitions}

    def open_transactions(self, source: Source, partitions: Sequence[int]) -> Mapping[int, int]:
        world, topic, at_ms = self._driver.world, source.topic or "", self._driver.now_ms
        stable = {number: world.stable_end(topic, number, at_ms) for number in partitions}
        return {number: end for number, end in stable.items() if end < world.end(topic, number, at_ms)}

    def publish(self, outgoing: OutgoingRows) -> list[pl.DataFrame]:
        self._driver.sends(outgoing.sink.topic or "")
        return super().publish(outgoing)
