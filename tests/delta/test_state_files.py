"""A driver that starts has the state that the one before it had, from files and what was written since."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from playing import EVENTS, NOON, Play, Row

from tidemark.stream import load, state_files
from tidemark.stream.journal import Entry, Journal
from tidemark.stream.state import Memory
from tidemark.stream.state_files import StateRuns

TOPOLOGY = (
    EVENTS
    + """
key = "id"
[operators.asks]
kind = "source"
topic = "asks"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
columns = ["v"]
[operators.sums]
kind = "aggregate"
input = "events"
key = ["id"]
aggregates = { n = "count(*)", total = "sum(v)" }
window = { tumbling = "10 s" }
[operators.joined]
kind = "join"
input = "asks"
table = "newest"
on = { id = "id" }
[operators.by_v]
kind = "repartition"
input = "joined"
key = ["v"]
id = ["id"]
columns = ["event_time"]
[operators.per_v]
kind = "aggregate"
input = "by_v"
key = ["v"]
aggregates = { n = "count(*)" }
"""
)


def play(home: Path, *, flush_keys: int = 50_000, flush_batches: int = 200) -> Play:
    return Play(f"flush_keys = {flush_keys}\nflush_batches = {flush_batches}\n{TOPOLOGY}", home)


def batch(play: Play, number: int, random: Random) -> None:
    """Records of five keys, one of them deleted, and two that ask; three seconds later than the batch before."""
    at_ms = NOON + 3_000 * number
    rows = [play.row("events", at_ms, id=random.choice("abcde"), v=random.randint(0, 2)) for _ in range(6)]
    asks = [play.row("asks", at_ms, id=random.choice("abcde")) for _ in range(2)]
    deleted: Row = {**play.row("events", at_ms, id=random.choice("abcde")), "deleted": True}
    play.batch([*rows, deleted, *asks], at_ms=at_ms)


def state(play: Play) -> dict[str, list[str]]:
    """What the driver keeps, as text."""
    memory: Memory = play._engines[play.sub]._steps.memory
    kept = {place: rows.all() for place, rows in memory.kept()}
    for name, rows in memory.versions.items():
        kept[f"versions/{name}"] = rows.unique(["id", "_valid_from_ms"], keep="last", maintain_order=True)  # they count
    return {place: sorted(map(str, rows.rows())) for place, rows in kept.items()} | {"held": [str(memory.held)]}


@pytest.mark.parametrize("flushes", [{"flush_keys": 1}, {"flush_keys": 9}, {"flush_batches": 3}])
def test_a_start_has_the_state_of_the_driver_before(tmp_path: Path, flushes: dict[str, int]) -> None:
    without, with_files = play(tmp_path / "one"), play(tmp_path / "two", **flushes)
    for number in range(12):
        for each, seed in ((without, Random(number)), (with_files, Random(number))):
            batch(each, number, seed)
        assert state(with_files) == state(without)
        with_files.start()
    assert with_files.tables() == without.tables()


def files(play: Play) -> list[Path]:
    return sorted((play.home / "control").rglob("state/*.zip"))


def journal(play: Play) -> Journal:
    (home,) = (play.home / "control").rglob("journal")
    return Journal(home, "data")


@pytest.mark.parametrize("harm", ["torn", "gone", "of another version", "with other columns"])
def test_the_tables_have_the_state_when_a_file_cannot_be_read(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, with_files = play(tmp_path / "one"), play(tmp_path / "two", flush_keys=1)
    for number in range(6):
        if number == 4:
            with_files.start()
            last = files(with_files)[-1]
            if harm == "torn":
                last.write_bytes(last.read_bytes()[:-100])
            elif harm == "gone":
                last.unlink()
            elif harm == "of another version":
                monkeypatch.setattr(state_files, "FORMAT", 0)
            else:
                kept = state_files.packed(Entry(-1, {"stored/newest": pl.DataFrame({"key": [1]}).to_arrow()}))
                last.write_bytes(kept)
        for each in (without, with_files):
            batch(each, number, Random(number))
    assert state(with_files) == state(without)
    assert ("is read from the tables" in caplog.text) == (harm != "of another version")


def test_a_file_has_what_moved_until_one_has_all(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_keys=1)
    sizes = []
    for number, ids in enumerate(["abcdef", "a", "b", "cd", "e", "f"]):
        rows = [of_files.row("events", NOON + number, id=id_, v=number) for id_ in ids]
        of_files.batch(rows, at_ms=NOON + number)
        newest = journal(of_files).newest()
        assert newest is not None
        sizes.append([run.rows for run in StateRuns.of(newest.notes).runs])
    # Of a key what the table and the aggregate sent on, the state of its window, and a version: four rows.
    # An entry names what its batch found: the state before it.
    assert sizes == [[], [24], [24, 4], [24, 4, 4], [24, 4, 4, 8], [24, 4, 4, 8, 4]]
    for number in (6, 7):
        of_files.batch([of_files.row("events", NOON + number, id="a", v=number)], at_ms=NOON + number)
    newest = journal(of_files).newest()
    assert newest is not None
    (run,) = StateRuns.of(newest.notes).runs
    assert run.rows == 6 * 3 + 13  # every version, as many as there were records


def test_files_that_no_entry_names_are_removed(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_keys=1)
    for number in range(20):
        batch(of_files, number, Random(number))
    entries = [journal(of_files).read(batch_id) for batch_id in journal(of_files).batches()]
    named = {run.name for entry in entries if entry for run in StateRuns.of(entry.notes).runs}
    before = len(files(of_files))
    stray = files(of_files)[0].with_name("00000000000000000099-stray.zip")
    stray.write_bytes(b"")
    batch(of_files, 20, Random(20))
    assert not stray.exists()
    assert before == len(named)


def test_a_start_reads_of_the_tables_what_was_written_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_files = play(tmp_path, flush_batches=5)
    for number in range(14):
        batch(of_files, number, Random(number))
    read: list[int] = []
    read_before = load.read_before

    def counted(path: Path, batch_id: int, *arguments: object, **options: Any) -> pl.DataFrame:
        read.append(options.get("after", -1))
        return read_before(path, batch_id, *arguments, **options)

    monkeypatch.setattr(load, "read_before", counted)
    of_files.start()
    batch(of_files, 14, Random(14))
    # The first file was due in batch 5 and has the state after 4, the second has it after 9.
    assert set(read) == {9}
