"""A table whose only column is its key lists its keys."""

from pathlib import Path

import pytest

from support.play import NOON, Play

SEEN = """
name = "seen"
[operators.board]
kind = "sink"
input = "ids"
table = "board"
mode = "current"
refresh = "0 s"
key = ["id"]
[operators.ids]
kind = "table"
input = "only_id"
key = ["id"]
[operators.only_id]
kind = "map"
input = "events"
select = { id = "id" }
[operators.events]
kind = "source"
topic = "events"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
"""


@pytest.mark.parametrize("restarts", [False, True])
def test_a_table_of_keys_sends_each_key_once(tmp_path: Path, *, restarts: bool) -> None:
    play = Play(SEEN, tmp_path)
    play.batch([play.row("events", NOON, id="a"), play.row("events", NOON + 1_000, id="b")], at_ms=NOON + 2_000)
    if restarts:
        play.start()
    play.batch([play.row("events", NOON + 2_000, id="a")], at_ms=NOON + 3_000)
    assert [(row["key"], row["value"]) for row in play.rows("changes")] == [("a", "{}"), ("b", "{}")]
    assert [row["id"] for row in play.rows("board")] == ["a", "b"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_join_finds_the_keys_of_a_table_of_keys(tmp_path: Path, *, restarts: bool) -> None:
    joined = """
[operators.known]
kind = "join"
input = "events"
table = "ids"
on = { id = "id" }
how = "inner"
[operators.found]
kind = "sink"
input = "known"
table = "found"
"""
    play = Play(SEEN + joined, tmp_path)
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON + 2_000)
    if restarts:
        play.start()
    play.batch([play.row("events", NOON + 2_000, id="a")], at_ms=NOON + 3_000)
    assert [row["id"] for row in play.rows("found")] == ["a", "a"]
