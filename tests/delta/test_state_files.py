"""A starting driver restores its predecessor's state from files and journal."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from support.play import NOON, Play, Row
from support.topologies import aggregate, join, repartition, source, table, topology_of
from tidemark.errors import UnreadableFile
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings
from tidemark.stream.state import files as state_files
from tidemark.stream.state.memory import Memory

TOPOLOGY = topology_of(
    events=source(key="id"),
    asks=source("id string", topic="asks"),
    newest=table(columns=["v"]),
    sums=aggregate(key=["id"], aggregates={"n": "count(*)", "total": "sum(v)"}, window={"tumbling": "10 s"}),
    joined=join("asks", "newest", on={"id": "id"}),
    by_v=repartition("joined", key=["v"], id=["id"], columns=["event_time"]),
    per_v=aggregate("by_v", key=["v"], aggregates={"n": "count(*)"}),
)


def play(home: Path, *, flush_keys: int = 50_000, flush_batches: int = 200) -> Play:
    return Play(f"flush_keys = {flush_keys}\nflush_batches = {flush_batches}\n{TOPOLOGY}", home)


def batch(play: Play, number: int, random: Random) -> None:
    """Runs a batch of five keys, one deleted, and two look-ups.

    It comes three seconds after the batch before.
    """
    at_ms = NOON + 3_000 * number
    rows = [play.row("events", at_ms, id=random.choice("abcde"), v=random.randint(0, 2)) for _ in range(6)]
    asks = [play.row("asks", at_ms, id=random.choice("abcde")) for _ in range(2)]
    deleted: Row = {**play.row("events", at_ms, id=random.choice("abcde")), "deleted": True}
    play.batch([*rows, deleted, *asks], at_ms=at_ms)


def state(play: Play) -> dict[str, list[str]]:
    """Returns the driver's state as text."""
    memory: Memory = play._engines[play.sub]._steps.memory
    kept = {place: rows.all() for place, rows in memory.kept()}
    for name, rows in memory.versions.items():
        kept[f"versions/{name}"] = rows.unique(["id", "_valid_from_ms"], keep="last", maintain_order=True)  # they count
    return {place: sorted(map(str, rows.rows())) for place, rows in kept.items()} | {"held": [str(memory.held)]}


@pytest.mark.parametrize(
    "flushes", [*(pytest.param({"flush_keys": n}, marks=pytest.mark.long) for n in (1, 9)), {"flush_batches": 3}]
)
def test_a_start_has_the_state_of_the_driver_before(tmp_path: Path, flushes: dict[str, int]) -> None:
    without, with_files = play(tmp_path / "one"), play(tmp_path / "two", **flushes)
    for number in range(8):
        for each, seed in ((without, Random(number)), (with_files, Random(number))):
            batch(each, number, seed)
        assert state(with_files) == state(without)
        with_files.start()
    assert with_files.tables() == without.tables()


def files(play: Play) -> list[Path]:
    return sorted((play.home / "control").rglob("state/1/0/*.run"))


def journal(play: Play) -> Journal:
    (home,) = (play.home / "control").rglob("journal")
    return Journal(home, "data")


@pytest.mark.parametrize(("harm", "seen"), [("torn", "is incomplete"), ("gone", "is missing")])
def test_a_start_is_refused_where_a_file_cannot_be_read(tmp_path: Path, harm: str, seen: str) -> None:
    of_files = play(tmp_path, flush_keys=1)
    for number in range(4):
        batch(of_files, number, Random(number))
    last = files(of_files)[-1]
    if harm == "torn":
        last.write_bytes(last.read_bytes()[:-100])
    else:
        last.unlink()
    stream = Stream(of_files.topology, of_files.topology.sub_topologies[0], Layout(tmp_path))
    (found,) = [each for each in findings(evidence(stream)) if each.fault is Fault.JOURNAL_UNREADABLE]
    assert found.seen == f"{last}: with states of the stream: it {seen}"
    before = of_files.tables()
    of_files.start()
    with pytest.raises(UnreadableFile, match=f"{last.name}: with states of the stream: "):
        batch(of_files, 4, Random(4))
    assert of_files.tables() == before


