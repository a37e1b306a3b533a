"""Which operators find a record late, and which take whatever comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.play import Play
from support.topologies import aggregate, operators, repartition, sink, source, table, topology_of
from tidemark.errors import InvalidSpec
from tidemark.model.tables.catalog import BECAME, CAME_IN

T = 1_400_000_000_000
EVENTS = topology_of(events=source(bound="3 s"))
ALL = operators(all=sink("events", table="all_of_it"))
NEWEST = operators(
    newest=table(columns=["v"]),
    board=sink("newest", table="board"),
)
COUNTS = operators(counts=aggregate(key=["id"], aggregates={"n": "count(*)"}), sums=sink("counts", table="sums"))
HOP = operators(
    by_v=repartition(key=["v"], columns=["id"]),
    per_v=aggregate("by_v", sub_topology="second", aggregates={"n": "count(*)"}),
)
MINUTES = operators(minutes=aggregate(key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}))
RATES = """
[operators.rates]
kind = "source"
topic = "rates"
fields = "who string, rate int, at bigint"
timestamp = "at"
bound = "1 s"
max_ahead = "unlimited"
[operators.rate]
kind = "table"
input = "rates"
key = ["who"]
columns = ["rate"]
{keys}
[operators.rated]
kind = "join"
input = "events"
table = "rate"
on = {{ id = "who" }}
[operators.rated_board]
kind = "sink"
input = "rated"
table = "rated_board"
"""


def event(play: Play, second: float, id_: str = "a", v: int = 1, **more: Any) -> dict[str, Any]:
    return play.row("events", T + round(second * 1000), key=id_, id=id_, v=v, **more)


def rate(play: Play, second: float, value: int) -> dict[str, Any]:
    return play.row("rates", T + round(second * 1000), key="a", who="a", rate=value)


def outcome(play: Play, operator: str, word: str, sub: str | None = None) -> int:
    for row in play.rows("operator_batches", sub):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
    return sum(row[word] for row in play.rows("operator_batches", sub) if row["operator"] == operator)


def reconnects(play: Play) -> None:
    """Plays two devices; one then sends 100 readings of an hour ago."""
    play.batch([event(play, 0), event(play, 1, "b")], at_ms=T + 1500)
    play.batch([event(play, -3600 + n / 100, "c", n) for n in range(100)], at_ms=T + 2500)


def test_a_sink_has_every_record_of_a_device_that_reconnects(tmp_path: Path) -> None:
    play = Play(EVENTS + ALL, tmp_path)
    reconnects(play)
    assert len(play.rows("all_of_it")) == 102
    newest = {r["operator"]: (r["n"], r["max_ms"]) for r in play.rows("operator_batches") if r["batch_id"] == 1}
    assert newest == {"events": (100, 3_602_500), "all": (100, 3_602_500)}, "both took what is an hour old"
    assert play.rows("late_records") == []
    assert [(row["watermark"] - T) / 1000 for row in play.rows("batches")] == [-2.001, -2.001], "and time has not moved"


def test_tables_rolling_aggregates_and_hops_drop_nothing_as_late(tmp_path: Path) -> None:
    play = Play(EVENTS + NEWEST + COUNTS + HOP, tmp_path)
    reconnects(play)
    play.hop("second", at_ms=T + 3000)
    assert [(row["id"], row["v"]) for row in play.rows("board")][-1] == ("c", 99)
    assert [(row["id"], row["n"]) for row in play.rows("sums")][-1] == ("c", 100)
    assert outcome(play, "by_v", "fan_out") == outcome(play, "per_v", "records_in", "second") == 102
    assert {row["late"] for sub in (None, "second") for row in play.rows("operator_batches", sub)} == {0}


def test_a_record_late_for_a_window_is_accepted_by_its_siblings(tmp_path: Path) -> None:
    play = Play(EVENTS + ALL + MINUTES, tmp_path)
    reconnects(play)
    assert len(play.rows("all_of_it")) == 102
    assert (outcome(play, "events", "late"), outcome(play, "minutes", "late")) == (0, 100)
    late = play.rows("late_records")[0]
    assert (late["operator"], late["partition"], late["offset"], late["key"]) == ("minutes", 0, 2, "c")
    assert late["value"] == b'{"id":"c","v":0,"event_time":1399996400000}'
    assert (late["watermark"] - T, late["lateness_ms"], late["blocked_by"]) == (-2001, 3_597_999, "events")


def test_a_long_session_accepts_records_older_than_its_gap(tmp_path: Path) -> None:
    play = Play(EVENTS + MINUTES.replace('tumbling = "1 min"', 'session = "5 s"'), tmp_path)
    play.batch([event(play, second) for second in range(0, 40, 4)], at_ms=T)  # watermark 32.999; one session since 0
    play.batch([event(play, 1)], at_ms=T + 1000)
    assert outcome(play, "minutes", "late") == 0
    assert '"n":11' in play.rows("changes")[-1]["value"]
    play.batch([event(play, -10)], at_ms=T + 2000)
    assert outcome(play, "minutes", "late") == 1


def test_a_strict_source_quarantines_records_behind_watermark(tmp_path: Path) -> None:
    play = Play(EVENTS + 'allowed_lateness = "10 s"\n' + ALL, tmp_path)
    play.batch([event(play, 20)], at_ms=T)  # watermark 16.999
    play.batch([event(play, 7), event(play, 6.999)], at_ms=T + 1000)
    assert [row["v"] for row in play.rows("all_of_it")] == [1, 1]
    (late,) = play.rows("late_records")
    assert (late["operator"], late["offset"], late["lateness_ms"]) == ("events", 2, 10_000)


def test_a_late_record_keeps_a_key_that_is_no_text(tmp_path: Path) -> None:
    play = Play(EVENTS + 'allowed_lateness = "10 s"\n' + ALL, tmp_path)
    play.batch([event(play, 20)], at_ms=T)
    late = [{**event(play, 1), "key": key} for key in (b"\xff", "é".encode(), None)]
    play.batch(late, at_ms=T + 1000)
    assert [row["key"] for row in play.rows("dead_letters")] == [b"\xff", b"\xc3\xa9", None]
    assert [row["key"] for row in play.rows("late_records")] == [None, "é", None]


def test_a_window_that_time_passed_is_not_opened_again(tmp_path: Path) -> None:
    play = Play(EVENTS + ALL, tmp_path)
    play.batch([event(play, 1), event(play, 15)], at_ms=T)
    before = play.rows("operator_windows")
    play.batch([event(play, 2), event(play, -500)], at_ms=T + 5000)
    assert play.rows("operator_windows") == before != []


def test_beyond_its_history_a_join_has_the_oldest_version_kept(tmp_path: Path) -> None:
    play = Play(EVENTS + RATES.format(keys='history = "10 s"'), tmp_path)
    play.batch(
        [rate(play, 1, 10), rate(play, 5, 50), rate(play, 20, 200), event(play, 23)], at_ms=T
    )  # watermark 19.999
    play.batch([event(play, second) for second in (21, 12, 9.999, 9.998, 2)], at_ms=T + 1000)
    assert [row["rate"] for row in play.rows("rated_board")] == [200, 200, 50, 50, 50, 50]
    assert outcome(play, "rated", "joined_beyond_history") == 2, "9.999 is the oldest instant that it keeps"
    assert outcome(play, "rated", "late") == 0
    play.start()  # another driver has read the versions from the tables
    play.batch([event(play, 2), event(play, -3600)], at_ms=T + 2000)
    assert [row["rate"] for row in play.rows("rated_board")][6:] == [50, 50]


def test_a_key_newer_than_the_history_gives_its_first_version(tmp_path: Path) -> None:
    play = Play(EVENTS + RATES.format(keys='history = "10 s"'), tmp_path)
    play.batch([rate(play, 15, 150), rate(play, 18, 180), event(play, 23)], at_ms=T)  # kept from 9.999
    play.batch([event(play, 12), event(play, 3)], at_ms=T + 1000)
    assert [row["rate"] for row in play.rows("rated_board")] == [180, None, 150]
    assert outcome(play, "rated", "joined_beyond_history") == 1


def test_beyond_its_history_a_strict_join_finds_records_late(tmp_path: Path) -> None:
    play = Play(EVENTS + RATES.format(keys='history = "10 s"\nbeyond_history = "late"'), tmp_path)
    play.batch([rate(play, 1, 10), event(play, 23)], at_ms=T)
    play.batch([event(play, 9.999), event(play, 9.998)], at_ms=T + 1000)
    assert [row["rate"] for row in play.rows("rated_board")] == [10, 10]
    (late,) = play.rows("late_records")
    assert (late["operator"], late["offset"], late["lateness_ms"]) == ("rated", 2, 10_001)
    assert (outcome(play, "rated", "late"), outcome(play, "rated", "joined_beyond_history")) == (1, 0)


def test_a_join_keeps_an_hour_of_versions_by_default(tmp_path: Path) -> None:
    play = Play(EVENTS + RATES.format(keys=""), tmp_path)
    play.batch([rate(play, -3590, 1), rate(play, -10, 2), event(play, 3)], at_ms=T)  # watermark −0.001
    play.batch([event(play, 4)], at_ms=T + 1000)
    play.batch([event(play, -3589), event(play, -4000)], at_ms=T + 2000)
    assert [row["rate"] for row in play.rows("rated_board")] == [2, 2, 1, 1]
    assert outcome(play, "rated", "joined_beyond_history") == 1


def test_a_table_without_a_join_has_no_history(tmp_path: Path) -> None:
    for line, key in (('history = "1 h"', "history"), ('beyond_history = "late"', "beyond_history")):
        with pytest.raises(InvalidSpec, match=f"operators.newest.{key}: is set, but no join reads this table"):
            Play(EVENTS + NEWEST.replace('columns = ["v"]', line), tmp_path)
