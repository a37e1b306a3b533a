"""The JSON Schemas of files accept and refuse what the parser does."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from support.command_line import tidemark
from support.schemas import is_declared, validator
from tidemark.cli.outside.file_schemas import schema_of
from tidemark.model import topology
from tidemark.model.settings.toml_keys import Keys, observed
from tidemark.model.slas import channel_spec

PROJECT = Path(__file__).parents[2]
OF_THE_REPOSITORY = [
    *(("topology", path) for path in sorted(PROJECT.glob("jobs/topologies/*.toml"))),
    ("slas", PROJECT / "expectations" / "slas.toml"),
    ("channels", PROJECT / "expectations" / "channels.toml"),
]


@pytest.mark.parametrize(("file", "path"), OF_THE_REPOSITORY, ids=lambda value: str(getattr(value, "name", value)))
def test_every_file_of_the_repository_is_valid(file: str, path: Path) -> None:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator(file).iter_errors(content)] == []


def test_the_refused_files_of_the_parser_are_of_each_kind() -> None:
    with observed() as reading, pytest.raises(ValueError, match="bond"):
        topology.parse({"name": "x", "operators": {"a": {"kind": "source", "bond": "3 s"}}}, file="x.toml")
    # Missing and unknown keys are declared.
    assert [is_declared(mistake) for mistake in reading.mistakes[:1]] == [True]


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"kind": "source", "files": "in", "max_records": 5}, None),  # compares two keys
        ({"kind": "source", "topic": "a", "format": "xml"}, "$.operators.x.format"),
        ({"kind": "sink", "table": "a", "mode": "current"}, "$.operators.x"),
        ({"kind": "map", "select": {"A": "a"}}, "$.operators.x.select"),
        ({"kind": "fridge"}, "$.operators.x.kind"),
        ({"kind": "aggregate", "window": {"tumbling": "1 min", "every": "1 s"}}, "$.operators.x.window"),
    ],
)
def test_an_editor_shows_the_place_of_a_mistake(keys: dict, path: str | None) -> None:
    of_kind = {"source": {"fields": "id string, t bigint", "timestamp": "t", "bound": "1 s"}, "sink": {"input": "a"}}
    of_kind |= {"map": {"input": "a"}, "aggregate": {"input": "a", "key": ["a"], "aggregates": {"n": "count(*)"}}}
    content = {"name": "x", "operators": {"x": {**of_kind.get(keys["kind"], {}), **keys}}}
    assert {error.json_path for error in validator("topology").iter_errors(content)} == ({path} if path else set())


def test_a_new_key_of_a_parser_is_in_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    read = channel_spec._notifier

    def with_a_new_key(kind: channel_spec.ChannelKind, keys: Keys) -> object:
        keys.count("colour", "3", 1)
        return read(kind, keys)

    monkeypatch.setattr(channel_spec, "_notifier", with_a_new_key)
    slack = [
        each["then"]
        for each in schema_of("channels")["additionalProperties"]["allOf"]
        if each["if"]["properties"]["kind"]["const"] == "slack"
    ]
    assert slack[0]["properties"]["colour"] == {"type": "integer", "minimum": 1, "examples": [3]}


def test_the_command_writes_a_valid_schema(tmp_path: Path) -> None:
    done = tidemark(PROJECT, "schema", "channels", "--into", str(tmp_path))
    assert done.stdout == f"wrote {tmp_path / 'channels.schema.json'}\n"
    written = json.loads((tmp_path / "channels.schema.json").read_text(encoding="utf-8"))
    assert written == validator("channels").schema
    for name in ("topology", "slas", "channels"):
        Draft202012Validator.check_schema(validator(name).schema)
