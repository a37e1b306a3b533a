"""Suppressed updates are known: tables equal those that sent everything."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from support.crashes import Crash, crash_at
from support.play import NOON, Play
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
from tidemark.cli.project.check import check
from tidemark.errors import InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.query.sql import Warehouse

TOPOLOGY = topology_of(
    sensors=source("id string, room string, v double", topic="sensors", key="id", bound="1 min", max_ahead=None),
    newest=table("sensors", columns=["room", "v"], strategy="STRATEGY"),
    asks=source("id string", topic="asks", bound="1 min", max_ahead=None),
    asked=join("asks", "newest", on={"id": "id"}),
    answers=sink("asked", table="answers"),
    board=current("newest", "board", last_seen_at=True),
    by_room=repartition("newest", id=["id"], key=["room"], columns=["v"]),
    rooms=aggregate("by_room", aggregates={"n": "count(*)", "total": "sum(v)"}, select={"n": "n", "total": "total"}),
)
COUNTS = aggregate(
    "sensors", key=["id"], window={"tumbling": "1 min"}, strategy="on_window_close", aggregates={"n": "count(*)"}
)


def topology(strategy: str) -> str:
    return TOPOLOGY.replace("STRATEGY", strategy)


def sensor(play: Play, second: float, v: float | None, id_: str = "a", room: str = "r") -> dict[str, Any]:
    row = play.row("sensors", NOON + round(second * 1_000), key=id_, id=id_, room=room, v=v)
    return row if v is not None else row | {"deleted": True}


def ask(play: Play, second: float, id_: str = "a") -> dict[str, Any]:
    return play.row("asks", NOON + round(second * 1_000), id=id_)


def answers(play: Play) -> list[Any]:
    return sorted((row["timestamp"] - NOON, row["id"], row["v"]) for row in play.rows("answers"))


def check_accounting(play: Play) -> None:
    for sub in play.topology.sub_topologies:
        for row in play.rows("operator_batches", sub.name):
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


@pytest.mark.parametrize("strategy", ["on_change", "on_update"])
@pytest.mark.parametrize("drivers", [1, 2])
def test_a_join_finds_the_latest_asserted_value(tmp_path: Path, strategy: str, drivers: int) -> None:
    play = Play(topology(strategy), tmp_path)
    play.batch([sensor(play, 10, 1.0), sensor(play, 20, 1.0), sensor(play, 15, 2.0)], at_ms=NOON + 21_000)
    if drivers > 1:
        play.start()
    play.batch([ask(play, 12), ask(play, 17), ask(play, 25)], at_ms=NOON + 26_000)
    assert answers(play) == [(12_000, "a", 1.0), (17_000, "a", 2.0), (25_000, "a", 1.0)]
    emitted = [row["timestamp"] - NOON for row in play.rows("changes") if row["operator"] == "newest"]
    assert emitted == {"on_change": [10_000, 15_000], "on_update": [10_000, 20_000, 15_000]}[strategy]


def played(home: Path, strategy: str, seed: int) -> dict[str, Any]:
    draw, play = random.Random(seed), Play(topology(strategy), home)
    for number in range(3):
        rows = [
            sensor(play, draw.randrange(30), draw.choice([0.1, 0.2, 0.2, None]), draw.choice("ab"), draw.choice("rs"))
            for _ in range(draw.randrange(12))
        ]
        rows += [ask(play, draw.randrange(30), draw.choice("abc")) for _ in range(4)]
        if number == 2:
            play.start()
        play.batch(rows, at_ms=NOON + 30_000 + number * 1_000)
        play.hop("by_room", at_ms=NOON + 30_000 + number * 1_000)
    check_accounting(play)
    rooms = {row["key"]: row["value"] for row in play.rows("changes", "by_room")}
    board = {row["id"]: (row["room"], row["v"]) for row in play.rows("board")}
    return {"answers": answers(play), "board": board, "rooms": rooms}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_both_strategies_leave_the_same_table(tmp_path: Path, seed: int) -> None:
    on_change, on_update = (played(tmp_path / name, name, seed) for name in ("on_change", "on_update"))
    assert on_change == on_update


def test_the_latest_state_has_the_last_seen_time_of_a_key(tmp_path: Path) -> None:
    play = Play(topology("on_change"), tmp_path)
    play.batch([sensor(play, 10, 1.0), sensor(play, 10, 1.0, "dead"), sensor(play, 20, 1.0)], at_ms=NOON + 21_000)
    rows = (
        Warehouse(tmp_path)
        .ask("SELECT key, epoch_ms(timestamp), epoch_ms(last_seen_at) FROM latest_state WHERE operator = 'newest'")
        .rows
    )
    assert sorted(rows) == [("a", NOON + 10_000, NOON + 20_000), ("dead", NOON + 10_000, NOON + 10_000)]


def board(play: Play) -> dict[str, tuple[Any, ...]]:
    """Returns the current row per key, instants in seconds.

    Room, value, second of the row, second at which it was last seen, and batch.
    """
    return {
        row["id"]: (
            row["room"], row["v"], (row["timestamp"] - NOON) // 1_000, (row["last_seen_at"] - NOON) // 1_000,
            row["batch_id"],
        )
        for row in play.rows("board")
    }  # fmt: skip


def test_a_current_row_has_the_last_seen_time_of_its_key(tmp_path: Path) -> None:
    play = Play(topology("on_change"), tmp_path)
    play.batch([sensor(play, 10, 1.0), sensor(play, 10, 1.0, "dead"), sensor(play, 20, 1.0)], at_ms=NOON + 21_000)
    assert board(play) == {"a": ("r", 1.0, 10, 20, 0), "dead": ("r", 1.0, 10, 10, 0)}
    version = DeltaTable(str(play.table("board"))).version()
    play.start()
    play.batch([sensor(play, 30, 1.0), sensor(play, 31, 1.0), sensor(play, 25, 1.0)], at_ms=NOON + 31_000)
    assert board(play) == {"a": ("r", 1.0, 10, 31, 0), "dead": ("r", 1.0, 10, 10, 0)}
    assert DeltaTable(str(play.table("board"))).version() == version + 1
    play.batch([sensor(play, 28, 2.0)], at_ms=NOON + 32_000)
    assert board(play)["a"] == ("r", 2.0, 28, 31, 2)
    fresh = [(row["operator"], row["newest_ms"]) for row in play.rows("operator_batches") if row["operator"] == "board"]
    assert fresh == [("board", NOON + 10_000), ("board", NOON + 28_000)]
    play.hop("by_room", at_ms=NOON + 32_000)
    check_accounting(play)


READINGS = """
name = "play"
[operators.sensors]
kind = "source"
topic = "sensors"
fields = "id string, v int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
[operators.result]
input = "sensors"
key = ["id"]
WHAT
[operators.board]
kind = "sink"
input = "result"
table = "board"
mode = "current"
refresh = "0 s"
key = [KEY]
last_seen_at = true
"""
MOST = 'kind = "aggregate"\nrule = "value_only"\naggregates = { x = "max(v)" }'
IS_HIGH = 'kind = "map"\nstrategy = "on_change"\nselect = { id = "id", x = "v > 5" }'


@pytest.mark.parametrize(
    ("what", "key", "values"),
    [(MOST, '"id"', (5, 6)), (f'{MOST}\nwindow = {{ tumbling = "1 min" }}', '"id", "window_start"', (5, 6)),
     (IS_HIGH, '"id"', (False, True))],
)  # fmt: skip
def test_rows_of_aggregates_and_maps_have_a_last_seen_time(
    tmp_path: Path, what: str, key: str, values: tuple[Any, Any]
) -> None:
    play = Play(READINGS.replace("WHAT", what).replace("KEY", key), tmp_path)

    def seen(*readings: tuple[float, str, int]) -> list[Any]:
        play.batch([play.row("sensors", NOON + round(at * 1_000), id=id_, v=v) for at, id_, v in readings], at_ms=NOON)
        rows = [(r["id"], r["x"], r["timestamp"] - NOON, r["last_seen_at"] - NOON) for r in play.rows("board")]
        return sorted(rows)

    low, high = values
    assert seen((10, "a", 5), (10, "b", 5)) == [("a", low, 10_000, 10_000), ("b", low, 10_000, 10_000)]
    assert seen((30, "a", 4), (20, "a", 4)) == [("a", low, 10_000, 30_000), ("b", low, 10_000, 10_000)]
    play.start()
    # What an aggregate has taken in until 30 s makes the result of then; a map's is that of its record.
    changed_ms = 30_000 if "aggregate" in what else 29_500
    assert seen((29.5, "a", 6)) == [("a", high, changed_ms, 30_000), ("b", low, 10_000, 10_000)]
    assert seen((31, "a", 6), (30, "b", 5)) == [("a", high, changed_ms, 31_000), ("b", low, 10_000, 30_000)]


@pytest.mark.parametrize("cuts", [(5,), (1, 2, 3, 4), (2, 4)])
def test_a_deleted_key_was_last_seen_when_it_came_back(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    play = Play(topology("on_change"), tmp_path)
    rows = [sensor(play, at, v) for at, v in [(30, 1.0), (31, 1.0), (32, None), (20, 2.0), (21, 2.0)]]
    rows += [sensor(play, 33, None, "never")]
    for start, end in pairwise([0, *cuts, len(rows)]):
        play.batch(rows[start:end], at_ms=NOON + 40_000)
    assert {key: row[:4] for key, row in board(play).items()} == {"a": ("r", 2.0, 20, 21)}


@pytest.mark.parametrize(
    "step", ["decided", "committed changes", "committed changes_of_board", "committed board", "measured"]
)
def test_a_kill_counts_no_assertion_twice_and_loses_none(tmp_path: Path, step: str) -> None:
    play = Play(topology("on_change"), tmp_path)
    play.batch([sensor(play, 10, 1.0)], at_ms=NOON + 11_000)
    play.start(reached=crash_at(step))
    rows = [sensor(play, 20, 1.0)]
    if step != "committed changes":  # a batch without changes does not commit them
        with pytest.raises(Crash):
            play.process(1, rows, at_ms=NOON + 21_000)
    play.start(epoch=2)
    play.process(1, rows, at_ms=NOON + 21_000)
    assert board(play) == {"a": ("r", 1.0, 10, 20, 0)}


def test_a_sink_that_gets_the_key_later_keeps_its_rows(tmp_path: Path) -> None:
    was = Play(topology("on_change").replace("last_seen_at = true\n", ""), tmp_path)
    was.batch([sensor(was, 10, 1.0), sensor(was, 30, 1.0, "b")], at_ms=NOON + 31_000)
    play = Play(topology("on_change"), tmp_path)
    play.resume({"sensors": 1}, {("sensors", 0): 2})
    play.batch([sensor(play, 40, 1.0), sensor(play, 30, 2.0, "c")], at_ms=NOON + 41_000)
    seen = {row["id"]: row["last_seen_at"] and (row["last_seen_at"] - NOON) // 1_000 for row in play.rows("board")}
    assert seen == {"a": 40, "b": None, "c": 30}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('input = "newest"\ntable = "board"', 'input = "sensors"\ntable = "board"', "reads the source 'sensors'"),
        (
            'mode = "current"\n',
            "",
            "last_seen_at: is true, but mode is .append.; leave it out",
        ),
        ('columns = ["room", "v"]', 'columns = ["room", "v", "last_seen_at"]', "a Delta sink adds"),
    ],
)
def test_last_seen_is_refused_when_it_is_unknown(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "play.toml"
    toml = topology("on_change").replace("room string,", "room string, last_seen_at bigint,")
    file.write_text(toml.replace(old, new))
    with pytest.raises(InvalidSpec, match=f"operators.board.*{said}"):
        check([file], tmp_path)


def test_on_update_sends_on_what_deletes_a_key_that_is_not_there(tmp_path: Path) -> None:
    play = Play(topology("on_update"), tmp_path)
    play.batch([sensor(play, 10, None)], at_ms=NOON + 11_000)
    (row,) = [row for row in play.rows("operator_batches") if row["operator"] == "newest"]
    assert (row["records_in"], row["emitted"], row["suppressed"]) == (1, 1, 0)
    assert [(row["key"], row["value"]) for row in play.rows("changes")] == [("a", None)]
    play.hop("by_room", at_ms=NOON + 12_000)
    assert play.rows("quarantine", "by_room") == []
    check_accounting(play)


def test_a_run_of_the_ledger_ends_where_an_update_was_sent_on(tmp_path: Path) -> None:
    play = Play(topology("on_change"), tmp_path)
    rows = [sensor(play, at, v) for at, v in [(10, 1.0), (11, 1.0), (12, 1.0), (9, 2.0), (10, 1.0), (13, 1.0)]]
    play.batch(rows, at_ms=NOON + 21_000)
    runs = [row for row in play.rows("suppressed") if row["operator"] == "newest"]
    assert [(row["n"], row["first_offset"], row["last_offset"]) for row in runs] == [(2, 1, 2), (1, 5, 5)]
    assert [row["asserted_ms"] for row in runs] == [[NOON + 11_000, NOON + 12_000], [NOON + 13_000]]


def test_a_value_that_is_asserted_again_is_valid_again(tmp_path: Path) -> None:
    play = Play(topology("on_change"), tmp_path)
    play.batch([sensor(play, 10, 1.0), sensor(play, 20, 1.0), sensor(play, 15, 2.0)], at_ms=NOON + 21_000)
    rows = (
        Warehouse(tmp_path)
        .ask("SELECT value, epoch_ms(valid_from), epoch_ms(valid_to) FROM change_history WHERE operator = 'newest'")
        .rows
    )
    ten, fifteen, twenty = NOON + 10_000, NOON + 15_000, NOON + 20_000
    assert sorted((row[1], row[2], '"v":2' in row[0]) for row in rows) == [
        (ten, fifteen, False), (fifteen, twenty, True), (twenty, None, False),
    ]  # fmt: skip


TWICE = "; with on_change at newest it writes fewer {0}s, and the newest {0} of a key has its value with both"


@pytest.mark.parametrize(
    ("strategy", "of_rows", "of_records"),
    [
        (
            "on_change",
            "writes a row for each change, so that the newest row of a key has its value",
            "writes a record for each change, so that the newest record of a key has its value",
        ),
        (
            "on_update",
            f"writes a row for each update{TWICE.format('row')}",
            f"writes a record for each update{TWICE.format('record')}",
        ),
    ],
)
def test_check_names_readers_of_a_stream_of_updates(
    strategy: str, of_rows: str, of_records: str, tmp_path: Path
) -> None:
    ids = {"select": {"id": "id"}}
    parts = {"waits": map_of("counts", **ids), "updates": map_of("newest", **ids)}
    both = {"kind": "union", "inputs": ["waits", "updates"]}
    file = tmp_path / "play.toml"
    sinks = {"log": sink("newest", table="log"), "sent": sink("newest", topic="sent"), "all": sink("both", table="all")}
    file.write_text(topology(strategy) + operators(counts=COUNTS, **parts, both=both, **sinks))
    notes = [line for line in check([file], tmp_path) if ": note: " in line]
    told = {"log": of_rows, "sent": of_records, "all": of_rows}
    assert notes == [f"play.toml: operators.{name}: note: {note}" for name, note in told.items()]


def test_check_says_what_is_compared(tmp_path: Path) -> None:
    named = map_of("sensors", select={"id": "id", "v": "v", "seen": "event_time"})
    judged = map_of("sensors", select={"v": "v", "seen": "event_time"}, strategy="on_change", key=["v"])
    parts = {
        "named": named,
        "whole": table("named"),
        "part": table("named", columns=["seen"]),
        "alone": table("named", key=["id", "v"]),
        "judged": judged,
        "floored": judged | {"identity": "floor(v)"},
        "timed": judged | {"identity": "floor(v) + Seen"},
        "every": table("named", strategy="on_update"),
    }
    file = tmp_path / "play.toml"
    file.write_text(topology("on_change") + operators(**parts))
    lines = [line for line in check([file], tmp_path) if ": compares " in line]
    expected = {
        "newest": "room, v",
        "by_room": "room, v",
        "rooms": "n, total",
        "whole": "v, and not the event time (seen)",
        "part": "seen",
        "alone": "no column, so that it sends each key on once, and not the event time (seen)",
        "judged": "v, and not the event time (seen)",
        "floored": "floor(v), and not the event time (seen)",
        "timed": "floor(v) + Seen",
    }
    assert sorted(lines) == sorted(f"play.toml: operators.{name}: compares {what}" for name, what in expected.items())


def test_check_has_no_note_about_updates_that_wait(tmp_path: Path) -> None:
    named = map_of("counts", select={"id": "id"})
    every_minute = table("sensors", columns=["v"], strategy="periodic", interval="1 min")
    tables = {"counts": COUNTS, "named": named, "slow": every_minute}
    sinks = {f"{name}_log": sink(name, table=f"{name}_log") for name in ("named", "slow")}
    file = tmp_path / "play.toml"
    file.write_text(topology("on_change") + operators(**tables, **sinks))
    assert [line for line in check([file], tmp_path) if ": note: " in line] == []


def test_check_says_that_a_project_has_no_topology(tmp_path: Path) -> None:
    for folder in ("topologies", "expectations"):
        (tmp_path / folder).mkdir()
    (tmp_path / "expectations" / "slas.toml").touch()
    (line,) = check([], tmp_path, Project(tmp_path))
    assert line == f"{tmp_path}/topologies has no topology; write one into NAME.toml there"
