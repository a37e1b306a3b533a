"""The number of shards of a state of `tidemark.api` that names none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.api.query import Query
from tidemark.api.shards import OperatorStates, ShardAnswer, require_here, usual_shards
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.storage.files import File
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.notes import EntryNotes
from tidemark.stream.journal.state_runs import StateRuns, states_to_json


def usual(warehouse: Path, master: str, cores: int) -> int:
    session: Any = SimpleNamespace(
        conf={"spark.master": master}, sparkContext=SimpleNamespace(defaultParallelism=cores)
    )
    return usual_shards(session, Query(Layout(warehouse), "shop", "orders"), "status")


@pytest.mark.parametrize(
    ("master", "cores", "shards"),
    [
        ("local[8]", 8, 1),
        ("spark://host:7077", 1, 2),
        ("yarn", 12, 12),
        ("k8s://https://host", 400, 32),
    ],
)
def test_shards_follow_from_the_cores_of_a_cluster(tmp_path, master, cores, shards):
    assert usual(tmp_path, master, cores) == shards


def test_a_state_keeps_the_number_that_its_journal_has(tmp_path):
    states = OperatorStates.of(Query(Layout(tmp_path), "shop", "orders"), "status")
    state = states_to_json([StateRuns(batch_id=0)] * 5)
    states.journal.write(Entry(0, {}, EntryNotes(decided={"digest": "", "counts": {}, "state": state})))
    assert usual(tmp_path, "yarn", 12) == 5
    assert usual(tmp_path, "local[2]", 2) == 1


def test_a_file_that_only_an_executor_has_is_refused(tmp_path):
    files = {name: File(str(tmp_path / f"{name}.parquet"), 1, {}) for name in ("changes", "suppressed")}
    answer = ShardAnswer(counts={}, files=files, runs=StateRuns())
    (tmp_path / "changes.parquet").touch()
    with pytest.raises(
        InvalidArgument, match=r"wrote suppressed\.parquet, which the driver does not find in .*shards=1"
    ):
        require_here([answer], "status")
    (tmp_path / "suppressed.parquet").touch()
    require_here([answer], "status")
