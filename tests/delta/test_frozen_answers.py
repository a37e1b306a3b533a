"""What users get from a warehouse is the same as before its tables had one grain each, cell by cell, but for names.

`support/frozen.py` has the questions, the names that may differ, and the cells that may change with their reasons.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.frozen import asker, differences, read, renamed, unused
from support.frozen_plays import SCENES

LONG = {"sharded", "unflushed"}
"""Scenes that are not in each run, so that a run takes at most a minute."""


@pytest.mark.parametrize("scene", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SCENES])
def test_answers_are_the_frozen_ones(scene: str, tmp_path: Path) -> None:
    stored, found = read(scene), list[str]()
    with asker(scene, tmp_path / "project") as asks:
        for question, answer in stored.items():
            found += differences(scene, question, renamed(question, answer), asks.answer(question))
    assert not found, "\n".join(found)


def test_each_exception_is_of_a_stored_answer() -> None:
    assert unused() == []
