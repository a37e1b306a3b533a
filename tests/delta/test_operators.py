"""Every strategy and window, with results worked out by hand.

They run through the engine and Delta, held records too.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.crashes import Crash, crash_at
from support.play import CLOCKS, MEASURED, NOON, OF_A_RUN, Play, Row
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
from tidemark.errors import InvalidSpec
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.model.topology import on_processing_time
from tidemark.selection import omit
from tidemark.semantics.strategy import Strategy
from tidemark.storage.delta.tables import scan
from tidemark.stream.read.joined_tables import ColumnsChanged

T = 1_400_000_000_000
(OTHER_NAN,) = struct.unpack(">d", bytes.fromhex("fff8000000000001"))
"""A NaN with another sign and other bits than `math.nan`."""
SOURCE = topology_of({"level": "trace"}, events=source())
COUNTS = operators(
    counts=aggregate(key=["id"], aggregates={"n": "count(*)", "top": "max(v)"}, select={"n": "n", "top": "top"}),
)
OUT = operators(out=sink("counts", table="out"))
TUMBLING = SOURCE + COUNTS + 'window = { tumbling = "10 s" }\n'


def event(play: Play, second: float, id_: str = "a", v: int | None = 1) -> dict[str, Any]:
    return play.row("events", T + round(second * 1000), id=id_, v=v)


def sent(play: Play, *columns: str) -> list[tuple[Any, ...]]:
    """Returns the sink's rows: batch, then *columns*; instants in seconds after T."""
    return [
        (row["batch_id"], *((row[c] - T) / 1000 if c in {"window_start", "timestamp"} else row[c] for c in columns))
        for row in play.rows("out")
    ]


def check_accounting(play: Play) -> None:
    for sub in play.topology.sub_topologies:
        for row in play.rows("operator_batches", sub.name):
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


def test_on_change_sends_each_result_that_differs(tmp_path: Path) -> None:
    play = Play(
        SOURCE + COUNTS.replace('{ n = "n", top = "top" }', '{ top = "top" }') + 'rule = "value_only"\n' + OUT, tmp_path
    )
    play.batch([event(play, 1, v=3), event(play, 2, v=2), event(play, 3, v=5)], at_ms=T)
    play.batch([event(play, 4, v=5), event(play, 5, v=6)], at_ms=T + 1000)
    assert sent(play, "top", "timestamp") == [(0, 3, 1), (0, 5, 3), (1, 6, 5)]
    (first, second) = [row for row in play.rows("operator_batches") if row["operator"] == "counts"]
    assert (first["emitted"], first["suppressed"], second["emitted"], second["suppressed"]) == (2, 1, 1, 1)
    check_accounting(play)


def test_per_batch_decisions_use_the_last_update_of_a_key(tmp_path: Path) -> None:
    play = Play(SOURCE + COUNTS + 'decide = "batch"\n' + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 2), event(play, 3, "b")], at_ms=T)
    assert sent(play, "id", "n") == [(0, "a", 2), (0, "b", 1)]
    (row,) = [row for row in play.rows("operator_batches") if row["operator"] == "counts"]
    assert (row["records_in"], row["emitted"], row["superseded"]) == (3, 2, 1)


def test_on_update_sends_everything(tmp_path: Path) -> None:
    same = COUNTS.replace('{ n = "n", top = "top" }', '{ top = "top" }') + 'strategy = "on_update"\n'
    play = Play(SOURCE + same + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 2)], at_ms=T)
    play.batch([event(play, 3)], at_ms=T + 1000)
    assert sent(play, "top") == [(0, 1), (0, 1), (1, 1)]
    assert [row["old_timestamp"] and (row["old_timestamp"] - T) / 1000 for row in play.rows("changes")] == [None, 1, 2]


