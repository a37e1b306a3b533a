"""The examples of docs/topologies.md, and of the declarations that it follows from, are accepted unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model import toml_operators, topology_keys
from tidemark.model.kinds.source import Source
from tidemark.model.project.spark_settings import read_spark
from tidemark.model.settings.declared_tables import Key, TableForm, TableKind
from tidemark.model.settings.windows import WINDOW_FORM
from tidemark.model.topology import parse

KINDS = toml_operators.operator_form().kinds
TEXT = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
BESIDE = {("aggregate", "strategy"): {"window": {"tumbling": "1 min"}}}
"""What the example of a key needs by a rule."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of the files that examples name."""
    for name in ("readings.avsc", "alerts.avsc"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def keys_in(text: str) -> dict[str, str]:
    """Key and example of each row of the tables in *text*."""
    return dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, flags=re.MULTILINE))


def example_of(kind: str) -> dict[str, Any]:
    (block,) = re.findall(r"```toml\n(.*?)```", section(kind), flags=re.DOTALL)
    ((_, table),) = tomllib.loads(block)["operators"].items()
    return dict(table)


def with_key(table: dict[str, Any], form: TableForm | TableKind, key: Key[Any], value: object) -> dict[str, Any]:
    """Returns *table* with *value* as its *key*, with what that needs, and without what it excludes."""
    others = {other.name for group in form.one_of if key in group for other in group}
    table = {name: each for name, each in table.items() if name not in others} | {key.name: value}
    for condition in (condition for need in key.needs for condition in need.conditions):
        if not condition.holds(table):
            needed, *_ = condition.keys
            word = condition.words[0] if condition.words else needed.example_value
            table = with_key(table, form, needed, word)
    for other in form.keys:
        if other.required_if and not other.required_if.unmet_in(table):
            table.setdefault(other.name, other.example_value)
    return table


def with_example(kind: TableKind, key: Key[Any]) -> dict[str, Any]:
    table = {"kind": kind.name, **example_of(kind.name), **BESIDE.get((kind.name, key.name), {})}
    return with_key(table, kind, key, key.example_value)


def test_the_first_example_is_a_topology() -> None:
    topology = parse(tomllib.loads(TEXT.split("```toml\n")[1].split("```")[0]), file="docs/topologies.md")
    assert list(topology.operators) == ["clicks", "per_page", "page_board"]


@pytest.mark.parametrize("key", topology_keys.FORM.keys, ids=lambda key: key.name)
def test_every_key_of_the_topology_has_an_accepted_example(key: Key[Any]) -> None:
    source = {"name": "x", "operators": {"readings": example_of(Source.kind)}}
    parse(with_key(source, topology_keys.FORM, key, key.example_value), file="x.toml")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_key_of_a_kind_has_an_accepted_example(kind: TableKind, files: Path) -> None:
    found = {
        key.name: toml_operators.read_operator("x", "x", with_example(kind, key), folder=files)[1] for key in kind.keys
    }
    assert {name: mistakes for name, mistakes in found.items() if mistakes} == {}


@pytest.mark.parametrize("key", WINDOW_FORM.keys, ids=lambda key: key.name)
def test_every_key_of_windows_has_an_accepted_example(key: Key[Any]) -> None:
    # Windows on a local clock have their length there.
    tumbling = {"tumbling": "1 h"}
    assert WINDOW_FORM.read("x.toml", "window", with_key(tumbling, WINDOW_FORM, key, key.example_value)).mistakes == []


def test_every_key_of_spark_has_an_accepted_example() -> None:
    text = section("Spark")
    (block,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    read_spark("x.toml", tomllib.loads(block)["spark"])
    explained = keys_in(text)
    for key, example in explained.items():
        read_spark("x.toml", tomllib.loads(f"{key} = {example}"))
    with pytest.raises(InvalidSpec, match=", ".join(sorted(explained))):
        read_spark("x.toml", {"zzzzzzzz": 1})


WRONG_VALUES = ([[]], "", "§", -1, {})
"""Values of which each key refuses some."""
OF_OTHER_KEYS = {("subject", "registry"), ("timestamp", "fields"), ("key", "fields")}
"""Keys whose values can only be judged where the other one is right."""


def mistaken(table: dict[str, Any], folder: Path) -> set[str]:
    """The keys of *table* that have a mistake."""
    mistakes = toml_operators.read_operator("x.toml", "x", table, folder=folder)[1]
    return {mistake.key.removeprefix("operators.x.").split(".")[0] for mistake in mistakes}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_wrong_value_hides_neither_another_one_nor_an_unknown_key(kind: TableKind, files: Path) -> None:
    hidden = []
    for key in kind.keys:
        good = with_example(kind, key)
        others = {name: [[]] for name in good if name not in {key.name, "kind"}} | {"zzzzzzzz": 1}
        for other, second in others.items():
            if (key.name, other) in OF_OTHER_KEYS or other not in mistaken(good | {other: second}, files):
                continue
            for first in WRONG_VALUES:
                if key.name in mistaken(good | {key.name: first}, files):
                    told = mistaken(good | {key.name: first, other: second}, files)
                    hidden += [(key.name, first, other)] if not {key.name, other} <= told else []
    assert hidden == []


@pytest.mark.parametrize("kind", ["sources", 3, None])
def test_a_wrong_kind_hides_no_key_that_no_kind_has(kind: object, tmp_path: Path) -> None:
    table = {"topic": "t", "fields": "id string", "bounds": "5 s", "zzzzzzzz": 1}
    given = table if kind is None else {"kind": kind, **table}
    # `topic` and `fields` are keys of a source, so nothing is wrong with them.
    assert mistaken(given, tmp_path) == {"kind", "bounds", "zzzzzzzz"}
