"""`tidemark reshard` redistributes a state without changing later results."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.play import Play, ms
from support.separate_executors import Apart
from support.topologies import EVENTS, aggregate, operators, repartition, table
from tidemark.cli.repair.reshard import reshard_plan
from tidemark.cli.shared.plan import PlanChanged
from tidemark.control.folder import AlreadyRunning, Control
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.layout import Layout
from tidemark.stream.shards import resharding, sharding
from tidemark.stream.shards.sharding import ShardingImpossible
from tidemark.stream.state import files as state_files
from tidemark.stream.state.memory import Memory

COUNTS = operators(
    newest=table(),
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)", "total": "sum(v)"}),
)
TOML = f"flush_keys = 5\n{EVENTS}{COUNTS}"


def reshard(play: Play, shards: int) -> str:
    return reshard_plan(play.topology, play.home, None, shards).apply()


def batch(play: Play, number: int) -> None:
    """Records of twelve keys, seven of them in each batch."""
    at_ms = ms(3 * number)
    ids = ["abcdefghijkl"[(number * 5 + n) % 12] for n in range(7)]
    play.batch([play.row("events", at_ms + n, id=id_, v=n) for n, id_ in enumerate(ids)], at_ms=at_ms + 100)


def changes(play: Play) -> list[tuple[Any, ...]]:
    rows = play.rows("changes")
    return sorted((r["batch_id"], r["operator"], r["key"], r["value"], str(r["old_timestamp"])) for r in rows)


def test_a_driver_starts_with_the_redistributed_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, play = Play(TOML, tmp_path / "one"), Play(TOML, tmp_path / "play")
    read: list[Path] = []
    really = state_files._read
    monkeypatch.setattr(state_files, "_read", lambda path, keys: read.append(path) or really(path, keys))
    before = 1
    for number, shards in enumerate((1, 4, 2, 7, 1)):
        if number:
            assert "its state is in" in reshard(play, before)
            assert f" after batch {number - 1} went from {before} shard" in reshard(play, shards)
            read.clear()
        play.in_shards(shards, Apart).start()
        batch(play, number)
        assert {path.parts[-3] for path in read} <= {str(shards)}, "files of its own shards alone"
        assert {path.parts[-3] for path in play.home.rglob("state/*/*/*.run")} <= {str(shards)}, "others are removed"
        before = shards
    for number in range(5):
        batch(one, number)
    assert changes(play) == changes(one)


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Raise *error* in place of the write number *at*."""
    writes = count()

    def interrupted(really: Callable[..., None]) -> Callable[..., None]:
        def put(*arguments: Any, **more: Any) -> None:
            if next(writes) == at:
                raise error
            really(*arguments, **more)

        return put

    for module, name in ((state_files, "put_written"), (resharding, "put_once")):
        monkeypatch.setattr(module, name, interrupted(getattr(module, name)))


def in_state(play: Play) -> set[Path]:
    """The files with states, and what names them."""
    return {path for path in play.home.rglob("state/**/*") if path.is_file()}


WRITES = 2 * 2 + 1
"""Number of writes that redistribute a state of two shards to three.

Each old shard has a file for each new shard with keys, and one more file names them. By MD5 no key is in the first of
the three.
"""


