"""The JSON Schemas of files accept and refuse what the parser does."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from support.command_line import tidemark
from support.schemas import validator
from tidemark.cli.export.file_schemas import FORMS, schema_of
from tidemark.model.project.connections import CLUSTER
from tidemark.model.project.registries import FORM
from tidemark.model.settings.declared_tables import Key, TableForm
from tidemark.model.settings.value_types import LENGTH_ABOVE_0, UnfitValue
from tidemark.model.slas import channel_spec, sla_keys
from tidemark.model.slas.channel_kinds import VALID_FOR
from tidemark.model.toml_operators import operator_form

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"kind": "source", "files": "in", "max_records": 5}, "$.operators.x"),
        ({"kind": "source", "files": "in", "traces": False}, None),  # what is false needs nothing
        ({"kind": "source", "topic": "a", "timestamp": "id"}, None),  # a rule compares their values
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


WRONG = (3, 1.5, True, "", "x", "0 s", "-1 s", [], [1], {}, {"zonee": "UTC"})
"""Values of which each key refuses some."""


def without_rules(form: TableForm) -> TableForm:
    """Returns *form* without what compares the values of several keys."""
    return replace(form, rules=(), kinds=tuple(replace(kind, rules=()) for kind in form.kinds))


@pytest.mark.parametrize(
    ("file", "form", "at"),
    [
        ("channels", channel_spec.FORM, ["desk"]),
        ("slas", sla_keys.form(), ["shop", "late"]),
        ("topology", without_rules(operator_form()), ["operators", "x"]),
    ],
    ids=["channels", "slas", "operators"],
)
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
    content = {"name": "x", **content} if file == "topology" else content
    refused = [error.message for error in validator(file).iter_errors(content)]
    beyond = [mistake for mistake in mistakes if "write hours" in str(mistake)]  # of lists of times a schema knows less
    assert bool(refused) == (len(mistakes) > len(beyond)), (table, refused, mistakes)


@pytest.mark.parametrize("key", [*CLUSTER.keys, *FORM.keys], ids=lambda key: key.name)
def test_schema_and_parser_agree_about_the_values_of_a_key(key: Key[Any]) -> None:
    for value in (*WRONG, {"env": "A"}, {"env": "A", "file": "a"}, {"airflow": "a", "field": "b"}, {"env": "a b"}):
        refused = None
        try:
            key.read(value)
        except UnfitValue as unfit:
            refused = unfit
        assert Draft202012Validator({**key.schema}).is_valid(value) == (refused is None), (value, refused)


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
    for name in FORMS:
        Draft202012Validator.check_schema(validator(name).schema)