def test_a_local_day_lasts_23_hours_when_the_clock_goes_forward(tmp_path: Path) -> None:
    days = 'window = { tumbling = "1 d", timezone = "America/New_York" }\nstrategy = "on_window_close"\n'
    play = Play(SOURCE + COUNTS + days + OUT, tmp_path)
    midnight_ms, hour_ms = 1_710_046_800_000, 3_600_000  # 2024-03-10 00:00 in New York, 05:00 UTC
    hours = (-1, 0, 22, 23, 24)
    rows = [play.row("events", midnight_ms + hour * hour_ms, id="a", v=hour) for hour in hours]
    for row in rows:
        play.batch([row], at_ms=row["timestamp_ms"])
    found = [
        ((row["window_start"] - midnight_ms) // hour_ms, (row["timestamp"] + 1 - midnight_ms) / hour_ms, row["n"])
        for row in play.rows("out")
    ]
    assert found == [(-24, 0.0, 1), (0, 23.0, 2)]
    check_accounting(play)


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (
            '{ tumbling = "1 d", timezone = "America/New_Yrk" }',
            "is not a known time zone; use an IANA name, such as America",
        ),
        ('{ session = "1 min", timezone = "America/New_York" }', "but there is no tumbling or hopping; leave it out"),
        ('{ hopping = "1 d", every = "1 h", timezone = "Asia/Tokyo" }', 'start every 1 h; start them every "2 h"'),
    ],
)
def test_a_timezone_that_windows_cannot_follow_is_refused(tmp_path: Path, window: str, says: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        Play(f"{SOURCE}{COUNTS}window = {window}\n{OUT}", tmp_path)
    assert "play.toml: operators.counts.window.timezone: " in str(refusal.value)
    assert says in str(refusal.value)


def test_a_window_accepts_late_records_within_allowed_lateness(tmp_path: Path) -> None:
    play = Play(TUMBLING + 'allowed_lateness = "5 s"\n' + OUT, tmp_path)
    play.batch([event(play, 3), event(play, 12)], at_ms=T)  # watermark 10.999
    play.batch([event(play, 4), event(play, 15.9)], at_ms=T + 1000)  # re-opens [0, 10); watermark 14.899
    play.batch([event(play, 9.999), event(play, 16)], at_ms=T + 2000)  # as late as can be; watermark 14.999
    play.batch([event(play, 9.999), event(play, 17)], at_ms=T + 3000)  # the window closed with the batch before
    assert sent(play, "window_start", "n") == [
        (0, 0, 1), (0, 10, 1), (1, 0, 2), (1, 10, 2), (2, 0, 3), (2, 10, 3), (3, 10, 4),
    ]  # fmt: skip
    (late,) = play.rows("late_records")
    assert (late["operator"], late["offset"], late["lateness_ms"], late["blocked_by"]) == ("counts", 6, 5_000, "events")
    check_accounting(play)


def test_on_window_close_sends_one_final_result(tmp_path: Path) -> None:
    play = Play(TUMBLING + 'strategy = "on_window_close"\nallowed_lateness = "5 s"\n' + OUT, tmp_path)
    play.batch([event(play, 3, v=4), event(play, 5, "b"), event(play, 12)], at_ms=T)
    play.batch([event(play, 4), event(play, 15.9)], at_ms=T + 1000)
    assert sent(play, "n") == []
    play.batch([event(play, 16)], at_ms=T + 2000)  # watermark 14.999 = 10 + 5 − 1 ms
    assert sorted(sent(play, "id", "window_start", "n", "top", "timestamp")) == [
        (2, "a", 0, 2, 4, 9.999), (2, "b", 0, 1, 1, 9.999),
    ]  # fmt: skip
    play.batch([event(play, 4), event(play, 17)], at_ms=T + 3000)
    assert len(sent(play)) == 2
    assert [row["offset"] for row in play.rows("late_records")] == [6]
    check_accounting(play)


def test_periodic_sends_every_current_result_once_per_interval(tmp_path: Path) -> None:
    play = Play(SOURCE + COUNTS + 'strategy = "periodic"\ninterval = "10 s"\n' + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 2)], at_ms=T + 1_000)
    play.batch([event(play, 3, "b")], at_ms=T + 9_999)
    assert sent(play, "id") == []
    play.batch(at_ms=T + 10_000)
    play.batch([event(play, 4, "b")], at_ms=T + 19_000)
    play.batch(at_ms=T + 45_000)  # three intervals later, once
    assert sorted(sent(play, "id", "n")) == [(2, "a", 2), (2, "b", 1), (4, "a", 2), (4, "b", 2)]
    outcomes = {row["batch_id"]: row for row in play.rows("operator_batches") if row["operator"] == "counts"}
    assert [(outcomes[b]["emitted"], outcomes[b]["repeated"]) for b in (2, 4)] == [(2, 0), (1, 1)]
    assert [outcomes[b]["held_after"] for b in (0, 1, 2, 3, 4)] == [1, 2, 0, 1, 0]
    check_accounting(play)


def test_a_periodic_window_closed_in_an_interval_loses_no_change(tmp_path: Path) -> None:
    play = Play(TUMBLING + 'strategy = "periodic"\ninterval = "1 h"\n' + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 2)], at_ms=T)
    play.batch([event(play, 30)], at_ms=T + 1000)
    assert sent(play, "window_start", "n") == [(1, 0, 2)]


def test_merged_sessions_delete_the_absorbed_session(tmp_path: Path) -> None:
    play = Play(SOURCE + COUNTS + 'window = { session = "4 s" }\nallowed_lateness = "9 s"\n' + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 8)], at_ms=T)
    play.batch([event(play, 4.5)], at_ms=T + 1000)
    assert sent(play, "window_start", "deleted") == [(0, 1, False), (0, 8, False), (1, 8, True), (1, 1, False)]
    assert [row["n"] for row in play.rows("out") if not row["deleted"]] == [1, 1, 3]
    assert [(row["value"] is None, (row["window_end"] - T) / 1000) for row in play.rows("changes")] == [
        (False, 5), (False, 12), (True, 12), (False, 12),
    ]  # fmt: skip
    check_accounting(play)


