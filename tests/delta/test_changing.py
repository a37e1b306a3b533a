"""A topology file changes again and again, and its drivers are killed at any write: what goes on loses nothing.

Drivers are started as `run.py` does, and their batches are planned as Spark does. `support/changing.py` computes what
they must write.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.changing import Reading, Results
from support.crashes import Crash, Killed, Killer, crash_at
from support.play import NOON, Play
from support.separate_executors import Apart
from support.small_spark import Driver, Read, Record, Topics
from support.topologies import aggregate, current, map_of, repartition, sink, source, topology_of
from tidemark.cli.project.plan import changes_of_topology
from tidemark.cli.repair.begin import begin_plan
from tidemark.errors import InvalidArgument
from tidemark.facts.topology_changes import changes_by_operator, topology_changes
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, iso
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.query.sql import Warehouse
from tidemark.stream.journal.entries import newest_entry
from tidemark.stream.startup.soundness import Unsound
from tidemark.stream.startup.source_list import Fate

PARTITIONS = 2
DOWN = topology_of(
    {"name": "down"},
    rows=source("id string, n bigint", topic=None, delta="streams/play/all/kept", written_by="play/all"),
    copied=sink("rows", table="copied"),
    per_id=aggregate("rows", key=["id"], aggregates={"c": "count(*)"}),
)
"""A topology that reads a table of the changed one."""
MOST_SOURCES = 4
DRIFT_MS = 4_000
FUNCTIONS: dict[str, Callable[[list[int]], int]] = {"sum": sum, "max": max}


class Walk:
    """A topology, its file, and the person who changes it."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home, self.chance, self.killer = home, Random(seed), Killer(home)
        self.topics = Topics(PARTITIONS)
        self.results = Results(window_ms=10_000)
        self.now_ms, self.sent, self.names = NOON, 0, 0
        self.function, self.max_drift_ms, self.shards = "sum", None, 1
        self.board: dict[str, int] = {}
        self.begun_behind: dict[str, int] = {}
        self.kills = 0
        self.kinds = Counter[str]()
        self.sources = [Reading(self.new_name(), self.new_topic()) for _ in range(2)]
        self.listed: dict[str, str] = {}
        self.dropped: dict[str, int] = {}
        self.given_up: list[tuple[int, str, int]] = []

    def new_name(self) -> str:
        self.names += 1
        return f"source_{self.names}"

    def new_topic(self) -> str:
        topic = f"topic_{len(self.topics.logs)}"
        self.topics.logs[topic] = [[] for _ in self.topics.numbers]
        self.send(topic)
        return topic

    def send(self, topic: str) -> None:
        """Sends a few records, old and new, to some partitions."""
        for log in self.topics.logs[topic]:
            for _ in range(self.chance.choice([0, 0, 1, 3])):
                age_ms = self.chance.choice([0, 0, 500, 2_000, 6_000, 15_000])
                log.append(Record(self.sent, self.chance.choice(["a1", "a2", "b1", "b2"]), self.now_ms - age_ms))
                self.sent += 1

    def pass_time(self) -> None:
        self.now_ms += self.chance.choice([200, 1_000, 3_000, 9_000])

    def toml(self) -> str:
        head = {"name": "play", "window": "5 s"}
        head |= {} if self.max_drift_ms is None else {"max_drift": f"{self.max_drift_ms} ms"}
        sources = {
            each.name: source(
                "id string, n bigint",
                topic=each.topic,
                sub_topology="all",
                was=each.was,
                starting_offsets=each.starting if isinstance(each.starting, str) else _iso(each.starting),
                idle_after=each.idle_after_ms and f"{each.idle_after_ms} ms",
            )
            for each in self.sources
        }
        names, first = [*sources], "united"
        if len(names) == 1:
            (first,) = names
        else:
            sources["united"] = {"kind": "union", "inputs": names}
        if self.results.counts is not None:
            sources["counts"] = aggregate(first, key=["id"], aggregates={"c": "count(*)"})
        return topology_of(
            head,
            **sources,
            kept=sink(first, table="kept"),
            grouped=map_of(first, select={"id": "id", "grp": "substr(id, 1, 1)", "n": "n"}),
            totals=aggregate("grouped", key=["id", "grp"], aggregates={"total": f"{self.function}(n)"}),
            board=current("totals", "board"),
            windows=aggregate(
                first,
                key=["id"],
                window={"tumbling": f"{self.results.window_ms} ms"},
                aggregates={"n": "count(*)"},
                strategy="on_window_close",
            ),
            closed=sink("windows", table="closed"),
            dealt=repartition("totals", id=["id"], key=["grp"], columns=["total"]),
            sums=aggregate("dealt", aggregates={"together": "sum(total)"}),
        )

    def play(self, sub: str) -> Play:
        if sub == "rows":
            return Play(DOWN, self.home)
        return Play(self.toml(), self.home, partitions=PARTITIONS).in_shards(self.shards, Apart)

    # Drivers

    def drive(self, sub: str, batches: int, kill_after: int | None = None) -> str:
        """Runs a driver for so many batches, or until it is killed; returns how far it came."""
        play, reached = self.play(sub), "nowhere"
        control = play.stream(sub).control
        attempt: list[tuple[int, int, dict[str, Read]]] = []

        def running(batch_id: int, decided_at_ms: int, reads: dict[str, Read]) -> None:
            attempt[:] = [(batch_id, decided_at_ms, reads)]

        driver = None
        self.killer.kill_after(kill_after)
        try:
            driver = Driver(play, sub, self.topics, self.killer.step)
            reached = "started"
            self.killer.pause()
            if sub == "all":
                self.started(driver)
            for _ in range(batches):
                self.pass_time()
                for each in self.sources:
                    self.send(each.topic)
                self.killer.go_on()
                driver.batch(self.now_ms, running)
                self.killer.pause()
                if sub == "all":
                    self.decided(*attempt.pop())
            reached = "drained"
        except Killed:
            self.kills += 1
        finally:
            self.killer.kill_after(None)
            if driver is not None:
                driver.end()
            self.killer.release_locks()
        if sub == "all" and attempt:
            newest = newest_entry(control)
            if newest is not None and newest.notes.progress.planned_id >= attempt[0][0]:
                self.decided(*attempt.pop())
        return reached

    def started(self, driver: Driver) -> None:
        """Notes that a driver has followed the file."""
        begun = {each.name: each for each in driver.control.sources()}
        for each in self.sources:
            if not each.partitions and each.starting not in {None, "earliest"}:
                starts = {number: offset for _, number, offset in begun[each.name].starts or ()}
                assert starts in self.topics.asked[each.name]
                assert not each.starts or starts == each.starts, "it is asked once"
                each.starts = starts
            each.listed_as, each.followed = each.name, each.topic
            # From now on the person may leave out what has had its effect.
            if self.chance.random() < 0.5:
                each.was = None
        self.listed = {each.name: each.topic for each in self.sources}

    def decided(self, batch_id: int, decided_at_ms: int, reads: dict[str, Read]) -> None:
        if batch_id <= self.results.done:
            return
        before = {id_: len(numbers) for id_, numbers in self.results.totals.items()}
        self.results.batch(
            batch_id, decided_at_ms, self.sources, reads, self.topics.logs, max_drift_ms=self.max_drift_ms
        )
        for id_, numbers in self.results.totals.items():
            if len(numbers) != before.get(id_, 0):
                self.board[id_] = FUNCTIONS[self.function](numbers)
        for each in self.sources:
            if each.partitions:
                each.starting = each.starting if self.chance.random() < 0.5 else None

    def kill_after(self) -> int | None:
        """Returns after how many writes the next driver is killed; None: it is not."""
        if self.chance.random() < 0.3:
            return None
        return self.chance.randint(0, self.chance.choice([20, 60, 200]))

    def run(self, sub: str) -> None:
        """Runs drivers until one has followed the file; it may be killed in a batch."""
        while self.drive(sub, self.chance.randint(1, 3), self.kill_after()) == "nowhere":
            pass

    def settle(self) -> None:
        """Lets all streams read everything that they may."""
        for sub in ("all", "dealt", "rows"):
            assert self.drive(sub, 1) == "drained"
        for sub in ("dealt", "rows"):
            assert self.drive(sub, 1) == "drained"

    # Changes

    def change(self) -> str:
        kinds: dict[str, Callable[[], str | None]] = {
            "add": self.add, "add again": self.add_again, "remove": self.remove, "reorder": self.reorder,
            "rename": self.rename, "take over the name": self.take_over_name, "other topic": self.other_topic,
            "idle": self.idle, "drift": self.drift, "shards": self.reshard, "window": self.begin_windows,
            "function": self.begin_totals, "counts": self.counts, "nothing": lambda: "",
        }  # fmt: skip
        while True:
            kind = self.chance.choice([*kinds, "add", "remove", "drift", "shards", "shards"])
            if (told := kinds[kind]()) is not None:
                self.kinds[kind] += 1
                return f"{kind} {told}"

    def starting(self) -> str | int:
        return self.chance.choice(["earliest", "latest", self.now_ms - 4_000])

    def add(self, topic: str | None = None, name: str | None = None) -> str | None:
        if len(self.sources) == MOST_SOURCES:
            return None
        starting = self.chance.choice([None, self.starting()])
        if topic in self.listed.values() or name in self.listed:
            starting = self.starting()
        added = Reading(name or self.new_name(), topic or self.new_topic(), starting=starting, idle_after_ms=2_000)
        self.topics.asked.pop(added.name, None)
        self.sources.insert(self.chance.randint(0, len(self.sources)), added)
        return f"{added.name} of {added.topic} from {starting}"

    def add_again(self) -> str | None:
        left = sorted({*self.topics.logs} - {each.topic for each in self.sources})
        return self.add(self.chance.choice(left)) if left else None

    def remove(self) -> str | None:
        if len(self.sources) == 1:
            return None
        gone = self.sources.pop(self.chance.randrange(len(self.sources)))
        self.dropped[gone.name] = gone.waiting
        self.give_up(gone.name, gone.waiting)
        return f"{gone.name}, of which {gone.waiting} wait"

    def reorder(self) -> str:
        self.chance.shuffle(self.sources)
        return ""

    def rename(self) -> str:
        chosen = self.chance.choice(self.sources)
        was, chosen.name = chosen.name, self.new_name()
        self.topics.asked[chosen.name] = self.topics.asked.get(was, [])
        if chosen.listed_as is not None:
            # Without `was`, or while records wait, the stream would read the topic twice, or lose them.
            self.refuses()
            chosen.was = chosen.listed_as
            if chosen.waiting:
                self.refuses()
                chosen.name, chosen.was = was, None
        return f"{was} to {chosen.name}"

    def take_over_name(self) -> str | None:
        chosen = self.chance.choice(self.sources)
        if chosen.listed_as is None or chosen.waiting or len(self.sources) == MOST_SOURCES:
            return None
        chosen.name, chosen.was = self.new_name(), chosen.listed_as
        return f"{chosen.was} is {chosen.name}; {self.add(name=chosen.was)}"

    def other_topic(self) -> str:
        chosen = self.chance.choice(self.sources)
        waiting = chosen.waiting
        self.give_up(chosen.name, waiting)
        chosen.begin(self.new_topic(), None)
        if chosen.listed_as is not None:
            self.refuses()
        chosen.begin(chosen.topic, self.starting())
        self.topics.asked.pop(chosen.name, None)
        return f"{chosen.name} to {chosen.topic} from {chosen.starting}; {waiting} waited"

    def idle(self) -> str:
        chosen = self.chance.choice(self.sources)
        chosen.idle_after_ms = self.chance.choice([None, 2_000, 5_000])
        return f"{chosen.name} {chosen.idle_after_ms}"

    def drift(self) -> str | None:
        if self.shards > 1:
            return None
        self.max_drift_ms = None if self.max_drift_ms else DRIFT_MS
        return str(self.max_drift_ms)

    def reshard(self) -> str | None:
        if self.max_drift_ms is not None or any(each.waiting for each in self.sources):
            return None
        self.shards = 3 if self.shards == 1 else 1
        return str(self.shards)

    def counts(self) -> str:
        if self.results.counts is not None:
            self.results.counts = None
            return "ends"
        self.results.counts = Counter()
        self.note_begin("all", "counts")
        return "begins"

    def begin_windows(self) -> str:
        self.results.window_ms = 5_000 if self.results.window_ms == 10_000 else 10_000
        self.refuses()
        self.begin("windows")
        self.give_up("windows", len(self.results.open_windows))
        self.results.open_windows.clear()
        return f"{self.results.window_ms}"

    def begin_totals(self) -> str:
        was, now = self.function, "max" if self.function == "sum" else "sum"
        self.function = now
        self.refuses()
        if not self.begin("totals"):
            # The sums behind it have to read what was sent to them before.
            self.function = was
            self.settle()
            self.function = now
            assert self.begin("totals")
        self.results.totals.clear()
        self.note_begin("all", "totals")
        self.note_begin("dealt", "sums")
        return self.function

    def begin(self, operator: str) -> bool:
        """Gives the command until it is done; returns False if it is refused."""
        while True:
            try:
                self.killer.kill_after(self.chance.choice([None, self.chance.randint(0, 25)]))
                begin_plan(self.play("all").topology, self.home, operator).apply()
                return True
            except InvalidArgument as refused:
                told = str(refused)
                break
            except Killed:
                self.kills += 1
            finally:
                self.killer.kill_after(None)
                self.killer.release_locks()
        assert "run the streams until it has read that" in told
        return False

    def note_begin(self, sub: str, operator: str) -> None:
        newest = newest_entry(self.play(sub).stream(sub).control)
        self.begun_behind[operator] = newest.batch_id if newest else -1

    def give_up(self, name: str, waiting: int) -> None:
        """Notes that so many updates wait of what ends or begins anew; the next batch counts them as dropped."""
        self.given_up.append((self.results.done, name, waiting))

    def refuses(self) -> None:
        """Checks that a driver refuses to start with the present file."""
        with pytest.raises(Unsound):
            Driver(self.play("all"), "all", self.topics, lambda: None)

    def check_plan(self) -> None:
        """Checks that the plan says of each source what will happen."""
        expected = {}
        for each in self.sources:
            goes_on = each.listed_as is not None and each.followed == each.topic
            expected[each.name] = Fate.GOES_ON if goes_on else Fate.BEGINS
        going_on = {each.listed_as for each in self.sources if each.listed_as and each.followed == each.topic}
        for name in {*self.listed} - going_on - {*expected}:
            expected[name] = Fate.ENDS
        told = {each.operator: each for each in changes_of_topology(self.play("all").topology, Layout(self.home))}
        assert {name: told[name].fate for name in expected} == expected
        for name in (name for name, fate in expected.items() if fate is Fate.ENDS):
            assert told[name].held == self.dropped[name]

    # Checks

    def check(self) -> None:
        play, results = self.play("all"), self.results
        assert sorted((row["n"], row["batch_id"]) for row in play.rows("kept")) == sorted(results.kept)
        closed = [(row["id"], row["window_start"], row["n"]) for row in play.rows("closed")]
        assert sorted(closed) == sorted(results.closed)
        totals = {id_: FUNCTIONS[self.function](numbers) for id_, numbers in results.totals.items()}
        self.check_newest(play, "all", "totals", "id", "total", totals)
        if results.counts is not None:
            self.check_newest(play, "all", "counts", None, "c", results.counts)
        assert {row["id"]: row["total"] for row in play.rows("board")} == self.board
        together = Counter[str]()
        for id_, total in totals.items():
            together[id_[0]] += total
        self.check_newest(play, "dealt", "sums", None, "together", together)
        batches = {row["batch_id"]: row["watermark"] for row in play.rows("batches")}
        assert batches == {batch_id: results.watermarks_ms[batch_id] for batch_id in batches}
        reached = {
            (row["batch_id"], row["source"]): row["watermark"]
            for row in play.rows("partition_batches")
            if row["partition"] is None and row["source"] is not None
        }
        assert reached == {place: results.reached_ms[place] for place in reached}
        down = self.play("rows")
        copied = down.rows("copied", "rows")
        assert Counter(row["n"] for row in copied) == Counter(n for n, _ in results.kept)
        self.check_newest(down, "rows", "per_id", None, "c", Counter(row["id"] for row in copied))
        for each, sub in ((play, "all"), (play, "dealt"), (down, "rows")):
            moved = [row["watermark"] for row in each.rows("batches", sub) if row["watermark"] is not None]
            assert moved == sorted(moved), sub
            self.check_accounting(each.rows("operator_batches", sub))
        outcomes = {(row["batch_id"], row["operator"]): row for row in play.rows("operator_batches")}
        given_up, dropped = Counter[str](), Counter[str]()
        for after, name, waiting in self.given_up:
            given_up[name] += waiting if max(batches) > after else 0
        for row in outcomes.values():
            dropped[row["operator"]] += row["dropped"]
        assert +dropped == +given_up
        for place, count in results.outcomes.items():
            if place in outcomes:
                row = outcomes[place]
                found = {**row, "held_before": row["held_before"] - row["dropped"], "dropped": 0}
                assert {word: found[word] for word in (*CAME_IN, *BECAME)} == {
                    word: count[word] for word in (*CAME_IN, *BECAME)
                }, place
            else:
                assert not count["records_in"], place

    def check_accounting(self, rows: list[dict[str, Any]]) -> None:
        assert max(Counter((row["batch_id"], row["operator"]) for row in rows).values()) == 1
        held = Counter[str]()
        for row in sorted(rows, key=lambda row: row["batch_id"]):
            assert sum(row[word] for word in CAME_IN) == sum(row[word] for word in BECAME), row
            # What waits after a batch is what waited before the next one, also if the file has changed in between.
            assert row["held_before"] == held[row["operator"]], row
            held[row["operator"]] = row["held_after"]

    def check_newest(
        self, play: Play, sub: str, operator: str, key: str | None, column: str, expected: dict[str, int]
    ) -> None:
        """Compares the newest change of each key since the operator began."""
        newest: dict[str, int] = {}
        for row in play.rows("changes", sub):
            if row["operator"] == operator and row["batch_id"] > self.begun_behind.get(operator, -1):
                value = json.loads(row["value"])[column]
                newest[json.loads(row["key"])[key] if key else row["key"]] = value
        assert newest == expected, operator


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)


