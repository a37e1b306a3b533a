"""A sink with current rows passes its checks while rows are replaced.

Every Arrow reader can read it.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from support.play import Play, Row, ms
from support.topologies import NEWEST
from tidemark.errors import Contradiction
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.fence import Fence

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check

SLAS = """
[play.fresh]
subject = "board"
measure = "staleness"
warn_after = "5 s"
error_after = "10 s"
owner = "o"
[play.kept]
subject = "board"
measure = "contract"
owner = "o"
"""


def hot(home: Path, *, seconds: int, step: int = 1) -> Play:
    """Replaces the row of `a` every *step* seconds.

    That of `b` is of the first batch.
    """
    play = Play(NEWEST, home)
    for second in range(0, seconds, step):
        rows = [play.row("events", ms(second + 0.5), id=id_, v=second) for id_ in ("a" if second else "ab")]
        play.batch(rows, at_ms=ms(second + 1))
    return play


def checked(play: Play, *, at_ms: int, slas: str = SLAS) -> dict[str, Row]:
    """By SLA what a check for the instant *at_ms* found."""
    specs = parse(tomllib.loads(slas), play.topology, file="slas.toml")
    run_check(Layout(play.home), play.topology, specs, at_ms=at_ms, run_id=str(at_ms))
    results = scan(Layout(play.home).report_table("play", "sla_results")).filter(run_id=str(at_ms)).collect()
    return {row["sla"]: row for row in results.to_dicts()}


def test_a_hot_table_is_as_fresh_as_it_was_at_the_instant(tmp_path: Path) -> None:
    play = hot(tmp_path, seconds=10)
    for seconds_before in (8, 3, 0):  # a run of the schedule begins so long after the instant that it judges
        found = checked(play, at_ms=ms(10 - seconds_before))
        assert (found["fresh"]["verdict"], found["fresh"]["observed_ms"]) == ("pass", 500)
        assert found["kept"]["verdict"] == "pass"
    incidents = Layout(tmp_path).report_table("play", "incidents")
    assert not incidents.exists() or scan(incidents).collect().is_empty()


def test_an_instant_without_remaining_rows_is_judged(tmp_path: Path) -> None:
    play = hot(tmp_path, seconds=2_000, step=500)
    play.batch([play.row("events", ms(2_000), id=id_, v=-1) for id_ in "ab"], at_ms=ms(2_001))
    found = checked(play, at_ms=ms(1_007))["fresh"]
    assert (found["verdict"], found["observed_ms"]) == ("warn", 6_500)


OF_TABLE = """
[play.late]
subject = "board"
place = "table"
measure = "latency_p50"
error_after = "40 s"
owner = "o"
[play.stale]
subject = "board"
place = "table"
error_after = "40 s"
owner = "o"
"""


def test_an_sla_of_the_table_is_judged_by_its_merges(tmp_path: Path) -> None:
    play = Play(NEWEST.replace('refresh = "0 s"\n', ""), tmp_path)
    for second in (1, 2, 3):  # the first is merged at once, the others with the batch of second 61
        play.batch([play.row("events", ms(second - 0.5), id="a", v=second)], at_ms=ms(second))
    play.batch(at_ms=ms(61))
    found = {at: checked(play, at_ms=ms(at), slas=OF_TABLE) for at in (1, 60, 61)}
    assert [found[at]["stale"]["observed_ms"] for at in (1, 60, 61)] == [500, 59_500, 58_500]
    assert [found[at]["stale"]["verdict"] for at in (1, 60, 61)] == ["pass", "error", "error"]
    assert found[60]["late"]["observed_ms"] == pytest.approx(500, rel=0.01)
    assert found[61]["late"]["observed_ms"] == pytest.approx(58_500, rel=0.01)  # of 500, 58,500 and 59,500


def test_rows_that_are_not_merged_are_fresh_and_judged(tmp_path: Path) -> None:
    play = Play(NEWEST.replace('refresh = "0 s"\n', ""), tmp_path)
    for second in range(3):
        play.batch([play.row("events", ms(second + 0.5), id="a", v=second)], at_ms=ms(second + 1))
    assert [row["v"] for row in play.rows("board")] == [0]
    found = checked(play, at_ms=ms(4))
    assert (found["fresh"]["verdict"], found["fresh"]["observed_ms"]) == ("pass", 1_500)
    assert found["kept"]["verdict"] == "pass"


def test_a_table_whose_rows_were_deleted_was_loaded(tmp_path: Path) -> None:
    play = hot(tmp_path, seconds=1)
    gone = [{**play.row("events", ms(2), id=id_), "deleted": True} for id_ in "ab"]
    play.batch(gone, at_ms=ms(3))
    found = checked(play, at_ms=ms(4))["fresh"]
    assert found["verdict"] == "pass"


def test_pyarrow_compares_the_keys_of_current_rows(tmp_path: Path) -> None:
    play = hot(tmp_path, seconds=4)
    board = Layout(tmp_path).stream_table("play", play.topology.sub_topologies[0].name, "board")
    table = DeltaTable(str(board))
    assert table.to_pyarrow_dataset().to_table(filter=pc.field("id") == "a")["v"].to_pylist() == [3]
    assert table.to_pyarrow_table(filters=[("id", "=", "b")])["v"].to_pylist() == [0]
    kinds = {str(kind) for file in board.glob("*.parquet") for kind in pq.read_schema(file).types}
    assert kinds == {"string", "int32", "int64", "timestamp[us, tz=UTC]"}


def test_files_with_another_type_of_strings_pass_their_contract(tmp_path: Path) -> None:
    play = hot(tmp_path, seconds=2)
    board = Layout(tmp_path).stream_table("play", play.topology.sub_topologies[0].name, "board")
    DeltaTable(str(board)).update(updates={"v": "v"}, predicate="id is not null")  # writes as its MERGE does
    assert {pq.read_schema(file).field("id").type for file in DeltaTable(str(board)).file_uris()} == {pa.string_view()}
    found = checked(play, at_ms=ms(3))
    assert {name: row["verdict"] for name, row in found.items()} == {"fresh": "pass", "kept": "pass"}


KEYED = pa.schema([("id", pa.string()), ("part", pa.float64()), ("v", pa.int64()), ("batch_id", pa.int64())])


def put(home: Path, *batches: list[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Returns a table's rows after *batches* of id, part and v."""
    create(home, KEYED)
    committer = Committer("play/0", Fence(clock=lambda: 0))
    for batch_id, rows in enumerate(batches):
        whole = [{"part": None, "deleted": False, **row, "batch_id": batch_id} for row in rows]
        new = pa.Table.from_pylist(whole, schema=KEYED.append(pa.field("deleted", pa.bool_())))
        committer.upsert(home, new, batch_id, key=["id", "part"])
    return sorted(scan(home).select("id", "part", "v").collect().rows(), key=str)


