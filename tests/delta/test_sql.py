"""All Delta tables of a name answer as one, read only."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidemark.errors import InvalidArgument, UnreadableFile
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BATCHES, OPERATOR_BATCHES, Table
from tidemark.query.inventory import inventory
from tidemark.query.sql import QueryResult, Warehouse
from tidemark.query.text_table import as_csv, as_json, format_table

NOON = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    layout = Layout(tmp_path / "it's here")
    at = pa.array([NOON], pa.timestamp("us", "UTC"))
    status = layout.stream_table("flights", "status", "batches")
    write_deltalake(status, pa.table({"sub_topology": ["status"], "batch_id": [0], "at": at}))
    write_deltalake(status, pa.table({"sub_topology": ["status"], "batch_id": [1], "at": at}), mode="append")
    carriers = layout.stream_table("flights", "carriers", "batches")
    write_deltalake(carriers, pa.table({"batch_id": [7], "sub_topology": ["carriers"], "epoch": [2]}))
    write_deltalake(layout.stream_table("flights", "status", "flight_board"), pa.table({"flight": ["UA 1"]}))
    DeltaTable.create(layout.report_table("flights", "sla_results"), schema=pa.schema([("sla", pa.string())]))
    return layout.warehouse


def test_a_table_is_the_union_of_all_that_write_it(home: Path) -> None:
    answer = Warehouse(home).ask("select sub_topology, batch_id, epoch from batches order by batch_id")
    assert answer.columns == ("sub_topology", "batch_id", "epoch")
    assert answer.rows == (("status", 0, None), ("status", 1, None), ("carriers", 7, 2))


def test_sink_tables_and_empty_tables_can_be_queried(home: Path) -> None:
    warehouse = Warehouse(home)
    assert warehouse.ask("select * from flight_board").rows == (("UA 1",),)
    assert warehouse.ask("select * from sla_results").rows == ()


def test_what_duckdb_has_not_implemented_is_refused_with_the_query(home: Path) -> None:
    asked = "SELECT time_bucket(INTERVAL '1 month 1 day', DATE '2020-01-01')"
    with pytest.raises(InvalidArgument, match="cannot answer this query") as refused:
        Warehouse(home).ask(asked)
    assert asked in str(refused.value)


def test_a_small_share_has_three_digits_as_any_other() -> None:
    shares = [[6 / 6_860], [10 / 6_860], [0.05], [0.1], [2 / 3], [1_234.5678], [0.0], [float("nan")]]
    shown = [line.strip() for line in format_table(["late"], shares).splitlines()[1:]]
    assert shown == ["0.000875", "0.00146", "0.05", "0.1", "0.667", "1,234.568", "0", "nan"]


def test_an_unknown_table_is_answered_with_the_known_ones(home: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"batches, .*flight_board, .*latest_state, .*sla_results"):
        Warehouse(home).ask("select * from flight_bored")


@pytest.mark.parametrize(
    "text",
    [
        "copy (select 1) to 'x.csv'", "drop view batches", "select 1; select 2", "", "call range(3)",
        "explain analyze drop view batches", "explain analyze copy (select 1) to 'x.csv'", "pragma show_tables",
        "pragma import_database('x')", "import database 'x'", "export database 'x'", "attach 'x.db'", "set threads = 1",
    ],
)  # fmt: skip
def test_only_a_single_reading_statement_is_accepted(home: Path, text: str) -> None:
    with pytest.raises(InvalidArgument, match="one read-only statement"):
        Warehouse(home).ask(text)


@pytest.mark.parametrize(
    "text",
    [
        "from read_text('{outside}/secret.txt')", "from '{outside}/secret.csv'", "from glob('{outside}/*')",
        "from read_text('{home}/../secret.txt')", "from read_blob('/proc/self/environ')",
        "from delta_scan('{outside}/table')", "from read_csv('https://example.org/x.csv')", "from duckdb_secrets()",
        "from sqlite_scan('{outside}/x', 'y')", "select getenv('HOME')", "from outside_of_sql",
    ],
)  # fmt: skip
def test_a_query_sees_nothing_but_the_warehouse(home: Path, text: str) -> None:
    outside_of_sql = pa.table({"a": [1]})  # which DuckDB would find by its name
    outside = home.parent
    (outside / "secret.txt").write_text("canary")
    (outside / "secret.csv").write_text("canary\n1\n")
    write_deltalake(outside / "table", outside_of_sql)
    with pytest.raises(InvalidArgument) as refused:
        Warehouse(home).ask(text.format(home=home, outside=outside))
    assert "canary" not in str(refused.value)


def test_a_warehouse_may_be_a_link_or_a_relative_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(home)
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "link", Path("link"), Path(home.name)):
        assert Warehouse(name).ask("select count(*) from batches").rows == ((3,),)


def test_a_query_cannot_lift_its_restrictions(home: Path) -> None:
    warehouse = Warehouse(home)
    for text in ("SET enable_external_access = true", "LOAD httpfs", "INSTALL httpfs", "ATTACH 'x.db'"):
        with pytest.raises(InvalidArgument):
            warehouse.ask(text)
    with pytest.raises(InvalidArgument):
        warehouse.ask("from read_text('/etc/hostname')")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select * from flight_bored", "Tables and views: "),
        ("drop table batches", "only"),
        ("select 1 / cast('a' as int)", "Could not convert string 'a'"),
        ("select nothing from flight_board", 'olumn "nothing" not found'),
        ("select cast(flight as int) from flight_board", "Could not convert string 'UA 1'"),
    ],
)
def test_a_mistake_in_a_query_is_told_although_another_table_is_damaged(home: Path, text: str, said: str) -> None:
    for file in Layout(home).stream_table("flights", "status", "batches").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InvalidArgument, match=said):
        Warehouse(home).ask(text)
    with pytest.raises(UnreadableFile, match="batches"):
        Warehouse(home).ask("select max(batch_id), max(epoch) from batches")


def test_an_unwritten_table_has_its_columns_and_no_rows(tmp_path: Path) -> None:
    answer = Warehouse(tmp_path / "nowhere").ask("select * from batches")
    assert answer == QueryResult(BATCHES.names, ())


def test_a_column_that_a_table_lacks_is_null(home: Path) -> None:
    assert Warehouse(home).ask("select records_in from batches").rows == ((None,), (None,), (None,))


def test_latency_and_emission_have_the_names_of_kafka(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    stream = {"topology": "flights", "sub_topology": "status", "batch_id": 3}
    ran = {**stream, "thread_id": "app-1", "finished_at": 1_767_268_800_250, "decided_at": 1_767_268_800_250}
    skips = {"idempotent_update_skip_total": 12, "idempotent_update_skip_rate": 0.5}
    source = {"task_id": "status_0", "n": 4, "min_ms": -5, "max_ms": 15, "sum_ms": 22}
    table = {"task_id": "status_0", "n": 1, "min_ms": 7, "max_ms": 7, "sum_ms": 7, **skips}
    rows: list[dict[str, object]] = [
        {**ran, "operator": "weather", "kind": "source", "level": "info", "tasks": [source]},
        {**ran, "operator": "weather_now", "kind": "table", "level": "trace", "tasks": [table, {"shard": 0}]},
        {**ran, "operator": "idle", "kind": "map", "level": None, "tasks": None},
    ]
    write(layout, OPERATOR_BATCHES, rows)
    assert Warehouse(tmp_path).ask("from kafka_metrics where metric like '%-avg' order by node_id").objects == [
        {
            "topology": "flights", "sub_topology": "status", "metric": "record-e2e-latency-avg",
            "metric_group": group, "thread_id": "app-1", "task_id": "status_0", "node_id": node,
            "recording_level": level, "value": value, "n": n, "at": NOON,
        }
        for group, node, level, value, n in (
            ("stream-processor-node-metrics", "weather", "INFO", 5.5, 4),
            ("stream-state-metrics", "weather_now", "TRACE", 7.0, 1),
        )
    ]  # fmt: skip
    average = "select sum(value * n) / sum(n) from kafka_metrics where metric = 'record-e2e-latency-avg'"
    assert Warehouse(tmp_path).ask(average).rows == ((5.8,),)
    found = (
        Warehouse(tmp_path).ask("select metric, node_id, recording_level, value from kafka_metrics order by all").rows
    )
    assert found == (
        ("idempotent-update-skip-rate", "weather_now", "DEBUG", 0.5),
        ("idempotent-update-skip-total", "weather_now", "DEBUG", 12.0),
        ("record-e2e-latency-avg", "weather", "INFO", 5.5),
        ("record-e2e-latency-avg", "weather_now", "TRACE", 7.0),
        ("record-e2e-latency-max", "weather", "INFO", 15.0),
        ("record-e2e-latency-max", "weather_now", "TRACE", 7.0),
        ("record-e2e-latency-min", "weather", "INFO", -5.0),
        ("record-e2e-latency-min", "weather_now", "TRACE", 7.0),
    )


def write(layout: Layout, table: Table, rows: list[dict[str, object]]) -> None:
    write_deltalake(layout.stream_table("flights", "status", table.name), rows_of(table, rows))


def test_without_tables_kafka_s_names_have_no_values(tmp_path: Path) -> None:
    assert Warehouse(tmp_path).ask("from kafka_metrics").rows == ()


def test_the_inventory_counts_rows_and_files_from_the_log(home: Path) -> None:
    found = {(stored.table, stored.where): stored[2:4] + stored[5:] for stored in inventory(home)}
    assert found == {
        ("batches", "streams/flights/carriers"): (1, 1, 0),
        ("batches", "streams/flights/status"): (2, 2, 1),
        ("flight_board", "streams/flights/status"): (1, 1, 0),
        ("sla_results", "reports/flights"): (0, 0, 0),
    }


def test_values_are_written_for_people_and_for_programs(home: Path) -> None:
    columns = ("name", "at", "n", "share", "missing", "nested", "raw")
    rows = [("über", NOON, 12345, 0.5, None, [{"partition": 1}], b"\xff{")]
    assert format_table(columns, rows).splitlines() == [
        "name  at                             n  share  missing  nested              raw",
        'über  2026-01-01T12:00:00.250Z  12,345    0.5  null     [{"partition": 1}]  \\xff{',
    ]
    assert as_csv(columns, rows).splitlines()[1] == (
        'über,2026-01-01T12:00:00.250Z,12345,0.5,,"[{""partition"": 1}]",\\xff{'
    )
    assert json.loads(as_json(columns, rows))[0]["at"] == "2026-01-01T12:00:00.250Z"
    assert json.loads(as_json(columns, rows))[0]["missing"] is None


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A warehouse of two topologies in which unneeded tables are torn.

    Only `batches` of a can be opened; opening another one raises.
    """
    layout = Layout(tmp_path)
    for topology in ("a", "b"):
        rows = rows_of(BATCHES, [{"batch_id": 1}], topology=topology, sub_topology="s")
        write_deltalake(layout.stream_table(topology, "s", "batches"), rows)
    for path in (layout.stream_table("b", "s", "batches"), layout.stream_table("a", "s", "operator_batches")):
        log = path / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{0:020d}.json").write_text("torn")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "select batch_id from batches where topology = 'a'", "from batches b where batch_id > 0 and 'a' = b.Topology",
        "select sub_topology from freshness_now where topology = 'a'",
    ],
)  # fmt: skip
def test_a_query_opens_only_the_tables_that_it_names(torn: Path, text: str) -> None:
    assert len(Warehouse(torn).ask(text).rows) == ("batches" in text)


@pytest.mark.parametrize(
    "text",
    [
        "select batch_id from batches", "from batches where topology = 'a' or batch_id = 1",
        "from batches where topology = 'a' and batch_id in (select batch_id from batches where topology = 'b')",
        "with x as (from batches) from x where topology = 'a'",
        "from batches where topology = 'a' union all from batches",
        "from batches a, batches b where a.topology = 'a'", "from batches where topology != 'a'",
        "from batches, operator_batches",
    ],
)  # fmt: skip
def test_a_query_that_may_be_about_others_opens_them(torn: Path, text: str) -> None:
    with pytest.raises(UnreadableFile, match=r"_delta_log/0{20}\.json: it is damaged"):
        Warehouse(torn).ask(text)


@pytest.mark.parametrize("topology", ["../../outside", "/etc", "*", "", "[ab]"])
def test_no_topology_of_a_query_is_a_path(torn: Path, topology: str) -> None:
    log = torn.parent / "outside" / "s" / "batches" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{0:020d}.json").write_text("torn")
    assert Warehouse(torn).ask(f"from batches where topology = '{topology}'").rows == ()
