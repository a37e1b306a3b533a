"""No part of the public interface goes before it was deprecated.

`public_interface.json` lists the parts. Its `deprecated` has, for a part, the version that deprecated it, and that in
which it may be missing. docs/upgrades.md has the policy.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version

from support.public_interface import FILE, Interface, interface
from tidemark.model.project.files import CHECKOUT
from tidemark.storage.delta.format import VERSION

LISTED: dict[str, Any] = json.loads(FILE.read_text())
DEPRECATED: dict[str, dict[str, str]] = LISTED.pop("deprecated")


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Interface:
    found = interface(tmp_path_factory.mktemp("interface"))
    return {kind: frozenset(parts) for kind, parts in found.items()}


@pytest.mark.parametrize("kind", sorted(LISTED))
def test_what_is_public_stays(present: Interface, kind: str) -> None:
    gone = {*LISTED[kind]} - {*present[kind]}
    assert {part for part in gone if not may_be_gone(part)} == set(), "deprecate it first (docs/upgrades.md)"


def test_what_is_new_is_listed(present: Interface) -> None:
    new = {kind: {*parts} - {*LISTED.get(kind, ())} for kind, parts in present.items()}
    command = "PYTHONPATH=jobs:tests .venv/bin/python -m support.public_interface"
    assert {kind: parts for kind, parts in new.items() if parts} == {}, command


def test_what_is_deprecated_is_documented() -> None:
    page = (CHECKOUT / "docs" / "upgrades.md").read_text()
    for part, versions in DEPRECATED.items():
        assert any(part in parts for parts in LISTED.values()), part
        assert Version(versions["deprecated"]) < Version(versions["removed"]), part
        assert f"`{part}`" in page, part


def may_be_gone(part: str) -> bool:
    return part in DEPRECATED and Version(DEPRECATED[part]["removed"]) <= Version(VERSION)
