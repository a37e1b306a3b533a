"""BI tools read a published DuckDB file by its names."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import adbc_driver_duckdb
import adbc_driver_manager.dbapi as adbc
import duckdb
import pyarrow as pa
import pytest
import sqlalchemy
from deltalake import write_deltalake

from support.command_line import tidemark
from tidemark.model.project.layout import Layout
from tidemark.query.attach import PUBLISHED

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse of a user whose DuckDB has no extension."""
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    layout = Layout(tmp_path / "it's here")
    for name, batch_id in (("status", 0), ("carriers", 7)):
        add(layout, name, batch_id)
    return layout.warehouse


def add(layout: Layout, name: str, batch_id: int) -> None:
    """Appends a row to `batches` of a stream."""
    at = pa.array([NOON], pa.timestamp("us", "UTC"))
    rows = pa.table({"topology": ["flights"], "sub_topology": [name], "batch_id": [batch_id], "finished_at": at})
    write_deltalake(layout.stream_table("flights", name, "batches"), rows, mode="append")


def published(home: Path, *options: str) -> str:
    """Returns what `tidemark publish duckdb` prints."""
    done = tidemark(home, "--warehouse", str(home), "publish", "duckdb", *options)
    return done.stdout + done.stderr


COUNTED = "SELECT sub_topology, count(*) AS n FROM batches GROUP BY ALL ORDER BY 1"


def test_each_client_reads_the_current_rows_by_name(home: Path) -> None:
    assert "tidemark.duckdb: " in published(home, "--install-extension")
    file = home / "tidemark.duckdb"
    add(Layout(home), "status", 1)  # after the file was written
    expected = [("carriers", 1), ("status", 2)]
    with duckdb.connect(str(file), read_only=True) as database:
        assert database.execute(COUNTED).fetchall() == expected
        assert database.execute("SELECT count(*) FROM latest_state").fetchall() == [(0,)]  # a view, of no tables yet
    engine = sqlalchemy.create_engine(f"duckdb:///{file}", connect_args={"read_only": True})
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(sqlalchemy.text(COUNTED))] == expected
    assert {"batches", "latency_by_hour", "sla_results"} <= {*sqlalchemy.inspect(engine).get_view_names()}
    engine.dispose()
    driver = {"driver": adbc_driver_duckdb.driver_path(), "entrypoint": "duckdb_adbc_init"}
    reading = {"path": str(file), "access_mode": "READ_ONLY"}
    with adbc.connect(**driver, db_kwargs=reading) as connection, connection.cursor() as cursor:
        cursor.execute(COUNTED)
        assert cursor.fetch_arrow_table().to_pylist() == [{"sub_topology": name, "n": n} for name, n in expected]


def test_views_and_columns_are_described(home: Path) -> None:
    published(home)
    with duckdb.connect(str(home / "tidemark.duckdb"), read_only=True) as database:
        (view,) = database.execute("SELECT comment FROM duckdb_views() WHERE view_name = 'batches'").fetchall()
        columns = dict(
            database.execute(
                "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'batches'"
            ).fetchall()
        )
    assert view == ("One row per query and batch with changes",)
    assert columns["sub_topology"] == "the operators that run in one streaming query"


def test_who_has_the_older_file_open_goes_on(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "bi" / "tidemark.duckdb"
    published(home, "--file", str(file), "--install-extension")
    with duckdb.connect(str(file), read_only=True) as before:
        write_deltalake(home / "streams" / "flights" / "status" / "flight_board", pa.table({"flight": ["UA 1"]}))
        published(home, "--file", str(file))
        assert before.execute(COUNTED).fetchall() == [("carriers", 1), ("status", 1)]
    with duckdb.connect(str(file), read_only=True) as after:
        assert after.execute("FROM flight_board").fetchall() == [("UA 1",)]
        assert after.execute(f"SELECT warehouse FROM {PUBLISHED}").fetchall() == [(str(home),)]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_database_of_another_is_not_replaced(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.duckdb"
    with duckdb.connect(str(file)) as own:
        own.execute("CREATE TABLE kept AS SELECT 1 AS n")
    before = file.read_bytes()
    said = published(home, "--file", str(file))
    assert re.search(r"is not a file that `tidemark .*publish` wrote; give another name", said)
    assert file.read_bytes() == before


def test_a_file_that_a_writer_has_open_stays(home: Path) -> None:
    published(home)
    file = home / "tidemark.duckdb"
    code = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(file)], **pipes) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"1\n"
        said = published(home)
        writer.communicate()
    assert f"{file} is open for writing in another program; close it there, or open it read-only" in said


def test_names_and_places_cannot_leave_their_quotes_in_a_script(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "it's `here`; ${spark.app.name}")
    add(layout, "status", 0)
    done = tidemark(
        tmp_path, "--warehouse", str(layout.warehouse), "publish", "sql", "--catalog", "a.b", "--schema", "c`d"
    )
    statements = done.stdout.split("\n\n")
    place = f"file://{tmp_path}/it\\'s `here`; \\u0024{{spark.app.name}}/streams/flights/status/batches"
    assert statements[:4] == [
        "SET TIME ZONE 'UTC';",
        "CREATE SCHEMA IF NOT EXISTS `a.b`.`c``d`;",
        "USE `a.b`.`c``d`;",
        f"CREATE TABLE IF NOT EXISTS `flights__status__batches` USING DELTA LOCATION '{place}';",
    ]
    assert done.stdout.splitlines()[-2:] == [
        "-- The same tables in Trino (not tried), with a catalog `delta` that permits register_table:",
        "-- CALL delta.system.register_table(schema_name => 'c`d', table_name => 'flights__status__batches', "
        f"table_location => 'file://{tmp_path}/it''s `here`; ${{spark.app.name}}/streams/flights/status/batches');",
    ]


def test_a_script_of_no_tables_and_a_schema_without_a_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = tidemark(tmp_path, "--warehouse", str(tmp_path / "empty"), "publish", "sql")
    assert "has no Delta tables yet" in done.stderr
    with pytest.raises(SystemExit):
        tidemark(tmp_path, "publish", "sql", "--schema", " ")


def test_an_option_of_another_kind_is_refused(home: Path) -> None:
    assert "--send is for lineage, got duckdb" in published(home, "--send")
