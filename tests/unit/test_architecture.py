"""Imports point one way, and cheap modules import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from support.syntax import nodes, top_level
from tidemark.cli.main import COMMANDS

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "jobs" / "tidemark"
PACKAGES = {"tidemark": PACKAGE, "tidemark_airflow": PROJECT / "plugins" / "tidemark_airflow"}
HEAVY = {"pyspark", "great_expectations", "pandas", "polars", "pyarrow", "duckdb", "deltalake", "numpy", "airflow"}
HEAVY |= {"holidays"}  # more than a second of CPU
"""Packages that rules and models must not import."""
ORDER = """
    selection safe_text errors clock bounded_http kernels graph semantics model.tables extensions model.settings
    model.project model.kinds model kernels.columns kernels.aggregates kernels.reports kernels.sql kernels.updates
    kernels.records kernels.formats storage storage.delta control recorded_jobs spark_session stream.journal
    stream.driver stream.kafka stream.state stream.updates stream.operate stream.schemas stream.read stream.decide
    stream.write stream.startup stream.shards query sample maintenance local demo tidemark_airflow dags allocator
    arrow testing account.owners model.measures model.slas stream facts facts.measures account reports sla.contracts
    api cli.shared cli why.evidence why.causes why trace sla.measures sla.incidents metrics cli.export
    reports.paths reports.pages watch sla cli.project reports.what_if jobs reports.documents cli.explain cli.repair
    cli.local metrics.groups tidemark_airflow.notifiers tidemark_airflow.operators tidemark_airflow.dags
    tidemark_airflow.pages
"""
"""All rooms. Each imports only rooms that stand before it.

A room is a folder of `jobs/tidemark` or of `plugins` with its modules, a module of `jobs/tidemark` itself, or one of
the folders `jobs` and `dags` at the edge.
"""
ROOMS = ORDER.split()

EDGES = ("cli", "jobs", "dags", "tidemark_airflow")
OPTIONAL = frozenset({"trace", "metrics", "metrics.groups", "testing", "demo", "sample"})
"""Rooms that only people who use them need."""

ASK_FOR_FACTS = frozenset({"account", "why", "sla", "reports", "metrics", "trace", "cli", "tidemark_airflow", "jobs"})
"""Rooms that ask the room `facts`, and open no table or journal."""
OPEN_TABLES = (
    "deltalake",
    "duckdb",
    "tidemark.query.spark",
    "tidemark.query.sql.Warehouse",
    "tidemark.query.stored_tables",
    "tidemark.storage.delta.datasets",
    "tidemark.storage.delta.log",
    "tidemark.storage.delta.snapshots",
    "tidemark.storage.delta.tables.scan",
    "tidemark.stream.journal.unflushed",
)
"""What opens tables or journals to read them. To write, rooms import `append`, `replace_rows` and their like."""


def imports_of(path: Path) -> Iterator[ast.stmt]:
    """Yields the import statements of the file, including those in functions."""
    for node in nodes(path):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def names_of(statement: ast.stmt) -> set[str]:
    """Returns the full names of what the statement imports."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if isinstance(statement, ast.ImportFrom) and statement.module:
        return {f"{statement.module}.{alias.name}" for alias in statement.names}
    return set()


def top_level_imports(path: Path) -> set[str]:
    """Returns the full names of the top-level imports of the file."""
    return set().union(*(names_of(statement) for statement in top_level(path)))


@cache
def room_of(parts: tuple[str, ...]) -> str:
    """Returns the room of a module, or of a name in it; *parts* are those of its full name."""
    package, *inner = parts
    folders = [part for n, part in enumerate(inner) if PACKAGES[package].joinpath(*inner[: n + 1]).is_dir()]
    if package == "tidemark":
        return ".".join(folders) or inner[0]
    return ".".join((package, *folders))


def product() -> Iterator[tuple[str, Path]]:
    """Yields each file of the product with its room."""
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts != ("__init__",):
                yield room_of((package, *parts)), path
    for edge in ("jobs", "dags"):
        for path in (PROJECT / edge).glob("*.py"):
            yield edge, path


