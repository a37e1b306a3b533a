"""KAFKA-12508: a crash must not hide an update that state already has.

The two cases of `vectors/data/kafka_emit_on_change.json` that made Kafka withdraw emit-on-change, through the engine: a
driver ends at every step of the batch that has the updates, the next one gets the same batch again, and every
downstream operator and consumer must have received each update.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import Play, Row
from support.topologies import aggregate, current, sink, source, table, topology_of

VECTORS = Path(__file__).parents[1] / "vectors" / "data" / "kafka_emit_on_change.json"
T = 1_400_000_000_000
SUB = "events"
TOML = topology_of(
    events=source("id string, v string", bound="1 min"),
    newest=table(columns=["v"]),
    out=sink("newest", topic="out"),
    board=current("newest", "board"),
    latest=aggregate(
        key=["id"], aggregates={"n": "count(*)", "latest": "last(v)"}, select={"latest": "latest"}, rule="value_only"
    ),
)

Update = tuple[str, str, int]
"""Key, value, and record time in ms from T on."""


def crash_replay(vector_id: str) -> tuple[list[Update], list[Update]]:
    """The updates before the batch with the crash, and those in it."""
    (vector,) = (v for v in json.loads(VECTORS.read_text())["vectors"] if v["id"] == vector_id)
    atomic = vector.get("expected_if_state_and_output_commit_atomically", {"store_before_replay": {}})
    before = [(key, value, at) for key, (value, at) in atomic["store_before_replay"].items()]
    return before, [(key, value, at) for key, value, at in vector["replay"]]


def at_every_step(before: list[Update], updates: list[Update], home: Path) -> Iterator[tuple[str, Play]]:
    """Crashes at each step of *updates*; returns the results of the replay.

    Once all is measured nothing can be hidden any more: test_engine.py goes through the steps after that.
    """
    first, steps = Play(TOML, home / "before"), ["read"]
    first.batch(rows_of(first, before or [("another", "z", 0)]), at_ms=T)
    feed(first.copied_to(home / "watched"), updates, reached=steps.append)
    for step in steps[: steps.index("measured") + 1]:
        play = first.copied_to(home / step)
        feed(play, updates, crashing_at=step)
        yield step, play


def feed(play: Play, updates: list[Update], *, crashing_at: str = "", reached=None) -> None:
    """Plays a batch of the *updates*."""
    rows = rows_of(play, updates)
    play.start(SUB, reached=reached or crash_at(crashing_at), epoch=2)
    if crashing_at == "read":
        play.start(SUB, epoch=3)
    elif crashing_at:
        with pytest.raises(Crash):
            play.batch(rows, at_ms=T + 1_000)
        play.start(SUB, epoch=3)
    play.batch(rows, at_ms=T + 1_000)


def rows_of(play: Play, updates: list[Update]) -> list[Row]:
    return [play.row("events", T + at, id=key, v=value) for key, value, at in updates]


def told(play: Play, operator: str, key: str) -> list[tuple[str, int]]:
    """Returns the values and times that *operator* sent for *key*."""
    rows = [row for row in play.rows("changes") if (row["operator"], row["key"]) == (operator, key)]
    return [(next(iter(json.loads(row["value"]).values())), row["timestamp"] - T) for row in rows]


def told_consumers(play: Play, key: str) -> list[tuple[str, int]]:
    """Returns the Kafka sink's records without repeated batch and sequence."""
    rows = [row for _, row in play.broker.published if row["id"] == key]
    return list(dict.fromkeys((row["v"], row["_timestamp_ms"] - T) for row in rows))


def test_kafka_12508_a_stored_update_is_sent_after_a_crash(tmp_path: Path) -> None:
    before, updates = crash_replay("k557-12")
    assert (before, updates) == ([], [("1", "A", 0)])
    for step, play in at_every_step(before, updates, tmp_path):
        assert told(play, "newest", "1") == [("A", 0)], step
        assert told(play, "latest", "1") == [("A", 0)], step
        assert told_consumers(play, "1") == [("A", 0)], step


def test_the_dirty_store_does_not_hide_the_first_of_two_updates(tmp_path: Path) -> None:
    before, updates = crash_replay("k557-13")
    assert (before, updates) == ([("k", "x", 1)], [("k", "y", 5), ("k", "y", 3)])
    for step, play in at_every_step(before, updates, tmp_path):
        # The rule compares y at 5 with x, and y at 3 with y at 5, whatever the crash had left of either.
        assert told(play, "newest", "k") == [("x", 1), ("y", 5), ("y", 3)], step
        assert told_consumers(play, "k") == [("x", 1), ("y", 5), ("y", 3)], step
        board = {row["id"]: (row["v"], row["timestamp"] - T) for row in play.rows("board")}
        assert board["k"] == ("y", 3), step
        # Of x and two y the accumulators know once each, and their latest value changed once.
        assert told(play, "latest", "k") == [("x", 1), ("y", 5)], step
        states = [json.loads(row["state"]) for row in play.rows("state_changes") if row["key"] == "k"]
        assert [state["@n"] for state in states] == [1, 3], step