def test_time_advances_while_every_update_is_suppressed(tmp_path: Path) -> None:
    """An operator that suppresses everything must not stop downstream time.

    The KIP names this risk.
    """
    toml = SOURCE + operators(
        now=table(columns=["v"], rule="value_only"),
        by_v=repartition("now", id=["id"], key=["v"], columns=["id"]),
        per_v=aggregate("by_v", sub_topology="second", aggregates={"n": "count(*)"}),
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1)], at_ms=T)
    play.hop("second", at_ms=T)
    play.batch([event(play, 50)], at_ms=T + 1000)
    play.hop("second", at_ms=T + 1000)
    assert [row["emitted"] for row in play.rows("operator_batches") if row["operator"] == "now"] == [1, 0]
    assert [(row["watermark"] - T) / 1000 for row in play.rows("batches", "second")] == [-0.001, 48.999]
    assert [(row["operator"], (row["window_start"] - T) / 1000) for row in play.rows("operator_windows", "second")] == [
        ("by_v_source", 0), ("per_v", 0),
    ]  # fmt: skip


def test_a_partition_too_far_ahead_waits_without_loss(tmp_path: Path) -> None:
    play = Play(
        SOURCE.replace('level = "trace"', 'level = "trace"\nmax_drift = "5 s"') + COUNTS + OUT, tmp_path, partitions=2
    )
    ahead = [play.row("events", T + at * 1000, partition=1, id="x", v=at) for at in (3, 20, 4, 40)]
    play.batch([event(play, 1), *ahead[:1]], at_ms=T)  # watermarks 0 − 1 ms and 2 − 1 ms: up to 5 s − 1 ms is allowed
    play.batch([event(play, 2), *ahead[1:]], at_ms=T + 1000)
    source = {row["batch_id"]: row for row in play.rows("operator_batches") if row["operator"] == "events"}
    assert (source[1]["passed"], source[1]["held_after"]) == (2, 2), "a record may take its partition too far ahead"
    play.start()  # another driver finds in state files what waits
    play.batch(at_ms=T + 2000)
    play.batch([event(play, 17)], at_ms=T + 3000)  # the slower one's watermark is 16 s − 1 ms: 21 s − 1 ms is allowed
    assert [row["top"] for row in play.rows("out") if row["id"] == "x"] == [3, 20]
    play.batch([event(play, 18)], at_ms=T + 4000)
    assert [row["top"] for row in play.rows("out") if row["id"] == "x"] == [3, 20, 20, 40]
    assert [row["source_offset"] for row in held_records(play)] == [2, 3], "held twice, written once"
    assert play.rows("late_records") == [], "one was out of order, and a rolling aggregate closes nothing"
    check_accounting(play)


def held_records(play: Play) -> list[Row]:
    return [row for row in play.rows("state_changes") if row["kind"] == "held_record"]


def test_at_most_max_held_records_wait(tmp_path: Path) -> None:
    top = 'level = "trace"\nmax_drift = "5 s"\nmax_held = 3'
    play = Play(SOURCE.replace('level = "trace"', top) + COUNTS + OUT, tmp_path, partitions=3)
    slow = event(play, 1)
    play.batch([slow, *(play.row("events", T + 3_000, partition=part, id="x", v=0) for part in (1, 2))], at_ms=T)
    far = [play.row("events", T + at * 1000, partition=1, id="x", v=at) for at in (20, 50, 40, 60)]
    further = [play.row("events", T + at * 1000, partition=2, id="y", v=at) for at in (30, 45, 70)]
    # Of each partition the first one passes. Those behind it come after 20, 50, 50, and 30, 45 s: 3 of 5 may wait.
    play.batch([*far, *further], at_ms=T + 1_000)
    play.start()
    source = [row for row in play.rows("operator_batches") if row["operator"] == "events"]
    assert [(row["passed"], row["held_after"], row["released_early"]) for row in source] == [(3, 0, 0), (4, 3, 2)]
    assert [(row["id"], row["top"]) for row in play.rows("out")[3:]] == [("x", 20), ("x", 50), ("y", 30), ("y", 45)]
    play.batch([play.row("events", T + 80_000, partition=2, id="y", v=80)], at_ms=T + 2_000)
    play.start()
    play.batch([event(play, 99), play.row("events", T + 99_000, partition=1, id="z", v=0)], at_ms=T + 3_000)
    for number in range(3):
        play.batch(at_ms=T + 4_000 + number)
    source = [row for row in play.rows("operator_batches") if row["operator"] == "events"]
    assert [row["released_early"] for row in source] == [0, 2, 1, 1, *([0] * (len(source) - 4))]
    assert (sum(row["passed"] for row in source), source[-1]["held_after"]) == (13, 0), "none is lost"
    assert {row["id"]: row["top"] for row in play.rows("out")} | {"a": 0} == {"a": 0, "x": 60, "y": 80, "z": 0}
    check_accounting(play)


