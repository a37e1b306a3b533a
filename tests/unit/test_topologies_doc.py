"""docs/topologies.md has every key, and its examples are accepted unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model import toml_operators
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.registry import KINDS
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.project.spark_settings import read_spark
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.value_types import ValueType
from tidemark.model.topology import parse

TEXT = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
EMISSION = {"strategy", "rule", "decide", "interval"}
NOT_TOGETHER = {  # what a key needs beside it, or instead of something, to be meant
    ("source", "delta"): {"topic": None},
    ("source", "files"): {"topic": None},
    ("source", "topics"): {"topic": None, "idle_after": "30 s"},
    ("source", "max_files"): {"topic": None, "delta": "reference/readings"},
    ("source", "max_bytes"): {"topic": None, "delta": "reference/readings"},
    ("source", "max_digits"): {"format": "avro", "schema": "readings.avsc"},
    ("source", "max_empty_items"): {"format": "avro", "schema": "readings.avsc"},
    ("source", "idle_advances"): {"idle_after": "30 s"},
    ("source", "schema"): {"format": "avro"},
    ("source", "message"): {"format": "protobuf", "schema": "readings.desc"},
    ("source", "registry"): {"format": "avro"},
    ("source", "subject"): {"format": "avro", "registry": "main"},
    ("source", "tombstone_time"): {"key": "device"},
    ("map", "key"): {"strategy": "on_change"},
    ("map", "identity"): {"strategy": "on_change"},
    ("aggregate", "allowed_lateness"): {"window": {"tumbling": "1 min"}},
    ("aggregate", "reopen_for"): {"window": {"tumbling": "1 min"}},
    ("aggregate", "strategy"): {"window": {"tumbling": "1 min"}},
    ("join", "table"): {"delta": None},
    ("sink", "topic"): {"table": None},
    ("sink", "kafka"): {"table": None, "topic": "alerts"},
    ("sink", "format"): {"table": None, "topic": "alerts"},
    ("sink", "schema"): {"table": None, "topic": "alerts", "format": "avro"},
    ("sink", "marks"): {"table": None, "topic": "alerts"},
    ("sink", "partitioner"): {"table": None, "topic": "alerts"},
    ("sink", "traces"): {"table": None, "topic": "alerts"},
    ("sink", "mark_every"): {"table": None, "topic": "alerts", "marks": True},
    ("sink", "mode"): {"key": ["device"]},
    ("sink", "key"): {"mode": "current"},
    ("sink", "refresh"): {"mode": "current", "key": ["device"]},
    ("sink", "last_seen_at"): {"mode": "current", "key": ["device"]},
}


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def keys_in(text: str) -> dict[str, str]:
    """Key and example of each row of the tables in *text*."""
    return dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, flags=re.MULTILINE))


def example_of(kind: str) -> dict[str, Any]:
    (block,) = re.findall(r"```toml\n(.*?)```", section(kind), flags=re.DOTALL)
    ((_, table),) = tomllib.loads(block)["operators"].items()
    return dict(table)


def read(table: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that reading *table* asked for, at its own level."""
    asked: set[str] = set()
    done = Keys.done
    monkeypatch.setattr(
        Keys, "done", lambda keys: (asked.update(keys.asked if keys.at == "operators.x" else ()), done(keys))[1]
    )
    assert toml_operators.read_operator("x.toml", "x", table, folder=folder)[1] == []
    monkeypatch.undo()
    return asked


def test_the_first_example_is_a_topology() -> None:
    topology = parse(tomllib.loads(TEXT.split("```toml\n")[1].split("```")[0]), file="docs/topologies.md")
    assert list(topology.operators) == ["clicks", "per_page", "page_board"]


