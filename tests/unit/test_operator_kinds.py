"""Lists of operator kinds and aggregate functions are complete."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from support.syntax import nodes
from tidemark.model.checks import CHECKS, CONDITIONS, ConditionKind, is_one_of
from tidemark.model.kinds.boundary import HandingOut, Reading
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.settings.aggregate_functions import AGGREGATE_FUNCTIONS
from tidemark.model.tables.catalog import TABLES
from tidemark.stream.operate.registry import STEPS

PROJECT = Path(__file__).parents[2]
ALL: list[type[Operator]] = [*KINDS.values(), HopSource]
NAMES = {kind.__name__ for kind in ALL}
OWN = ("model/kinds", "stream/operate")
MODULES = {
    name: path
    for folder in (PROJECT / "jobs" / "tidemark", PROJECT / "plugins")
    for path in folder.rglob("*.py")
    if not (name := str(path.relative_to(folder).with_suffix(""))).startswith(OWN)
    and any(kind in path.read_text() for kind in NAMES)
}
"""Modules that name a kind."""
TESTS_FOR_ONE_KIND = {
    "account/configured: Source": "its bound is an expected part of an age",
    "account/configured: HopSource": "its rows have their account in the stream that writes them",
    "cli/project/plan: Source": "it begins with records that are there",
    "cli/repair/requeue_late: Source": "late records are sent to its topic again",
    "model/operator_graph: Source": "two of them may not read one topic of a cluster",
    "model/row_per_record: Aggregate": "its functions and `select` decide how often a result changes",
    "model/topology: HopSource": "the topology itself makes the ends of hops",
    "model/topology: Repartition": "the topology itself makes the ends of hops",
    "model/topology: Source": "it names a registry of the topology",
    "sample/parsed: Source": "samples are read by one",
    "stream/decide/waits: HopSource": "its records carry the batch that wrote them",
    "stream/decide/waits: Source": "its first record at or beyond a window's end let it pass",
    "stream/shards/tasks: Aggregate": "only its late records are processed again, by its key",
    "stream/kafka/client: Source": "it may read several topics",
    "stream/kafka/outgoing: Sink": "sinks of one topic and cluster share the numbers of ids",
    "stream/read/data_files: Source": "only it reads data files",
    "stream/read/parsing: Source": "its fields are parsed",
    "stream/read/source_tables: Source": "only it reads a Delta table that others write",
    "stream/schemas/known_schemas: Source": "its records name schemas of its registry",
    "stream/startup/changes: Aggregate": "its sums are of updates before it",
    "stream/startup/changes: Repartition": "with an id it takes former updates out of sums",
    "stream/startup/load: KeyedTable": "only its versions are joined",
    "stream/startup/source_list: Source": "it has a former name, and says where it begins",
    "stream/write/measurement: Sink": "of its current rows only the last of a key counts",
    "trace/counts: Aggregate": "its updates are keyed by their windows",
    "trace/counts: Sink": "its table is counted unless it keeps current rows only",
    "trace/lineage: Aggregate": "its rows are of several records",
    "trace/lineage: HopSource": "the walk goes on before its repartition",
    "trace/lineage: Join": "the version that it looked up has a record of its own",
    "trace/lineage: Sink": "its table has the row",
    "trace/record: Aggregate": "its result is not the record",
    "trace/record: Join": "it needs the versions of its table",
    "trace/record: Sink": "its table or topic shows the record",
    "why/walk: Source": "its topic and fields are part of remedies",
}
"""By module and kind, the need for fields of that kind.

Other questions are those of `model/kinds/operator.py`, and choices are exhaustive.
"""


def named(tree: ast.AST) -> Iterator[str]:
    """Yields the names in *tree*."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id


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


def test_a_match_that_names_kinds_is_exhaustive() -> None:
    for path in MODULES.values():
        for node in nodes(path):
            if isinstance(node, ast.Match) and any({*named(case.pattern)} & NAMES for case in node.cases):
                last = node.cases[-1]
                assert ast.unparse(last.pattern) == "_", (path, node.lineno)
                assert ast.unparse(last.body[-1]).startswith("assert_never("), (path, node.lineno)


def test_only_listed_modules_test_for_one_kind() -> None:
    found = {
        f"{module}: {name}"
        for module, path in MODULES.items()
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        for name in {*named(node.args[1])} & NAMES
    }
    assert found == {*TESTS_FOR_ONE_KIND}


def test_kinds_say_where_their_rows_go() -> None:
    common = {"inputs": ("events",), "kafka": "default"}
    append = Sink(name="log", table="log", **common)
    current = Sink(name="now", table="now", key=("id",), **common)
    topic = Sink(name="out", topic="out", **common)
    hop = Repartition(name="by_id", key=("id",), columns=("n",))
    rows = [(o.output_table, o.hop_table, o.result_table, o.appends_to) for o in (append, current, topic, hop)]
    assert rows == [
        ("log", None, "log", "log"),
        ("now", None, "now", "changes_of_now"),
        (None, None, None, None),
        ("hop_by_id", "hop_by_id", None, "hop_by_id"),
    ]
    assert [(o.appends_each_record, o.keeps_row_of_key) for o in (append, current, hop)] == [
        (True, False),
        (False, True),
        (False, False),
    ]


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
