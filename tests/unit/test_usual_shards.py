"""The number of shards of a state of `tidemark.api` that names none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.api.change import State
from tidemark.api.query import Query
from tidemark.api.shards import COUNTS, JudgeTask, OperatorStates, ShardAnswer, require_here
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.storage.files import File
from tidemark.stream.journal.entries import Entry
from tidemark.stream.journal.notes import EntryNotes, JudgedNotes
from tidemark.stream.journal.state_runs import StateRuns


def usual(warehouse: Path, master: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the shards of a first batch, 1 for the driver.

    Executors with *cores* register with its first job.
    """
    session: Any = SimpleNamespace(conf={"spark.master": master}, sparkContext=SimpleNamespace(defaultParallelism=2))
    asked: list[int] = []

    def digest(*_: Any) -> str:
        session.sparkContext.defaultParallelism = cores
        return ""

    def answers(_: Any, task: JudgeTask, *__: Any) -> list[ShardAnswer]:
        asked.append(task.shards)
        return [ShardAnswer(counts=dict.fromkeys(COUNTS, 0), files={}, runs=StateRuns(batch_id=0))] * task.shards

    monkeypatch.setattr("tidemark.api.shards._digest", digest)
    monkeypatch.setattr("tidemark.api.shards._answers", answers)
    state = State(warehouse=warehouse, topology="shop", sub_topology="orders", operator="status")
    if (sharded := state.sharded(session)) is None:
        return 1
    read: Any = SimpleNamespace(sparkSession=session)
    sharded.judge(read, 1, ["id"], ["v"])
    return asked[0]


@pytest.mark.parametrize(
    ("master", "cores", "shards"),
    [
        ("local[8]", 8, 1),
        ("spark://host:7077", 1, 2),
        ("yarn", 12, 12),
        ("k8s://https://host", 400, 32),
    ],
)
def test_shards_follow_from_the_cores_of_a_cluster(tmp_path, master, cores, shards, monkeypatch):
    assert usual(tmp_path, master, cores, monkeypatch) == shards


def test_a_state_keeps_the_number_that_its_journal_has(tmp_path, monkeypatch):
    states = OperatorStates.of(Query(Layout(tmp_path), "shop", "orders"), "status")
    judged = JudgedNotes(digest="", counts={}, states=(StateRuns(batch_id=0),) * 5)
    states.journal.write(Entry(0, {}, EntryNotes(judged=judged)))
    assert usual(tmp_path, "yarn", 12, monkeypatch) == 5
    assert usual(tmp_path, "local[2]", 2, monkeypatch) == 1


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
