"""The engine leaves the same tables in object stores and folders.

Drivers end, resume or interfere with each other meanwhile.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import NEWEST_SENT
from tidemark.cli.explain import topology
from tidemark.cli.repair import accept_loss, doctor
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import Contradiction, InvalidArgument
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.query.attach import attach_script
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.compaction import data_files_of
from tidemark.storage.delta.tables import scan
from tidemark.storage.files import Files
from tidemark.storage.location import location
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings
from tidemark.why import walk

SUB = "events"
T = 1_400_000_000_000
MANY = 6_000


def play_batch(play: Play, number: int) -> None:
    """Batch *number*: two keys, the values of which are the batch."""
    rows = [play.row("events", T + 1_000 * number + n, id=id_, v=number) for n, id_ in enumerate("ab")]
    play.batch(rows, at_ms=T + 1_000 * number)


def play_all(home: Path) -> Play:
    play = Play(NEWEST_SENT, home)
    for number in range(3):
        play_batch(play, number)
    return play


def drive(play: Play, **hooks: object) -> Control:
    """Gives the lease of an ended driver to one of *play*.

    It has sent one heartbeat, now.
    """
    control = Control(Layout(play.home).control("play", SUB))
    epoch = control.acquire()
    control.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="", at_ms=wall_clock_ms(), pid=1))
    hooks = {"check_lease": partial(control.check_lease, epoch), **hooks}
    play.start(SUB, epoch=epoch, **hooks)  # type: ignore[arg-type]
    return control


def silence(control: Control) -> None:
    """Makes the holder of the lease silent for years."""
    newest = control.home / "epochs" / f"{control.epoch():020d}"
    newest.write_text(json.dumps({"at_ms": 0, "released": False}))
    (control.home / "heartbeat.json").unlink()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return play_all(tmp_path_factory.mktemp("undisturbed")).tables()


def test_a_crash_in_a_batch_leaves_the_same_tables_as_a_folder(
    warehouse: Path, undisturbed: dict[str, list[str]]
) -> None:
    play = Play(f"flush_keys = 1\n{NEWEST_SENT}", warehouse)
    play_batch(play, 0)
    play.start(SUB, reached=crash_at("committed changes_of_board"))
    with pytest.raises(Crash):
        play_batch(play, 1)
    play.start(SUB)
    play.process(1, [], at_ms=T + 1_000, sub=SUB)  # what it says is in the journal
    play._batches[SUB] = 2
    play_batch(play, 2)
    assert play.tables() == undisturbed
    assert [*(Layout(warehouse).control("play", SUB) / "state").iterdir()]


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({}, "another driver has taken over this stream with epoch 2; this driver, with epoch 1"),
        ({"check_lease": lambda: None}, "another driver (committed|decided)"),  # it has asked just before
    ],
)
def test_an_older_driver_that_resumes_commits_nothing(
    warehouse: Path, undisturbed: dict[str, list[str]], hooks: dict[str, object], said: str
) -> None:
    older, newer = Play(NEWEST_SENT, warehouse), []

    def reached(name: str) -> None:
        if name == "committed changes" and not newer and older.now_ms == T + 1_000:
            # What the older driver sees as one instant is long enough for another to take over and go on.
            newer.append(older.copy(warehouse))
            silence(control)
            drive(newer[0])
            newer[0]._offsets.update({("events", 0): 2})
            for number in (1, 2):
                play_batch(newer[0], number)

    control = drive(older, reached=reached, **hooks)
    play_batch(older, 0)
    with pytest.raises(Contradiction, match=said):
        play_batch(older, 1)
    assert older.tables() == undisturbed


def test_of_two_drivers_only_one_decides_a_batch(warehouse: Path) -> None:
    one, other = Journal(warehouse, "data"), Journal(warehouse, "data")
    one.write(Entry(1, {"changes": pa.table({"v": [1]})}))
    with pytest.raises(Contradiction, match="another driver already decided this batch"):
        other.write(Entry(1, {"changes": pa.table({"v": [2]})}))
    newest = other.newest()
    assert newest is not None
    assert newest.tables["changes"].to_pydict() == {"v": [1]}  # type: ignore[union-attr]


def test_a_batch_whose_rows_lie_in_files_is_committed_from_them(warehouse: Path) -> None:
    play = Play(NEWEST_SENT, warehouse)
    play.batch([play.row("events", T + n, id=f"k{n}", v=n) for n in range(MANY)], at_ms=T + MANY)
    newest = Journal(Layout(warehouse).control("play", SUB) / "journal", "data").newest()
    assert newest is not None
    assert isinstance(newest.tables["changes"], Files)
    assert newest.tables["changes"].num_rows == MANY
    assert sum(batch.num_rows for batch in newest.tables["changes"].stream()) == MANY
    assert Counter(row["operator"] for row in play.rows("changes")) == {"newest": MANY}


def test_a_stream_ends_when_foreign_rows_enter_its_tables(warehouse: Path) -> None:
    play = Play(NEWEST_SENT, warehouse)
    drive(play)
    play_batch(play, 0)
    board = Layout(warehouse).stream_table("play", SUB, "board")
    write_deltalake(str(board), scan(board).collect().to_arrow(), mode="append")
    with pytest.raises(Contradiction, match="another writer added rows with version"):
        play_batch(play, 1)
    stream = Stream(play.topology, play.topology.sub_topologies[0], Layout(warehouse))
    assert Fault.TABLE_OF_OTHERS in {finding.fault for finding in findings(evidence(stream))}


def optimize(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()


def test_a_stream_continues_when_others_compact_its_tables(warehouse: Path, undisturbed: dict[str, list[str]]) -> None:
    play = Play(NEWEST_SENT, warehouse)
    drive(play)
    for number in range(3):
        play_batch(play, number)
        if number:
            for name in ("changes", "board"):
                optimize(Layout(warehouse).stream_table("play", SUB, name))
    assert play.tables() == undisturbed


def test_maintenance_makes_tables_small_beside_a_running_stream(
    warehouse: Path, undisturbed: dict[str, list[str]]
) -> None:
    play = Play(NEWEST_SENT, warehouse)
    drive(play)
    stream = Stream(play.topology, play.topology.sub_topologies[0], Layout(warehouse))
    for number in range(2):
        play_batch(play, number)
    maintain_stream(stream, now_ms=wall_clock_ms() + 10_000, closed_after_ms=0)
    assert len(data_files_of(stream.home / "operator_batches")) == 1
    play_batch(play, 2)
    assert play.tables() == undisturbed


@pytest.fixture(scope="module")
def played(store: str) -> Play:
    """Three batches in an object store that no test changes."""
    return play_all(location("s3://tests/played/warehouse"))


def test_commands_answer_alike_from_object_store_and_folder(tmp_path: Path, played: Play) -> None:
    there, here = played, play_all(tmp_path)
    tables = Warehouse(there.home)
    query = "select operator, count(*) n, sum(epoch_ms(timestamp)) from changes group by all"
    assert tables.ask(query).rows == (("newest", 6, 6 * T + 2 * (0 + 1_000 + 2_000) + 3),)
    assert tables.ask("select count(*) from latest_state").rows == ((2,),)
    with pytest.raises(InvalidArgument, match=r"Tables and views: .*batches, "):
        tables.ask("from nothing")
    with pytest.raises(InvalidArgument, match="a script is for tables on this machine"):
        attach_script(there.home)
    found = [walk.why(play.topology, Layout(play.home), at_ms=T + 5_000) for play in (there, here)]
    assert found[0] == found[1]
    asked = argparse.Namespace(at="2014-05-13T17:00:00Z", format="table")
    assert len({topology.topology(asked, play.home, play.topology) for play in (there, here)}) == 1
    assert doctor.doctor(there.topology, Layout(there.home), None) == {
        SUB: doctor.doctor(here.topology, Layout(here.home), None)[SUB].replace(str(here.home), str(there.home))
    }


def test_a_loss_is_accepted_where_the_journal_says_the_stream_is(played: Play) -> None:
    asked = argparse.Namespace(
        topology="play",
        sub_topology=SUB,
        source="events",
        partition=0,
        until=9,
        by="Ann",
        reason="retention",
        topic_id=None,
    )
    accept_loss.loss_plan(asked, played.home).apply()
    assert Control(Layout(played.home).control("play", SUB)).accepted_loss() == {("events", 0, 6): 9}
