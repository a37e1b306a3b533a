"""Files of processes are on their host, wherever the warehouse is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.control.driver_folder import DriverFolder, processes_of
from tidemark.storage.location import location


def test_processes_of_a_warehouse_on_disk_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
    assert processes_of(tmp_path) == tmp_path


@pytest.mark.parametrize(("home", "root"), [("/srv/airflow", "/srv/airflow"), ("", "/home/ann/airflow")])
def test_processes_for_an_object_store_are_in_airflows_home(
    monkeypatch: pytest.MonkeyPatch, home: str, root: str
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", home)
    monkeypatch.setenv("HOME", "/home/ann")
    folder = processes_of(location("s3://bucket/wh/control/flights/.driver"))
    assert folder == Path(f"{root}/tidemark/processes/bucket/wh/control/flights/.driver")
    assert DriverFolder(folder / "host").name == "flights"
