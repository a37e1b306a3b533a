"""What a stream has acknowledged survives a loss of power."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from support.play import Play, ms
from support.power_loss import keep_survivors, run_traced
from support.topologies import aggregate, current, operators, repartition, sink, source, table, topology_of
from tidemark.stream.journal.checkpoint import make_plan_durable

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace: see `make strace`")

MADE_ANEW = {"carried_out"}
"""Files that say again what others say."""

TOML = topology_of(events=source()) + operators(
    newest=table(columns=["v"]),
    board=current("newest", "board"),
    kept=sink("newest", table="kept"),
    by_value=repartition("newest", id=["id"], key=["v"], columns=["id"]),
    ids=aggregate("by_value", aggregates={"n": "count(*)"}),
)


def play_batches(play: Play, first: int, end: int) -> None:
    """Sends `a` and `b` new values in each batch; `b` keeps its value after the first."""
    for number in range(first, end):
        rows = [play.row("events", ms(number), id="a", v=number), play.row("events", ms(number), id="b", v=0)]
        play.batch(rows, at_ms=ms(number + 1))
        play.hop("by_value", at_ms=ms(number + 1))


def test_what_is_acknowledged_survives_a_loss_of_power(tmp_path: Path) -> None:
    home, left, acknowledged = tmp_path / "home", tmp_path / "left", tmp_path / "acknowledged"
    home.mkdir()
    run_traced(Path(__file__), str(home), str(acknowledged), trace=tmp_path / "trace")
    lost = keep_survivors(tmp_path / "trace", home, left, until=acknowledged)
    assert {Path(file).name for file in lost} <= MADE_ANEW
    # The next driver has only what survived, and goes on as if nothing had happened.
    play = Play(TOML, left)
    play.resume({play.sub: 3, "by_value": 3, "by_value/hop": 3}, {("events", 0): 6})
    play_batches(play, 3, 4)
    kept = [(row["id"], row["v"]) for row in play.rows("kept")]
    assert sorted(kept) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]
    assert sorted((row["id"], row["v"]) for row in play.rows("board")) == [("a", 3), ("b", 0)]


def test_a_plan_of_spark_survives_before_its_batch_is_decided(tmp_path: Path) -> None:
    home, left, acknowledged = tmp_path / "home", tmp_path / "left", tmp_path / "acknowledged"
    home.mkdir()
    run_traced(Path(__file__), str(home), str(acknowledged), "plan", trace=tmp_path / "trace")
    lost = keep_survivors(tmp_path / "trace", home, left, until=acknowledged)
    # The batch after it is not planned completely, and Spark plans it again.
    assert lost == ["offsets/8"]
    assert (left / "sources" / "1" / "3").read_text() == "written by another program"


def plan_a_batch(checkpoint: Path) -> None:
    """Writes files as Spark does, without syncing them."""
    for place in ("metadata", "offsets/7", "offsets/8", "sources/1/3"):
        file = checkpoint / place
        file.parent.mkdir(parents=True, exist_ok=True)
        # A batch without new files has no number among the notes about files, so these are behind.
        file.write_text('v1\n{}\n4\n{"logOffset":3}' if place == "offsets/7" else "written by another program")
    make_plan_durable(checkpoint, 7)


if __name__ == "__main__":
    home, acknowledged = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3:] == ["plan"]:
        plan_a_batch(home)
    else:
        play_batches(Play(TOML, home), 0, 3)
    acknowledged.mkdir()
    os._exit(0)
