"""docs/connections.md has every key, and its examples are accepted unchanged."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model.project.connections import read_clusters

TEXT = (Path(__file__).parents[2] / "docs" / "connections.md").read_text(encoding="utf-8")
EXAMPLES = [tomllib.loads(block)["kafka"] for block in re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)]


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
