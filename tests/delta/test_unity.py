"""`tidemark publish unity` registers names once, and drops those that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.command_line import CommandOutput, tidemark
from support.unity_server import UnityServer
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, TABLES
from tidemark.storage.warehouse import views


@pytest.fixture
def home(tmp_path: Path) -> Path:
    layout = Layout(tmp_path / "it's-here")
    rows = pa.table({"topology": ["flights"], "sub_topology": ["status"], "batch_id": pa.array([0], pa.int64())})
    write_deltalake(layout.stream_table("flights", "status", "batches"), rows)
    price = pa.array([None], pa.decimal128(10, 2))
    legs = pa.array([[{"gate": "A1", "at": 5}]], pa.list_(pa.struct([("gate", pa.string()), ("at", pa.int32())])))
    write_deltalake(layout.stream_table("flights", "status", "flight_board"), pa.table({"price": price, "legs": legs}))
    return layout.warehouse


def published(home: Path, server: str, *options: str) -> CommandOutput:
    return tidemark(home, "--warehouse", str(home), "publish", "unity", "--server", server, *options)


def test_tables_and_views_have_places_columns_and_comments(home: Path) -> None:
    with UnityServer() as server:
        done = published(home, server.url)
    assert done.returncode == 0, done.stderr
    number = len({*TABLES, "flight_board", *(view.name for view in views())}) + 2
    assert done.stdout == f"{server.url}, unity.tidemark: {number} tables and views, {number} created, 0 dropped\n"
    assert len(server.tables) == number
    board = server.tables["unity.tidemark.flights__status__flight_board"]
    assert board["storage_location"] == f"file://{home}/streams/flights/status/flight_board"
    price, legs = board["columns"]
    assert (price["type_text"], price["type_name"], price["type_precision"], price["type_scale"]) == (
        "decimal(10,2)", "DECIMAL", 10, 2,
    )  # fmt: skip
    assert (legs["type_text"], legs["type_name"]) == ("array<struct<gate:string,at:int>>", "ARRAY")
    view = server.tables["unity.tidemark.batches"]
    assert (view["table_type"], view["comment"]) == ("VIEW", BATCHES.row)
    assert [column["name"] for column in view["columns"]] == [*BATCHES.names]
    assert view["columns"][2]["comment"] == "micro-batch of that query, counted from 0"
    assert "FROM `flights__status__batches`" in view["view_definition"]
    hours = {
        column["name"]: column["type_text"] for column in server.tables["unity.tidemark.latency_by_hour"]["columns"]
    }
    assert (hours["hour"], hours["n"], hours["p99_ms"]) == ("timestamp", "bigint", "double")


def test_a_second_call_changes_only_what_differs(home: Path) -> None:
    with UnityServer() as server:
        published(home, server.url)
        server.asked.clear()
        again = published(home, server.url)
        assert ("0 created, 0 dropped" in again.stdout, server.asked) == (True, []), again
        shutil.rmtree(home / "streams" / "flights" / "status" / "flight_board")
        more = pa.table({"batch_id": pa.array([1], pa.int64()), "epoch": pa.array([1], pa.int64())})
        write_deltalake(home / "streams" / "flights" / "status" / "batches", more, mode="append", schema_mode="merge")
        done = published(home, server.url)
    # The views `batches` is made of tables whose columns changed, and `flight_board` has no table.
    dropped = {"batches", "flights__status__batches", "flights__status__flight_board", "flight_board"}
    made = {f"POST tables {name}" for name in ("batches", "flights__status__batches")}
    assert {*server.asked} == made | {f"DELETE tables unity.tidemark.{name}" for name in dropped}
    assert "2 created, 4 dropped" in done.stdout


def test_a_path_that_is_no_uri_is_refused(home: Path) -> None:
    moved = home.rename(home.with_name("it's here"))
    with UnityServer() as server:
        done = published(moved, server.url)
    assert (done.returncode, server.asked) == (1, [])
    assert f"{moved} has characters that Unity Catalog does not accept in a location" in done.stderr


def test_a_table_of_another_is_not_replaced(home: Path, tmp_path: Path) -> None:
    with UnityServer() as server:
        server.schemas["unity.tidemark"] = {"name": "tidemark"}
        server.tables["unity.tidemark.batches"] = {"name": "batches", "properties": {"tidemark.warehouse": "/other"}}
        server.tables["unity.tidemark.mine"] = {"name": "mine"}
        done = published(home, server.url)
        assert (done.returncode, server.asked) == (1, [])
        assert "unity.tidemark has a table 'batches' that is not of" in done.stderr
        assert published(home, server.url, "--database", "tide").returncode == 0
        assert not [each for each in server.asked if each.startswith("DELETE")]


def test_refusals_name_the_cause_and_no_token(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n", encoding="utf-8")
    with UnityServer(token="s3cret") as server:
        missing = published(home, server.url)
        right = published(home, server.url, "--token-file", str(token))
        token.write_text("wr0ng", encoding="utf-8")
        wrong = published(home, server.url, "--token-file", str(token))
        token.write_text("s3cret", encoding="utf-8")
        no_catalog = published(home, server.url, "--catalog", "main", "--token-file", str(token))
    absent = published(home, server.url)
    plain = published(home, "http://unity.example.org", "--token-file", str(token))
    assert right.returncode == 0, right.stderr
    for refused, said in (
        (missing, "refuses the login (401): the token is missing; set TIDEMARK_UNITY_TOKEN, or --token-file"),
        (wrong, "refuses the login (401): the token is not valid there; set"),
        (no_catalog, "has no catalog 'main'; create it there, or name another one with --catalog"),
        (absent, "does not answer: "),
        (plain, "a token is sent over https only"),
    ):
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
        assert "s3cret" not in refused.stderr
        assert "wr0ng" not in refused.stderr