@pytest.mark.parametrize(
    ("flush", "crashes"),
    [
        ("flush_batches = 2", slice(1, None, 4)),
        pytest.param("flush_batches = 2", slice(None), marks=pytest.mark.long),
        pytest.param("flush_keys = 1", slice(None), marks=pytest.mark.long),
        pytest.param("flush_batches = 90", slice(None), marks=pytest.mark.long),
    ],
)
def test_a_crash_at_any_write_loses_no_held_record(tmp_path: Path, flush: str, crashes: slice) -> None:
    """Batch 2 holds a record and releases another; state files, or the journal, have those that wait.

    A start reads no table, so the history of held records is gone before each.
    """
    top = f'level = "trace"\nmax_drift = "5 s"\n{flush}'
    toml = SOURCE.replace('level = "trace"', top) + operators(out=sink("events", table="out"))
    slow, ahead = [1, 15, 35, 36, 37], [[3], [20, 40, 41], [60], [], []]
    history = "state_changes"

    def run(play: Play, numbers: range) -> None:
        for number in numbers:
            rows = [play.row("events", T + at * 1_000, partition=1, id="x", v=at) for at in ahead[number]]
            play.batch([event(play, slow[number]), *rows], at_ms=T + number * 1_000)

    def results(play: Play) -> dict[str, list[str]]:
        return {name: rows for name, rows in tables(play).items() if name != history}

    before, undisturbed = (Play(toml, tmp_path / how, partitions=2) for how in ("before", "undisturbed"))
    run(undisturbed, range(5))
    source = [row for row in undisturbed.rows("operator_batches") if row["operator"] == "events"]
    assert [(row["passed"], row["held_after"]) for row in source] == [(2, 0), (2, 2), (2, 2), (2, 1), (2, 0)]
    assert [row["v"] for row in undisturbed.rows("out") if row["id"] == "x"] == [3, 20, 40, 41, 60]
    run(before, range(2))
    steps: list[str] = []
    watched = before.copied_to(tmp_path / "watched")
    watched.start(reached=steps.append)
    run(watched, range(2, 3))
    assert {"decided", "committed out", f"committed {history}"} <= {*steps}
    for step in steps[crashes]:
        play = before.copied_to(tmp_path / step)
        play.start(reached=crash_at(step))
        with pytest.raises(Crash):
            run(play, range(2, 3))
        play = before.copy(tmp_path / step)
        DeltaTable(str(play.table(history))).delete()
        run(play, range(2, 5))
        assert results(play) == results(undisturbed), f"after {step}"


def test_on_processing_time_windows_close_by_the_clock(tmp_path: Path) -> None:
    toml = TUMBLING + 'strategy = "on_window_close"\n' + OUT
    play = Play(toml, tmp_path, change=on_processing_time)
    play.batch([event(play, 3_000), event(play, 1)], at_ms=T + 4_000)
    play.batch([event(play, 2)], at_ms=T + 9_000)
    play.batch(at_ms=T + 10_000)
    assert play.topology.name == "play_on_processing_time"
    assert sent(play, "window_start", "n", "timestamp") == [(2, 0, 3, 9.999)]
    assert play.rows("late_records") == []


JUDGED = operators(
    counts=map_of(select={"id": "id", "v": "v"}, strategy="on_change", key=["id"], identity="v // 2", rule="value_only")
)
EVERYTHING = {
    "tumbling": TUMBLING + OUT,
    "closing": TUMBLING + 'strategy = "on_window_close"\n' + OUT,
    "sessions": SOURCE + COUNTS + 'window = { session = "4 s" }\nstrategy = "on_window_close"\n' + OUT,
    "merging": SOURCE + COUNTS + 'window = { session = "4 s" }\n' + OUT,
    "periodic": SOURCE + COUNTS + 'strategy = "periodic"\ninterval = "3 s"\n' + OUT,
    "periodic_table": SOURCE + operators(counts=table(strategy="periodic", interval="3 s")) + OUT,
    "judged_map": SOURCE + JUDGED + OUT,
    "current": SOURCE + COUNTS + operators(out=current("counts", "out")),
}  # fmt: skip
OPERATORS = {
    name: EVERYTHING[name].removeprefix(SOURCE).replace("counts", name).replace("out", f"out_{name}")
    for name in ("merging", "periodic_table", "judged_map", "current")
}
IN_CI = "kinds of state"
"""All kinds of state in one stream; `make proof` has each alone."""
EVERYTHING |= {IN_CI: SOURCE + "".join(OPERATORS.values())}
BATCHES = [
    [(1, "a", 1), (2, "b", 7), (3.5, "a", 2)],
    [(5, "a", 3), (9, "b", 1)],
    [],
    [(4, "a", 9), (16, "b", 2), (17, "c", None)],
    [(30, "a", 4)],
]


