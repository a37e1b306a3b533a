"""dbt judges published views by published sources."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from packages.fresh import PROJECT, FreshEnvironment, python_of, uv

from support.command_line import tidemark
from tidemark.model.project.layout import Layout

pytestmark = pytest.mark.long  # dbt has dependencies that Tidemark excludes, so it gets an environment of its own
PACKAGES = ("dbt-core==1.11.16", "dbt-duckdb==1.11.1", f"duckdb=={version('duckdb')}")
SLAS = """
[flights.board]
subject = "flight_board"
warn_after = "1 h"
error_after = "2 h"
owner = 'the "late" desk: #1'

[flights.changed]
subject = "changes"
warn_after = "30 min"
error_after = "2 d"
owner = "desk"
"""


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    """An environment with dbt for DuckDB."""
    folder = tmp_path_factory.mktemp("dbt")
    uv("venv", "--quiet", "--no-project", "--python", python_of("3.11"), str(folder / "venv"))
    uv("pip", "install", "--quiet", "--python", str(folder / "venv" / "bin" / "python"), *PACKAGES, folder=folder)
    return FreshEnvironment(folder)


def test_dbt_judges_the_freshness_of_published_tables(
    dbt: FreshEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project, layout, now = tmp_path / "mine", Layout(tmp_path / "warehouse"), datetime.now(UTC)
    (project / "topologies").mkdir(parents=True)
    shutil.copy(PROJECT / "jobs" / "topologies" / "flights.toml", project / "topologies")
    (project / "expectations").mkdir()
    (project / "expectations" / "slas.toml").write_text(SLAS, encoding="utf-8")
    for table, topology, hours in (("flight_board", "flights", 3), ("changes", "flights", 1), ("changes", "other", 0)):
        times = pa.array([now - timedelta(hours=hours)], pa.timestamp("us", "UTC"))
        rows = pa.table({"topology": [topology], "timestamp": times})
        write_deltalake(layout.stream_table(topology, "status", table), rows)
    file = tmp_path / "bi.duckdb"
    publish = ("--warehouse", str(layout.warehouse), "publish")
    written = tidemark(project, *publish, "duckdb", "--file", str(file), "--install-extension")
    assert written.returncode == 0, written.stderr
    sources = tidemark(project, *publish, "dbt", "--database", "main").stdout
    of_dbt = tmp_path / "of_dbt"
    (of_dbt / "models").mkdir(parents=True)
    (of_dbt / "models" / "sources.yml").write_text(sources, encoding="utf-8")
    (of_dbt / "dbt_project.yml").write_text("name: bi\nversion: '1.0'\nprofile: bi\n", encoding="utf-8")
    profile = {"bi": {"target": "x", "outputs": {"x": {"type": "duckdb", "path": str(file), "schema": "main"}}}}
    (of_dbt / "profiles.yml").write_text(json.dumps(profile), encoding="utf-8")
    judged = dbt.run("dbt", "source", "freshness", folder=of_dbt, HOME=str(tmp_path), DO_NOT_TRACK="1")
    assert "deprecat" not in judged.stdout.lower()
    results = json.loads((of_dbt / "target" / "sources.json").read_text(encoding="utf-8"))["results"]
    assert {each["unique_id"]: each["status"] for each in results} == {
        "source.bi.flights.flight_board": "error",
        "source.bi.flights.changes": "warn",  # an hour old; the row of the other topology is not counted
    }, judged.stdout