@cache
def imports() -> dict[str, set[str]]:
    """Maps each room to the rooms that it imports."""
    imported: dict[str, set[str]] = {}
    for room, path in product():
        names = set().union(*(names_of(statement) for statement in imports_of(path)))
        modules = [tuple(name.split(".")) for name in names]
        rooms = {room_of(module) for module in modules if module[0] in PACKAGES}
        imported.setdefault(room, set()).update(rooms - {room})
    return imported


def test_a_room_imports_only_rooms_before_it():
    assert {*ROOMS} == imports().keys()
    order = {room: n for n, room in enumerate(ROOMS)}
    assert [
        f"{room} imports {other}" for room in ROOMS for other in imports()[room] if order[other] > order[room]
    ] == []


def test_only_edges_import_optional_rooms():
    """Without one of them, streams, facts, checks and reports work as before."""
    assert [
        f"{room} imports {other}"
        for room in ROOMS
        for other in imports()[room] & OPTIONAL
        if room.split(".")[0] not in {*EDGES, other.split(".")[0]}
    ] == []


def test_only_commands_import_commands():
    """The scripts in `jobs` are commands, too."""
    commands = {room for room in ROOMS if room.split(".")[0] == "cli"}
    for room, others in imports().items():
        if room not in {*commands, "jobs"}:
            assert not commands & others, room


def test_facts_are_opened_in_one_room():
    """Contracts read the tables of users, which hold no facts."""
    opens = [
        f"{path.relative_to(PROJECT)}: {name}"
        for room, path in product()
        if room.split(".")[0] in ASK_FOR_FACTS and room != "sla.contracts"
        for name in sorted(set().union(*(names_of(statement) for statement in imports_of(path))))
        if any(f"{name}.".startswith(f"{opener}.") for opener in OPEN_TABLES)
    ]
    assert opens == []


def test_semantics_holds_only_what_the_product_runs():
    used = Counter(name for _, path in product() for name in names_read(nodes(path)))
    for path in PACKAGE.glob("semantics/*.py"):
        for node in top_level(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own = Counter(names_read(ast.walk(node)))
                assert used[node.name] > own[node.name], f"{path.stem}.{node.name} belongs in tests/reference"


def test_each_helper_of_tests_has_one_line():
    folder = PROJECT / "tests" / "support"
    lines = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").splitlines()
    described = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert sorted(described) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def names_read(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Yields each name and attribute that the code reads."""
    for node in tree:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("kernels/**/*.py")), ids=lambda path: path.stem)
def test_a_kernel_imports_no_session_table_or_clock(path):
    roots = {name.split(".")[0] for name in top_level_imports(path)}
    assert not roots & {"pyspark", "deltalake", "great_expectations", "airflow", "time", "os"}


@pytest.mark.parametrize("room", ["semantics", "model"])
def test_rules_and_models_need_only_the_standard_library(room):
    files = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.glob(f"{room}/**/*.py")]
    modules = [".".join(file.parts) for file in files if file.stem != "__init__"]
    check = f"import sys, {', '.join(modules)}; print(sorted(m for m in {sorted(HEAVY)} if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_parts_that_kinds_share_know_no_kind():
    """Only kinds import kinds, without a cycle."""
    base = ("emission", "windows", "window_columns", "aggregate_functions")
    shared = ["kinds/operator.py", *(f"settings/{name}.py" for name in base)]
    for path in (PACKAGE / "model" / name for name in shared):
        kinds = {name.split(".")[3] for name in top_level_imports(path) if name.startswith("tidemark.model.kinds.")}
        assert kinds <= {"operator"}, path.name


def test_commands_reach_the_local_stack_through_one_module():
    reach = {
        path.name
        for path in PACKAGE.glob("cli/**/*.py")
        if any("tidemark.local" in name for name in top_level_imports(path))
    }
    assert reach == {"local.py"}


def test_every_command_is_a_module_of_one_form():
    for name, module, _ in COMMANDS:
        command = import_module(f"tidemark.cli.{module}")
        assert callable(command.add_options), name
        assert callable(command.command), name
