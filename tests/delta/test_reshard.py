"""`tidemark reshard` deals a state out to other shards; the next driver has it, and leaves what one without leaves."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from apart import Apart
from playing import EVENTS, Play, ms

from tidemark.cli.reshard import reshard_streams
from tidemark.control import Control
from tidemark.errors import InvalidArgument
from tidemark.spec.layout import Layout
from tidemark.stream import state_files
from tidemark.stream.distributed.sharding import NotSharded

COUNTS = """
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
window = { tumbling = "10 s" }
aggregates = { n = "count(*)", total = "sum(v)" }
"""
TOML = f"flush_keys = 5\n{EVENTS}{COUNTS}"


def reshard(play: Play, shards: int) -> str:
    (line,) = reshard_streams(play.topology, play.home, None, shards)
    return line


def batch(play: Play, number: int) -> None:
    """Records of twelve keys, seven of them in each batch."""
    at_ms = ms(3 * number)
    ids = ["abcdefghijkl"[(number * 5 + n) % 12] for n in range(7)]
    play.batch([play.row("events", at_ms + n, id=id_, v=n) for n, id_ in enumerate(ids)], at_ms=at_ms + 100)


def changes(play: Play) -> list[tuple[Any, ...]]:
    rows = play.rows("changes")
    return sorted((r["batch_id"], r["operator"], r["key"], r["value"], str(r["old_timestamp"])) for r in rows)


def test_a_driver_begins_with_what_was_dealt_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, play = Play(TOML, tmp_path / "one"), Play(TOML, tmp_path / "play")
    read: list[Path] = []
    really = state_files._read
    monkeypatch.setattr(state_files, "_read", lambda path: read.append(path) or really(path))
    before = 1
    for number, shards in enumerate((1, 4, 2, 7, 1)):
        if number:
            assert f" after batch {number - 1} went from {before} shard" in reshard(play, shards)
            assert "its state is in" in reshard(play, before)
            read.clear()
        play.in_shards(shards, Apart).start()
        batch(one, number)
        batch(play, number)
        assert {path.parts[-3] for path in read} <= {str(shards)}, "files of its own shards alone"
        assert {path.parts[-3] for path in play.home.rglob("state/*/*/*.zip")} <= {str(shards)}, "others are removed"
        before = shards
    assert changes(play) == changes(one)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_command_that_ends_between_two_writes_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    one = Play(TOML, tmp_path / "one")
    batch(one, 0)
    batch(one, 1)
    for at in range(3):
        play = Play(TOML, tmp_path / str(at))
        batch(play, 0)
        writes, really = count(), state_files.put_once

        def put(*arguments: Any, at: int = at, writes: Any = writes, really: Any = really, **more: Any) -> None:
            if next(writes) == at:
                raise KeyboardInterrupt
            really(*arguments, **more)

        with monkeypatch.context() as patched:
            patched.setattr(state_files, "put_once", put)
            if at < 2:  # a write for each shard
                with pytest.raises(KeyboardInterrupt):
                    reshard(play, 2)
            else:
                reshard(play, 2)
        play.in_shards(shards, Apart).start()
        batch(play, 1)
        assert changes(play) == changes(one), at


def test_what_was_dealt_out_before_another_batch_is_of_no_use(tmp_path: Path) -> None:
    one, play = Play(TOML, tmp_path / "one"), Play(TOML, tmp_path / "play")
    for number in range(3):
        batch(one, number)
    batch(play, 0)
    reshard(play, 3)
    batch(play, 1)  # the driver went on as it was
    play.in_shards(3, Apart).start()
    batch(play, 2)
    assert changes(play) == changes(one)


def test_the_file_of_the_topology_must_have_the_same_number(tmp_path: Path) -> None:
    play = Play(TOML, tmp_path)
    assert reshard(play, 2) == "play/events: no batch was decided yet, so there is no state"
    batch(play, 0)
    assert reshard(play, 2).endswith("its file has shards = 1: write 2, then start its driver")
    play.in_shards(2, Apart)
    assert reshard(play, 2).endswith("to 2 shards; start its driver")


def test_nothing_is_dealt_out_while_a_driver_lives(tmp_path: Path) -> None:
    play = Play(TOML, tmp_path)
    batch(play, 0)
    Control(Layout(tmp_path).control("play", "events")).acquire()
    with pytest.raises(InvalidArgument, match="play/events: its driver lives; drain it first"):
        reshard(play, 2)


def test_what_cannot_run_in_shards_is_refused(tmp_path: Path) -> None:
    play = Play(f'max_drift = "1 s"\n{TOML}', tmp_path)
    batch(play, 0)
    with pytest.raises(NotSharded, match="max_drift makes partitions wait for each other"):
        reshard(play, 2)
