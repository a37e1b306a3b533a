"""Each record that did not go on is one row of `dead_letters`, although two kinds of commits write them."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from support.crashes import Crash, crash_at
from support.play import Play, Row, bad, ms
from support.topologies import NEWEST_SENT, map_of, sink, source, topology_of
from tidemark.query.sql import Warehouse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings

REFUSING = topology_of(
    events=source("id string, v int"), mapped=map_of(select={"id": "id", "v": "v"}), out=sink("mapped", table="kept")
)
STRICT = NEWEST_SENT.replace('bound = "1 s"', 'bound = "1 s"\nallowed_lateness = "0 ms"')
HOUR_MS = 3_600_000
BATCHES = 3
LAST = BATCHES - 1
LETTERS = [
    *((n, "late", 4 * n + 2) for n in range(1, BATCHES)),  # before the first batch there is no watermark
    *((n, "quarantined", 4 * n + 3) for n in range(BATCHES)),
    *((n, "undeliverable", 4 * n + 1) for n in range(BATCHES)),
]
"""Batch, kind and offset of each."""
BESIDE = ("committed out", "committed undeliverable", "committed dead_letters")
"""Steps before, between and after the two commits."""


def play_with(home: Path, *, facts_every_ms: int) -> Play:
    play = Play(STRICT, home, facts_every_ms=facts_every_ms)
    play.broker.refuses = lambda record: record["id"] == "b"
    return play


def records(play: Play, n: int) -> list[Row]:
    """One record that is sent, one that the topic refuses, one that is late, and one that cannot be read."""
    usable = [(10 * n, "a"), (10 * n, "b"), (-60, "a")]
    rows = [play.row("events", ms(second), id=id_, v=n) for second, id_ in usable]
    return [*rows, bad("malformed_json")(play)]


def letters(play: Play) -> list[tuple[int, str, int]]:
    """What a reader of table and journal sees."""
    asked = 'SELECT batch_id, kind, "offset" FROM dead_letters ORDER BY kind, batch_id'
    return [*Warehouse(play.home).ask(asked).rows]  # type: ignore[list-item]


@pytest.mark.parametrize("facts_every_ms", [0, HOUR_MS])
def test_a_kill_between_the_two_commits_loses_and_repeats_no_row(tmp_path: Path, facts_every_ms: int) -> None:
    play = play_with(tmp_path / "before", facts_every_ms=facts_every_ms)
    for n in range(LAST):
        play.batch(records(play, n), at_ms=ms(10 * n))
    rows, steps = records(play, LAST), list[str]()
    watched = play.copied_to(tmp_path / "watched")
    watched.start(epoch=2, reached=steps.append)
    watched.batch(rows, at_ms=ms(20))
    # Waiting rows are committed after the refused ones of the same batch, or by a start before those of the next.
    in_turn = [step for step in steps if step in BESIDE]
    start = [BESIDE[2]] if facts_every_ms else []
    assert in_turn == [*start, BESIDE[0], BESIDE[1], *([] if facts_every_ms else [BESIDE[2]])]
    for number in range(len(in_turn)):
        killed, reached = play.copied_to(tmp_path / str(number)), list[str]()

        def reach(name: str, *, number: int = number, reached: list[str] = reached) -> None:
            reached += [name] if name in BESIDE else []
            if len(reached) > number:
                raise Crash(name)

        killed.start(epoch=2, reached=reach)
        with pytest.raises(Crash):
            killed.batch(rows, at_ms=ms(20))
        seen = letters(killed)
        assert len(seen) == len({*seen}), reached
        assert {one for one in LETTERS if one[0] < LAST} <= {*seen} <= {*LETTERS}, reached
        killed.start(epoch=3)
        killed.batch(rows, at_ms=ms(20))
        assert letters(killed) == LETTERS, reached
        killed.engine(killed.sub).flush()
        in_table = sorted((row["kind"], row["batch_id"], row["offset"]) for row in killed.rows("dead_letters"))
        assert in_table == [(kind, n, offset) for n, kind, offset in LETTERS], reached


def faults(play: Play) -> list[tuple[Fault, str]]:
    """What a start would find, but that a play has no checkpoint."""
    found = findings(evidence(play.stream(play.sub)))
    return [(each.fault, each.seen) for each in found if each.fault is not Fault.CHECKPOINT_GONE]


def test_each_of_the_two_commits_is_promised_to_a_start(tmp_path: Path) -> None:
    play = play_with(tmp_path, facts_every_ms=0)
    path, older = play.table("dead_letters"), tmp_path / "older"
    play.batch([play.row("events", ms(0), id="a", v=0), bad("malformed_json")(play)], at_ms=ms(0))
    shutil.copytree(path, older)
    play.batch([play.row("events", ms(1), id="b", v=1)], at_ms=ms(1))
    play.batch([play.row("events", ms(2), id="a", v=2)], at_ms=ms(2))
    assert faults(play) == []
    newer = shutil.move(path, tmp_path / "newer")
    shutil.move(older, path)
    lost = f"{path}: its newest batch was 1, but now is none: it is an older copy, or was recreated"
    assert faults(play) == [(Fault.TABLE_RESTORED, lost)]
    shutil.rmtree(path)
    assert faults(play) == [(Fault.TABLE_DELETED, f"{path}: it no longer exists, but had rows of batch 1")]
    shutil.move(newer, path)
    table = DeltaTable(str(path))
    assert faults(play) == []
    table.restore(table.version() - 1)  # without the refused record
    seen = f"{path} was restored to version {table.version() - 2}, so that newer rows are missing"
    assert faults(play) == [(Fault.TABLE_RESTORED, seen)]


def test_files_of_either_commit_are_looked_for_until_the_table_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", 1)  # the journal only names the files
    play = Play(REFUSING, tmp_path)
    play.batch([play.row("events", ms(0), id="a", v=1)], at_ms=ms(0))
    DeltaTable(str(play.table("kept"))).alter.add_constraint({"positive": "v > 0"})
    rows = [play.row("events", ms(1), id="a", v=-1), bad("malformed_json")(play)]
    play.start(epoch=2, reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.batch(rows, at_ms=ms(1))
    path = play.table("dead_letters")
    files = sorted(path.glob("*.parquet"))
    kinds = {pl.read_parquet(file)["kind"].item(): file for file in files}
    assert sorted(kinds) == ["quarantined", "undeliverable"]
    assert faults(play) == []
    missing = {
        kind: (Fault.JOURNAL_UNREADABLE, f"{file}: with rows of batch 1: it is missing") for kind, file in kinds.items()
    }
    for file in files:
        file.rename(file.with_suffix(".gone"))
    assert {*faults(play)} == {*missing.values()}
    for file in files:
        file.with_suffix(".gone").rename(file)
    play.start(epoch=3, reached=crash_at("committed undeliverable"))
    with pytest.raises(Crash):
        play.process(1, rows, at_ms=ms(1))
    # A file of committed rows may have been compacted since.
    for file in files:
        file.rename(file.with_suffix(".gone"))
    assert faults(play) == [missing["quarantined"]]