def test_null_and_nan_are_keys_like_any_other(tmp_path: Path) -> None:
    first = [{"id": None, "v": 1}, {"id": "a", "part": float("nan"), "v": 1}, {"id": "a", "v": 1}]
    second = [{"id": None, "v": 2}, {"id": "a", "part": float("nan"), "v": 2}]
    found = put(tmp_path, first, second)
    assert str(found) == "[('a', None, 1), ('a', nan, 2), (None, None, 2)]"


def test_deleting_a_key_removes_its_row_and_an_absent_one_none(tmp_path: Path) -> None:
    a, b = {"id": "a", "v": 1}, {"id": "b", "v": 1}
    assert put(tmp_path, [a, b], [{**a, "deleted": True}], [{"id": "z", "v": 0, "deleted": True}]) == [("b", None, 1)]
    assert DeltaTable(str(tmp_path)).transaction_version(f"play/0/{tmp_path.name}") == 2


def test_a_replaced_row_keeps_columns_that_others_added(tmp_path: Path) -> None:
    put(tmp_path, [{"id": "a", "v": 1}, {"id": "b", "v": 1}])
    with_note = pl.DataFrame({"id": ["a", "b"], "v": [1, 1], "batch_id": [0, 0], "note": ["mine", "yours"]})
    with_note.write_delta(str(tmp_path), mode="overwrite", delta_write_options={"schema_mode": "overwrite"})
    new = pa.table({"id": ["a", "c"], "v": [2, 2], "batch_id": [1, 1], "deleted": [False, False]})
    Committer("other/0", Fence(clock=lambda: 0)).upsert(tmp_path, new, 1, key=["id"])
    found = scan(tmp_path).select("id", "v", "note").collect().sort("id").rows()
    assert found == [("a", 2, "mine"), ("b", 1, "yours"), ("c", 2, None)]


def test_rows_beyond_the_size_of_a_file_go_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.storage.delta.current_rows.AT_MOST", 2)
    rows = [{"id": id_, "v": 0} for id_ in "abc"]
    assert put(tmp_path, rows, [{"id": "b", "v": 1}]) == [("a", None, 0), ("b", None, 1), ("c", None, 0)]


def test_a_partitioned_table_is_refused(tmp_path: Path) -> None:
    create(tmp_path, KEYED, partitioned_by=["id"])
    with pytest.raises(Contradiction, match="the table is partitioned by id"):
        put(tmp_path, [{"id": "a", "v": 1}])
