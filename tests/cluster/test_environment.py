"""Embedded servers do not inherit the starter's Airflow environment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark.control import process
from tidemark.control.process import Process
from tidemark.local import broker, spark_cluster


def started_broker(home: Path) -> Process:
    return broker.start(home).process


def started_master(home: Path) -> Process:
    spark_cluster.start(home, workers=0, cores=1, memory="1g")
    found = process.find(home, spark_cluster.MASTER)
    assert found is not None
    return found


@pytest.mark.parametrize(("start", "stop"), [(started_broker, broker.stop), (started_master, spark_cluster.stop)])
def test_a_server_inherits_nothing_of_airflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path], Process], stop: Callable[[Path], None]
) -> None:
    for name in ("AIRFLOW_CONN_DB", "_AIRFLOW_WWW_USER_PASSWORD", "OF_THE_STORE"):
        monkeypatch.setenv(name, "x")
    try:
        file = Path(f"/proc/{start(tmp_path).pid}/environ")
        environment = ""

        def is_known() -> bool:  # not while one program takes the place of another
            nonlocal environment
            environment = file.read_text()
            return bool(environment)

        process.wait_until(is_known, "its environment", 10)
    finally:
        stop(tmp_path)
    names = {variable.partition("=")[0] for variable in environment.split("\0")}
    assert {name for name in names if "AIRFLOW" in name or "STORE" in name} == {"OF_THE_STORE"}
