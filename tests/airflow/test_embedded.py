"""A real Airflow, as `tidemark up` starts it."""

import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.control import process
from tidemark.embedded import airflow
from tidemark.embedded.airflow_api import ENDED, SUCCESS, AirflowApi
from tidemark.model.project.files import CHECKOUT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("airflow home")
    variables = {"tidemark_warehouse": str(folder / "warehouse"), "tidemark_bootstrap": "127.0.0.1:1"}
    airflow.start(folder, root=CHECKOUT, variables=variables)
    yield folder
    airflow.stop(folder)
    assert not airflow.runs(folder)


@pytest.fixture(scope="module")
def api(home: Path) -> AirflowApi:
    found = airflow.wait_until_healthy(home, airflow.start(home, root=CHECKOUT, variables={}))  # it runs already
    process.wait_until(lambda: found.has_dag("tidemark_flights_sla_check"), "the DAGs", 60)
    return found


def test_the_dags_are_there_and_none_is_broken(api: AirflowApi) -> None:
    assert api.import_errors() == {}
    assert all(api.has_dag(f"tidemark_flights_{part}") for part in ("streams", "reports", "sla_check"))


def test_nobody_gets_in_without_the_password(api: AirflowApi) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{api.url}/api/v2/dags")
    refused.value.close()
    assert "wrong" not in repr(AirflowApi(api.url, "admin", "wrong"))


@pytest.mark.parametrize("file", ["secrets.json", "passwords.json"])
def test_secrets_are_for_their_owner_alone(home: Path, file: str) -> None:
    assert stat.S_IMODE((home / file).stat().st_mode) == 0o600


def test_a_run_can_be_triggered_and_watched(api: AirflowApi) -> None:
    run_id = api.trigger("tidemark_flights_maintenance", {})
    api.unpause("tidemark_flights_maintenance")
    process.wait_until(
        lambda: api.run_state("tidemark_flights_maintenance", run_id) in ENDED, "the end of the run", 180
    )
    assert api.runs("tidemark_flights_maintenance") == {run_id: SUCCESS}
    assert api.task_states("tidemark_flights_maintenance", run_id) == {"maintain": SUCCESS}
    assert any(
        "tidemark_maintenance.py" in line for line in api.log("tidemark_flights_maintenance", run_id, "maintain")
    )


def test_starting_what_runs_changes_nothing(home: Path, api: AirflowApi) -> None:
    before = process.find(home, "scheduler")
    airflow.start(home, root=CHECKOUT, variables={})
    assert process.find(home, "scheduler") == before
    assert api.is_healthy()
