"""Imports point one way, and what must be cheap to import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.cli.main import COMMANDS

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "jobs" / "tidemark"
HEAVY = {"pyspark", "great_expectations", "pandas", "polars", "pyarrow", "duckdb", "deltalake", "numpy", "airflow"}


def imported(path: Path) -> set[str]:
    """Names of the modules that the file imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("kernels/*.py")), ids=lambda path: path.stem)
def test_a_kernel_knows_no_session_no_table_and_no_clock(path):
    roots = {name.split(".")[0] for name in imported(path)}
    assert not roots & {"pyspark", "deltalake", "great_expectations", "airflow", "time", "os"}


@pytest.mark.parametrize("room", ["semantics", "spec"])
def test_ring_0_needs_the_standard_library_alone(room):
    modules = [f"tidemark.{room}.{path.stem}" for path in PACKAGE.glob(f"{room}/*.py") if path.stem != "__init__"]
    check = f"import sys, {', '.join(modules)}; print(sorted(m for m in {sorted(HEAVY)} if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("room", ["semantics", "spec", "kernels"])
def test_the_inner_rings_do_not_know_the_outer_ones(room):
    inner = {"semantics": {"semantics"}, "spec": {"semantics", "spec"}, "kernels": {"semantics", "spec", "kernels"}}
    for path in PACKAGE.glob(f"{room}/*.py"):
        rooms = {name.split(".")[1] for name in imported(path) if name.startswith("tidemark.")}
        assert rooms <= inner[room] | {"errors"}, path.name


def test_reports_do_not_know_who_judges_them():
    for path in PACKAGE.glob("report/*.py"):
        assert not any(name.startswith(("tidemark.sla", "tidemark.cli")) for name in imported(path)), path.name


def test_commands_reach_the_local_stack_through_one_module():
    reach = {path.name for path in PACKAGE.glob("cli/*.py") if any("embedded" in name for name in imported(path))}
    assert reach == {"local.py"}


def test_every_command_is_a_module_of_one_form():
    for name, module, _ in COMMANDS:
        assert callable(module.add_options), name
        assert callable(module.command), name