def run(play: Play, batches: list[int], *, restarting: bool = False) -> None:
    for number in batches:
        if restarting:
            play.start()
        rows = [event(play, second, id_, v) for second, id_, v in BATCHES[number]]
        play.batch(rows, at_ms=T + number * 1_700)


def tables(play: Play) -> dict[str, list[str]]:
    """Returns every table's rows without clock-based columns, as sorted text."""
    folder = play.home / "streams" / "play" / play.sub
    names = sorted(path.name for path in folder.iterdir() if path.name != "latency_minutes")
    return {name: sorted(str(without_clocks(row)) for row in play.rows(name)) for name in names}


def without_clocks(row: Row) -> Row:
    kept = {name: value for name, value in row.items() if name not in MEASURED | CLOCKS and not name.endswith("_ms")}
    if kept.get("tasks"):
        kept["tasks"] = [omit(task, OF_A_RUN) for task in kept["tasks"]]
    return kept


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == IN_CI else pytest.mark.long) for name in EVERYTHING]
)
def test_a_restart_after_each_batch_changes_no_result(tmp_path: Path, name: str) -> None:
    undisturbed, restarted = (Play(EVERYTHING[name], tmp_path / how) for how in ("undisturbed", "restarted"))
    run(undisturbed, [0, 1, 2, 3, 4])
    run(restarted, [0, 1, 2, 3, 4], restarting=True)
    assert tables(restarted) == tables(undisturbed)
    for out in [f"out_{one}" for one in OPERATORS] if name == IN_CI else ["out"]:
        assert len(undisturbed.rows(out)) > 1
    check_accounting(undisturbed)


@pytest.mark.parametrize(
    ("name", "crashes"),
    [
        ("merging", slice(1, None, 4)),
        *(
            pytest.param(name, slice(None), marks=pytest.mark.long)
            for name in ("merging", "current", "closing", "periodic")
        ),
    ],
)
def test_a_crash_between_two_writes_loses_and_doubles_nothing(tmp_path: Path, name: str, crashes: slice) -> None:
    before, undisturbed = (Play(EVERYTHING[name], tmp_path / how) for how in ("before", "undisturbed"))
    run(undisturbed, [0, 1, 2, 3, 4])
    run(before, [0, 1, 2])
    steps: list[str] = []
    watched = before.copied_to(tmp_path / "watched")
    watched.start(reached=steps.append)
    run(watched, [3])
    assert len(steps) > 8, steps
    for step in steps[crashes]:
        play = before.copied_to(tmp_path / step)
        play.start(reached=crash_at(step))
        with pytest.raises(Crash):
            run(play, [3])
        play = before.copy(tmp_path / step)
        run(play, [3, 4])
        assert tables(play) == tables(undisturbed), f"after {step}"


def test_every_strategy_is_tested() -> None:
    played = {
        o.emission.strategy
        for toml in EVERYTHING.values()
        for o in Play(toml, Path()).topology.operators.values()
        if hasattr(o, "emission") and o.emission
    }
    assert played | {Strategy.ON_UPDATE} == set(Strategy)


def test_a_periodic_session_merged_into_another_is_deleted(tmp_path: Path) -> None:
    windows = 'window = { session = "4 s" }\nallowed_lateness = "1 min"\nstrategy = "periodic"\ninterval = "10 s"\n'
    play = Play(SOURCE + COUNTS + windows + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 8)], at_ms=T)
    play.batch(at_ms=T + 10_000)
    play.batch([event(play, 4.5)], at_ms=T + 11_000)
    play.batch(at_ms=T + 20_000)
    assert sent(play, "window_start", "deleted")[2:] == [(2, 8, True), (3, 1, False)]
    check_accounting(play)


def test_sessions_decided_once_per_batch_count_merged_updates(tmp_path: Path) -> None:
    play = Play(SOURCE + COUNTS + 'window = { session = "4 s" }\ndecide = "batch"\n' + OUT, tmp_path)
    play.batch([event(play, 1), event(play, 2), event(play, 3)], at_ms=T)
    assert [row["n"] for row in play.rows("out")] == [3]
    check_accounting(play)