def test_states_are_read_with_current_columns_of_the_topology(tmp_path: Path) -> None:
    before = play(tmp_path, flush_keys=4)
    for number in range(3):
        at_ms = NOON + number
        before.batch([before.row("events", at_ms, id=id_, v=number) for id_ in "ab"], at_ms=at_ms)
    toml = before.toml.replace('total = "sum(v)"', 'least = "min(v)"')
    now = Play(toml, tmp_path)
    now.resume({now.sub: 3}, {("events", 0): 6})
    now.batch([now.row("events", NOON + 3, id="a", v=7)], at_ms=NOON + 3)
    newest = {row["key"]: row["value"] for row in now.rows("changes") if row["operator"] == "sums"}
    # Of the least value nothing was kept before: it is that of the records since.
    assert newest == {
        f'{{"id":"a","window_start":{NOON}}}': '{"n":4,"least":7}',
        f'{{"id":"b","window_start":{NOON}}}': '{"n":3,"total":3}',
    }


def test_a_file_is_larger_than_all_files_after_it(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_keys=1)
    sizes = []
    for number, ids in enumerate(["abcdef", "a", "b", "cd", "e", "f", "abcd"]):
        rows = [of_files.row("events", NOON + number, id=id_, v=number) for id_ in ids]
        of_files.batch(rows, at_ms=NOON + number)
        sizes.append([run.rows for run in runs(of_files).runs])
    # Of a key what the table and the aggregate sent on, the state of its window, and a version: four rows. Files that
    # are no larger become one with the next; the last has all: three rows a key, a version for each record.
    assert sizes == [[24], [24, 4], [24, 8], [24, 16], [24, 16, 4], [24, 16, 8], [6 * 3 + 16]]


def test_changes_since_the_newest_file_are_in_the_journal(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_keys=9)
    found = []
    for number, ids in enumerate(["ab", "a", "c", "abc", "b"]):
        rows = [of_files.row("events", NOON + number, id=id_, v=number) for id_ in ids]
        of_files.batch(rows, at_ms=NOON + number)
        newest = journal(of_files).newest()
        assert newest is not None
        moved = sum(rows.num_rows for name, rows in newest.tables.items() if name.startswith(state_files.MOVED))
        found.append((runs(of_files).batch_id, [run.rows for run in runs(of_files).runs], moved))
    # Three rows a key and a version a record make a file due before batch 2. Those of batch 3 are too many for the
    # journal: with the key before they are more than the first file has, which becomes one with them.
    assert found == [(-1, [], 8), (-1, [], 4), (1, [2 * 3 + 3], 4), (3, [3 * 3 + 7], 0), (3, [3 * 3 + 7], 4)]
    assert journal(of_files).batches() == [0, 1, 2, 3, 4]


def test_the_journal_is_kept_until_a_file_has_its_changes(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_batches=10)
    kept = []
    for number in range(19):
        of_files.batch([of_files.row("events", NOON + number, id="a", v=number)], at_ms=NOON + number)
        kept.append(journal(of_files).batches())
    assert kept[9] == [*range(10)]
    # Before batch 10 a file gets the state after 9: of the batches before, the five newest stay.
    assert (kept[10], kept[18]) == ([*range(5, 11)], [*range(10, 19)])


def runs(play: Play) -> StateRuns:
    newest = journal(play).newest()
    assert newest is not None
    (found,) = newest.notes.decision.states
    return found


def test_files_that_no_entry_names_are_removed(tmp_path: Path) -> None:
    of_files = play(tmp_path, flush_keys=1)
    for number in range(8):
        batch(of_files, number, Random(number))
    stray = files(of_files)[0].with_name("00000000000000000099-stray.run")
    stray.write_bytes(b"")
    batch(of_files, 8, Random(8))
    assert not stray.exists()
    assert [file.name for file in files(of_files)] == [run.name for run in runs(of_files).runs]


@pytest.mark.parametrize("number", [1, 11])
def test_a_start_reads_no_tables(tmp_path: Path, number: int) -> None:
    of_files = play(tmp_path, flush_batches=5)
    for earlier in range(number):
        batch(of_files, earlier, Random(earlier))
    for rows in of_files.home.glob("streams/*/*/*/*.parquet"):
        rows.unlink()
    of_files.start()
    batch(of_files, number, Random(number))
