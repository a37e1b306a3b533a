"""Shards leave the driver's tables; here tasks share only files."""

from __future__ import annotations

import platform
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
import pytest
from _pytest.mark import ParameterSet

import critical_path
from support.crashes import Crash, crash_at
from support.play import Play, Row
from support.separate_executors import Apart, OneWorker, Workers
from support.topologies import (
    aggregate,
    current,
    join,
    map_of,
    operators,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.cli.repair.reshard import reshard_plan
from tidemark.control.folder import Control, WindowReopening
from tidemark.model.project.layout import CHANGES_OF, Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.tables.catalog import COUNTED, CRITICAL_PATH_STEPS, OPERATOR_BATCHES, Table
from tidemark.storage.delta.tables import scan
from tidemark.storage.disk import Disk
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.kafka import outgoing
from tidemark.stream.read.data_loss import DataLost
from tidemark.stream.shards import tasks
from tidemark.stream.shards.sharding import ShardingImpossible
from tidemark.stream.shards.shards import DriverIntake, Executors
from tidemark.stream.shards.tasks import Dealt, IntakeTask, ShardTask
from tidemark.stream.shards.totals import ShardResult
from tidemark.stream.state.runs import CACHE

T = 1_400_000_000_000
SOURCE = topology_of({"level": "trace"}, events=source("id string, grp string, v int", max_ahead=None))
OUT = operators(out=sink("{}", table="out"))
TABLE = operators(
    renamed=map_of(select={"name": "id", "grp": "grp", "v": "v % 3"}, where="v <> 5"),
    newest=table("renamed", key=["name"]),
)
COUNTS = operators(
    counts=aggregate(
        key=["id"],
        aggregates={"n": "count(*)", "top": "max(v)", "latest": "last(v)"},
        select={"n": "n", "top": "top", "latest": "latest"},
    ),
)
TUMBLING = 'window = { tumbling = "10 s" }\nallowed_lateness = "2 s"\n'
TOLD = operators(told=map_of(select={"odd": "v % 2"}, strategy="on_change"))
JOINED = operators(
    prices=source("grp string, price int", topic="prices", max_ahead=None),
    price=table("prices", key=["grp"], columns=["price"]),
    newest=table(),
    priced=join("newest", "price", on={"grp": "grp"}),
    by_group=repartition("priced", id=["id"], key=["grp"], columns=["v", "price"], partitions=2),
    groups=aggregate(
        "by_group",
        aggregates={"n": "count(*)", "total": "sum(v)"},
        select={"n": "n", "total": "total"},
        rule="value_only",
    ),
    told=current("priced", "told"),
    seen=current("newest", "seen", last_seen_at=True),
    sent=sink("groups", topic="sent"),
)
STATELESS = operators(
    halved=map_of(select={"id": "id", "half": "v / 2"}, where="v > 1"),
    by_half=repartition("halved", key=["half"], columns=["id"]),
    halves=aggregate("by_half", aggregates={"n": "count(*)"}, select={"n": "n"}),
    sent=sink("halved", topic="sent"),
)
UNITED = operators(
    prices=source("grp string, price int", topic="prices", max_ahead=None),
    of_events=map_of(select={"grp": "grp", "n": "v"}),
    of_prices=map_of("prices", select={"n": "price", "grp": "grp"}),
    both={"kind": "union", "inputs": ["of_events", "of_prices"]},
    counts=aggregate("both", key=["grp"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)", "total": "sum(n)"}),
)
FAILING = operators(
    large=map_of(
        select={"id": "id", "v": "v * 500000000"}, where="cast(case when v = 1 then 'one' else '1' end as int) = 1"
    ),
    top=aggregate("large", key=["id"], aggregates={"top": "max(v)"}, select={"top": "(top * 2)::int"}),
)
INSTANTS = operators(
    newest=table(key=["seen"]),
    ends=aggregate(
        key=["grp", "seen"],
        aggregates={"n": "count(*)", "latest": "max(seen)"},
        select={"n": "n", "latest": "latest + interval 1 microsecond"},
    ),
    out=current("newest", "out", key=["seen"]),
)
TOPOLOGIES = {
    "a table": SOURCE + TABLE + OUT.format("newest"),
    "a table decided once a batch": SOURCE + TABLE + 'decide = "batch"\n' + OUT.format("newest"),
    "a rolling aggregate": SOURCE + COUNTS + OUT.format("counts"),
    "windows": SOURCE + COUNTS + TUMBLING + OUT.format("counts"),
    "windows at their end": SOURCE + COUNTS + TUMBLING + 'strategy = "on_window_close"\n' + OUT.format("counts"),
    "sessions": SOURCE + COUNTS + 'window = { session = "3 s" }\n' + OUT.format("counts"),
    "once an interval": SOURCE + COUNTS + 'strategy = "periodic"\ninterval = "15 s"\n' + OUT.format("counts"),
    "a join and a hop": SOURCE + JOINED,
    "a map that tells changes by the key of the record": SOURCE + TOLD + OUT.format("told"),
    "a union of two sources": SOURCE + UNITED + OUT.format("counts"),
    "SQL that fails for some records": SOURCE + FAILING + OUT.format("top"),
    "keys with microseconds": SOURCE.replace("v int", "v int, seen timestamp") + INSTANTS,
    "no state and a stream behind a hop": SOURCE + STATELESS,
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ten rows enough for files, and for sending by tasks."""
    monkeypatch.setattr(tasks, "MANY", 10)
    monkeypatch.setattr(outgoing, "MANY", 10)


def batches(play: Play, seed: int = 1) -> list[tuple[int, list[Row]]]:
    """Returns five batches, the third of them small.

    Keys repeat; records are out of order, late, unusable and without key.
    """
    draw = random.Random(seed)
    found = []
    for number, size in enumerate([60, 50, 4, 70, 40]):
        rows: list[Row] = []
        for _ in range(size):
            at_ms = T + number * 8_000 + draw.randrange(9_000)
            fields = {"id": draw.choice([*"abcdefgh", None]), "grp": draw.choice("xyz"), "v": draw.randrange(7)}
            fields["seen"] = utc(T) + timedelta(microseconds=fields["v"])
            row = play.row("events", at_ms, partition=draw.randrange(3), **fields)
            row["stamped_ms"] = at_ms + 100 * fields["v"]
            rows.append(row | {"reason": "malformed_json", "value": b"?"} if draw.random() < 0.05 else row)
        for ahead_ms in (2_000, 4_000_000):  # one that is ahead of the clock, and one that is too far ahead
            ahead = play.row("events", T + 10_000 * (number + 1) + ahead_ms, id="a", grp="x", v=1)
            rows.insert(number, ahead | {"value": b"ahead"})
        if "prices" in play.topology.operators:
            rows += [
                play.row("prices", T + number * 8_000 + n, grp=draw.choice("xyz"), price=draw.randrange(9))
                for n in range(3)
            ]
        found.append((T + 10_000 * (number + 1), rows))
    return found


def played(toml: str, home: Path, shards: int, executors: Callable[[pl.DataFrame], Executors] = Apart) -> Play:
    """Runs the batches in so many *shards*, half with new drivers.

    Every second batch has a new driver.
    """
    play = Play(toml, home, partitions=3).in_shards(shards, executors)
    for number, (at_ms, rows) in enumerate(batches(play)):
        for sub in play.topology.sub_topologies:
            if number % 2:
                play.start(sub.name)
            if sub is play.topology.sub_topologies[0]:
                play.batch(rows, at_ms=at_ms, sub=sub.name)
            else:
                play.hop(sub.name, at_ms=at_ms)
    return play


NOT_ALIKE = ("phases", "phases_boot_ms", "excluded_boot_ms")
"""Columns about the life of one driver."""


def told(play: Play) -> dict[str, Any]:
    """Returns comparable table rows, each key's changes and hops in order.

    Without `seq`, Spark's tasks and how long operators waited.
    """
    found: dict[str, Any] = {}
    for path in sorted((play.home / "streams" / "play").glob("*/*")):
        if path.name.startswith(CHANGES_OF):  # which were merged files tell
            continue
        frame = scan(path).collect()
        if path.name == OPERATOR_BATCHES.name:
            frame = without_spark(frame)
        frame = frame.with_columns(cs.datetime().dt.epoch("ms")).drop("queued_ms", *NOT_ALIKE, strict=False)
        name = f"{path.parent.name}/{path.name}"
        if "seq" in frame.columns:
            by = ["operator", "key"] if path.name == "changes" else ["partition", "id", "key"]
            frame = frame.sort("batch_id", "seq").drop("seq")
            found[name] = sorted((str(key), part.rows()) for key, part in frame.group_by(by, maintain_order=True))
        else:
            found[name] = sorted(frame.rows(), key=str)
    sent: dict[Any, list[Row]] = defaultdict(list)
    for topic, row in play.broker.published:
        sent[topic, row["_key"]].append(row)
    return found | {"sent": dict(sent)}


def without_spark(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns rows of `operator_batches` with their input partitions as a driver without shards measures them."""
    fields = ("task_id", "n", "min_ms", "max_ms", "sum_ms", "negative_n")
    skips = ("idempotent_update_skip_total", "idempotent_update_skip_rate")
    task = pl.struct([pl.element().struct.field(name) for name in (*fields, *skips)])
    is_measured = pl.element().struct.field("n").is_not_null() | pl.element().struct.field(skips[0]).is_not_null()
    counted = rows.filter(pl.any_horizontal(pl.col(COUNTED) > 0) | pl.col("n").is_not_null())
    tasks = pl.col("tasks").list.eval(task.filter(is_measured))
    return counted.with_columns(tasks=pl.when(tasks.list.len() > 0).then(tasks))


def comparable(play: Play, name: str) -> dict[str, Any]:
    """Returns the rows that must be equal.

    Of groups after a hop the results alone: several ids have no common order.
    """
    if name != "a join and a hop":
        return told(play)
    upstream = {table: rows for table, rows in told(play).items() if table.startswith("events/")}
    newest = {row["key"]: row["value"] for row in play.rows("changes", "by_group")}
    return upstream | {
        "groups": newest,
        "into it": sum(row["records_in"] for row in play.rows("operator_batches", "by_group")),
    }


OfOneShard = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def of_one_shard(tmp_path_factory: pytest.TempPathFactory) -> OfOneShard:
    """Returns what the driver alone leaves of a topology, played once."""
    return cache(lambda name: comparable(played(TOPOLOGIES[name], tmp_path_factory.mktemp("one"), 1), name))


EXECUTORS = {2: Apart, 5: OneWorker}
"""The executors by number of shards.

Of three groups, two shards of five have none.
"""
IN_CI = {"windows": 5, "a join and a hop": 2, "SQL that fails for some records": 5}
"""The topologies with the highest risk, and their shards.

`make proof` runs all in both numbers of shards.
"""


def named(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters of which those that are not IN_CI are long."""
    return [pytest.param(name, marks=() if name in IN_CI else pytest.mark.long) for name in names]


@pytest.mark.parametrize(
    ("name", "shards"),
    [
        pytest.param(name, shards, marks=() if IN_CI.get(name) == shards else pytest.mark.long)
        for name in TOPOLOGIES
        for shards in EXECUTORS
    ],
)
def test_shards_leave_the_tables_that_the_driver_leaves(
    tmp_path: Path, of_one_shard: OfOneShard, name: str, shards: int
) -> None:
    expected = of_one_shard(name)
    found = comparable(played(TOPOLOGIES[name], tmp_path, shards, EXECUTORS[shards]), name)
    assert found.keys() == expected.keys()
    for name_of_table in expected:
        assert found[name_of_table] == expected[name_of_table], name_of_table


def test_facts_and_paths_name_the_task_that_finished_last(tmp_path: Path) -> None:
    toml = 'window = "10 s"\n' + SOURCE + COUNTS + OUT.format("counts")
    play = Play(toml, tmp_path, partitions=2).in_shards(3, OneWorker)
    ids = ["a"] * 6 + [*"bcdefg"]
    for number in range(2):
        at_ms = T + 20_000 * number
        rows = [play.row("events", at_ms, partition=n % 2, id=id_, grp="x", v=n) for n, id_ in enumerate(ids)]
        play.batch(rows, at_ms=at_ms + 10_000)
    tasks_of = [row for row in play.tasks() if row["batch_id"] == 1 and row["host"]]
    of_source = {row["partition"]: row["records"] for row in tasks_of if row["operator"] == "events"}
    assert of_source == {0: 6, 1: 6}
    counts = {row["shard"]: row for row in tasks_of if row["operator"] == "counts"}
    assert sum(row["records"] for row in counts.values()) == 12
    assert {*counts} == {0, 1, 2}
    (hot,) = [row for row in counts.values() if row["hot_key"] == '{"id":"a"}']
    assert hot["hot_share"] == 6 / hot["records"]
    assert {row["host"] for row in tasks_of} == {platform.node()}

    critical_path.run(Layout(tmp_path), play.topology, (), Interval(T, T + 20_000))
    steps = {row["operator"]: row for row in opened_rows(CRITICAL_PATH_STEPS, tmp_path)}
    finished_ms = {shard: row["finished_at"] for shard, row in counts.items()}
    last = max(finished_ms, key=lambda shard: (finished_ms[shard], -shard))
    others = sorted(at for shard, at in finished_ms.items() if shard != last)
    assert steps["counts"]["task"] == f"shard {last}"
    assert steps["counts"]["behind_tasks_ms"] == finished_ms[last] - sum(others) // 2
    assert steps["counts"]["hot_key"] == counts[last]["hot_key"]


def opened_rows(table: Table, home: Path) -> list[Row]:
    return scan(Layout(home).report_table("play", table.name)).collect().to_dicts()


@pytest.mark.parametrize(
    "crashes",
    [
        ("worked on", "decided", "committed changes"),
        pytest.param(("committed hop_by_group", "measured"), marks=pytest.mark.long),
    ],
)
def test_a_crash_between_any_two_steps_leaves_the_same_tables(tmp_path: Path, crashes: tuple[str, ...]) -> None:
    toml = TOPOLOGIES["a join and a hop"]
    whole = Play(toml, tmp_path / "whole", partitions=3).in_shards(3, Apart)
    steps: list[str] = []
    whole.start(reached=steps.append)
    (at_ms, rows), (later_ms, more), *_ = batches(whole)
    whole.batch(rows, at_ms=at_ms)
    whole.batch(more, at_ms=later_ms)
    once = steps[: steps.index("committed batches") + 1]
    assert once[:3] == ["worked on", "decided", "committed changes"]
    assert set(crashes) < set(once)
    for step in crashes:
        play = Play(toml, tmp_path / step, partitions=3).in_shards(3, Apart)
        play.start(reached=crash_at(step))
        with pytest.raises(Crash):
            play.process(0, rows, at_ms=at_ms)
        play.start(epoch=2)
        play.process(0, rows, at_ms=at_ms)
        play.process(1, more, at_ms=later_ms)
        assert without_clocks(play) == without_clocks(whole), step


def without_clocks(play: Play) -> dict[str, Any]:
    """Returns table rows without the epoch and clocks of the log.

    Clocks of the log are read after a crash.
    """
    measured = Counter[tuple[Any, ...]]()
    for row in play.tasks():
        measured[row["batch_id"], row["operator"], row["task_id"]] += row["n"] or 0
    of_clocks = {f"events/{name}" for name in ("batches", "operator_batches", "latency_minutes", "operator_windows")}
    return {name: rows for name, rows in told(play).items() if name not in of_clocks} | {"measured": measured}


def test_a_decided_batch_is_replayed_from_files_without_work(tmp_path: Path) -> None:
    play = Play(TOPOLOGIES["a table"], tmp_path, partitions=3).in_shards(3, Apart)
    (at_ms, rows), *_ = batches(play)
    play.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.process(0, rows, at_ms=at_ms)
    written = {path.name for path in tmp_path.glob("streams/play/events/changes/*.parquet")}
    assert play.rows("changes") == []
    play.start()
    play.process(0, [], at_ms=at_ms)
    assert {path.name for path in tmp_path.glob("streams/play/events/changes/*.parquet")} == written
    assert sum(row["emitted"] + row["suppressed"] for row in play.rows("operator_batches")) > 25


class Full(Apart):
    """A disk without space for the last file until try three."""

    tries = 0

    def work(self, working: ShardTask, dealt: Iterable[Dealt]) -> list[ShardResult]:
        worked = super().work(working, dealt)
        Full.tries += 1
        if Full.tries < 3:
            msg = "Job aborted due to stage failure: OSError: [Errno 28] No space left on device"
            raise RuntimeError(msg)
        return worked


def test_a_batch_without_disk_space_is_recomputed_cleanly(tmp_path: Path) -> None:
    waited: list[float] = []
    play = Play(TOPOLOGIES["a table"], tmp_path / "full", partitions=3).in_shards(3, Full)
    whole = Play(TOPOLOGIES["a table"], tmp_path / "whole", partitions=3).in_shards(3, Apart)
    play.start(until_written=Disk(lambda: None, sleep_s=waited.append).until_written)
    (at_ms, rows), *_ = batches(play)
    play.batch(rows, at_ms=at_ms)
    whole.batch(rows, at_ms=at_ms)
    assert waited == [1, 1, 1]  # after the first try one second, after the second two
    assert told(play) == told(whole)
    names = [sorted(p.parent.name for p in one.home.rglob("batch-*.parquet")) for one in (play, whole)]
    assert names[0] == names[1]


def test_shards_date_tombstones_as_the_driver_does(tmp_path: Path) -> None:
    keyed = SOURCE.replace('topic = "events"', 'topic = "events"\nkey = "id"') + TABLE
    found = []
    for shards in (1, 3):
        play = Play(keyed, tmp_path / str(shards), partitions=2).in_shards(shards, Apart)
        for number in range(2):
            rows = [
                play.row("events", T + n, partition=n % 2, id=str(n), grp="x", v=n % 3) for n in range(20 * number, 30)
            ]
            gone = [play.row("events", T, partition=n % 2, id=str(n)) for n in range(28)]
            play.batch([*rows, *({**row, "deleted": True, "timestamp_ms": None} for row in gone)], at_ms=T + 50)
        found.append({(row["key"], row["timestamp"]) for row in play.rows("changes") if row["value"] is None})
    assert found[0] == found[1] == {(str(n), T + 28 + n % 2) for n in range(28)}


def test_shards_go_on_behind_a_first_batch_without_records(tmp_path: Path) -> None:
    """What they returned could not be sent to the driver. (Real drivers of `test_changed_sources.py` found it.)"""
    play = Play(SOURCE + TABLE, tmp_path, partitions=2).in_shards(3, Apart)
    play.batch(at_ms=T)
    play.batch([play.row("events", T, id="a", grp="x", v=1)], at_ms=T + 1)
    assert [row["key"] for row in play.rows("changes")] == ["a"]


def test_a_topology_unfit_for_shards_is_refused_by_operator(tmp_path: Path) -> None:
    by_group = COUNTS.replace('key = ["id"]', 'key = ["grp"]')
    with pytest.raises(
        ShardingImpossible, match="newest groups by name, but no column of events is part of this key and"
    ):
        Play(SOURCE + TABLE + by_group, tmp_path).in_shards(2, Apart).start()


@pytest.mark.parametrize("flush_keys", [1, pytest.param(50_000, marks=pytest.mark.long)])
def test_the_number_of_shards_may_change_at_a_start(tmp_path: Path, of_one_shard: OfOneShard, flush_keys: int) -> None:
    toml = f"flush_keys = {flush_keys}\n" + TOPOLOGIES["windows"]
    changing = Play(toml, tmp_path, partitions=3)
    for shards, (at_ms, rows) in zip((1, 2, 7, 1, 3), batches(changing), strict=True):
        changing.in_shards(shards, Apart).start()
        changing.batch(rows, at_ms=at_ms)
        of_runs = {path.relative_to(tmp_path).parts[-3] for path in changing.home.rglob("state/*/*/*.run")}
        assert of_runs <= {str(shards)}
    assert told(changing) == of_one_shard("windows")


@pytest.mark.parametrize(
    "name", named(["a table", "windows at their end", "sessions", "once an interval", "a join and a hop"])
)
def test_a_state_resharded_before_a_start_leaves_the_same_tables(
    tmp_path: Path, of_one_shard: OfOneShard, name: str
) -> None:
    play = Play("flush_keys = 9\n" + TOPOLOGIES[name], tmp_path, partitions=3)
    for shards, (at_ms, rows) in zip((2, 7, 2, 4, 1), batches(play), strict=True):
        lines = reshard_plan(play.topology, play.home, None, shards).apply().splitlines()
        play.in_shards(shards, Apart)
        first, *others = (sub.name for sub in play.topology.sub_topologies)
        assert len(lines) == 1 + len(others)
        play.start(first)
        play.batch(rows, at_ms=at_ms, sub=first)
        for sub in others:
            play.start(sub)
            play.hop(sub, at_ms=at_ms)
    assert comparable(play, name) == of_one_shard(name)


def test_records_that_wait_are_not_lost_by_a_start_in_shards(tmp_path: Path) -> None:
    play = Play('max_drift = "5 s"\n' + SOURCE + TABLE, tmp_path, partitions=2)
    for number, (second, id_) in enumerate([(1, "a"), (100, "b"), (102, "waits")]):
        rows = [play.row("events", T + 1_000 * second, partition=1, id=id_, grp="x", v=1)]
        rows += [] if number else [play.row("events", T, partition=0, id="slow", grp="x", v=1)]
        play.batch(rows, at_ms=T + 1_000 * second)
    assert [row["source_offset"] for row in play.rows("state_changes")] == [2]
    play.topology = replace(play.topology, max_drift_ms=None)
    play.in_shards(3, Apart).start()
    later = [play.row("events", T + 103_000, partition=0, id="slow", grp="x", v=2)]
    with pytest.raises(
        ShardingImpossible, match=r"1 record is still held for max_drift at events; start it once with shards = 1"
    ):
        play.process(3, later, at_ms=T + 104_000)
    play.in_shards(1, Apart).start()
    play.batch(later, at_ms=T + 104_000)
    play.in_shards(3, Apart).start()
    play.batch([play.row("events", T + 105_000, id="c", grp="x", v=1)], at_ms=T + 106_000)
    assert {row["key"] for row in play.rows("changes")} == {"a", "b", "c", "slow", "waits"}


@pytest.mark.parametrize("executors", [pytest.param(Apart, marks=pytest.mark.long), OneWorker])
def test_states_of_shards_are_in_files_and_in_the_journal(
    tmp_path: Path, of_one_shard: OfOneShard, executors: type[Apart]
) -> None:
    name = "a join and a hop"
    found = played("flush_keys = 9\nflush_batches = 3\n" + TOPOLOGIES[name], tmp_path, 4, executors)
    assert comparable(found, name) == of_one_shard(name)
    assert {path.parts[-2] for path in found.home.rglob("state/4/*/*.run")} == {"0", "1", "2", "3"}


def test_any_worker_continues_from_the_attempt_that_counts(tmp_path: Path, of_one_shard: OfOneShard) -> None:
    found = played("flush_keys = 40\nflush_batches = 2\n" + TOPOLOGIES["windows"], tmp_path, 4, Workers)
    assert told(found) == of_one_shard("windows")
    named = {run.name for shard in states(found) for run in shard.runs}
    assert named == {path.name for path in found.home.rglob("state/4/*/*.run")}


def states(play: Play) -> list[StateRuns]:
    newest = Journal(next(play.home.rglob("journal")), "data").newest()
    assert newest is not None
    return list(newest.notes.decision.states)


def test_a_damaged_local_copy_of_states_is_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, harmed = tmp_path / "cache", Counter[str]()
    monkeypatch.setenv(CACHE, str(cache))

    class Harmed(Apart):
        """Executors whose copies are deleted, torn or swapped before each batch."""

        def run(self, taking_in: IntakeTask, working: ShardTask) -> list[ShardResult]:
            copies = sorted(cache.rglob("*.run"))
            contents = [copy.read_bytes() for copy in copies]
            for number, copy in enumerate(copies):
                harm = ("deleted", "torn", "stale")[number % 3]
                copy.unlink()
                if harm == "torn":
                    copy.write_bytes(contents[number][:-50])
                elif harm == "stale":
                    copy.write_bytes(contents[number - 1])
                harmed[harm] += 1
            return super().run(taking_in, working)

    toml = "flush_batches = 1\n" + TOPOLOGIES["a table"]
    expected, found = played(toml, tmp_path / "one", 1), played(toml, tmp_path / "seven", 7, Harmed)
    assert told(found) == told(expected)
    assert min(harmed[harm] for harm in ("deleted", "torn", "stale")) > 1


def test_the_driver_reads_a_batch_with_possibly_lost_records(tmp_path: Path) -> None:
    play = Play(TOPOLOGIES["a table"], tmp_path).in_shards(3, Apart)
    play.batch([play.row("events", T + n, id="a", v=1) for n in range(3)], at_ms=T)
    for _ in range(7):
        play.row("events", T, id="lost")
    play.broker.earliest = 10
    with pytest.raises(DataLost, match="offsets 3 until 10 were lost unread"):
        play.batch([play.row("events", T + n, id="a", v=1) for n in range(30)], at_ms=T)


@pytest.mark.parametrize("name", named(["windows", "no state and a stream behind a hop"]))
def test_shards_of_what_the_driver_has_read_leave_the_same_tables(
    tmp_path: Path, of_one_shard: OfOneShard, name: str
) -> None:
    assert told(played(TOPOLOGIES[name], tmp_path, 3, lambda rows: DriverIntake(Apart(rows)))) == of_one_shard(name)


def test_shards_recover_late_records(tmp_path: Path) -> None:
    found = []
    for shards in (3, 1):
        home = tmp_path / str(shards)
        toml = SOURCE + COUNTS + TUMBLING + 'reopen_for = "1 min"\n'
        play = Play(toml, home, partitions=3).in_shards(shards, Apart)
        (first, *_, last) = batches(play)
        play.batch(first[1], at_ms=first[0])
        play.batch([play.row("events", T + 30_000, partition=part, id="z", v=1) for part in range(3)], at_ms=T + 31_000)
        fields = [{"partition": n % 3, "id": "abcdefgh"[n % 8], "grp": "x", "v": n} for n in range(30)]
        play.batch([play.row("events", T + n * 100, **each) for n, each in enumerate(fields)], at_ms=T + 31_500)
        late = tuple((row["batch_id"], row["partition"], row["offset"]) for row in play.rows("late_records"))
        control = Control(Layout(home).control("play", "events"))
        control.request_reopening(WindowReopening(id="x", operator="counts", late=late, at_ms=0))
        play.batch(last[1], at_ms=last[0])
        reopened = [row["reopened"] for row in play.rows("operator_batches") if row["reopened"]]
        assert reopened == [len(late)] == [30]
        found.append(told(play))
    assert found[0] == found[1]


def test_tasks_send_large_outputs_and_the_driver_small_ones(tmp_path: Path) -> None:
    sent_to_topic = SOURCE + TABLE + OUT.format("newest").replace("table =", "topic =")
    found = []
    for shards in (1, 4):
        play = Play(sent_to_topic, tmp_path / str(shards), partitions=2).in_shards(shards, Apart)
        play.broker.refuses = lambda row: row["v"] == 2
        for number, size in enumerate((40, 3)):
            ids = [f"k{number}{n}" for n in range(size)]
            play.batch([play.row("events", T + n, key=id_, id=id_, v=n) for n, id_ in enumerate(ids)], at_ms=T)
        refused = sorted((row["batch_id"], row["key"], row["error"]) for row in play.rows("undeliverable"))
        found.append((sorted(row["_key"] for _, row in play.broker.published), refused))
        large = [(each.batch_id, each.rows.num_rows) for each in play.broker.sent_by_tasks]
        assert large == ([(0, 39)] if shards > 1 else [])  # one value does not pass `renamed`
    assert found[0] == found[1]
    assert len(found[0][1]) == len([n for n in range(40) if n % 3 == 2 and n != 5]) + 1
