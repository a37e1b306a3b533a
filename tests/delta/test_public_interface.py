"""No part of the public interface changes unintended.

`public_interface.json` lists the parts. docs/upgrades.md says what stays as it is.
"""

from __future__ import annotations

import json

import pytest

from support.public_interface import FILE, Interface, interface

LISTED: dict[str, list[str]] = json.loads(FILE.read_text())
COMMAND = "if this is meant: PYTHONPATH=jobs:tests .venv/bin/python -m support.public_interface"


@pytest.fixture(scope="module")
def present(tmp_path_factory: pytest.TempPathFactory) -> Interface:
    found = interface(tmp_path_factory.mktemp("interface"))
    return {kind: frozenset(parts) for kind, parts in found.items()}


@pytest.mark.parametrize("kind", sorted(LISTED))
def test_what_is_public_stays(present: Interface, kind: str) -> None:
    assert {*LISTED[kind]} - {*present[kind]} == set(), COMMAND


def test_what_is_new_is_listed(present: Interface) -> None:
    new = {kind: {*parts} - {*LISTED.get(kind, ())} for kind, parts in present.items()}
    assert {kind: parts for kind, parts in new.items() if parts} == {}, COMMAND
