"""Lists of operator kinds and aggregate functions are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

from tidemark.model.checks import CHECKS, CONDITIONS, ConditionKind, is_one_of
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import KINDS, HandingOut, Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS
from tidemark.model.tables.catalog import TABLES
from tidemark.stream.operate.registry import STEPS

PROJECT = Path(__file__).parents[2]
ALL: list[type[Operator]] = [*KINDS.values(), HopSource]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_kind_answers_all_questions_and_has_a_step(kind: type[Operator]) -> None:
    assert not inspect.isabstract(kind)
    assert not inspect.isabstract(STEPS[kind])


@pytest.mark.parametrize("word", KINDS)
def test_a_kind_has_its_file_in_both_rooms(word: str) -> None:
    package = PROJECT / "jobs" / "tidemark"
    assert (package / "model" / "kinds" / f"{word}.py").exists()
    assert (package / "stream" / "operate" / f"{word}.py").exists()


def test_matches_know_every_kind_that_reads_or_hands_out() -> None:
    assert {*get_args(Reading)} == {kind for kind in ALL if kind.is_source}
    assert {*get_args(HandingOut)} == {kind for kind in ALL if kind.hands_out}


def test_every_aggregate_function_is_documented() -> None:
    text = (PROJECT / "docs" / "topologies.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `aggregates` \| .*$", text, flags=re.MULTILINE)
    assert [name for name in AGGREGATE_FUNCTIONS if f"`{name}`" not in row] == []


def test_a_comment_that_lists_words_lists_all_of_them() -> None:
    for table, conditions in CONDITIONS.items():
        for condition in conditions.get(ConditionKind.KNOWN_WORDS, {}).values():
            column, _, listed = condition.partition(" is null or ")
            (comment,) = [each.comment for each in TABLES[table].columns if each.name == column]
            if " | " in comment:
                in_comment = re.findall(r"(\w+)(?: \([^)]*\))?(?= \| |$)", re.split("[;:]", comment)[0])
                assert in_comment == re.findall(r"'(\w+)'", listed), (table, column)


def test_a_check_of_other_words_has_another_name() -> None:
    ((one,),) = [named.keys() for named in is_one_of("kind", ["source", "map"]).values()]
    ((other,),) = [named.keys() for named in is_one_of("kind", ["source", "map", "union"]).values()]
    assert one != other
    named = {(name, condition) for checks in CHECKS.values() for name, condition in checks.items() if "_known_" in name}
    assert len(named) == len({name for name, _ in named}) == len({condition for _, condition in named})
