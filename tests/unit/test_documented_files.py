"""Each example of a file in the pages is accepted by the parser of that file.

Other tests look at the values; here no page is left out.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model.project.connections import read_clusters
from tidemark.model.project.layout import WATCH
from tidemark.model.project.registries import read_registries
from tidemark.model.slas import channel_spec, sla_spec
from tidemark.model.slas.sla_keys import MAINTENANCE, RECORDED
from tidemark.model.toml_operators import read_operator
from tidemark.model.topology import load, parse
from tidemark.model.topology_keys import CALENDARS
from tidemark.testing import file_format

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
]
REST_OF_A_TOPOLOGY = {
    "name": "x",
    "operators": {"a": {"kind": "source", "topic": "t", "fields": "id string", "bound": "1 s"}},
    "kafka": {"plant": {"bootstrap": "broker:9092"}},
}
OF_AN_EDITOR = {"rule"}
"""The settings of a program that checks files by their schemas."""


def as_topology(content: dict[str, Any], folder: Path) -> None:
    parse({**REST_OF_A_TOPOLOGY, **content}, file="x.toml", folder=folder)


def as_operators(content: dict[str, Any], folder: Path) -> None:
    """Operators that read others, which the example does not show."""
    refuse({*content} - {"operators"})
    for name, table in content["operators"].items():
        refuse(read_operator("x.toml", name, table, folder=folder)[1])


def as_slas(content: dict[str, Any], folder: Path) -> None:
    """SLAs of topologies that the page describes: what they are about is not known here."""
    file = folder / "slas.toml"
    file.write_text(folder.joinpath("block").read_text())
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    refuse(name for name, table in content.items() if name not in tables and name != MAINTENANCE.name)
    tables.pop(CALENDARS, None)
    tables.pop(WATCH, None)  # the sets of its tables are in the file
    for dates in sla_spec.files_of_dates(file):
        dates.write_text("2026-12-24\n")
    names = {name for name, table in tables.items() if table.get(RECORDED.name) is not True}
    flights = load(PROJECT / "jobs" / "topologies" / "flights.toml")
    refuse(sla_spec.mistakes(file, (), names, [replace(flights, name=name) for name in tables]))


def as_channels(content: dict[str, Any], folder: Path) -> None:
    channel_spec.parse(content, file="channels.toml")


def as_tests(content: dict[str, Any], folder: Path) -> None:
    file_format.parse(content, file="tests.toml")


def as_connections(content: dict[str, Any], folder: Path) -> None:
    refuse({*content} - {"kafka", "registry"})
    read_clusters("connections.toml", content.get("kafka", {}))
    read_registries("connections.toml", content.get("registry", {}))


def refuse(mistakes: Any) -> None:
    if lines := [*map(str, mistakes)]:
        raise InvalidSpec("\n".join(lines))


READERS: tuple[Callable[[dict[str, Any], Path], None], ...] = (
    as_topology,
    as_operators,
    as_slas,
    as_channels,
    as_tests,
    as_connections,
)


def accepted(block: str, folder: Path) -> list[str]:
    """The readers that accept *block*."""
    content = tomllib.loads(block)
    (folder / "block").write_text(block)
    names = []
    for reader in READERS:
        try:
            reader(content, folder)
        except (InvalidSpec, KeyError, AttributeError):
            continue
        names.append(reader.__name__)
    return names


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_accepted(block: str, tmp_path: Path) -> None:
    assert accepted(block, tmp_path) or OF_AN_EDITOR & {*tomllib.loads(block)}


@pytest.mark.parametrize("block", BLOCKS)
def test_an_unknown_key_in_an_example_is_found(block: str, tmp_path: Path) -> None:
    content = tomllib.loads(block)
    if OF_AN_EDITOR & {*content}:
        return
    heading = re.search(r"^\[[^\[\]]+\].*\n", block, flags=re.MULTILINE)
    at = heading.end() if heading else 0
    wrong = f"{block[:at]}zzzzzzzz = 1\n{block[at:]}"
    assert accepted(wrong, tmp_path) == []
