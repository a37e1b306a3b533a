"""`tidemark reset-time` sets a partition back; closed windows stay closed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import NOON, Play, ms
from support.separate_executors import Apart
from support.topologies import NEWEST, aggregate, operators, repartition, sink, source, topology_of
from tidemark.cli.repair.reset_time import add_options, reset_plan
from tidemark.errors import InvalidArgument
from tidemark.stream.journal.entries import Journal

TOML = topology_of(
    {"window": "10 s"},
    events=source(sub_topology="first"),
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, strategy="on_window_close", aggregates={"n": "count(*)"}),
    by_v=repartition(key=["v"], columns=["id"]),
    per_v=aggregate("by_v", sub_topology="second", key=["v"], aggregates={"n": "count(*)"}),
)
FUTURE = 2_000_000


def event(play: Play, second: float) -> dict[str, object]:
    return play.row("events", ms(second), id="a", v=1)


def jumped(home: Path, shards: int = 1, toml: str = TOML) -> Play:
    """Plays a watermark at FUTURE − 1.001 s with two closed windows.

    They start at 0 s and at 10 s, with two records and one.
    """
    play = Play(toml, home).in_shards(shards, Apart)
    play.batch([event(play, 1), event(play, 2), event(play, 11)], at_ms=ms(20), sub="first")
    play.batch([event(play, FUTURE)], at_ms=ms(21), sub="first")
    play.hop("second", at_ms=ms(22))
    return play


def ask(play: Play, sub: str, source: str, to: str) -> str:
    parser = argparse.ArgumentParser()
    add_options(parser)
    where = ["play", sub, "--source", source, "--partition", "0", "--to", to, "--by", "Ann", "--reason", "2090"]
    return reset_plan(parser.parse_args(where), play.home, play.topology, clock=lambda: ms(30)).apply()


def watermarks(play: Play, sub: str) -> list[float]:
    return [(row["watermark"] - NOON) / 1000 for row in play.rows("batches", sub)]


def results(play: Play) -> list[tuple[float, str]]:
    return [((r["window_start"] - NOON) / 1000, r["value"]) for r in play.rows("changes", "first") if r["window_start"]]


@pytest.mark.parametrize("shards", [1, 3])
def test_after_a_reset_closed_windows_stay_closed(tmp_path: Path, shards: int) -> None:
    by_id = TOML.replace('columns = ["id"]', 'columns = ["v"]').replace('key = ["v"]', 'key = ["id"]')
    play = jumped(tmp_path, shards, by_id)
    said = ask(play, "first", "events", "2014-05-13T12:00:09Z")
    assert "the watermark is 2014-05-13T12:00:07.999Z then" in said
    assert "  counts 2014-05-13T12:00:00.000Z to 2014-05-13T12:00:10.000Z" in said
    assert "  streaming window 2014-05-13T12:00:10.000Z to 2014-05-13T12:00:20.000Z" in said
    assert (
        "tidemark reset-time play second --source by_v_source --partition 0 --to 2014-05-13T12:00:08.000Z --by Ann "
        "--reason 2090"
    ) in said
    play.start("first")
    play.batch([event(play, 9), event(play, 21), event(play, 12)], at_ms=ms(31), sub="first")
    play.start("first")
    play.batch([event(play, 35)], at_ms=ms(40), sub="first")
    assert watermarks(play, "first")[-2:] == [19.999, 33.999]
    assert results(play) == [(0, '{"n":2}'), (10, '{"n":1}'), (20, '{"n":1}')]
    assert [(row["timestamp"] - NOON) / 1000 for row in play.rows("late_records", "first")] == [9, 12]
    closed = [
        (r["window_start"] - NOON) / 1000 for r in play.rows("operator_windows", "first") if r["operator"] == "events"
    ]
    assert closed == [0, 10, 20]
    newest = Journal(play.control.home / "journal", "data").newest()
    assert len(newest.notes.decision.states) == shards


@pytest.mark.parametrize("step", ["decided", "changes"])
def test_time_goes_back_once_when_its_batch_is_run_again(tmp_path: Path, step: str) -> None:
    play = jumped(tmp_path)
    ask(play, "first", "events", "2014-05-13T12:00:09Z")
    rows = [event(play, 21)]
    play.start("first", crash_at(step))
    try:
        play.process(2, rows, at_ms=ms(31), sub="first")
    except Crash:
        play.start("first", epoch=2)
        play.process(2, rows, at_ms=ms(31), sub="first")
    play.start("first", epoch=3)
    play.process(3, [event(play, 50)], at_ms=ms(60), sub="first")
    assert watermarks(play, "first")[-2:] == [19.999, 48.999]


def test_a_silent_stream_and_its_reader_go_back_too(tmp_path: Path) -> None:
    play = jumped(tmp_path)
    with pytest.raises(InvalidArgument, match="its time comes from first; reset that first"):
        ask(play, "second", "by_v_source", "2014-05-13T12:00:08Z")
    ask(play, "first", "events", "2014-05-13T12:00:09Z")
    play.batch(at_ms=ms(31), sub="first")
    play.batch(at_ms=ms(32), sub="first")
    assert watermarks(play, "first")[2:] == [7.999]
    ask(play, "second", "by_v_source", "2014-05-13T12:00:08Z")
    play.batch(at_ms=ms(33), sub="second")  # it has not read yet that its upstream went back
    assert watermarks(play, "second") == [FUTURE - 1.001]
    play.hop("second", at_ms=ms(34))
    play.batch(at_ms=ms(35), sub="second")
    assert watermarks(play, "second")[-1] == 7.999


def test_time_does_not_go_forwards(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"events/0 is at .*, which is not later; name one of: events/0 at 2014-06-05"
    ):
        ask(jumped(tmp_path), "first", "events", "2090-01-01")


SENT = operators(board=sink("counts", table="board"), out=sink("counts", topic="out", marks=True))


def test_readers_of_a_topic_and_of_a_table_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    (tmp_path / "topologies").mkdir()
    places = {"of_topic": 'topic = "out"', "of_table": 'delta = "streams/play/first/board"', "other": 'topic = "other"'}
    for name, place in places.items():
        toml = NEWEST.replace('name = "play"', f'name = "{name}"').replace('topic = "events"', place)
        (tmp_path / "topologies" / f"{name}.toml").write_text(toml)
        reader = Play(toml, tmp_path)
        row = reader.row("events", ms(FUTURE), key="a", id="a", v=1)
        written = {} if "topic" in place else {"written": {"at_ms": 1, "file": "a", "start": 0}}
        reader.batch([{**row, **written}], at_ms=ms(21))
    said = ask(jumped(tmp_path, toml=TOML + SENT), "first", "events", "2014-05-13T12:00:09Z")
    asked = "--source events --partition 0 --to 2014-05-13T12:00:08.000Z --by Ann --reason 2090"
    commands = [line.strip() for line in said.splitlines() if line.startswith("  tidemark reset-time")]
    assert commands[1:] == [f"tidemark reset-time {name} events {asked}" for name in ("of_table", "of_topic")]


def test_a_stream_with_sessions_is_refused_by_name(tmp_path: Path) -> None:
    play = jumped(tmp_path, toml=TOML.replace('{ tumbling = "10 s" }', '{ session = "10 s" }'))
    with pytest.raises(InvalidArgument, match=r"^counts: closed sessions could open again"):
        ask(play, "first", "events", "2014-05-13T12:00:09Z")