@pytest.mark.parametrize(("seed", "changes"), [(1, 4), pytest.param(2, 100, marks=pytest.mark.long)])
def test_what_goes_on_is_counted_once_whatever_changes_and_whenever_a_driver_is_killed(
    tmp_path: Path, seed: int, changes: int
) -> None:
    walk = Walk(tmp_path / "w", seed)
    walk.settle()
    for number in range(changes):
        told = f"change {number}: {walk.change()}"
        walk.check_plan()
        walk.run("all")
        for sub in walk.chance.sample(("dealt", "rows"), walk.chance.randint(0, 1)):
            walk.run(sub)
        if walk.chance.random() < 0.4 or number == changes - 1:
            walk.settle()
            try:
                walk.check()
            except AssertionError as error:
                error.add_note(told)
                raise
    assert walk.kills > changes // 2


# What the walk has found


class Small:
    """A topology of two sources of one partition, and its drivers."""

    def __init__(self, home: Path) -> None:
        self.home, self.topics, self.n, self.at_ms = home, Topics(1), 0, NOON
        self.topics.logs |= {"a": [[]], "b": [[]]}

    def send(self, topic: str, *at_s: float) -> None:
        for second in at_s:
            self.topics.logs[topic][0].append(Record(self.n, "k", NOON + round(second * 1_000)))
            self.n += 1

    def play(self, toml: str) -> Play:
        return Play(toml, self.home)

    def run(self, toml: str, batches: int = 1, *, sub: str = "all", kill_at: str = "") -> Play:
        """Runs a driver for so many batches, the last of which ends at the step *kill_at*: `planned`, or one of it."""
        play = self.play(toml)
        driver, ends = Driver(play, sub, self.topics, lambda: None), crash_at(kill_at)
        if kill_at:
            play.start(sub, reached=ends, epoch=driver.epoch)
        try:
            for _ in range(batches):
                self.at_ms += 1_000
                with pytest.raises(Crash) if kill_at else nullcontext():
                    driver.batch(self.at_ms, lambda *_: ends("planned"))
        finally:
            driver.end()
        return play


