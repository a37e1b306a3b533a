"""A warehouse of a test's own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from support.report_warehouse import CheckJob, TestWarehouse
from tidemark.model.project.files import VARIABLE, Project
from tidemark.model.project.layout import Layout


@pytest.fixture
def warehouse(tmp_path: Path) -> TestWarehouse:
    return TestWarehouse(Layout(tmp_path))


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Makes the project of this process in the test's folder."""
    project = Project(tmp_path)
    for each in (project.topologies, project.expectations):
        each.mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return project


@pytest.fixture
def check_job(monkeypatch: pytest.MonkeyPatch) -> CheckJob:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
        import check_sla
        import tidemark.sla.check  # noqa: F401 - which a check imports only when it is made

    def run(warehouse: Path, topology: Path | str, at: str, run_id: str) -> None:
        where = ["--warehouse", str(warehouse), "--topology", str(topology)]
        monkeypatch.setattr("sys.argv", ["check_sla.py", *where, "--at", at, "--run-id", run_id])
        check_sla.main()

    return run
