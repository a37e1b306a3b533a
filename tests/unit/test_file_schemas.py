"""The JSON Schemas of files accept and refuse what the parser does."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.command_line import tidemark
from support.schemas import is_declared, validator
from tidemark.cli.outside.file_schemas import schema_of
from tidemark.model import topology
from tidemark.model.kinds.union import Union
from tidemark.model.settings.declared_tables import TableForm
from tidemark.model.settings.toml_keys import Keys, observed
from tidemark.model.settings.value_types import LENGTH_ABOVE_0
from tidemark.model.slas import channel_spec
from tidemark.model.slas.channel_kinds import VALID_FOR

PROJECT = Path(__file__).parents[2]
OF_THE_REPOSITORY = [
    *(("topology", path) for path in sorted(PROJECT.glob("jobs/topologies/*.toml"))),
    *(("tests", path) for path in sorted(PROJECT.glob("*/*/tests/*.toml"))),
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
    read = Union.read.__func__  # type: ignore[attr-defined]

    def with_a_new_key(cls: type[Union], keys: Keys, *rest: Any) -> Union:
        keys.count("colour", "3", 1)
        return read(cls, keys, *rest)

    monkeypatch.setattr(Union, "read", classmethod(with_a_new_key))
    operators = schema_of("topology")["properties"]["operators"]["additionalProperties"]["allOf"]
    (union,) = [each["then"] for each in operators if each["if"]["properties"]["kind"]["const"] == "union"]
    assert union["properties"]["colour"] == {"type": "integer", "minimum": 1, "examples": [3]}


WRONG = (3, 1.5, True, "", "x", "0 s", "-1 s", [], [1], {}, {"zonee": "UTC"})
"""Values of which each key refuses some."""


@pytest.mark.parametrize(("file", "form", "at"), [("channels", channel_spec.FORM, ["desk"])])
@given(data=st.data())
def test_schema_and_parser_agree_about_the_keys_of_every_table(
    file: str, form: TableForm, at: list[str], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(form.kinds))
    good = {key.name: tomllib.loads(f"value = {key.example}")["value"] for key in form.keys_of(kind)}
    good |= {} if kind.word is None else {kind.key: kind.word}
    others = sorted({key.name for each in form.kinds for key in each.keys} | {"colour", "ownr"})
    kept = data.draw(st.sets(st.sampled_from([*good]), min_size=len(good) - 2))
    changes = data.draw(st.dictionaries(st.sampled_from([*good, *others]), st.sampled_from(WRONG), max_size=2))
    table = {**{name: value for name, value in good.items() if name in kept}, **changes}
    content: Any = table
    for name in reversed(at):
        content = {name: content}
    mistakes = form.read(file, ".".join(at), table).mistakes
    refused = [error.message for error in validator(file).iter_errors(content)]
    assert bool(refused) == bool(mistakes), (table, refused, mistakes)


def test_the_schema_of_a_declared_key_says_what_it_does() -> None:
    table = schema_of("channels")["additionalProperties"]
    while table["if"]["anyOf"][0]["properties"]["kind"]["const"] != "alertmanager":
        table = table["else"]
    alertmanager = table["then"]
    assert alertmanager["properties"]["valid_for"] == {
        **LENGTH_ABOVE_0,
        "description": VALID_FOR.meaning,
        "default": "1 h",
        "examples": ["1 h"],
    }


def test_the_command_writes_a_valid_schema(tmp_path: Path) -> None:
    done = tidemark(PROJECT, "schema", "channels", "--into", str(tmp_path))
    assert done.stdout == f"wrote {tmp_path / 'channels.schema.json'}\n"
    written = json.loads((tmp_path / "channels.schema.json").read_text(encoding="utf-8"))
    assert written == validator("channels").schema
    for name in ("topology", "slas", "channels", "tests"):
        Draft202012Validator.check_schema(validator(name).schema)