def test_every_key_of_the_topology_has_an_accepted_example() -> None:
    keys = keys_in(section("The topology"))
    source = {"operators": {"readings": example_of(Source.kind)}}
    for key, example in keys.items():
        beside = {"max_drift": "1 min"} if key == "max_held" else {}
        parse({"name": "x", **source, **beside, **tomllib.loads(f"{key} = {example}")}, file="x.toml")
    with pytest.raises(InvalidSpec, match=", ".join(sorted({*keys, "operators"}))):
        parse({"name": "x", **source, "zzzzzzzz": 1}, file="x.toml")


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_key_of_a_kind_has_an_accepted_example(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("readings.avsc", "readings.desc", "alerts.avsc"):
        (tmp_path / name).write_text("{}")
    text = section(kind).split("A window is one of these")[0]
    explained = keys_in(text)
    known = read(example_of(kind), tmp_path, monkeypatch)
    for key, example in explained.items():
        table = example_of(kind) | NOT_TOGETHER.get((kind, key), {}) | tomllib.loads(f"{key} = {example}")
        known |= read({k: v for k, v in table.items() if v is not None}, tmp_path, monkeypatch)
    judges = EMISSION - {"strategy"} if "strategy" in explained else set()
    assert set(explained) | judges | {"kind", "sub_topology"} == known | {"kind"}


def settings(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Returns type and default of each key of *kind*.

    As reading a table that has the key asks for them.
    """
    asked: dict[str, tuple[str, str]] = {}
    read_key = Keys.read

    def recorded(keys: Keys, key: str, of_type: ValueType[Any], example: str, default: Any = ...) -> Any:
        if keys.at == "operators.x":
            asked[key] = (of_type.word, _default(default))
        return read_key(keys, key, of_type, example, default)

    found = {}
    for key, example in keys_in(section(kind).split("A window is one of these")[0]).items():
        table = example_of(kind) | NOT_TOGETHER.get((kind, key), {}) | tomllib.loads(f"{key} = {example}")
        monkeypatch.setattr(Keys, "read", recorded)
        toml_operators.read_operator("x.toml", "x", {k: v for k, v in table.items() if v is not None}, folder=folder)
        monkeypatch.undo()
        of_type, default = asked[key]
        found[key] = (of_type, DEPENDS.get((kind, key), default))
    return found


DEPENDS = {  # defaults that follow from other keys, or that are written in another way
    ("table", "newest_by"): '`"arrival"`',
    ("source", "topic"): "one of the four",
    ("source", "topics"): "one of the four",
    ("source", "idle_after"): "none; required with `topics`",
    ("source", "delta"): "one of the four",
    ("source", "files"): "one of the four",
    ("source", "timestamp"): "none; required without a topic",
    ("source", "schema"): "this or `registry` with `avro`, `protobuf`",
    ("source", "message"): "required with `protobuf` and `schema`",
    ("source", "subject"): "the topic's name and `-value`; required with `topics`",
    ("source", "max_ahead"): '`"1 h"`',
    ("map", "strategy"): "none",
    ("table", "history"): '`"1 h"`',
    ("join", "table"): "one of the two",
    ("join", "delta"): "one of the two",
    ("aggregate", "select"): "the aggregates",
    ("sink", "topic"): "one of the two",
    ("sink", "table"): "one of the two",
    ("sink", "schema"): "required with `avro`",
    ("sink", "mark_every"): '`"10 s"`',
    ("sink", "key"): "required with `current`",
    ("sink", "refresh"): '`"1 min"`',
}


def _default(default: Any) -> str:
    if default is ...:
        return "required"
    if default is None or default in ({}, ()):
        return "none"
    if isinstance(default, tuple):
        return f"`[{', '.join(_default(item).strip('`') for item in default)}]`"
    return f"`{str(default).lower()}`" if isinstance(default, bool | int) else f'`"{default}"`'


@pytest.mark.parametrize("kind", list(KINDS))
def test_type_and_default_of_every_key_are_said(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("readings.avsc", "readings.desc", "alerts.avsc"):
        (tmp_path / name).write_text("{}")
    text = section(kind).split("A window is one of these")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?.*?`? \| ([^|]*) \| ([^|]*) \|", text, flags=re.MULTILINE)
    assert {key: (type_, default) for key, type_, default in rows} == settings(kind, tmp_path, monkeypatch)


def test_every_kind_of_window_has_an_accepted_example(tmp_path: Path) -> None:
    explained = keys_in(section("aggregate").split("A window is one of these")[1])
    assert set(explained) == {"tumbling", "hopping", "every", "session", "offset", "timezone"}
    for key, example in explained.items():
        tumbling = {"tumbling": "1 h"}
        besides = {
            "every": {"hopping": "1 min"},
            "hopping": {"every": "10 s"},
            "offset": tumbling,
            "timezone": tumbling,
        }
        window = besides.get(key, {}) | tomllib.loads(f"{key} = {example}")
        table = example_of(Aggregate.kind) | {"window": window}
        assert toml_operators.read_operator("x", "x", table, folder=tmp_path)[1] == []


def test_every_key_of_emission_has_an_accepted_example(tmp_path: Path) -> None:
    explained = keys_in(section("When an operator sends on"))
    assert set(explained) == EMISSION
    for key, example in explained.items():
        beside = {"strategy": "periodic"} if key == "interval" else {}
        table = example_of(KeyedTable.kind) | beside | tomllib.loads(f"{key} = {example}")
        assert toml_operators.read_operator("x", "x", table, folder=tmp_path)[1] == []


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


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_wrong_value_hides_neither_another_one_nor_an_unknown_key(kind: str, tmp_path: Path) -> None:
    for name in ("readings.avsc", "readings.desc", "alerts.avsc"):
        (tmp_path / name).write_text("{}")
    explained = keys_in(section(kind).split("A window is one of these")[0])
    if "strategy" in explained:
        explained |= keys_in(section("When an operator sends on"))
    hidden = []
    for key, example in explained.items():
        table = example_of(kind) | NOT_TOGETHER.get((kind, key), {}) | tomllib.loads(f"{key} = {example}")
        good = {name: value for name, value in table.items() if value is not None}
        others = {name: [[]] for name in good if name not in {key, "kind"}} | {"zzzzzzzz": 1}
        for other, second in others.items():
            if (key, other) in OF_OTHER_KEYS or other not in mistaken(good | {other: second}, tmp_path):
                continue
            for first in WRONG_VALUES:
                if key in mistaken(good | {key: first}, tmp_path):
                    told = mistaken(good | {key: first, other: second}, tmp_path)
                    hidden += [(key, first, other)] if not {key, other} <= told else []
    assert hidden == []


@pytest.mark.parametrize("kind", ["sources", 3, None])
def test_a_wrong_kind_hides_no_key_that_no_kind_has(kind: object, tmp_path: Path) -> None:
    table = {"topic": "t", "fields": "id string", "bounds": "5 s", "zzzzzzzz": 1}
    given = table if kind is None else {"kind": kind, **table}
    # `topic` and `fields` are keys of a source, so nothing is wrong with them.
    assert mistaken(given, tmp_path) == {"kind", "bounds", "zzzzzzzz"}