@pytest.mark.parametrize(
    ("strategy", "expected"), [("on_change", [(0, False)]), ("on_update", [(0, True), (0, False)])]
)
def test_deleting_an_absent_key_is_sent_only_on_update(
    tmp_path: Path, strategy: str, expected: list[tuple[int, bool]]
) -> None:
    table = f'[operators.counts]\nkind = "table"\ninput = "events"\nkey = ["id"]\nstrategy = "{strategy}"\n'
    play = Play(SOURCE + table + OUT, tmp_path)
    play.batch([event(play, 1) | {"deleted": True}, event(play, 2)], at_ms=T)
    assert sent(play, "deleted") == expected
    check_accounting(play)


def test_a_key_that_is_no_text_is_refused_only_where_it_is_used(tmp_path: Path) -> None:
    toml = SOURCE + operators(
        newest=table(columns=["v"]),
        out=sink("events", table="out"),
        by_field=sink("newest", topic="by_field"),
        mapped=map_of("events", select={"v": "v"}),
        passes_it_on=sink("mapped", topic="passes_it_on"),
        judges_by_it=map_of("events", select={"v": "v"}, strategy="on_change"),
        judged=sink("judges_by_it", table="judged"),
    )
    play = Play(toml, tmp_path)
    keys = [b"\xff\x01", b"text", None]
    rows = [event(play, n, id_, n) | {"key": key} for n, (id_, key) in enumerate(zip("abc", keys, strict=True))]
    play.batch(rows, at_ms=T + 5_000)
    assert [row["id"] for row in play.rows("out")] == ["a", "b", "c"]
    assert [row["v"] for row in play.rows("judged")] == [1]
    published = [(topic, row["_key"]) for topic, row in play.broker.published]
    assert sorted(published, key=str) == [
        *(("by_field", key) for key in "abc"),
        ("passes_it_on", "text"),
        ("passes_it_on", None),
    ]
    bad = [(row["source"], row["offset"], row["reason"], row["key"]) for row in play.rows("quarantine")]
    assert sorted(bad) == [
        ("judges_by_it", 0, "invalid_key", b"\xff\x01"),
        ("judges_by_it", 2, "null_key", None),
        ("passes_it_on", 0, "invalid_key", b"\xff\x01"),
    ]
    check_accounting(play)


def test_two_sinks_keep_separate_tables_on_processing_time(tmp_path: Path) -> None:
    two = OUT.replace('input = "counts"', 'input = "events"') + '[operators.topical]\nkind = "sink"\ninput = "events"\n'
    fine = Play(SOURCE + two + 'topic = "t"\n', tmp_path, change=on_processing_time)
    assert fine.topology.operators["topical"].table == "topical"
    with pytest.raises(InvalidSpec, match="is also the table of the sink"):
        Play(
            SOURCE + two.replace("topical", "out2").replace('"out"', '"out2"') + 'topic = "t"\n',
            tmp_path,
            change=on_processing_time,
        )


MONEY = topology_of(events=source("id string, region string, fare double")) + operators(
    paid=map_of(select={"id": "id", "region": "region", "fare": "cast(fare as decimal(12,2))"}),
    totals=aggregate(
        "paid",
        key=["region"],
        aggregates={name: f"{name}(fare)" for name in ("sum", "avg", "min", "max", "first", "last")},
    ),
    totals_now=current("totals", "totals", key=["region"]),
    newest=table("paid", columns=["region", "fare"]),
    by_region=repartition("newest", id=["id"], key=["region"], columns=["fare"]),
    regions=aggregate("by_region", sub_topology="regions", aggregates={"total": "sum(fare)", "mean": "avg(fare)"}),
    regions_out=sink("regions", table="regions"),
)


def test_money_stays_exact_in_results_state_hops_and_tables(tmp_path: Path) -> None:
    play = Play(MONEY, tmp_path)

    def pay(second: int, *paid: tuple[str, str, float | None]) -> None:
        rows = [play.row("events", T + second * 1000, id=id_, region=region, fare=fare) for id_, region, fare in paid]
        play.batch(rows, at_ms=T + second * 1000)
        play.hop("regions", at_ms=T + second * 1000)

    pay(1, ("a", "n", 7.31), ("b", "n", 2.07), ("c", "s", None))
    for sub in ("events", "regions"):
        play.start(sub)  # the next driver has the states from their files
    pay(2, ("b", "n", 2.07), ("b", "n", 0.07))
    columns = ("region", "sum", "avg", "min", "max", "first", "last")
    totals = sorted(tuple(row[c] for c in columns) for row in play.rows("totals"))
    # 7.31 + 2.07 + 2.07 + 0.07 is 11.52, a quarter of it 2.88.
    money = [Decimal(text) for text in ("11.52", "2.880000", "0.07", "7.31", "7.31", "0.07")]
    assert totals == [("n", *money), ("s", *[None] * 6)]
    kinds = {field.name: str(field.type) for field in pa.schema(DeltaTable(play.table("totals")).schema().to_arrow())}
    assert [kinds[c] for c in columns[1:]] == [
        "decimal128(22, 2)", "decimal128(16, 6)", *["decimal128(12, 2)"] * 4,
    ]  # fmt: skip
    newest = [(row["key"], row["value"]) for row in play.rows("changes") if row["operator"] == "newest"]
    assert newest == [
        ("a", '{"region":"n","fare":"7.31"}'),
        ("b", '{"region":"n","fare":"2.07"}'),
        ("c", '{"region":"s","fare":null}'),
        ("b", '{"region":"n","fare":"0.07"}'),  # and not 2.07 again
    ]
    regions = [(row["region"], row["total"], row["mean"]) for row in play.rows("regions", "regions")]
    assert regions == [
        ("n", Decimal("7.31"), Decimal("7.310000")),
        ("n", Decimal("9.38"), Decimal("4.690000")),
        ("s", None, None),
        ("n", Decimal("7.38"), Decimal("3.690000")),  # 2.07 was taken back
    ]


