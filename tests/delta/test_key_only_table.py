"""A table whose only column is its key lists its keys."""

from pathlib import Path

import pytest

from support.play import NOON, Play
from support.topologies import current, join, map_of, operators, sink, source, table, topology_of

SEEN = topology_of(
    {"name": "seen"},
    board=current("ids", "board"),
    ids=table("only_id"),
    only_id=map_of(select={"id": "id"}),
    events=source("id string"),
)


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
    joined = operators(known=join("events", "ids", on={"id": "id"}, how="inner"), found=sink("known", table="found"))
    play = Play(SEEN + joined, tmp_path)
    play.batch([play.row("events", NOON, id="a")], at_ms=NOON + 2_000)
    if restarts:
        play.start()
    play.batch([play.row("events", NOON + 2_000, id="a")], at_ms=NOON + 3_000)
    assert [row["id"] for row in play.rows("found")] == ["a", "a"]
