"""docs/connections.md has every key, and its examples are accepted unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tidemark.model.project.connections import CLUSTER, read_clusters
from tidemark.model.project.registries import FORM, read_registries
from tidemark.model.settings.declared_tables import Key
from tidemark.selection import names_in

TEXT = (Path(__file__).parents[2] / "docs" / "connections.md").read_text(encoding="utf-8")
BLOCKS = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)]
EXAMPLES = [block["kafka"] for block in BLOCKS if "kafka" in block]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_accepted(example: dict[str, object]) -> None:
    assert [*read_clusters("docs/connections.md", example)] == [*example]


def test_an_example_uses_each_key_at_least_once() -> None:
    used = {key for example in EXAMPLES for table in example.values() for key in table}
    assert {*names_in(CLUSTER.keys)} - used == {"ssl_key_password"}


@pytest.mark.parametrize("key", [*CLUSTER.keys, *FORM.keys], ids=lambda key: key.name)
def test_the_example_of_a_key_is_accepted(key: Key[Any]) -> None:
    value = tomllib.loads(f"value = {key.example}")["value"]
    key.read(value)
    Draft202012Validator({**key.schema}).validate(value)


def test_the_example_of_a_registry_is_accepted() -> None:
    (example,) = [block["registry"] for block in BLOCKS if "registry" in block]
    assert [*read_registries("docs/connections.md", example)] == ["plant"]