def small(a: str = "a", *, was: str | None = None, max_drift: str | None = None, **more: dict[str, Any]) -> str:
    """Returns a topology with the source *a* of the topic `a`, a table of its records, and *more* operators."""
    head = {} if max_drift is None else {"max_drift": max_drift}
    reading = source("id string, n bigint", topic="a", sub_topology="all", was=was)
    return topology_of(head, **{a: reading}, kept=sink(a, table="kept"), **more)


BESIDE = {"b": source("id string, n bigint", topic="b"), "united": {"kind": "union", "inputs": ["a", "b"]}}
"""A second source of the same stream."""


def test_records_that_wait_stay_when_an_operator_begins(tmp_path: Path) -> None:
    """Records that came later took the places of some. (Seed 1.)"""
    stream = Small(tmp_path)

    def waiting(aggregates: dict[str, str], max_drift: str | None = "1 s") -> str:
        counts = aggregate("a", key=["id"], aggregates=aggregates)
        return small(max_drift=max_drift, **BESIDE, copied=sink("united", table="copied"), counts=counts)

    for of_a, of_b in (([1], [1]), ([10, 20, 30, 40], [10]), ([], [11])):
        stream.send("a", *of_a)
        stream.send("b", *of_b)
        play = stream.run(waiting({"c": "count(*)"}))
    # b has come to 10 s, so the record of 20 s passes, before which a had come to 10 s; those of 30 and 40 s wait.
    assert [row["held_after"] for row in play.rows("operator_batches") if row["operator"] == "a"] == [0, 3, 2]
    begin_plan(stream.play(waiting({"c": "sum(n)"})).topology, tmp_path, "counts").apply()
    stream.send("a", 50)
    play = stream.run(waiting({"c": "sum(n)"}))
    assert [row["held_after"] for row in play.rows("operator_batches") if row["operator"] == "a"] == [0, 3, 2, 3]
    play = stream.run(waiting({"c": "sum(n)"}, max_drift=None))
    assert [(row["event_time"] - NOON) // 1_000 for row in play.rows("kept")] == [1, 10, 20, 30, 40, 50]


def test_what_waits_of_a_source_that_ends_is_counted_as_dropped(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    both = small(max_drift="1 s", **BESIDE, copied=sink("united", table="copied"))
    for of_a, of_b in (([1], [1]), ([10], [10, 20, 30, 40])):
        stream.send("a", *of_a)
        stream.send("b", *of_b)
        stream.run(both)
    stream.run(small(), batches=0)
    stream.send("a", 11)
    stream.run(small(), kill_at="decided")
    stream.send("a", 12)
    play = stream.run(small())
    counted = ("batch_id", "records_in", "held_before", "passed", "dropped", "held_after")
    of_b = [[row[word] for word in counted] for row in play.rows("operator_batches") if row["operator"] == "b"]
    # In batch 1 a had come to 1 s, so that what follows the record of 10 s of b waits.
    assert sorted(of_b) == [[0, 1, 0, 1, 0, 0], [1, 4, 0, 1, 0, 3], [2, 0, 3, 0, 3, 0]]


def test_an_operator_that_comes_back_does_not_have_what_it_had(tmp_path: Path) -> None:
    """Its counts would lack what came while the file was without it."""
    stream = Small(tmp_path)
    counts = {"counts": aggregate("a", key=["id"], aggregates={"c": "count(*)"})}
    for more, at_s in ((counts, 1), ({}, 2), (counts, 3), (counts, 4)):
        stream.send("a", at_s)
        play = stream.run(small(**more))
    values = [(row["batch_id"], row["value"]) for row in play.rows("changes")]
    assert values == [(0, '{"c":1}'), (2, '{"c":1}'), (3, '{"c":2}')]


def test_a_source_keeps_its_progress_if_was_goes_before_its_first_batch_under_the_new_name(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    stream.send("a", 1, 2)
    stream.run(small())
    stream.run(small("b", was="a"), batches=0)
    stream.run(small("c", was="b"), batches=0)
    stream.send("a", 0)
    play = stream.run(small("c"))
    assert [row["n"] for row in play.rows("kept")] == [0, 1, 2]
    (read,) = play.reads()[1]
    assert (read["source"], read["from_offset"], read["until_offset"]) == ("c", 2, 3)
    # Its newest record is still that of 2 s, and the bound is 1 s.
    assert read["watermark"] == NOON + 999


def test_a_source_may_be_renamed_before_its_first_batch_is_decided(tmp_path: Path) -> None:
    """Its driver was killed when the batch was planned. The next one took the checkpoint for that of another stream."""
    stream = Small(tmp_path)

    def beside(name: str, **more: Any) -> dict[str, Any]:
        own = {name: source("id string, n bigint", topic="b", **more)}
        return {
            **own,
            "united": {"kind": "union", "inputs": ["a", name]},
            "all_of_it": sink("united", table="all_of_it"),
        }

    stream.send("b", 1)
    stream.run(small())
    stream.run(small(**beside("b")), kill_at="planned")
    play = stream.run(small(**beside("c", was="b")))
    assert [row["n"] for row in play.rows("all_of_it")] == [0]


def test_a_batch_that_was_decided_counts_the_records_of_a_source_that_has_ended_since(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    stream.send("b", 1, 2)
    stream.run(small(**BESIDE), kill_at="decided")
    play = stream.run(small())
    rows = play.rows("operator_batches")
    assert [(row["records_in"], row["passed"]) for row in rows if row["operator"] == "b"] == [(2, 2)]


def test_the_end_of_a_source_concerns_the_operators_that_read_it(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    stream.send("b", 1)
    stream.run(small(copied=sink("a", table="copied")))
    stream.run(small(**BESIDE, copied=sink("united", table="copied")))
    stream.send("a", 2)
    play = stream.run(small(copied=sink("a", table="copied")))
    changes = topology_changes(Warehouse(tmp_path), "play", Interval(NOON, stream.at_ms + 1))
    assert [each.told for each in changes] == ["the source b begins with topic b", "the source b ends"]
    assert {name: len(of) for name, of in changes_by_operator(changes, play.topology).items()} == {
        "a": 0, "kept": 0, "copied": 2,
    }  # fmt: skip


def test_sums_begin_only_when_all_that_was_decided_before_them_is_read(tmp_path: Path) -> None:
    """A driver was killed when it had decided a batch, and had sent nothing of it to the sums."""
    stream = Small(tmp_path)

    def summing(function: str) -> str:
        return small(
            totals=aggregate("a", key=["id"], aggregates={"total": f"{function}(n)"}),
            dealt=repartition("totals", id=["id"], key=["id"], columns=["total"]),
            sums=aggregate("dealt", aggregates={"together": "sum(total)"}),
        )

    for at_s in (1, 2):
        stream.send("a", at_s, at_s)
        stream.run(summing("sum"), kill_at="decided" if at_s == 2 else "")
        stream.run(summing("sum"), sub="dealt")
    with pytest.raises(InvalidArgument, match=r"^play/dealt has read all up to batch 0, and there is batch 1: "):
        begin_plan(stream.play(summing("max")).topology, tmp_path, "totals")
    stream.run(summing("sum"))
    stream.run(summing("sum"), sub="dealt")
    begin_plan(stream.play(summing("max")).topology, tmp_path, "totals").apply()
    stream.send("a", 3)
    stream.run(summing("max"))
    play = stream.run(summing("max"), sub="dealt")
    # Sums of 0 and 1, of 2 and 3, and then the greatest of 4 alone.
    together = [json.loads(row["value"])["together"] for row in play.rows("changes", "dealt")]
    assert together == [0, 1, 3, 6, 4]
