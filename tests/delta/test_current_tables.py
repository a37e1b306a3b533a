"""A table with current rows is merged periodically, its view is exact.

A batch only appends.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from support.crashes import Crash, crash_at
from support.play import NOON, Play, ms
from support.topologies import BOARD, WINDOW_BOARD
from tidemark.errors import TidemarkError
from tidemark.model.kinds.sink import Sink
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.current_view import current_rows_sql
from tidemark.storage.delta.datasets import dataset_of
from tidemark.storage.delta.tables import scan
from tidemark.stream.write import current_tables

SEEN = f"{BOARD}last_seen_at = true\n"

Board = dict[str | None, int]


def sent(play: Play, second: int, **values: int | None) -> None:
    """A batch that sets the value of each key; None deletes it."""
    rows = []
    for id_, v in values.items():
        row = play.row("events", ms(second), id=id_, v=v)
        rows.append({**row, "deleted": True} if v is None else row)
    play.batch(rows, at_ms=ms(second))


def table(play: Play) -> Board:
    return dict(scan(play.table("board")).select("id", "v").collect().rows())


def view(play: Play) -> Board:
    return dict(Warehouse(play.home).ask("SELECT id, v FROM board").rows)


def appended(play: Play) -> list[int]:
    """The batches whose rows are still beside the table."""
    return sorted(set(scan(play.table("changes_of_board")).collect()["batch_id"]))


def commits(path: Path) -> int:
    return DeltaTable(str(path)).version()


def test_the_table_is_merged_every_refresh_and_the_view_at_once(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=1, b=1)  # a driver that starts brings the table up to date
    assert table(play) == {"a": 1, "b": 1}
    sent(play, 1, a=2)
    sent(play, 59, c=3, b=None)
    assert (table(play), view(play)) == ({"a": 1, "b": 1}, {"a": 2, "c": 3})
    sent(play, 60, a=4)
    assert table(play) == view(play) == {"a": 4, "c": 3}


def test_a_batch_writes_nothing_to_the_table_between_merges(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=0)
    before = commits(play.table("board")), commits(play.table("changes_of_board"))
    for second in range(1, 6):
        sent(play, second, a=second)
    after = commits(play.table("board")), commits(play.table("changes_of_board"))
    assert (after[0] - before[0], after[1] - before[1]) == (0, 5)


def test_a_silent_batch_merges_what_is_due(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=1)
    assert play.engine(play.sub).due_at_ms is None
    sent(play, 1, a=2)
    assert play.engine(play.sub).due_at_ms == ms(60)  # which wakes a silent stream
    play.batch(at_ms=ms(60))
    assert table(play) == {"a": 2}
    version = commits(play.table("board"))
    play.batch(at_ms=ms(200))
    assert commits(play.table("board")) == version


def test_a_driver_that_ends_leaves_the_table_exact(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=1)
    sent(play, 1, a=2)
    play.settle()
    assert table(play) == {"a": 2}


def test_view_rows_that_were_merged_are_removed_by_a_later_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_tables, "LEAST_FILES", 1)
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=0)
    sent(play, 1, a=1)
    sent(play, 61, a=2)
    assert appended(play) == [1, 2]
    sent(play, 121, a=3)
    assert appended(play) == [3]
    assert view(play) == table(play) == {"a": 3}


def test_whichever_table_a_reader_opens_first_it_misses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_tables, "LEAST_FILES", 1)
    play = Play(BOARD, tmp_path)
    paths = play.table("board"), play.table("changes_of_board")

    def versions() -> tuple[int, int]:
        return commits(paths[0]), commits(paths[1])

    sent(play, 0, a=0, b=0)
    sent(play, 61, a=61)  # merged; of the table that is opened now
    sent(play, 62, b=None)
    (table_then, changes_then), then = versions(), {"a": 61}
    sent(play, 122, a=122, c=122)  # the next merge
    table_now, changes_now = versions()

    def read(version: int, of_changes: int) -> Board:
        connection = duckdb.connect()
        connection.register("t", dataset_of(DeltaTable(str(paths[0]), version=version)))
        connection.register("c", dataset_of(DeltaTable(str(paths[1]), version=of_changes)))
        names = {paths[0]: "t", paths[1]: "c"}
        text = current_rows_sql(*paths, names.__getitem__, lambda name: f'"{name}"')
        return dict(connection.execute(f"SELECT id, v FROM ({text})").fetchall())

    now = {"a": 122, "c": 122}
    assert read(table_then, changes_then) == then
    assert read(table_then, changes_now) == read(table_now, changes_now) == now
    assert read(table_now, changes_then) == {**then, "c": 122}  # each row is of one of the two instants


@pytest.mark.parametrize("step", ["committed changes_of_board", "merged board", "removed from changes_of_board"])
def test_a_crash_at_a_merge_leaves_it_as_if_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(current_tables, "LEAST_FILES", 1)
    play = Play(SEEN, tmp_path)
    for second in (0, 61):
        sent(play, second, a=second, b=1)
    sent(play, 62, a=62, b=None)
    later = [(number, [play.row("events", ms(at), id="a", v=at)], ms(at)) for number, at in ((3, 122), (4, 183))]
    play.start(reached=crash_at(step))
    tries = []

    def run() -> None:
        for number, rows, at_ms in later:
            tries.append(number)
            play.process(number, rows, at_ms=at_ms)

    with pytest.raises(Crash):
        run()
    play.start()
    for number, rows, at_ms in later[len(tries) - 1 :]:  # Spark runs again what it does not know to be done
        play.process(number, rows, at_ms=at_ms)
        assert view(play) == {"a": rows[0]["events"]["v"]}
    play.settle()
    shown = [(row["id"], row["v"], row["last_seen_at"] - NOON) for row in play.rows("board")]
    assert shown == [("a", 183, 183_000)]


@pytest.mark.parametrize("toml", [BOARD, SEEN], ids=["values", "last_seen_at"])
def test_view_and_table_equal_a_merge_in_each_batch(tmp_path: Path, toml: str) -> None:
    plays = [
        Play(toml + refresh, tmp_path / name) for name, refresh in {"each": 'refresh = "0 s"\n', "min": ""}.items()
    ]
    chance = random.Random(20)
    for second in range(0, 70, 10):
        values: dict[str, int | None] = {id_: chance.choice([1, 2, None]) for id_ in "abcd" if chance.random() < 0.6}
        for play in plays:
            sent(play, second, **values)
        asked = "SELECT * EXCLUDE (batch_id) FROM board ORDER BY id"
        each, exact = (Warehouse(play.home).ask(asked).rows for play in plays)
        assert exact == each
    plays[1].settle()
    whole = [scan(play.table("board")).sort("id").drop("batch_id").collect().rows() for play in plays]
    assert whole[1] == whole[0]


def test_the_view_shows_a_closed_window_as_final_at_once(tmp_path: Path) -> None:
    play = Play(WINDOW_BOARD, tmp_path)

    def final(second: int, id_: str) -> tuple[tuple[Any, ...], ...]:
        play.batch([play.row("events", ms(second), id=id_, v=1)], at_ms=ms(second))
        return Warehouse(tmp_path).ask("SELECT id, v, window_final FROM board ORDER BY id, window_start").rows

    def in_files() -> list[bool]:
        return [
            row["window_final"] for row in sorted(play.rows("board"), key=lambda row: (row["id"], row["window_start"]))
        ]

    assert final(1, "a") == (("a", 1, False),)
    assert final(2, "b") == (("a", 1, False), ("b", 1, False))
    last = (("a", 1, True), ("a", 1, False), ("b", 1, True))
    assert final(21, "a") == last  # the watermark has closed the window of seconds 0 to 10
    assert in_files() == [False]
    play.settle()
    assert in_files() == [True, False, True]
    assert Warehouse(tmp_path).ask("SELECT id, v, window_final FROM board ORDER BY id, window_start").rows == last


def test_the_view_has_columns_that_other_writers_added(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    sent(play, 0, a=1, b=1)
    DeltaTable(str(play.table("board"))).alter.add_columns([Field("note", PrimitiveType("string"))])
    DeltaTable(str(play.table("board"))).update(updates={"note": "'mine'"}, predicate="id = 'a'")
    play.start()
    sent(play, 1, b=2)
    sent(play, 2, a=2, c=2)
    found = Warehouse(play.home).ask("SELECT id, v, note FROM board ORDER BY id").rows
    assert found == (("a", 2, "mine"), ("b", 2, None), ("c", 2, None))


def test_refresh_is_for_current_rows_and_a_minute_by_default(tmp_path: Path) -> None:
    board = Play(BOARD, tmp_path).topology.operators["board"]
    assert isinstance(board, Sink)
    assert (board.refresh_ms, board.appends_to) == (60_000, "changes_of_board")
    with pytest.raises(TidemarkError, match="refresh: is '1 s', but mode is 'append'; leave it out"):
        Play(BOARD.replace('mode = "current"\nkey = ["id"]', 'refresh = "1 s"'), tmp_path)
    with pytest.raises(TidemarkError, match="which is reserved for Tidemark"):
        Play(BOARD.replace('table = "board"', 'table = "changes_of_x"'), tmp_path)
