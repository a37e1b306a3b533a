"""The command lines by which Airflow gives jobs to Spark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import tidemark_spark
from tidemark.errors import InvalidArgument
from tidemark.spec.spark_settings import SparkSettings, read_spark
from tidemark_spark import BatchJob, DriverHook


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tidemark_spark, "LIBRARIES", tmp_path)
    return tmp_path


def options(command: Sequence[str]) -> dict[str, str]:
    """What follows each option, and each property by its name."""
    pairs = list(pairwise(command))
    properties = dict(value.split("=", 1) for option, value in pairs if option == "--conf")
    return {option: value for option, value in pairs if option.startswith("--")} | properties


def submitted(settings: SparkSettings) -> dict[str, str]:
    return options(DriverHook(spark=settings, conn_id="spark_default").command("job.py"))


def test_a_topology_without_settings_is_submitted_to_the_connections_master_and_ships_no_code() -> None:
    found = submitted(SparkSettings())
    assert (found["--master"], found["spark.driver.host"]) == ("local[2]", "127.0.0.1")
    assert "--py-files" not in found


def test_a_topology_names_another_master_and_what_its_executors_have(libraries: Path) -> None:
    found = submitted(read_spark("x.toml", {"master": "spark://elsewhere:7077", "executors": 2, "memory": "3g"}))
    assert found["--master"] == "spark://elsewhere:7077"
    assert (found["spark.cores.max"], found["spark.executor.memory"]) == ("2", "3g")
    assert "spark.driver.host" not in found


def test_executors_on_other_machines_get_the_library(libraries: Path) -> None:
    found = submitted(SparkSettings(master="spark://elsewhere:7077"))
    assert [Path(found["--py-files"])] == list(libraries.glob("tidemark-*.zip"))


def test_a_batch_job_with_variables_of_its_own_is_refused_with_the_place_to_put_them() -> None:
    with pytest.raises(InvalidArgument, match=r"got env_vars; use \[spark.conf\]"):
        BatchJob(task_id="rollup", job="rollup", spark=read_spark("x.toml", {}), env_vars={"PASSWORD": "x"})


def test_a_batch_job_is_submitted_with_the_settings_of_its_topology() -> None:
    settings = read_spark("x.toml", {"master": "local[4]", "driver_memory": "3g"})
    job = BatchJob(task_id="rollup", job="rollup", spark=settings, conf={"spark.ui.port": "1"}, application_args=["x"])
    hook = job._get_hook()
    assert isinstance(hook, DriverHook)
    command = hook.command(job.application)
    found = options(command)
    assert (found["--master"], found["spark.driver.memory"], found["spark.ui.port"]) == ("local[4]", "3g", "1")
    assert command[-2:] == [tidemark_spark.script("rollup"), "x"]