def test_a_decimal_with_which_the_sum_does_not_fit_is_set_aside(tmp_path: Path) -> None:
    toml = topology_of(events=source("id string, v decimal(38,2)"))
    play = Play(
        toml + operators(sums=aggregate(key=["id"], aggregates={"v": "sum(v)"}), out=sink("sums", table="out")),
        tmp_path,
    )
    most = Decimal("9" * 36 + ".99")
    values = [most, Decimal("0.01"), Decimal("-0.01"), Decimal("0.01"), most.copy_negate()]
    for second, value in enumerate(values):
        play.batch([play.row("events", T + second * 1000, id="a", v=value)], at_ms=T + second * 1000)
    below = Decimal("9" * 36 + ".98")
    assert [row["v"] for row in play.rows("out")] == [most, below, most, Decimal("0.00")]
    (refused,) = play.rows("quarantine")
    assert (refused["reason"], refused["offset"]) == ("sql_error", 1)
    assert refused["detail"].startswith("aggregates.v: the sum does not fit decimal(38,2); ")
    check_accounting(play)


ZEROS = topology_of(
    events=source("id double, v int"), names=source("id double, name string", topic="names")
) + operators(
    counts=aggregate(key=["id"], aggregates={"n": "count(*)"}),
    counts_out=sink("counts", table="counts"),
    sessions=aggregate(key=["id"], window={"session": "10 s"}, aggregates={"n": "count(*)"}),
    sessions_out=sink("sessions", table="sessions"),
    pairs=aggregate(key=["id", "v"], aggregates={"n": "count(*)"}),
    pairs_out=sink("pairs", table="pairs"),
    names_now=table("names", columns=["name"]),
    named=join("events", "names_now", on={"id": "id"}),
    named_out=sink("named", table="named"),
    newest=table(columns=["v"]),
    newest_out=current("newest", "newest"),
    changed=map_of(select={"id": "id", "v": "v"}, strategy="on_change", key=["v"], rule="value_only"),
    changed_out=sink("changed", table="changed"),
    by_id=repartition(key=["id"], columns=["v"], partitions=7),
    behind=aggregate("by_id", sub_topology="behind", aggregates={"n": "count(*)"}),
    behind_out=sink("behind", table="behind"),
)


@pytest.mark.parametrize("keys", [(0.0, -0.0), (-0.0, 0.0), (math.nan, OTHER_NAN)], ids=str)
def test_zeros_are_one_key_and_so_is_nan(tmp_path: Path, keys: tuple[float, float]) -> None:
    play = Play(ZEROS, tmp_path)
    for second, key in enumerate(keys):
        play.batch([play.row("names", T, id=keys[0], name="x")] if second == 0 else [], at_ms=T)
        play.batch([play.row("events", T + second * 1000, id=key, v=5)], at_ms=T + second * 1000)
        play.hop("behind", at_ms=T + second * 1000)
    for name, sub in (("counts", "events"), ("sessions", "events"), ("pairs", "events"), ("behind", "behind")):
        rows = [row for row in play.rows(name, sub) if not row["deleted"]]
        assert [row["n"] for row in rows] == [1, 2], name
        assert len({str(row["id"]) for row in rows}) == 1, name  # and −0.0 is shown as 0.0
        assert str(rows[0]["id"]) == str(abs(keys[0])), name
    assert [row["name"] for row in play.rows("named")] == ["x", "x"]
    assert [row["v"] for row in play.rows("newest")] == [5]
    texts = {row["key"] for row in play.rows("changes") if row["operator"] == "newest"}
    assert texts == {"NaN" if math.isnan(keys[0]) else "0.0"}
    assert len(play.rows("changed")) == 1  # the second is an equal value
    assert scan(Layout(tmp_path).hop("play", "events", "by_id")).collect()["partition"].n_unique() == 1
    check_accounting(play)


