"""Jobs and commands import heavy packages only when needed.

Each test starts a process, so that it sees only its own imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.topologies import map_of, sink, source, topology_of
from tidemark.cli.main import COMMANDS
from tidemark.model.project.layout import Layout
from tidemark.model.project.spark_settings import WITHOUT_SPARK

PROJECT = Path(__file__).parents[2]


def imported_by(jobs: Iterable[str], watched: Iterable[str], **environment: str) -> dict[str, list[str]]:
    """Returns the *watched* packages in memory after the import of each job.

    One process imports the *jobs* in this order, so an import is seen at its job and at all later ones.
    """
    lines = [f"import {job}; found[{job!r}] = [name for name in {[*watched]} if name in sys.modules]" for job in jobs]
    code = "\n".join(["import json, sys", "found = {}", *lines, "print(json.dumps(found))"])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT / "jobs",
        env={**os.environ, **environment},
    )
    modules: dict[str, list[str]] = json.loads(ran.stdout)
    return modules


def test_a_batch_job_imports_heavy_packages_only_when_needed():
    jobs = ["rollup", "critical_path", "check_sla", "maintain"]
    assert imported_by(jobs, ["pyspark", "great_expectations"]) == {job: [] for job in jobs}


@pytest.mark.parametrize("words", [["--help"], ["sql", "--help"], ["sql", "FROM batches WHERE topology = 'x'"]])
def test_a_command_imports_no_other_one_and_no_pandas(words, tmp_path):
    write_deltalake(Layout(tmp_path).stream("x", "y") / "batches", pa.table({"batch_id": [1]}))
    words = ["--warehouse", str(tmp_path), *words]
    modules = [f"tidemark.cli.{module}" for _, module, _ in COMMANDS if module != "explain.query"]
    check = (
        f"import sys; sys.argv = ['tidemark', *{words!r}]; import atexit; from tidemark.cli.main import main; "
        f"atexit.register(lambda: print([name for name in [*{modules}, 'pandas'] if name in sys.modules])); main()"
    )
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "command",
    # 2 CPU s: the same rule for a command that parses SQL.
    ["trace {} --record events/0/0", pytest.param("check {}", marks=pytest.mark.long)],
)
def test_a_command_that_runs_sql_imports_no_pandas(command, tmp_path):
    file = tmp_path / "play.toml"
    mapped = {"mapped": map_of(select={"id": "id"}), "out": sink("mapped", table="board")}
    file.write_text(topology_of(events=source("id string"), **mapped))
    words = ["tidemark", "--warehouse", str(tmp_path), *command.format(file).split()]
    code = (
        f"import sys; sys.argv = {words!r}; from tidemark.cli.main import main; assert main() == 0; "
        "print('pandas' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"


def test_the_text_of_a_state_imports_no_pandas_and_uses_one_thread(tmp_path):
    (tmp_path / "topologies").mkdir()
    mapped = {"mapped": map_of(select={"id": "id"}), "out": sink("mapped", table="board")}
    (tmp_path / "topologies" / "play.toml").write_text(topology_of(events=source("id string"), **mapped))
    code = (
        "import os, sys; sys.argv = ['tidemark', 'status']; from tidemark.cli.main import main; assert main() == 1; "
        "import polars; print('pandas' in sys.modules, polars.thread_pool_size(), "
        "'POLARS_MAX_THREADS' in os.environ)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout.splitlines()[-1] == "False 1 False"


def test_a_job_that_airflow_runs_without_spark_imports_no_pandas():
    jobs = ["rollup", "critical_path", "maintain"]
    assert imported_by(jobs, ["pandas"], **{WITHOUT_SPARK: "1"}) == {job: [] for job in jobs}


@pytest.mark.parametrize(
    ("environment", "pool"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")]
)
def test_a_driver_imports_neither_pandas_nor_duckdb_and_has_one_allocator_unless_a_user_asks(
    environment: dict[str, str], pool: str
) -> None:
    code = (
        "import sys; sys.argv = ['jobs/stream.py']; import stream; from pyarrow import default_memory_pool; "
        "print([name for name in ['pandas', 'duckdb'] if name in sys.modules], default_memory_pool().backend_name)"
    )
    env = {**{name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}, **environment}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT / "jobs", env=env
    )
    assert ran.stdout == f"[] {pool}\n"


def test_a_check_has_one_allocator() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ARROW_")}
    code = (
        "import check_sla, tidemark.sla.check; from pyarrow import default_memory_pool; "
        "print(default_memory_pool().backend_name)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT / "jobs",
        env={**env, WITHOUT_SPARK: "1"},
    )
    assert ran.stdout == "system\n"


# Without pandas, which DuckDB imports for a query with parameters where it is installed.
HEAVY = (
    "airflow", "confluent_kafka", "deltalake", "duckdb", "fastavro", "google", "great_expectations", "grpc", "jinja2",
    "msgspec", "numpy", "obstore", "polars", "prometheus_client", "pyarrow", "pyspark", "requests",
)  # fmt: skip


IMPORTED = ["confluent_kafka", "deltalake", "fastavro", "google", "msgspec", "numpy", "polars", "pyarrow"]


@pytest.mark.parametrize(("command", "more"), [("status", []), ("check", ["duckdb"])])
def test_a_command_imports_these_packages_alone(command: str, more: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys, atexit; sys.argv = ['tidemark', '--warehouse', {str(tmp_path)!r}, {command!r}]\n"
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules]))\n"
        "from tidemark.cli.main import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "flights" in ran.stdout
    assert ran.stdout.splitlines()[-1] == str(sorted([*IMPORTED, *more]))