@pytest.fixture(scope="module")
def in_two_shards(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Plays two batches in two shards, to copy."""
    play = Play(TOML, tmp_path_factory.mktemp("shards") / "two").in_shards(2, Apart)
    batch(play, 0)
    batch(play, 1)
    return play


@pytest.fixture(scope="module")
def changes_of_three(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """Returns the changes of three batches in the driver."""
    one = Play(TOML, tmp_path_factory.mktemp("one"))
    for number in range(3):
        batch(one, number)
    return changes(one)


@pytest.mark.parametrize(
    ("shards", "at"),
    [
        pytest.param(shards, at, marks=() if shards == (3, 2)[at % 2] else pytest.mark.long)
        for shards in (2, 3)
        for at in range(WRITES)
    ],
)
def test_a_crash_of_reshard_between_two_writes_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_two_shards: Play,
    changes_of_three: list[tuple[Any, ...]],
    shards: int,
    at: int,
) -> None:
    play = in_two_shards.copied_to(tmp_path / "play").in_shards(2, Apart)
    before = in_state(play)
    with monkeypatch.context() as patched:
        interrupt(patched, at, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            reshard(play, 3)
    assert len(in_state(play) - before) == at
    play.in_shards(shards, Apart).start()
    batch(play, 2)
    assert changes(play) == changes_of_three
    assert {path.parts[-3] for path in in_state(play)} <= {str(shards)}


def test_reshard_repeated_after_a_crash_leaves_no_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(TOML, tmp_path).in_shards(2, Apart)
    batch(play, 0)
    batch(play, 1)
    before = in_state(play)
    reshard(play, 7)
    with monkeypatch.context() as patched:
        interrupt(patched, WRITES - 1, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            reshard(play, 3)
    (tmp_path / "control/play/events/state/3/1/killed.partial").write_bytes(b"half")
    reshard(play, 3)
    assert before <= in_state(play)
    assert len(in_state(play) - before) == WRITES


def test_a_full_disk_is_reported_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(TOML, tmp_path)
    batch(play, 0)
    interrupt(monkeypatch, 1, OSError(28, "No space left on device"))
    with pytest.raises(TidemarkError, match=r"play/events: .*No space left on device.*the state is unchanged"):
        reshard(play, 2)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_damaged_redistributed_state_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    one, play = Play(TOML, tmp_path / "one"), Play(TOML, tmp_path / "play").in_shards(2, Apart)
    for number in range(2):
        batch(one, number)
    batch(play, 0)
    reshard(play, shards)
    next(play.home.rglob(f"state/{shards}/*/*.run")).write_bytes(b"torn")
    play.in_shards(shards, Apart).start()
    batch(play, 1)
    assert changes(play) == changes(one)
    assert "is incomplete" in caplog.text


def test_reshard_loads_one_old_shard_and_places_keys_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(TOML, tmp_path).in_shards(4, Apart)
    batch(play, 0)
    alive: list[int] = []
    placed: list[int] = []
    seen: list[weakref.ref[Any]] = []
    really_load, really_place, whole = state_files.StateFiles.load, sharding.shard_of, Memory.whole

    def loading(self: Any, memory: Memory, *arguments: Any, **more: Any) -> None:
        gc.collect()
        alive.append(sum(each() is not None for each in seen))
        seen.append(weakref.ref(memory))
        really_load(self, memory, *arguments, **more)

    def taking(memory: Memory) -> Any:
        tables = whole(memory)
        seen.extend(map(weakref.ref, tables.values()))
        return tables

    def placing(texts: Any, shards: int) -> Any:
        placed.append(len(texts))
        return really_place(texts, shards)

    monkeypatch.setattr(state_files.StateFiles, "load", loading)
    monkeypatch.setattr(Memory, "whole", taking)
    monkeypatch.setattr(sharding, "shard_of", placing)
    reshard(play, 7)
    assert alive == [0, 0, 0, 0], "no rows of an old shard when the next one is loaded"
    # Of each of seven keys what the table and the aggregate sent on, and the state of its window.
    assert sum(placed) == 7 * 3


def test_a_redistributed_state_expires_with_the_next_batch(tmp_path: Path) -> None:
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


def test_reshard_is_refused_while_a_driver_runs(tmp_path: Path) -> None:
    play = Play(TOML, tmp_path)
    batch(play, 0)
    Control(Layout(tmp_path).control("play", "events")).acquire()
    with pytest.raises(InvalidArgument, match="play/events: its driver is running; drain it first"):
        reshard(play, 2)


def test_a_topology_unfit_for_shards_is_refused(tmp_path: Path) -> None:
    play = Play(f'max_drift = "1 s"\n{TOML}', tmp_path)
    batch(play, 0)
    with pytest.raises(ShardingImpossible, match="max_drift makes partitions wait for each other"):
        reshard(play, 2)


def test_no_driver_starts_while_reshard_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(TOML, tmp_path)
    batch(play, 0)
    refused: list[str] = []

    def loading(*_: Any, **__: Any) -> None:
        with pytest.raises(AlreadyRunning) as error:
            Control(play.control.home).acquire()
        refused.append(str(error.value))

    monkeypatch.setattr(state_files.StateFiles, "load", loading)
    reshard(play, 2)
    assert len(refused) == 1
    assert not play.control.is_held()


def test_reshard_prints_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidemark.stream")
    play = Play(TOML, tmp_path).in_shards(2, Apart)
    batch(play, 0)
    told: list[str] = []
    line = reshard_plan(play.topology, play.home, None, 3, told.append).apply()
    named = list(play.home.rglob("state/3/*/*.run"))
    size = sum(path.stat().st_size for path in named)
    # Seven keys, three rows each.
    assert re.sub(r"[\d,]+ bytes", "N bytes", line) == (
        "play/events: 21 rows (N bytes) of its state after batch 0 went from 2 shards to 3 shards; its file has shards "
        "= 2: write 3, then start its driver"
    )
    assert f"({size:,} bytes)" in line
    assert [re.sub(r": \d+ rows", ": n rows", each) for each in told] == [
        "play/events: partitioned the state of 1 of 2 shards: n rows",
        "play/events: partitioned the state of 2 of 2 shards: n rows",
    ]
    play.in_shards(3, Apart).start()
    batch(play, 1)
    assert "starting with 3 shards written by `tidemark reshard`" in caplog.text


def test_a_stream_that_has_gone_on_is_not_resharded(tmp_path: Path) -> None:
    play = Play(TOML, tmp_path)
    batch(play, 0)
    plan = reshard_plan(play.topology, play.home, None, 2)
    batch(play, 1)
    before = in_state(play)
    with pytest.raises(PlanChanged, match="play/events: it has decided batch 1 since; its state is unchanged"):
        plan.apply()
    assert in_state(play) == before


def test_reshard_changes_no_stream_if_one_is_unsuitable(tmp_path: Path) -> None:
    hop = operators(
        by_v=repartition(key=["id"], columns=["event_time"]),
        total=aggregate("by_v", key=["id"], aggregates={"n": "count(*)"}),
        at=table("by_v", key=["event_time"]),
    )
    play = Play(TOML + hop, tmp_path)
    batch(play, 0)
    before = in_state(play)
    with pytest.raises(ShardingImpossible, match="by_v cannot run in shards"):
        reshard_plan(play.topology, play.home, None, 2)
    assert in_state(play) == before
