"""Maintenance keeps a warehouse small and removes no needed data."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from bench import long_run
from deltalake import DeltaTable

import maintain
from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import (
    NEWEST,
    aggregate,
    current,
    join,
    operators,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.clock import wall_clock_ms
from tidemark.maintenance import upkeep
from tidemark.maintenance.live_rows import needed_of_hop
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS, WEEK_MS
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import LATENCY_ROLLUP
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.compaction import DataFile, data_files_of, rows_of_each, write_files
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.delta.tables import read_before, scan
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings

T = 1_400_000_000_000
SUB = "events"
SOON = """
[retention]
changes = "1 ms"
state = "1 ms"
hops = "1 ms"
unused = "1 ms"
"""
"""All that need not be kept goes at once."""
EVERYTHING = (
    'name = "play"'
    + SOON
    + operators(
        events=source(key="id", allowed_lateness="4 s"),
        rates=source("id string, rate int", topic="rates"),
        rate=table("rates", columns=["rate"]),
        priced=join("events", "rate", on={"id": "id"}),
        prices=sink("priced", table="prices"),
        newest=table(columns=["v"]),
        board=current("newest", "board"),
        slow=table(strategy="periodic", interval="4 s"),
        sums=aggregate(key=["id"], window={"tumbling": "4 s"}, aggregates={"total": "sum(v)"}),
        visits=aggregate(key=["id"], window={"session": "3 s"}, aggregates={"most": "max(v)"}),
        finals=aggregate(
            key=["id"], window={"tumbling": "4 s"}, strategy="on_window_close", aggregates={"n": "count(*)"}
        ),
        by_v=repartition("newest", id=["id"], key=["v"], columns=["v"]),
        per_v=aggregate("by_v", aggregates={"n": "count(*)"}),
        sent=repartition(key=["v"], columns=["id"]),
        running=aggregate("sent", aggregates={"n": "count(id)"}),
    )
)


def streams(play: Play) -> list[Stream]:
    return [Stream(play.topology, sub, Layout(play.home)) for sub in play.topology.sub_topologies]


def maintained(play: Play, *, in_ms: int = 10_000) -> None:
    """Runs maintenance as the job does, at a time after now.

    All files are closed then; a play has no checkpoint, which loses nothing.
    """
    for stream in streams(play):
        maintain_stream(stream, now_ms=wall_clock_ms() + in_ms, closed_after_ms=0)


def random_batch(play: Play, chance: random.Random, number: int) -> None:
    """Runs a batch per sub-topology, seconds apart, random by seed."""
    at_ms = T + 1_500 * number
    rows = []
    for _ in range(chance.randrange(6)):
        late_ms = chance.choice([0, 500, 3_000, 6_000])
        row = play.row("events", at_ms - late_ms, id=chance.choice("abcde"), v=chance.randrange(3))
        rows.append(row | {"deleted": chance.random() < 0.1})
    for _ in range(chance.randrange(2)):
        rows.append(play.row("rates", at_ms - chance.choice([0, 2_000]), id=chance.choice("abc"), rate=number))
    play.batch(rows, at_ms=at_ms)
    for sub in play.topology.sub_topologies[1:]:
        play.hop(sub.name, at_ms=at_ms)


@pytest.mark.long  # 20 s; a crash followed by maintenance is not
@pytest.mark.parametrize("seed", [0])
def test_a_driver_behaves_the_same_after_maintenance(tmp_path: Path, seed: int) -> None:
    plain, kept = (Play(EVERYTHING, tmp_path / name) for name in ("plain", "kept"))
    chances = [random.Random(seed), random.Random(seed)]
    for number in range(8):
        for play, chance in zip((plain, kept), chances, strict=True):
            random_batch(play, chance, number)
        if number in (3, 6):
            maintained(kept)
            for sub in kept.topology.sub_topologies:
                kept.start(sub.name)
    went = {"changes", "state_changes", "hop_by_v", "hop_sent"}
    one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} <= went
    for name in went:
        assert set(other[name]) < set(one[name])


def a_batch(play: Play, number: int) -> None:
    """Runs a batch: a new value of `a` and of another id."""
    at_ms = T + 1_000 * number
    rows = [play.row("events", at_ms, id=name, v=number) for name in ("a", "bcde"[number % 4])]
    play.batch(rows, at_ms=at_ms)


IN_WINDOWS = long_run.TOPOLOGY.replace('mode = "current"', 'mode = "current"\nrefresh = "0 s"')
STEPS = (
    "decided",
    "committed changes",
    "committed board",
    "measured",
    "committed operator_batches",
    "committed batches",
)


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.long)])
def test_maintenance_between_any_two_commits_changes_no_result(tmp_path: Path, stride: int) -> None:
    plain, kept = Play(NEWEST, tmp_path / "plain"), Play(NEWEST + SOON, tmp_path / "kept")
    steps = count()
    kept.start(SUB, lambda step: None if next(steps) % stride < stride - 1 else maintained(kept))
    for number in range(2):
        a_batch(plain, number)
        a_batch(kept, number)
    one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} == {"changes"}


@pytest.mark.parametrize("steps", [STEPS[::2], pytest.param(STEPS[1::2], marks=pytest.mark.long)])  # 5 s each
def test_a_crash_followed_by_maintenance_loses_nothing(tmp_path: Path, steps: tuple[str, ...]) -> None:
    plain, kept = Play(IN_WINDOWS, tmp_path / "plain"), Play(IN_WINDOWS + SOON, tmp_path / "kept")
    for number, step in enumerate(steps):
        a_batch(plain, number)
        kept.start(SUB, crash_at(step))
        rows = [kept.row("events", T + 1_000 * number, id=name, v=number) for name in ("a", "bcde"[number % 4])]
        with pytest.raises(Crash):
            kept.process(number, rows, at_ms=T + 1_000 * number, sub=SUB)
        maintained(kept)
        kept.start(SUB)
        kept.process(number, rows, at_ms=T + 1_000 * number, sub=SUB)
        one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} == {"changes", "state_changes"}


def test_records_that_wait_for_partitions_are_kept_indefinitely(tmp_path: Path) -> None:
    play = Play(f'max_drift = "1 s"\n{NEWEST}', tmp_path, partitions=2)
    for number in range(4):
        ahead = play.row("events", T + 60_000 + number, partition=1, id="b", v=number)
        play.batch([play.row("events", T, id="a", v=number), ahead], at_ms=T + number)
    # The first one came before anybody knew how far the other partition is.
    assert [row["source_offset"] for row in play.rows("state_changes")] == [1, 2, 3]
    maintained(play, in_ms=1_000 * DAY_MS)
    play.start()
    for at_ms in (10, 11):
        play.batch([play.row("events", T + 60_000, id="a", v=at_ms)], at_ms=T + at_ms)
    source = [
        (row["passed"], row["held_after"]) for row in play.rows("operator_batches") if row["operator"] == "events"
    ]
    assert source[-2:] == [(1, 3), (4, 0)], "none of those that waited is lost"


def written_days_ago(monkeypatch: pytest.MonkeyPatch, play: Play, days: Mapping[int, float]) -> None:
    """Dates the files of each batch days back, a minute apart."""
    now_ms = wall_clock_ms()

    def files(path: Path) -> list[DataFile]:
        return [
            replace(
                f, written_at_ms=now_ms - round(days.get(-1 if f.newest_batch is None else f.newest_batch, 0) * DAY_MS)
            )
            for f in data_files_of(path)
        ]

    monkeypatch.setattr(upkeep, "data_files_of", files)


def batches_in(play: Play, table: str) -> list[int]:
    return sorted({row["batch_id"] for row in play.rows(table)})


def test_files_older_than_the_retention_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(NEWEST.replace('bound = "1 s"', 'bound = "1 s"\nallowed_lateness = "0 ms"'), tmp_path)
    for number in range(4):
        late = [play.row("events", T - 60_000, id="a", v=0)] if number else []
        play.batch([play.row("events", T + 10_000 * number, id="a", v=number), *late], at_ms=T + 1_000 * number)
    written_days_ago(monkeypatch, play, {0: 91, 1: 89, 2: 31, 3: 29})
    maintained(play, in_ms=0)
    assert batches_in(play, "operator_batches") == [3]
    assert batches_in(play, "late_records") == [1, 2, 3]
    assert batches_in(play, "changes") == [0, 1, 2, 3]  # for ever, unless configured
    assert [row["v"] for row in play.rows("board")] == [3]
    assert [finding.fault for finding in findings(evidence(streams(play)[0]))] == [Fault.CHECKPOINT_GONE]  # of a play


ASSERTED = topology_of(
    events=source(key="id", bound="1 min", max_ahead=None),
    newest=table(columns=["v"]),
    asks=source("id string", topic="asks", bound="1 min", max_ahead=None),
    asked=join("asks", "newest", on={"id": "id"}),
    answers=sink("asked", table="answers"),
)


def test_retention_keeps_assertions_that_history_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(ASSERTED, tmp_path)
    # a: 1 from 10 s on, asserted again at 20 s (suppressed), 2 at 15 s out of order; the last batch is the newest file.
    updates = [("a", 10, 1), ("a", 20, 1), ("a", 15, 2), ("b", 15, 2), ("b", 16, 2)]
    for number, (key, second, v) in enumerate(updates):
        play.batch([play.row("events", T + second * 1_000, key=key, id=key, v=v)], at_ms=T + 21_000 + number)
    written_days_ago(monkeypatch, play, {0: 31, 1: 31, 2: 31, 3: 31})
    maintained(play, in_ms=0)
    play.start()
    play.batch([play.row("asks", T + 25_000, id="a")], at_ms=T + 26_000)
    assert [row["v"] for row in play.rows("answers")] == [1]


def test_retention_keeps_values_of_assertions_that_history_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ASSERTED.replace('"1 min"', '"1 s"')
    short = short.replace('columns = ["v"]', 'columns = ["v"]\nhistory = "10 s"')
    play = Play(short + '[retention]\nchanges = "1 d"\n', tmp_path)
    # As above; of another key later ones, by which 20 s is the last instant that may be asked for.
    for number, (key, second, v) in enumerate([("a", 10, 1), ("a", 20, 1), ("a", 15, 2), ("b", 30, 2), ("b", 31, 3)]):
        play.batch([play.row("events", T + second * 1_000, key=key, id=key, v=v)], at_ms=T + 32_000 + number)
    play.batch([play.row("asks", T + 31_000, id="b")], at_ms=T + 38_000)
    written_days_ago(monkeypatch, play, dict.fromkeys(range(5), 2))
    maintained(play, in_ms=0)
    play.start()
    play.batch([play.row("asks", T + 25_000, id="a")], at_ms=T + 39_000)
    assert [row["v"] for row in play.rows("answers")] == [3, 1]


REPEATED = topology_of(
    {"retention": {"changes": "40 d"}},
    events=source(key="id"),
    newest=table(columns=["v"]),
    most=aggregate(key=["id"], window={"tumbling": "1 min"}, aggregates={"most": "max(v)"}, rule="value_only"),
)


def last_seen(play: Play) -> dict[tuple[str, str], int]:
    """By operator and id, the second at which it was last seen."""
    asked = "SELECT operator, key, value, epoch_ms(last_seen_at) FROM latest_state"
    rows = Warehouse(play.home).ask(asked).rows
    return {(operator, key[7] if key[0] == "{" else key): (at - T) // 1_000 for operator, key, _, at in rows}


def test_retention_lets_no_key_be_seen_earlier_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(REPEATED, tmp_path)
    # a: repeated until 30 s, then a change that is older; b: changed out of order; z: from when windows were closed.
    updates = [("a", 10, 1), ("a", 20, 1), ("a", 30, 1), ("a", 25, 2), ("b", 30, 1), ("b", 20, 2)]
    updates += [("z", 200, 1), ("z", 201, 1)]
    for number, (key, second, v) in enumerate(updates):
        play.batch([play.row("events", T + second * 1_000, key=key, id=key, v=v)], at_ms=T + 300_000 + number)
    seen = last_seen(play)
    assert {seen["newest", "a"], seen["newest", "b"], seen["most", "a"], seen["most", "b"]} == {30}
    for days in (31, 31, 39):  # facts of 30 days have gone; changes that were replaced have not, nor closed windows
        written_days_ago(monkeypatch, play, dict.fromkeys(range(6), days))
        maintained(play, in_ms=0)
        assert last_seen(play) == seen
    written_days_ago(monkeypatch, play, dict.fromkeys(range(6), 41))
    for _ in range(2):
        maintained(play, in_ms=0)
        now = last_seen(play)
        assert now == {place: at for place, at in seen.items() if place[0] == "newest" or place[1] == "z"}
        play.batch([play.row("events", T + 201_000, key="z", id="z", v=1)], at_ms=T + 300_010)
    kept = read_before(Layout(tmp_path).stream_table("play", SUB, "suppressed"), 9, ["key"])["key"]
    assert {key for key in kept if "window_start" in key} == {f'{{"id":"z","window_start":{T + 160_000}}}'}


def test_the_newest_file_is_kept_at_any_age(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    for number in range(3):
        a_batch(play, number)
    maintained(play, in_ms=1_000 * DAY_MS)
    assert batches_in(play, "batches") == [2]
    assert [row["v"] for row in play.rows("board") if row["id"] == "a"] == [2]


@pytest.mark.parametrize(("kept", "of_days"), [("27 d", [1, 3, 4, 5, 6, 7]), ("28 d", [1, 4, 5, 6, 7])])
def test_closed_files_of_a_day_or_of_a_week_that_is_over_are_compacted_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, of_days: list[int]
) -> None:
    """Weeks are put together where rows are kept for four of them at least."""
    play = Play(f'{NEWEST}\n[retention]\nfacts = "{kept}"\n', tmp_path)
    for number in range(8):
        a_batch(play, number)
    # Batches 0 and 1 were written on a day of the last week but one; 2 and 3, and 4, on two days of the last week; 5 on
    # a day of this week; and 6 and 7 less than an hour ago.
    now_ms = wall_clock_ms()
    into_week = now_ms % WEEK_MS / DAY_MS
    written = {0: into_week + 8, 1: into_week + 8, 2: into_week + 3, 3: into_week + 3, 4: into_week + 1, 5: into_week}
    written_days_ago(monkeypatch, play, written)
    for stream in streams(play):
        maintain_stream(stream, now_ms=now_ms + DAY_MS, closed_after_ms=DAY_MS + 3_600_000)
    outcomes = Layout(tmp_path).stream_table("play", SUB, "operator_batches")
    assert [file.newest_batch for file in data_files_of(outcomes)] == of_days


HOP = (
    NEWEST
    + SOON
    + operators(
        by_v=repartition("newest", id=["id"], key=["v"], columns=["v"]),
        per_v=aggregate("by_v", aggregates={"n": "count(*)"}),
    )
)


def test_files_that_a_hop_reader_has_not_read_are_untouched(tmp_path: Path) -> None:
    play = Play(HOP, tmp_path)
    hop = Layout(tmp_path).hop("play", SUB, "by_v")
    for number in range(4):
        a_batch(play, number)
        if number == 1:
            play.hop(play.topology.sub_topologies[1].name, at_ms=T + number)
    unread = {file.name for file in data_files_of(hop) if (file.newest_batch or 0) > 1}
    for _ in range(2):  # twice changes nothing
        maintained(play, in_ms=1_000 * DAY_MS)
        assert unread < {file.name for file in data_files_of(hop)}
        read = [(row["batch_id"], row["id"]) for row in play.rows("hop_by_v") if row["batch_id"] < 2]
        assert sorted(read) == [(0, "b"), (1, "a"), (1, "c")]  # the newest row of each id


def test_a_hop_mark_that_only_says_idle_is_not_an_update() -> None:
    repartition = Play(HOP, Path("unused")).topology.operators["by_v"]
    assert isinstance(repartition, Repartition)
    rows = {
        "batch_id": [1, 2, 3, 4, 5],
        "seq": [0, 0, 0, 0, 0],
        "id": ["a", "a", None, None, None],
        "watermark": [None, None, None, None, T],
        "idle": [None, None, True, False, True],
    }
    assert needed_of_hop(repartition, pl.DataFrame(rows)).to_list() == [False, True, False, False, False]


def test_two_concurrent_maintenance_runs_leave_the_same_as_one(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    for number in range(6):
        a_batch(play, number)
    before = play.tables()
    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(maintained, play) for _ in range(2)]:
            done.result()
    assert play.tables() == before
    assert len(data_files_of(Layout(tmp_path).stream_table("play", SUB, "operator_batches"))) == 1


def test_files_of_killed_maintenance_are_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(NEWEST + SOON, tmp_path)
    for number in range(3):
        a_batch(play, number)
    before = play.tables()
    changes = Layout(tmp_path).stream_table("play", SUB, "changes")
    files = data_files_of(changes)
    left = list(
        write_files(changes, rows_of_each(changes, files), prefix="needed-", like=files[0])
    )  # and not committed
    assert play.tables() == before
    maintained(play)
    assert not (changes / left[0].file.relative_path).exists()


def test_tables_of_an_inconsistent_stream_are_untouched(tmp_path: Path) -> None:
    play = Play(NEWEST + SOON, tmp_path)
    for number in range(3):
        a_batch(play, number)
    board = Layout(tmp_path).stream_table("play", SUB, "board")
    DeltaTable(str(board)).restore(1)
    before = {path: data_files_of(path) for path in board.parent.iterdir()}
    maintained(play)
    assert {path: data_files_of(path) for path in board.parent.iterdir()} == before


def test_the_job_prints_files_and_sizes_before_and_after(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    for number in range(3):
        a_batch(play, number)
    told = maintain.run(Layout(tmp_path), play.topology, now_ms=T, closed_after_ms=T - wall_clock_ms() - 10_000)
    (outcomes,) = [row for row in told if row["table"] == "operator_batches"]
    assert (outcomes["files_before"], outcomes["files"], outcomes["rows_before"], outcomes["rows"]) == (3, 1, 9, 9)
    assert outcomes["unused_files"] == 3
    stored = scan(Layout(tmp_path).report_table("play", "maintenance")).collect()
    assert stored.height == len(told)
    assert stored["started_at"].dt.epoch("ms").unique().to_list() == [T]


def rolled_up(n: int) -> list[dict[str, Any]]:
    return [{"topology": "play", "scope": "operator", "grain": grain, "n": n} for grain in ("minute", "hour")]


def test_a_partitioned_report_is_compacted_and_pruned(tmp_path: Path) -> None:
    topology = Play(NEWEST, tmp_path).topology
    path = Layout(tmp_path).report_table("play", LATENCY_ROLLUP.name)
    for n in range(3):
        replace_rows(rolled_up(n), LATENCY_ROLLUP, path, where=f"n = {n}")
    told = maintain.run(Layout(tmp_path), topology, now_ms=wall_clock_ms() + 1, closed_after_ms=0)
    (rollup,) = [row for row in told if row["table"] == "latency_rollup"]
    assert (rollup["files_before"], rollup["files"], rollup["rows"], rollup["unused_files"]) == (6, 2, 6, 6)
    hours = DeltaTable(str(path)).to_pyarrow_table(columns=["n"], filters=[("grain", "=", "hour")])
    assert sorted(hours["n"].to_pylist()) == [0, 1, 2]
    assert sorted(scan(path).select("n").collect()["n"]) == [0, 0, 1, 1, 2, 2]

    soon = replace(topology, retention=replace(topology.retention, reports_ms=1, unused_ms=None))
    maintain.run(Layout(tmp_path), soon, now_ms=wall_clock_ms() + DAY_MS)
    assert len(data_files_of(path)) == 1
