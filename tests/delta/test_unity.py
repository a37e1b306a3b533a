"""`tidemark publish unity` registers names once, and drops those that are gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Schema, write_deltalake

from support.command_line import CommandOutput, tidemark
from support.unity_server import UnityServer
from tidemark.kernels.columns.schemas import arrow_schema
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


def written(home: Path, topology: str, sub_topology: str, table: str) -> None:
    write_deltalake(
        Layout(home).stream_table(topology, sub_topology, table), pa.table({"n": pa.array([1], pa.int64())})
    )


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
    assert (view["table_type"], view["comment"]) == ("VIEW", f"One row per {BATCHES.row}")
    assert [column["name"] for column in view["columns"]] == [*BATCHES.names]
    assert view["columns"][2]["comment"] == "micro-batch of that query, counted from 0"
    assert "FROM `flights__status__batches`" in view["view_definition"]
    columns = server.tables["unity.tidemark.latency_by_hour"]["columns"]
    hours = {each["name"]: (each["type_text"], json.loads(each["type_json"])["type"]) for each in columns}
    assert [hours[name] for name in ("hour", "n", "p99_ms")] == [
        ("timestamp", "timestamp"), ("bigint", "long"), ("double", "double"),
    ]  # fmt: skip
    shown = server.tables["unity.tidemark.flight_board"]["columns"]
    assert [(each["name"], each["type_json"]) for each in shown] == [
        (each["name"], each["type_json"]) for each in (price, legs)
    ]


def test_types_of_tables_are_those_of_delta() -> None:
    for table in TABLES.values():
        fields = json.loads(Schema.from_arrow(arrow_schema(table)).to_json())["fields"]
        assert table.delta_types == {field["name"]: field["type"] for field in fields}


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


def test_a_refusal_loses_no_other_name(home: Path) -> None:
    with UnityServer() as server:
        published(home, server.url)
        before = {*server.tables}
        more = pa.table({"batch_id": pa.array([1], pa.int64()), "epoch": pa.array([1], pa.int64())})
        write_deltalake(home / "streams" / "flights" / "status" / "batches", more, mode="append", schema_mode="merge")
        shutil.rmtree(home / "streams" / "flights" / "status" / "flight_board")
        server.refused = {"flights__status__batches"}
        done = published(home, server.url)
        assert (done.returncode, "refuses POST /tables (400): refused" in done.stderr) == (1, True), done
        assert before - server.tables.keys() == {"unity.tidemark.flights__status__batches"}
        server.refused.clear()
        done = published(home, server.url)
    # The table, and its view; those of `flight_board` are gone.
    assert "2 created, 3 dropped" in done.stdout, done


def test_a_redirected_creation_is_an_error(home: Path) -> None:
    with UnityServer() as server:
        server.redirects = True
        done = published(home, server.url)
    assert done.returncode == 1
    assert f"redirects POST /schemas to {server.url}/api/2.1/unity-catalog/catalogs/unity; give" in done.stderr


def test_a_name_with_a_dot_gets_another_letter(home: Path) -> None:
    written(home, "shop", "orders.v1", "board")
    written(home, "shop", "orders-v2", "board")
    with UnityServer() as server:
        done = published(home, server.url)
        assert done.returncode == 0, done.stderr
        assert {f"unity.tidemark.shop__orders_v{n}__board" for n in (1, 2)} < server.tables.keys()
        view = server.tables["unity.tidemark.board"]["view_definition"]
        assert (view.count("FROM `shop__orders_v1__board`"), view.count("FROM `shop__orders_v2__board`")) == (1, 1)
        written(home, "shop", "orders_v1", "board")
        server.asked.clear()
        done = published(home, server.url)
    assert (done.returncode, server.asked) == (1, [])
    assert "would both be the table shop__orders_v1__board of the catalog; rename a topology or a query" in done.stderr


def test_names_that_the_catalog_rejects_change_nothing(home: Path) -> None:
    query = "o" * 250
    written(home, "shop", query, "board")
    with UnityServer() as server:
        done = published(home, server.url)
    assert (done.returncode, server.asked) == (1, [])
    assert f"shop__{query}__board is not a valid name in Unity Catalog" in done.stderr


def test_names_are_lower_case(tmp_path: Path) -> None:
    home = tmp_path / "warehouse"
    written(home, "Shop", "Orders", "Board")
    with UnityServer() as server:
        published(home, server.url)
        table, view = (server.tables[f"unity.tidemark.{name}"] for name in ("shop__orders__board", "board"))
        assert table["storage_location"].endswith("/Shop/Orders/Board")
        assert "FROM `shop__orders__board`" in view["view_definition"]
        written(home, "Shop", "Returns", "board")
        server.asked.clear()
        done = published(home, server.url)
    assert (done.returncode, server.asked) == (1, [])
    assert "two tables or views would have the name board in Unity Catalog" in done.stderr


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"abc\ns3cret", "the token must be one line of printable ASCII characters"),
        ("s3cret…".encode(), "the token must be one line of printable ASCII characters"),
        (b"s3cret\xff", "is not text in UTF-8"),
    ],
    ids=["two lines", "not ASCII", "not UTF-8"],
)
def test_a_token_that_cannot_be_sent_is_not_shown(home: Path, tmp_path: Path, content: bytes, said: str) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    done = published(home, "http://localhost:9", "--token-file", str(token))
    assert (done.returncode, said in done.stderr, "s3cret" in done.stderr) == (1, True, False), done.stderr


@pytest.mark.parametrize("address", ["http://[::1", "http://localhost:99999", "http://localhost/ö", "ftp://localhost"])
def test_an_invalid_address_is_named(home: Path, address: str) -> None:
    done = published(home, address)
    assert (done.returncode, f"must begin with https:// or http://, got '{address}'" in done.stderr) == (1, True), done


def test_another_web_server_is_no_catalog(home: Path) -> None:
    with UnityServer() as server:
        done = published(home, f"{server.url}/elsewhere")
    assert done.returncode == 1
    assert f"{server.url}/elsewhere is not a server of Unity Catalog" in done.stderr


def test_this_machine_is_asked_without_a_proxy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with UnityServer() as server:
        done = published(home, server.url, "--catalog", "main")
    assert f"{server.url} has no catalog 'main'" in done.stderr
