"""docs/connections.md has every key, and its examples are accepted unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model.project.connections import read_clusters
from tidemark.model.project.registries import read_registries

TEXT = (Path(__file__).parents[2] / "docs" / "connections.md").read_text(encoding="utf-8")
BLOCKS = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)]
EXAMPLES = [block["kafka"] for block in BLOCKS if "kafka" in block]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_accepted(example: dict[str, object]) -> None:
    assert [*read_clusters("docs/connections.md", example)] == [*example]


def test_the_table_has_each_key_and_no_other() -> None:
    table = TEXT.split("| key of `[kafka.NAME]` |")[1].split("\n\n")[0]
    keys = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    with pytest.raises(InvalidSpec, match=f"known keys: {', '.join(sorted(keys))}"):
        read_clusters("t.toml", {"eu": {"bootstrap": "b:1", "zzzzzzzz": 1}})


def test_an_example_uses_each_key_at_least_once() -> None:
    used = {key for example in EXAMPLES for table in example.values() for key in table}
    table = TEXT.split("| key of `[kafka.NAME]` |")[1].split("\n\n")[0]
    assert {*re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)} - used == {"ssl_key_password"}


def test_the_example_of_a_registry_is_accepted() -> None:
    (example,) = [block["registry"] for block in BLOCKS if "registry" in block]
    assert [*read_registries("docs/connections.md", example)] == ["plant"]


def test_the_table_has_each_key_of_a_registry() -> None:
    table = TEXT.split("| key of `[registry.NAME]` |")[1].split("\n\n")[0]
    keys = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    with pytest.raises(InvalidSpec, match=f"known keys: {', '.join(sorted(keys))}"):
        read_registries("t.toml", {"eu": {"url": "https://r", "zzzzzzzz": 1}})
