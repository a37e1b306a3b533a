"""A query of `tidemark sql` can only read tables and views."""

import socket
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.query import sql
from tidemark.query.read_only import OF_ARGUMENTS
from tidemark.query.sql import Warehouse

CANARY = "canary_column"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    layout = Layout(tmp_path / "warehouse")
    write_deltalake(layout.stream_table("flights", "status", "batches"), pa.table({"batch_id": [7]}))
    write_deltalake(tmp_path / "outside", pa.table({CANARY: [1]}))
    (tmp_path / "secret.txt").write_text(CANARY)
    return layout.warehouse


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Listens on loopback, and does not wait for who connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def is_connected(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def url(listener: socket.socket) -> str:
    return f"https://127.0.0.1:{listener.getsockname()[1]}/x"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reading_logs(home: Path) -> Warehouse:
    """A warehouse with all possible functions, those for Delta too."""
    warehouse = Warehouse(home)
    warehouse._connection = sql._connect(home, sql.MEMORY, reads_logs=True)
    return warehouse


def functions(home: Path, kinds: str) -> list[tuple[str, list[str]]]:
    """Returns DuckDB's functions of *kinds* with parameter types, as queries see them."""
    return (
        reading_logs(home)
        ._connection.execute(
            "SELECT DISTINCT function_name, list_transform(parameter_types, lambda t: coalesce(t, 'ANY')) "
            f"FROM duckdb_functions() WHERE function_type IN ({kinds}) ORDER BY ALL"
        )
        .fetchall()
    )


def test_a_query_may_call_only_pure_table_functions(home: Path, listener: socket.socket) -> None:
    names = {name for name, _ in functions(home, "'table', 'table_macro', 'pragma'")}
    assert {"delta_scan", "delta_list_files", "read_parquet", "read_blob", "glob", "copy_dir", "query"} <= names
    warehouse = reading_logs(home)
    places = (f"'{home.parent / 'outside'}'", f"'{url(listener)}'", "'from batches'", "'/nosuch', '/nosuch'", "")
    for name, place in product(names - OF_ARGUMENTS, places):
        for text in ("from {}", "describe from {}", "select (select count(*) from {})", "explain analyze from {}"):
            with pytest.raises(InvalidArgument, match=r"allowed table functions: |one read-only statement"):
                warehouse.ask(text.format(f'"{name}"({place})'))
    assert not is_connected(listener)
    assert warehouse.ask("select count(*) from range(3), unnest([1, 2]), json_each('[1, 2]')").rows == ((12,),)
    for text in ("select explode([7, 8])", "from explode([7, 8])"):
        assert warehouse.ask(text).rows == ((7,), (8,))


@pytest.mark.long  # it depends on DuckDB's version alone
def test_no_function_of_values_reads_writes_or_connects(
    home: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)  # where a name that is no path would be written
    warehouse, before = reading_logs(home), files(home.parent)
    outside, new = home.parent / "outside", home.parent / "new"
    scans = (f"from delta_scan(''{place}'')" for place in (outside, url(listener)))
    texts = (*scans, str(home.parent / "secret.txt"), str(new))
    casts = {"VARCHAR": "'{}'", "ANY": "'{}'", "T": "'{}'", "JSON": "'{}'", "BLOB": "'{}'::blob"}
    calls = {
        f'"{name}"({", ".join(casts.get(kind, "1") for kind in types)})'
        for name, types in functions(home, "'scalar', 'macro', 'aggregate'")
        if casts.keys() & types and name[0].isalpha()
    }
    for call, text in product(sorted(calls), texts):
        try:
            said = str(warehouse.ask("select " + call.replace("{}", text)).rows)
        except InvalidArgument as error:
            said = str(error)
        assert CANARY not in said
    assert not is_connected(listener)
    assert files(home.parent) == before


@pytest.mark.parametrize(
    "text",
    [
        "describe select * from delta_scan('{}')", "select count(*) from Delta_Scan('{}')",
        "summarize from delta_scan('{}')", "from query('from delta_scan(''{}'')')",
        "from system.main.delta_scan('{}')", "with a as (from delta_scan('{}')) select 1",
        "select 1 where exists (from delta_scan('{}'))", "from batches, lateral (from delta_scan('{}'))",
        "unpivot (from delta_scan('{}')) on *", "explain from delta_scan('{}')",
        "select json_serialize_plan('from delta_scan(''{}'')')",
    ],
)  # fmt: skip
def test_no_query_reads_or_connects_outside_of_the_warehouse(home: Path, listener: socket.socket, text: str) -> None:
    warehouse = reading_logs(home)
    refused = []
    for place in (home.parent / "outside", home.parent, "/nosuch", url(listener)):
        with pytest.raises(InvalidArgument) as error:
            warehouse.ask(text.format(place))
        refused.append(str(error.value))
    assert len(set(refused)) == 1
    assert not is_connected(listener)


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "tsv", "duckdb", "db", "txt", "parquet?x=1"])
def test_a_file_of_the_warehouse_cannot_be_queried_as_a_table(
    home: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.chdir(home)
    for name in (f"main.{ending}", ending):
        (home / name).write_text(f"{CANARY}\n1\n")
    warehouse = Warehouse(home)
    names = (f"'main.{ending}'", f'main."{ending}"', f'"{home}/main"."{ending}"', f"'{home}/*.{ending}'")
    for text, name in product(("from {}", "describe {}", "summarize {}", "select (from {})"), names):
        with pytest.raises(InvalidArgument, match="a query may read only tables and views, got") as refused:
            warehouse.ask(text.format(name))
        assert CANARY not in str(refused.value)


def test_a_query_writes_nothing(home: Path) -> None:
    warehouse, before = Warehouse(home), files(home.parent)
    for place in (home / "new", home.parent / "new"):
        for text in ("select write_blob('{}', 'x'::blob)", "explain analyze copy (select 1) to '{}'"):
            with pytest.raises(InvalidArgument):
                warehouse.ask(text.format(place))
    assert files(home.parent) == before


@pytest.mark.parametrize(
    "text",
    [
        "describe batches", "summarize batches", "show tables", "explain from batches", "from main.batches",
        'from "BATCHES"', 'with "my rows" as (from batches) from "my rows"', f"select {'+'.join('1' * 200)};",
        "from information_schema.columns", "pivot batches on batch_id in (7) using count(*)",
    ],
)  # fmt: skip
def test_tables_and_views_are_read_in_any_way(home: Path, text: str) -> None:
    assert Warehouse(home).ask(text).rows
