"""The real DAG files, as Airflow reads them."""

import shutil
import subprocess
import sys
from copy import deepcopy
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import Template

import tidemark_dags
from tidemark_spark import BatchJob

DAGS = Path(__file__).resolve().parents[2] / "dags"
# Airflow reads .airflowignore files with a class that its own dependency has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
EXPECTED = {f"tidemark_flights_{part}" for part in ("streams", "reports", "alerts", "maintenance")}


@pytest.fixture(scope="module")
def dagbag() -> DagBag:
    return DagBag(dag_folder=str(DAGS))


def test_every_dag_file_can_be_imported(dagbag: DagBag) -> None:
    assert dagbag.import_errors == {}
    assert set(dagbag.dags) == EXPECTED


@pytest.mark.parametrize("dag_id", sorted(EXPECTED))
def test_every_dag_says_whose_it_is_and_what_it_does(dagbag: DagBag, dag_id: str) -> None:
    dag = dagbag.dags[dag_id]
    assert {"tidemark", "flights"} <= set(dag.tags)
    assert dag.owner == "tidemark"
    assert dag.doc_md
    assert dag.catchup is False
    assert dag.max_active_runs == 1


@pytest.mark.parametrize("dag_id", sorted(EXPECTED))
def test_every_dag_survives_the_trip_through_the_database(dagbag: DagBag, dag_id: str) -> None:
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dagbag.dags[dag_id]))
    assert again.task_dict.keys() == dagbag.dags[dag_id].task_dict.keys()


def test_a_stream_is_a_task_of_its_own(dagbag: DagBag) -> None:
    assert set(dagbag.dags["tidemark_flights_streams"].task_ids) == {"status", "carriers"}


def test_slas_are_checked_on_what_was_reported_before_and_pages_show_what_was_rolled_up(dagbag: DagBag) -> None:
    reports = dagbag.dags["tidemark_flights_reports"]
    order = ["rollup", "critical_path", "check_sla", "publish_breaches"]
    upstream = {task.task_id: task.upstream_task_ids for task in reports.tasks}
    assert upstream == {"rollup": set(), **{later: {first} for first, later in pairwise(order)}}
    assert reports.get_task("critical_path").application_args[-2:] == [
        "--html", "{{ var.value.tidemark_warehouse }}/reports/flights/html",
    ]  # fmt: skip


def test_reports_cover_the_interval_of_the_run_unless_one_is_given(dagbag: DagBag) -> None:
    rollup = dagbag.dags["tidemark_flights_reports"].get_task("rollup")
    start = Template(dict(pairwise(rollup.application_args))["--from"])
    of_run = datetime(2026, 1, 1, 7, tzinfo=UTC)
    given = "2026-01-01T00:00:00Z"
    assert start.render(params={"from": None}, data_interval_start=of_run) == "2026-01-01T07:00:00+00:00"
    assert start.render(params={"from": given}) == given


def test_the_two_ends_of_an_interval_are_given_apart(dagbag: DagBag) -> None:
    params = deepcopy(dagbag.dags["tidemark_flights_reports"].params)
    params["from"] = "2026-01-01T00:00:00Z"
    assert params.dump() == {"from": "2026-01-01T00:00:00Z", "to": None}


def test_a_broken_topology_is_an_import_error_and_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "good.toml": tidemark_dags.TOPOLOGIES.joinpath("flights.toml").read_text(),
        "bad.toml": 'name = "bad"\nlevel = "loud"\n',
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tidemark_dags, "TOPOLOGIES", tmp_path)
    found = DagBag(dag_folder=str(DAGS))
    assert set(found.dags) == EXPECTED
    ((file, error),) = found.import_errors.items()
    assert file.endswith("tidemark_topologies.py")
    assert "bad.toml: level" in error


def test_a_topology_file_is_all_it_takes_to_get_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DAGS.parent / "tests" / "streaming" / "topologies" / "orders.toml", tmp_path)
    monkeypatch.setattr(tidemark_dags, "TOPOLOGIES", tmp_path)
    found = DagBag(dag_folder=str(DAGS))
    assert set(found.dags) == {f"tidemark_orders_{part}" for part in ("streams", "reports", "alerts", "maintenance")}
    assert set(found.dags["tidemark_orders_streams"].task_ids) == {"pricing", "regions", "products"}


def test_parsing_the_dags_imports_neither_spark_nor_great_expectations() -> None:
    code = """
import sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
assert len(bag.dags) == 4, bag.import_errors
heavy = {"pyspark", "great_expectations", "deltalake", "duckdb", "polars", "pyarrow"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(DAGS)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_batch_job_refuses_an_unknown_connection() -> None:
    with pytest.raises(AirflowException, match="no_such_cluster"):
        BatchJob(task_id="rollup", job="rollup", conn_id="no_such_cluster").execute({})
