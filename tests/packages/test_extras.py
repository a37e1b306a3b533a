"""`tidemark[spark]` and `tidemark[airflow]` outside of a checkout; `make environments` runs this."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from packages.fresh import PROJECT, FreshEnvironment

pytestmark = pytest.mark.long
NEWER = ("3.12", "3.13")
STREAM = """
name = "shop"

[operators.orders]
kind = "source"
files = "incoming"
fields = "id string, at bigint"
timestamp = "at"
bound = "1 s"

[operators.bought]
kind = "sink"
input = "orders"
table = "bought"
"""
"""Needs no broker."""
DAG_FILE = """
from tidemark.airflow import topology_dags

topology_dags()
"""
DAGS = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
print(json.dumps([sorted(bag.dags), {**bag.import_errors}, "pyspark" in sys.modules]))
"""
PLUGINS = """
import json
from airflow.plugins_manager import get_import_errors, get_plugin_info
print(json.dumps([sorted(plugin["name"] for plugin in get_plugin_info()), get_import_errors()]))
"""


def python_of(version: str) -> str:
    """Returns an interpreter of *version*; skips the test where none is installed."""
    of_pyenv = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    candidates = [shutil.which(f"python{version}"), *of_pyenv]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} is installed")


@pytest.mark.parametrize("version", NEWER)
def test_rules_and_commands_work_on_newer_pythons(version: str, tmp_path: Path, wheel: Path) -> None:
    plain = FreshEnvironment.of(tmp_path, wheel, python=python_of(version))
    assert plain.answer("python", "--version").startswith(f"Python {version}.")
    plain.answer("tidemark", "init", "mine")
    shutil.copy(PROJECT / "docs" / "recipes" / "clicks.toml", tmp_path / "mine" / "topologies")
    assert "tables: visit_log, pages\n" in plain.answer("tidemark", "check", folder=tmp_path / "mine")


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> FreshEnvironment:
    """An environment with the extra for Spark."""
    return FreshEnvironment.of(tmp_path_factory.mktemp("spark"), wheel, "[spark]")


def test_jars_are_resolved_with_their_hashes(on_spark: FreshEnvironment) -> None:
    jars = on_spark.folder / "data" / "tidemark" / "jars"
    assert on_spark.answer("tidemark", "jars") == f"{jars} has 58 jars, each with its locked hash\n"
    assert {path.name for path in jars.iterdir()} == {"broker", "spark"}
    (changed,) = jars.glob("spark/jts-core-*.jar")
    changed.write_text("other")
    again = on_spark.run("tidemark", "jars")
    assert "resolving 58 jars" in again.stderr
    assert changed.stat().st_size > 1_000_000


def test_a_stream_runs_from_the_wheel_and_is_drained(on_spark: FreshEnvironment, tmp_path: Path) -> None:
    project = tmp_path / "mine"
    on_spark.answer("tidemark", "init", str(project))
    (project / "incoming").mkdir()
    (project / "incoming" / "a.json").write_text('{"id": "a", "at": 1000}\n{"id": "b", "at": 2000}\n')
    (project / "topologies" / "shop.toml").write_text(STREAM)
    environment = on_spark.environment(TIDEMARK_JARS=str(PROJECT / ".jars"))
    binary = str(on_spark.folder / "venv" / "bin" / "tidemark")
    with subprocess.Popen([binary, "run", "shop"], cwd=project, env=environment) as running:
        try:
            assert written(on_spark, project) == "n\n2\n"
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(90) == 0


def written(environment: FreshEnvironment, project: Path) -> str:
    """Returns the count of rows of the sink, once it has some."""
    deadline = time.monotonic() + 90
    while True:
        ran = environment.run("tidemark", "sql", "--format", "csv", "select count(*) as n from bought", folder=project)
        if ran.stdout not in {"", "n\n0\n"} or time.monotonic() > deadline:
            return ran.stdout


@pytest.fixture(scope="module")
def on_airflow(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> FreshEnvironment:
    """An environment with the extra for Airflow."""
    return FreshEnvironment.of(tmp_path_factory.mktemp("airflow"), wheel, "[airflow]")


def test_airflow_lists_the_provider(on_airflow: FreshEnvironment) -> None:
    listed = json.loads(on_airflow.answer("airflow", "providers", "list", "--output", "json"))
    ours = [provider for provider in listed if provider["package_name"] == "tidemark"]
    assert [provider["version"] for provider in ours] == ["0.1.0"]


def test_the_plugins_are_loaded_by_entry_point(on_airflow: FreshEnvironment) -> None:
    names, errors = json.loads(on_airflow.answer("python", "-c", PLUGINS).splitlines()[-1])
    assert {"tidemark", "tidemark_orphans"} <= {*names}
    assert errors == {}


def test_two_lines_are_the_dags_of_a_project(on_airflow: FreshEnvironment, tmp_path: Path) -> None:
    project = tmp_path / "mine"
    on_airflow.answer("tidemark", "init", str(project))
    (project / "topologies" / "shop.toml").write_text(STREAM)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "ours.py").write_text(DAG_FILE)
    said = on_airflow.answer("python", "-c", DAGS, str(tmp_path / "dags"), TIDEMARK_PROJECT=str(project))
    parts = ("daily_reports", "maintenance", "reports", "sla_check", "streams")
    assert json.loads(said.splitlines()[-1]) == [[f"tidemark_shop_{part}" for part in parts], {}, False]


def test_the_demo_passes_from_the_wheel(tmp_path: Path, wheel: Path) -> None:
    installed = FreshEnvironment.of(tmp_path, wheel, "[demo]")
    said = installed.answer("tidemark", "demo", within_s=600, TIDEMARK_JARS=str(PROJECT / ".jars"))
    assert "the demo took" in said
    assert (tmp_path / "state" / "tidemark" / "warehouse").is_dir()
