"""Lists the public interface, on which programs of users depend.

`python -m support.public_interface` writes `tests/delta/public_interface.json`. docs/upgrades.md says what stays as it
is.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import shutil
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.command_line import tidemark
from support.golden_warehouse import TOPOLOGY, write
from tidemark.cli import main as command_line
from tidemark.model.project.files import CHECKOUT
from tidemark.model.tables.catalog import HOP, TABLES
from tidemark.model.topology import load
from tidemark.query import kafka_metrics
from tidemark.query.sql import Warehouse
from tidemark.query.views import views
from tidemark.stream.write.sink_columns import BOUNDS, TIDEMARKS_OWN, WHY

FILE = CHECKOUT / "tests" / "delta" / "public_interface.json"
ANSWERS = {
    "bound": (),
    "path": (),
    "topology": (),
    "whatif": ("--operator", "newest", "--scale", "0.5"),
    "why": ("--at", "2014-05-13T12:01:00Z"),
}
"""Commands with JSON about a topology, and their further arguments."""

Interface = Mapping[str, Iterable[str]]


def interface(home: Path) -> Interface:
    """Returns the interface by kind; *home* is an empty folder."""
    write(home)
    return {
        "columns of tables": _columns(),
        "columns of views": _columns_of_views(home),
        "commands": _commands(command_line._parser()),
        "HTTP": _requests(CHECKOUT / "plugins" / "tidemark_airflow" / "pages" / "api.py"),
        "keys of JSON": _json_keys(home),
        "Python": _names(),
        "entry points": _entry_points(),
    }


def _columns() -> Iterator[str]:
    for table in (*TABLES.values(), HOP):
        for column in table.columns:
            yield f"{table.name}.{column.name} {column.type}"
    for name in {**BOUNDS, **TIDEMARKS_OWN}:
        yield f"table of a sink.{name} {WHY[name][0]}"


def _columns_of_views(home: Path) -> Iterator[str]:
    warehouse = Warehouse(home / "warehouse")
    for view in (*views(), kafka_metrics.VIEW):
        for name, kind, *_ in warehouse.ask(f"DESCRIBE {view.name}").rows:
            yield f"{view.name}.{name} {kind}"


def _commands(parser: argparse.ArgumentParser, name: str = "tidemark") -> Iterator[str]:
    """Yields each command with each of its arguments."""
    yield name
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, each in action.choices.items():
                yield from _commands(each, f"{name} {word}")
        elif not isinstance(action, argparse._HelpAction):
            yield f"{name} {max(action.option_strings, key=len, default=action.dest.upper())}"


def _requests(file: Path) -> Iterator[str]:
    """Yields each request of the functions in *file*, with its parameters."""
    tree = ast.parse(file.read_text())
    aliases = dict(_aliases(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("app"), attr="get" | "post" as verb), args=[ast.Constant(path)]
                ):
                    method = verb.upper()
                    yield f"{method} {path}"
                    for argument in node.args.args:
                        kind = ast.unparse(argument.annotation) if argument.annotation else ""
                        if kind not in {"Readable", "Editor", "Request"}:  # no parameters: the user and the request
                            yield f"{method} {path} {aliases.get(kind, argument.arg)}"


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the types of parameters with another name in a request."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            for each in ast.walk(node.value):
                if isinstance(each, ast.keyword) and each.arg == "alias" and isinstance(each.value, ast.Constant):
                    yield node.targets[0].id, str(each.value.value)


def _json_keys(home: Path) -> Iterator[str]:
    """Yields the paths of keys in what commands print."""
    names = load(home / TOPOLOGY).operators
    for command, words in ANSWERS.items():
        at = ("--warehouse", str(home / "warehouse"))
        answer = tidemark(home, *at, command, str(home / TOPOLOGY), *words, "--format", "json")
        yield from sorted({f"{command}{path}" for path in _keys(json.loads(answer.stdout), names)})
    answer = tidemark(home, "watch", str(home / "warehouse"), "--format", "json")
    yield from sorted({f"watch{path}" for path in _keys(json.loads(answer.stdout), ())})
    # The topologies of a project, so the folder becomes one.
    for folder in ("topologies", "expectations"):
        (home / folder).mkdir()
    shutil.copy(home / TOPOLOGY, home / "topologies")
    places = ("--home", str(home / "state"), "--warehouse", str(home / "warehouse"))
    answer = tidemark(home, *places, "status", "--format", "json")
    yield from sorted({f"status{path}" for path in _keys(json.loads(answer.stdout), names)})


def _keys(content: Any, names: Container[str], place: str = "") -> Iterator[str]:
    """Yields the paths of the keys in *content*; * stands for *names*."""
    if isinstance(content, list):
        for each in content:
            yield from _keys(each, names, place)
    elif isinstance(content, dict):
        for key, value in content.items():
            path = f"{place}/{'*' if key in names else key}"
            yield path
            yield from _keys(value, names, path)


def _names() -> Iterator[str]:
    """Yields the names that other programs import."""
    api = import_module("tidemark.api")
    for name in api.__all__:
        yield f"tidemark.api.{name}"
        for parameter in inspect.signature(getattr(api, name)).parameters:
            yield f"tidemark.api.{name}({parameter})"
    yield from (f"tidemark_airflow.{name}" for name in import_module("tidemark_airflow")._MODULES)


def _entry_points() -> Iterator[str]:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    groups = {"scripts": project["scripts"], **project["entry-points"]}
    for group, points in groups.items():
        yield from (f"{group}: {name}" for name in points)
    yield from (f"extra: {name}" for name in project["optional-dependencies"])


def main() -> None:
    """Writes the interface to FILE."""
    with TemporaryDirectory() as folder:
        parts_of_kinds = {kind: sorted({*parts}) for kind, parts in interface(Path(folder)).items()}
    FILE.write_text(json.dumps(parts_of_kinds, indent=1) + "\n")


if __name__ == "__main__":
    main()
