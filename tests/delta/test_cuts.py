"""Results per key and window do not depend on the batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support.play import Play
from support.topologies import operators, source, table, topology_of
from tidemark.cli.project.check import check
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.model.topology import load

T = 1_400_000_000_000 - 1_400_000_000_000 % 60_000
SOURCE = topology_of(events=source("id string, v double", bound="2 min"))
NEWEST = operators(newest=table(columns=["v"], newest_by="event_time"))
AGGREGATES = """aggregates = { n = "count(*)", total = "sum(v)", mean = "avg(v)", low = "min(v)", high = "max(v)", opened = "first(v)", closed = "last(v)", about = "approx_distinct(v)" }
"""  # noqa: E501


def counted(name: str, window: str = "") -> str:
    return f'[operators.{name}]\nkind = "aggregate"\ninput = "events"\nkey = ["id"]\n{window}\n{AGGREGATES}'


EVERYTHING = (
    SOURCE
    + NEWEST
    + counted("rolling")
    + counted("minutes", 'window = { tumbling = "20 s" }\nstrategy = "on_window_close"')
    + counted("hops", 'window = { hopping = "20 s", every = "10 s" }')
    + counted("sessions", 'window = { session = "3 s" }')
)


def event(play: Play, second: float, id_: str, v: float | None, *, part: int = 0) -> dict[str, Any]:
    return play.row("events", T + round(second * 1000), partition=part, key=None, id=id_, v=v)


def results(home: Path, records: list[tuple[float, str, float]], cut: random.Random | None) -> dict[str, Any]:
    """Returns each key's last value per operator, with records *cut* into batches.

    None: one batch.
    """
    play = Play(EVERYTHING, home, partitions=3)
    waiting = [[event(play, *one, part=part) for one in records[part::3]] for part in range(3)]
    number = 0
    while any(waiting):
        taken = [rows[: cut.randrange(12) if cut else None] for rows in waiting]
        waiting = [rows[len(part) :] for rows, part in zip(waiting, taken, strict=True)]
        play.batch([row for part in taken for row in part], at_ms=T + number)
        number += 1
        if cut and cut.random() < 0.3:
            play.start()
    play.batch([event(play, 900, "end", 0.0, part=part) for part in range(3)], at_ms=T + number)
    assert play.rows("late_records") == []
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
    found = {f"{row['operator']} {row['key']}": row["value"] for row in play.rows("changes") if "end" not in row["key"]}
    return {name: value for name, value in found.items() if value is not None}  # sessions that became part of others


LATER_CUTS = [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]  # each takes ten seconds of a processor


@pytest.mark.parametrize(("seed", "cut"), [(0, 0), *(pytest.param(*one, marks=pytest.mark.long) for one in LATER_CUTS)])
def test_final_results_are_the_same_for_every_cut_into_batches(tmp_path: Path, seed: int, cut: int) -> None:
    draw = random.Random(seed)
    # Whole seconds, so that many records are from one instant.
    records = [(draw.randrange(60), draw.choice("abc"), draw.choice([0.1, 0.2, 0.7, 1e16])) for _ in range(90)]
    whole = results(tmp_path / "whole", records, None)
    assert len(whole) > 20
    assert results(tmp_path / "cut", records, random.Random(100 * seed + cut)) == whole


def test_by_event_time_the_newest_row_is_not_the_last_one_read(tmp_path: Path) -> None:
    for name, one_by_one in (("together", False), ("apart", True)):
        play = Play(SOURCE + NEWEST, tmp_path / name, partitions=2)
        rows = [event(play, 10, "a", 10.0), event(play, 5, "a", 5.0, part=1), event(play, 10, "a", 11.0, part=1)]
        for batch in [[row] for row in rows] if one_by_one else [rows]:
            play.batch(batch, at_ms=T)
            play.start()
        play.batch([event(play, 10, "a", 7.0), event(play, 9, "a", 8.0)], at_ms=T + 1)
        assert play.rows("changes")[-1]["value"] == '{"v":11.0}', "of one instant the higher partition"
        (*_, last) = [row for row in play.rows("operator_batches") if row["operator"] == "newest"]
        assert (last["records_in"], last["superseded"]) == (2, 2)


def test_by_event_time_a_suppressed_update_can_be_the_newest(tmp_path: Path) -> None:
    play = Play(SOURCE + NEWEST, tmp_path, partitions=2)
    play.batch([event(play, 10, "a", 1.0), event(play, 20, "a", 1.0)], at_ms=T)  # the second is suppressed
    play.start()
    play.batch([event(play, 15, "a", 2.0, part=1)], at_ms=T + 1)
    assert [row["value"] for row in play.rows("changes")] == ['{"v":1.0}']


@pytest.mark.parametrize("strategy", ["", 'strategy = "periodic"\ninterval = "10 s"\n'])
def test_by_event_time_a_deleted_key_stays_deleted(tmp_path: Path, strategy: str) -> None:
    toml = SOURCE.replace('topic = "events"', 'topic = "events"\nkey = "id"') + NEWEST + strategy
    play = Play(toml, tmp_path)
    play.batch([play.row("events", T, key="a", id="a", v=1.0)], at_ms=T)
    play.batch(at_ms=T + 10_000)
    play.batch([play.row("events", T + 9000, key="a", id="a") | {"deleted": True}], at_ms=T + 20_000)
    play.start()
    play.batch([play.row("events", T + 5000, key="a", id="a", v=5.0)], at_ms=T + 30_000)
    play.batch(at_ms=T + 40_000)
    assert [row["value"] for row in play.rows("changes")] == ['{"v":1.0}', None]


def deleted(play: Play, id_: str, *, part: int = 0) -> dict[str, Any]:
    """Returns a record without a value as Spark reads it.

    It has no event time, whatever the broker has.
    """
    return play.row("events", T, partition=part, key=id_, id=id_) | {"deleted": True, "timestamp_ms": None}


DRIFT = 'max_drift = "1 min"\n'


@pytest.mark.parametrize(
    ("cut", "drift"),
    [
        *((2, ""), (2, DRIFT), (9, DRIFT)),
        *(pytest.param(*one, marks=pytest.mark.long) for one in ((1, ""), (1, DRIFT), (9, ""))),
    ],
)
def test_a_tombstone_is_as_new_as_its_partition(tmp_path: Path, cut: int, drift: str) -> None:
    keyed = SOURCE.replace('topic = "events"', 'topic = "events"\nkey = "id"').replace("2 min", "1 s")
    play = Play(drift + keyed.replace('max_ahead = "unlimited"', "") + NEWEST, tmp_path, partitions=2)
    rows = [
        deleted(play, "z"),  # before there is any event time
        event(play, 1, "other", 0.0, part=1),
        event(play, 10, "a", 1.0),
        event(play, 5, "b", 2.0),
        deleted(play, "a"),
        event(play, 99_000, "far", 0.0),  # too far ahead of the clock
        event(play, 900, "c", 3.0),  # half an hour ahead, and with a drift the last before the partition waits
        deleted(play, "b"),
        event(play, 899, "d", 4.0),
        deleted(play, "c"),
    ]
    for number in range(0, len(rows), cut):
        play.batch(rows[number : number + cut], at_ms=T + 600_000)
        play.start()
    play.batch([event(play, 3_000, "e", 5.0, part=1)], at_ms=T + 3_000_000)
    for _ in range(3):  # partition 0 goes on by a minute at most each time
        play.batch(at_ms=T + 3_000_000)
    gone = [(row["key"], (row["timestamp"] - T) / 1000) for row in play.rows("changes") if row["value"] is None]
    assert gone == [("a", 10), ("b", 900), ("c", 900)]
    assert sorted(row["reason"] for row in play.rows("quarantine")) == ["missing_timestamp", "timestamp_in_future"]


@pytest.mark.parametrize(
    ("source", "operator", "warned"),
    [
        ("", 'kind = "table"\ninput = "events"\nkey = ["id"]', True),
        ("", 'kind = "table"\ninput = "events"\nkey = ["id"]\nnewest_by = "arrival"', False),
        ("", 'kind = "table"\ninput = "events"\nkey = ["id"]\nnewest_by = "event_time"', False),
        ('key = "id"', 'kind = "table"\ninput = "events"\nkey = ["id", "v"]', False),
        ('key = "id"', 'kind = "table"\ninput = "events"\nkey = ["v"]', True),
        ("", 'kind = "sink"\ninput = "events"\ntable = "board"\nmode = "current"\nrefresh = "0 s"\nkey = ["id"]', True),
        ("", 'kind = "map"\ninput = "events"\nselect = { v = "v" }\nstrategy = "on_change"', False),
    ],
)
def test_check_warns_where_the_order_of_arrival_decides(
    tmp_path: Path, source: str, operator: str, *, warned: bool
) -> None:
    file = tmp_path / "play.toml"
    file.write_text(SOURCE + source + "\n[operators.x]\n" + operator + "\n")
    assert load(file).name == "play"
    warnings = [line for line in check([file], tmp_path) if "warning" in line]
    assert [line.startswith("play.toml: operators.x: warning: keeps the last record read of") for line in warnings] == [
        True
    ] * warned
