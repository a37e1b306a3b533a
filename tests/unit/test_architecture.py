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

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "jobs" / "tidemark"
PACKAGES = {"tidemark": PACKAGE, "tidemark_airflow": PROJECT / "plugins" / "tidemark_airflow"}
HEAVY = {"pyspark", "great_expectations", "pandas", "polars", "pyarrow", "duckdb", "deltalake", "numpy", "airflow"}
"""Packages that rules and models must not import."""
IMPORTS = {
    "collecting": "",
    "safe_text": "",
    "errors": "safe_text",
    "clock": "",
    "bounded_http": "errors",
    "kernels": "",
    "graph": "errors",
    "semantics": "collecting errors graph",
    "model.tables": "collecting semantics",
    "extensions": "",
    "model.settings": "collecting errors semantics model.tables extensions",
    "model.project": "safe_text errors model.settings",
    "model.kinds": "semantics model.tables extensions model.settings model.project",
    "model": "collecting errors graph semantics model.tables model.settings model.project model.kinds",
    "kernels.columns": "collecting errors semantics model.tables model.settings",
    "kernels.aggregates": "collecting errors semantics model.settings model.kinds kernels.columns",
    "kernels.reports": "semantics model.settings kernels.columns",
    "kernels.sql": "errors model.settings kernels.columns",
    "kernels.updates": (
        "collecting errors kernels semantics model.settings model.kinds kernels.columns kernels.aggregates kernels.sql"
    ),
    "kernels.records": "collecting semantics model.tables model.settings model.kinds kernels.columns kernels.updates",
    "kernels.formats": "collecting semantics model.settings model.kinds kernels.columns kernels.records",
    "storage": "errors clock model.settings model.project",
    "storage.delta": (
        "collecting errors clock model.tables model.settings model kernels.columns kernels.sql kernels.updates storage"
    ),
    "control": "errors clock graph semantics storage",
    "recorded": "collecting safe_text errors graph model.project model.kinds model storage control",
    "spark_session": "errors model.project storage control",
    "stream.journal": (
        "collecting errors clock semantics model.tables kernels.sql kernels.records storage storage.delta control"
    ),
    "stream.driver": (
        "collecting safe_text errors clock graph semantics model.tables model.project model kernels.columns "
        "storage storage.delta control spark_session stream.journal"
    ),
    "stream.kafka": (
        "errors clock kernels semantics model.settings model.project model.kinds model kernels.columns "
        "kernels.updates kernels.records storage stream.journal"
    ),
    "stream.state": "collecting errors kernels.updates kernels.records storage control stream.journal",
    "stream.updates": (
        "collecting errors kernels graph semantics model.tables model.settings model.kinds model "
        "kernels.columns kernels.aggregates kernels.sql kernels.updates kernels.records stream.journal "
        "stream.state"
    ),
    "stream.operate": (
        "collecting errors kernels graph semantics model.tables model.settings model.kinds model "
        "kernels.columns kernels.aggregates kernels.sql kernels.updates kernels.records kernels.formats "
        "storage.delta stream.journal stream.kafka stream.state stream.updates"
    ),
    "stream.schemas": "errors clock bounded_http model.project model.kinds kernels.formats storage",
    "stream.read": (
        "collecting errors clock semantics model.tables model.settings model.project model.kinds model "
        "kernels.columns kernels.updates kernels.records kernels.formats storage storage.delta control "
        "spark_session stream.journal stream.driver stream.kafka stream.state stream.updates stream.operate"
    ),
    "stream.decide": (
        "collecting clock semantics model.tables model.settings model.kinds model kernels.columns "
        "kernels.updates kernels.records storage storage.delta control stream.journal stream.kafka "
        "stream.state stream.updates stream.operate stream.read"
    ),
    "stream.write": (
        "collecting semantics model.tables model.settings model.kinds model kernels.columns kernels.sql "
        "kernels.updates kernels.records storage storage.delta stream.journal stream.kafka stream.operate "
        "stream.decide"
    ),
    "stream.startup": (
        "collecting errors kernels graph semantics model.tables model.settings model.project model.kinds "
        "model kernels.columns kernels.updates kernels.records storage storage.delta control stream.journal "
        "stream.driver stream.kafka stream.state stream.operate stream.schemas stream.read stream.write"
    ),
    "stream.shards": (
        "collecting errors clock kernels semantics model.tables model.kinds model kernels.columns "
        "kernels.aggregates kernels.updates kernels.records kernels.formats storage control spark_session "
        "stream.journal stream.driver stream.kafka stream.state stream.updates stream.operate stream.schemas "
        "stream.read stream.decide stream.write stream.startup"
    ),
    "query": "collecting safe_text errors graph model.tables model.project storage storage.delta stream.journal",
    "sample": (
        "collecting errors semantics model.settings model.project model.kinds model kernels.columns "
        "kernels.records stream.kafka stream.read stream.write"
    ),
    "maintenance": (
        "semantics model.tables model.settings model.project model.kinds model kernels.records storage "
        "storage.delta control stream.journal stream.read stream.write stream.startup"
    ),
    "local": "collecting errors clock bounded_http semantics model.project model control",
    "demo": "errors model.settings model.project local",
    "tidemark_airflow": "model.project",
    "dags": "tidemark_airflow",
    "allocator": "model.project",
    "arrow": "allocator",
    "testing": (
        "collecting errors kernels semantics model.settings model.project model.kinds model kernels.columns "
        "kernels.updates kernels.records stream.journal stream.kafka stream.state stream.updates "
        "stream.operate stream.read stream.decide"
    ),
    "account.owners": "semantics extensions",
    "model.measures": "collecting errors semantics model.tables extensions model.settings model.kinds model",
    "model.slas": (
        "collecting errors graph semantics extensions model.settings model.project model.kinds model model.measures"
    ),
    "stream": (
        "collecting safe_text errors clock semantics model.tables model.settings model.project model.kinds "
        "model kernels.columns kernels.sql storage storage.delta control spark_session stream.journal "
        "stream.driver stream.kafka stream.state stream.operate stream.schemas stream.read stream.decide "
        "stream.write stream.startup stream.shards model.slas"
    ),
    "facts": (
        "collecting safe_text errors graph semantics model.tables model.settings model.project model "
        "kernels.columns kernels.reports storage storage.delta control spark_session stream.journal "
        "stream.startup query model.measures"
    ),
    "facts.measures": (
        "semantics model.tables model.settings model.project model.kinds model storage storage.delta control "
        "model.measures model.slas facts"
    ),
    "account": (
        "semantics model.tables model.settings model.project model.kinds model kernels.columns control "
        "account.owners model.measures model.slas facts"
    ),
    "reports": (
        "collecting errors graph semantics model.tables model.settings model.project model kernels.reports "
        "storage storage.delta control recorded spark_session model.measures model.slas"
    ),
    "sla.contracts": (
        "collecting model.tables model.settings model.project model.kinds model kernels.columns storage "
        "storage.delta query model.slas"
    ),
    "api": (
        "collecting errors clock semantics model.tables model.settings model.project model.kinds model "
        "kernels.columns kernels.updates kernels.records storage storage.delta control recorded "
        "spark_session stream.journal stream.driver stream.state stream.shards stream"
    ),
    "cli.shared": (
        "collecting safe_text errors clock semantics model.settings model.project model storage "
        "storage.delta control recorded stream.kafka stream.schemas stream.read local reports"
    ),
    "cli": "safe_text errors extensions model.project storage storage.delta arrow cli.shared",
    "why.evidence": "collecting safe_text graph semantics model.settings model.kinds model facts",
    "why.causes": (
        "collecting errors graph semantics model.tables model.settings model.project model.kinds model "
        "kernels.columns kernels.reports kernels.records storage control recorded stream.operate facts "
        "why.evidence"
    ),
    "why": (
        "collecting errors semantics model.tables model.settings model.project model.kinds model "
        "storage.delta account.owners facts account why.evidence why.causes"
    ),
    "trace": (
        "collecting errors kernels graph semantics model.tables model.settings model.project model.kinds "
        "model kernels.columns kernels.aggregates kernels.reports kernels.records stream.journal "
        "stream.kafka stream.state stream.updates stream.operate stream.read stream.startup facts"
    ),
    "sla.measures": (
        "collecting clock semantics model.tables model.project model.kinds model control model.measures "
        "model.slas facts facts.measures"
    ),
    "sla.incidents": (
        "collecting safe_text errors graph semantics model.tables model.settings model.project model storage "
        "storage.delta query account.owners model.measures model.slas facts account reports sla.measures"
    ),
    "metrics": (
        "collecting clock semantics model.tables extensions model.settings model.project model "
        "model.measures model.slas facts why.evidence"
    ),
    "cli.export": (
        "collecting safe_text errors clock semantics model.settings model.project model.kinds model "
        "kernels.sql control query model.slas facts cli.shared metrics"
    ),
    "cli.audit": (
        "safe_text errors clock semantics model.settings model.project model.kinds model stream.schemas "
        "query facts reports cli.shared why trace"
    ),
    "cli.project": (
        "collecting safe_text errors clock graph semantics model.tables model.settings model.project "
        "model.kinds model storage recorded stream.kafka stream.operate stream.read stream.write "
        "stream.startup stream.shards query sample testing account.owners model.measures model.slas facts "
        "reports cli.shared why.causes why metrics"
    ),
    "cli.repair": (
        "collecting errors clock semantics model.tables model.settings model.project model.kinds model "
        "kernels.columns kernels.aggregates kernels.records storage storage.delta control stream.journal "
        "stream.kafka stream.state stream.operate stream.read stream.decide stream.startup stream.shards "
        "facts reports cli.shared trace cli.audit"
    ),
    "reports.paths": (
        "collecting errors graph semantics model.tables model.settings model.project model.kinds model "
        "kernels.columns kernels.reports storage.delta spark_session account.owners model.slas facts account "
        "reports"
    ),
    "reports.pages": (
        "collecting safe_text graph semantics model.tables model.settings model.project model.kinds model "
        "storage storage.delta account.owners model.measures facts account reports why.evidence why.causes "
        "why reports.paths"
    ),
    "sla": (
        "collecting safe_text clock bounded_http semantics model.tables model.settings model.project "
        "model.kinds model storage storage.delta control recorded stream.journal query allocator "
        "model.measures model.slas facts facts.measures reports sla.contracts why.evidence sla.measures "
        "sla.incidents reports.paths reports.pages"
    ),
    "reports.what_if": (
        "collecting errors semantics model.settings model kernels.columns kernels.reports query "
        "account.owners facts account reports.paths"
    ),
    "jobs": (
        "safe_text errors clock model.tables model.settings model.project model kernels.columns "
        "kernels.reports storage storage.delta control stream.driver query maintenance demo allocator arrow "
        "model.slas stream facts reports api cli.shared reports.paths reports.pages sla"
    ),
    "reports.documents": (
        "collecting errors semantics model.settings model.project model storage.delta recorded model.slas "
        "facts account reports why.evidence why sla.incidents reports.paths reports.pages sla "
        "reports.what_if"
    ),
    "watch": "collecting safe_text errors semantics model.settings storage storage.delta query reports.pages",
    "cli.explain": (
        "collecting safe_text errors clock semantics model.settings model.project model storage "
        "storage.delta recorded query account.owners model.slas facts reports cli.shared why.evidence "
        "why.causes why sla.incidents reports.paths reports.pages sla reports.what_if reports.documents "
        "watch"
    ),
    "cli.local": (
        "collecting safe_text errors clock semantics model.tables model.settings model.project model storage "
        "control recorded stream.startup query sample maintenance model.slas facts reports cli.shared "
        "why.evidence cli.export cli.project reports.pages reports.documents cli.explain"
    ),
    "metrics.groups": "collecting semantics model.tables model.settings model facts why.evidence metrics",
    "tidemark_airflow.notifiers": "safe_text errors clock bounded_http sla.incidents",
    "tidemark_airflow.operators": (
        "collecting safe_text errors clock semantics model.tables model.settings model.project model storage "
        "control query account.owners model.slas facts reports sla.incidents sla tidemark_airflow.notifiers"
    ),
    "tidemark_airflow.dags": "errors model.project model model.slas tidemark_airflow.operators",
    "tidemark_airflow.pages": (
        "collecting safe_text errors clock bounded_http semantics model.tables model.settings model.project "
        "model storage storage.delta recorded query facts sla.incidents metrics reports.pages sla "
        "reports.what_if reports.documents tidemark_airflow.operators tidemark_airflow.dags"
    ),
}
"""Maps each room to all rooms that it imports.

It comes after them. A room is a folder of `jobs/tidemark` or of `plugins` with its modules, a module of `jobs/tidemark`
itself, or one of the folders `jobs` and `dags` at the edge.
"""

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


def test_rooms_import_exactly_the_rooms_of_the_table():
    imports: dict[str, set[str]] = {}
    for room, path in product():
        names = set().union(*(names_of(statement) for statement in imports_of(path)))
        modules = [tuple(name.split(".")) for name in names]
        rooms = {room_of(module) for module in modules if module[0] in PACKAGES}
        imports.setdefault(room, set()).update(rooms - {room})
    assert imports == {room: {*others.split()} for room, others in IMPORTS.items()}


def test_a_room_imports_only_rooms_before_it():
    before: set[str] = set()
    for room, others in IMPORTS.items():
        assert {*others.split()} <= before, room
        before.add(room)


def test_only_commands_import_commands():
    """The scripts in `jobs` are commands, too."""
    commands = {room for room in IMPORTS if room.split(".")[0] == "cli"}
    for room, others in IMPORTS.items():
        if room not in {*commands, "jobs"}:
            assert not commands & {*others.split()}, room


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
