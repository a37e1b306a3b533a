"""Idleness crosses a hop and blocks readers no longer than elsewhere."""

from __future__ import annotations

from pathlib import Path

from support.play import NOON, Play, Row, ms
from support.topologies import aggregate, join, map_of, operators, repartition, sink, source, table
from tidemark.model.project.layout import Layout
from tidemark.semantics.idleness import Activity
from tidemark.why.walk import why


def handing_on(name: str) -> str:
    """Returns a source and its repartition."""
    return operators(
        **{
            name: source(sub_topology=name, topic=name, idle_after="30 s"),
            f"{name}_on": repartition(name, key=["id"], columns=["v"]),
        }
    )


TWO = (
    'name = "play"\n'
    + handing_on("one")
    + handing_on("two")
    + operators(
        renamed=map_of("two_on", sub_topology="both", select={"id": "id", "w": "v"}),
        newest=table("renamed"),
        newest_board=sink("newest", table="newest_board"),
        joined=join("one_on", "newest", on={"id": "id"}),
        named=map_of("joined", select={"id": "id"}),
        per_minute=aggregate(
            "named", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
        ),
        counts=sink("per_minute", table="counts"),
    )
)
"""Runs a driver per source, and a third that reads both.

`two` is no table input, for it has a sink of its own.
"""


def record(play: Play, source: str, second: float) -> Row:
    return play.row(source, ms(second), key="a", id="a", v=1)


def both_at(play: Play, second: float) -> None:
    """Hands on one record of each source and reads it."""
    for name in ("one", "two"):
        play.batch([record(play, name, second)], at_ms=ms(second), sub=name)
    play.hop("both", at_ms=ms(second))


def input_of(play: Play, name: str) -> tuple[int | None, bool]:
    """Watermark, as seconds, and status of an input of the third driver."""
    progress = play._engines["both"].progress
    assert progress is not None
    of = progress.inputs[f"{name}_on_source"]
    assert of.partitions[0].activity is (Activity.IDLE if of.idle else Activity.ACTIVE)
    return None if of.watermark_ms is None else (of.watermark_ms + 1 - NOON) // 1_000, of.idle


def test_results_continue_while_one_of_two_upstreams_is_idle(tmp_path: Path) -> None:
    play = Play(TWO, tmp_path)
    both_at(play, 1)
    play.batch([record(play, "one", 35)], at_ms=ms(35), sub="one")
    play.batch(at_ms=ms(35), sub="two")  # silent for 34 s
    play.hop("both", at_ms=ms(35))
    assert (input_of(play, "one"), input_of(play, "two")) == ((34, False), (0, True))
    assert [(r["window_start"] - NOON, r["n"]) for r in play.rows("counts", "both")] == [(0, 1)]


def test_an_upstream_that_wakes_up_counts_once_it_has_caught_up(tmp_path: Path) -> None:
    play = Play(TWO, tmp_path)
    both_at(play, 1)
    play.batch([record(play, "one", 35)], at_ms=ms(35), sub="one")
    play.batch(at_ms=ms(35), sub="two")
    play.hop("both", at_ms=ms(35))
    play.batch([record(play, "two", 36)], at_ms=ms(36), sub="two")
    play.batch([record(play, "one", 55)], at_ms=ms(55), sub="one")
    play.hop("both", at_ms=ms(55))
    assert (input_of(play, "one"), input_of(play, "two")) == ((54, False), (35, False))
    assert [(r["window_start"] - NOON, r["n"]) for r in play.rows("counts", "both")] == [(0, 1)]
    play.batch([record(play, "two", 60)], at_ms=ms(60), sub="two")
    play.hop("both", at_ms=ms(60))
    assert [(r["window_start"] - NOON) // 1_000 for r in play.rows("counts", "both")] == [0, 30]


def test_an_idle_upstream_without_records_does_not_block_others(tmp_path: Path) -> None:
    play = Play(TWO, tmp_path)
    play.batch([record(play, "one", 1)], at_ms=ms(1), sub="one")
    play.batch(at_ms=ms(1), sub="two")
    play.hop("both", at_ms=ms(1))
    assert input_of(play, "two") == (None, False)
    play.batch(at_ms=ms(32), sub="two")
    play.batch([record(play, "one", 32)], at_ms=ms(32), sub="one")
    play.hop("both", at_ms=ms(32))
    assert input_of(play, "two") == (None, True)
    assert [(r["window_start"] - NOON, r["n"]) for r in play.rows("counts", "both")] == [(0, 1)]


def test_the_status_is_read_back_by_a_new_driver(tmp_path: Path) -> None:
    play = Play(TWO, tmp_path)
    both_at(play, 1)
    play.batch(at_ms=ms(40), sub="two")
    play.hop("both", at_ms=ms(40))
    for sub in ("two", "both"):
        play.start(sub, epoch=2)
    play.batch(at_ms=ms(41), sub="two")  # says nothing new
    play.hop("both", at_ms=ms(41))
    assert input_of(play, "two") == (0, True)


def test_why_names_an_idle_upstream_when_all_are_idle(tmp_path: Path) -> None:
    play = Play(TWO, tmp_path)
    both_at(play, 1)
    for name in ("one", "two"):
        play.batch(at_ms=ms(40), sub=name)
    play.hop("both", at_ms=ms(40))
    found = why(play.topology, Layout(tmp_path), at_ms=ms(41), operator="counts")
    causes = [(f.cause, f.operator, f.input) for f in found if f.cause != "never_started"]
    assert causes[:2] == [
        ("upstream_idle", "one_on_source", "one_on"),
        ("upstream_idle", "two_on_source", "two_on"),
    ]
    assert "idle_advances = true for one" in next(f.remedy for f in found if f.cause == "upstream_idle")