RENAMED = topology_of(events=source("id string, v int")) + operators(
    renamed=map_of(select={"id": "id", "v": "v", "seen": '("event_time")'}),
    newest=table("renamed"),
    board=current("newest", "board"),
    changed=map_of(select={"id": "id", "v": "v", "at": "event_time"}, strategy="on_change", key=["id"]),
    changed_out=sink("changed", table="changed"),
    by_v=repartition("renamed", key=["v"], columns=["id", "seen"]),
    behind=table("by_v", sub_topology="behind", key=["id"]),
    behind_out=sink("behind", table="behind"),
    exact=table("renamed", columns=["seen"]),
    exact_out=sink("exact", table="exact"),
    days=map_of(select={"id": "id", "day": "event_time // 86400000"}),
    day=table("days"),
    day_out=sink("day", table="days"),
)


def test_the_event_time_alone_is_no_change(tmp_path: Path) -> None:
    play = Play(RENAMED, tmp_path)
    for second, v in ((1, 5), (2, 5), (3, 6), (86_400, 6)):
        play.batch([play.row("events", T + second * 1000, id="a", v=v)], at_ms=T + second * 1000)
        play.hop("behind", at_ms=T + second * 1000)

    def seen(name: str, sub: str, *columns: str) -> list[tuple[int, ...]]:
        return [tuple(row[c] for c in columns) for row in play.rows(name, sub)]

    assert seen("board", "events", "v", "seen") == [(6, T + 3000)]
    assert seen("changed", "events", "v", "at") == [(5, T + 1000), (6, T + 3000)]
    assert seen("behind", "behind", "v", "seen") == [(5, T + 1000), (6, T + 3000)]
    # A column that is named is compared, and what is calculated of the time is no event time.
    assert len(seen("exact", "events", "seen")) == 4
    assert seen("days", "events", "day") == [(T // 86_400_000,), (T // 86_400_000 + 1,)]
    for name, suppressed in (("newest", 2), ("changed", 2), ("exact", 0), ("day", 2)):
        assert (
            sum(row["suppressed"] for row in play.rows("operator_batches") if row["operator"] == name) == suppressed
        ), name
    check_accounting(play)


def test_of_several_rows_of_a_key_the_smallest_is_joined_and_a_new_column_is_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = tmp_path / "reference" / "places"
    rows = [("a", 2, None), ("a", 1, "x"), ("a", 1, None), ("b", 9, "z"), (None, 1, "y"), (None, 2, "y")]
    joined = operators(near={"kind": "join", "input": "events", "delta": "reference/places", "on": {"id": "place"}})
    play = Play(SOURCE + joined + operators(out=sink("near", table="out")), tmp_path)
    for batch, ordered in enumerate((rows, rows[::-1])):  # as OPTIMIZE might leave them
        columns = dict(zip(("place", "rank", "name"), zip(*ordered, strict=True), strict=True))
        write_deltalake(places, pa.table(columns), mode="overwrite")
        play.batch([event(play, 1, "a"), event(play, 2, "b"), event(play, 3, "c")], at_ms=T + batch)
    once = [("a", 1, None), ("b", 9, "z"), ("c", None, None)]
    assert sent(play, "id", "rank", "name") == [(batch, *row) for batch in (0, 1) for row in once]
    assert play.engine(play.sub).load["ambiguous_keys"] == 1
    told = [
        text for text in caplog.messages if text.startswith("near: keys of reference/places with several rows: 1; ")
    ]
    assert len(told) == 1

    write_deltalake(places, pa.table({"place": ["c"], "rank": [3], "zone": ["z"]}), mode="append", schema_mode="merge")
    added = [event(play, 4, "c")]
    with pytest.raises(ColumnsChanged, match="the columns of reference/places, which a join reads, have changed"):
        play.batch(added, at_ms=T + 2)
    assert len(play.rows("out")) == 6
    play.start()  # as the driver starts its next query
    play.batch(added, at_ms=T + 2)
    assert sent(play, "id", "rank", "name", "zone")[6:] == [(2, "c", 3, None, "z")]


@pytest.mark.parametrize("column", ["window_start", "window_end"])
def test_a_column_of_a_record_may_be_called_as_a_bound_of_windows(tmp_path: Path, column: str) -> None:
    table = f"""
name = "named"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, {column} string"
bound = "1 s"
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
newest_by = "event_time"
[operators.named]
kind = "sink"
input = "newest"
table = "named"
"""
    play = Play(table, tmp_path)
    play.batch([play.row("events", NOON, id="a", **{column: "soon"})], at_ms=NOON)
    assert [(row["id"], row[column]) for row in play.rows("named")] == [("a", "soon")]
    assert [row["state"] for row in play.rows("state_changes")] == [f'{{"id":"a","{column}":"soon"}}']
