"""A driver compacts its own small files without effects on readers.

No row is doubled, reordered or missing, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import NEWEST, aggregate, operators, repartition, sink
from tidemark.control.folder import LeaseLost
from tidemark.errors import Contradiction
from tidemark.model.settings.retention import DAY_MS
from tidemark.storage.delta.compaction import DataFile, data_files_of
from tidemark.storage.delta.compactor import Compactor, _small
from tidemark.storage.delta.tables import NEEDED, SUPERSEDED, Committer, scan
from tidemark.storage.fence import Fence

T = 1_400_000_000_000
EVERY = 4


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.OUTPUTS_EVERY", EVERY)
    monkeypatch.setattr("tidemark.stream.write.flushing.FACTS_EVERY", EVERY)


def batches(play: Play, numbers: range) -> None:
    """Each has one update, v = its number."""
    for n in numbers:
        play.batch([play.row("events", T + 1_000 * n, id="a", v=n)], at_ms=T + 1_000 * n)


def table(play: Play, name: str) -> Path:
    return play.table(name)


def updates(play: Play) -> list[tuple[int, int]]:
    return scan(table(play, "changes")).select("batch_id", "seq").collect().sort("batch_id").rows()


def test_a_warehouse_may_have_signs_of_urls_and_of_sql_in_its_name(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path / """a b#c?d+é'f"g 50%""")
    batches(play, range(2 * EVERY))
    play.settle()
    assert len(data_files_of(table(play, "changes"))) <= 3 * EVERY
    assert updates(play) == [(n, 0) for n in range(2 * EVERY)]
    assert scan(table(play, "board")).collect()["v"].to_list() == [2 * EVERY - 1]


def test_a_table_has_few_files_after_many_batches(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    batches(play, range(16))
    for name in ("changes", "batches", "suppressed", "operator_batches"):
        if DeltaTable.is_deltatable(str(table(play, name))):
            assert len(data_files_of(table(play, name))) <= 3 * EVERY, name
    assert updates(play) == [(n, 0) for n in range(16)]
    assert scan(table(play, "board")).collect()["v"].to_list() == [15]


@pytest.mark.parametrize("compacted", ["changes", pytest.param("batches", marks=pytest.mark.long)])
def test_a_driver_killed_after_compaction_continues(tmp_path: Path, compacted: str) -> None:
    play = Play(NEWEST, tmp_path)
    play.start(reached=crash_at(f"compacted {compacted}"))
    with pytest.raises(Crash):
        batches(play, range(40))
    done = len(updates(play))
    assert 0 < done < 40
    play.start()
    batches(play, range(done - 1, done + 10))  # Spark plans the batch again
    assert updates(play) == [(n, 0) for n in range(done + 10)]


@pytest.mark.long
def test_an_older_optimize_of_an_analyst_is_refused(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    batches(play, range(2))
    stale = DeltaTable(str(table(play, "changes")))
    batches(play, range(2, 40))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        stale.optimize.compact()
    batches(play, range(40, 50))
    assert updates(play) == [(n, 0) for n in range(50)]


def test_a_hop_keeps_files_that_a_driver_has_not_read(tmp_path: Path) -> None:
    sent = NEWEST + operators(
        by_v=repartition("newest", id=["id"], key=["v"], columns=["v"]),
        per_v=aggregate("by_v", aggregates={"n": "count(*)"}),
        counts=sink("per_v", table="counts"),
    )
    play = Play(sent, tmp_path)
    batches(play, range(9))
    assert len(data_files_of(table(play, "hop_by_v"))) == 9


def test_foreign_rows_are_logged_and_not_compacted(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    compactor, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    write_deltalake(path, rows(7), mode="append")
    compactor.committed(path)
    with pytest.raises(Contradiction, match="another writer added rows with version 5"):
        compactor.compact()


def test_a_compaction_makes_the_checkpoint_that_is_due_in_its_table(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    compactor, commit = committing(path)
    DeltaTable(str(path)).alter.set_table_properties({"delta.checkpointInterval": "7"})  # version 1
    for batch_id in range(EVERY):  # versions 2 to 5
        commit(batch_id)
    compactor.committed(path)
    assert compactor.compact() == path  # version 6, the seventh
    (checkpoint,) = (path / "_delta_log").glob("*.checkpoint.parquet")
    assert checkpoint.name == f"{6:020d}.checkpoint.parquet"


def test_files_that_cannot_be_compacted_now_are_left_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "changes"
    compactor, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.storage.location.os.fsync", full)
        compactor.committed(path)
        assert compactor.compact() is None
    assert "cannot merge its small files for now: " in caplog.text
    assert compactor.compact() is None  # not again at once
    assert len(list(path.glob("*.parquet"))) == EVERY
    for batch_id in range(EVERY, 2 * EVERY):
        commit(batch_id)
        compactor.committed(path)
    assert compactor.compact() == path
    assert len(data_files_of(path)) == 1


def test_a_replaced_driver_gets_an_error_and_compacts_nothing(tmp_path: Path) -> None:
    def check() -> None:
        raise LeaseLost

    path = tmp_path / "changes"
    _, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    compactor = Compactor(Committer("play/0", Fence(check, clock=lambda: 0)), every=EVERY)
    compactor.committed(path)
    with pytest.raises(LeaseLost):
        compactor.compact()
    assert len(list(path.glob("*.parquet"))) == len(data_files_of(path)) == EVERY


def test_a_driver_continues_when_tables_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_: Path) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "changes"
    compactor, commit = committing(path)
    commit(0)
    compactor.committed(path)
    monkeypatch.setattr("tidemark.storage.delta.compactor.data_files_of", failing)
    assert compactor.compact() is None
    assert "Input/output error" in caplog.text


def test_replaced_files_stay_until_readers_of_an_older_version_have_ended(tmp_path: Path) -> None:
    path, now_s = tmp_path / "batches", [0.0]
    _, commit = committing(path)
    committer = Committer("play/0", Fence(clock=lambda: 0))
    compactor = Compactor(committer, every=EVERY, replaced_for_s=900, clock_s=lambda: now_s[0])
    found = []
    for batch_id in range(9):
        commit(batch_id)
        compactor.committed(path)
        compactor.compact()
        found.append(len(list(path.glob("*.parquet"))))
        now_s[0] += 250
    # At 1,000 s five files become one. They stay until 1,900 s; at 2,000 s that one and four more become another.
    assert found == [1, 2, 3, 4, 6, 7, 8, 9, 6]
    assert scan(path).collect()["batch_id"].sort().to_list() == [*range(9)]


def committing(path: Path) -> tuple[Compactor, Callable[[int], int]]:
    committer = Committer("play/0", Fence(clock=lambda: 0), alone=["changes"])
    DeltaTable.create(str(path), rows(0).schema)
    return Compactor(committer, every=EVERY), lambda batch_id: committer.commit(path, rows(batch_id), batch_id)


def rows(batch_id: int) -> pa.Table:
    return pa.table({"id": ["a"], "batch_id": [batch_id]})


def file(number: int, *, name: str = "part", folder: str = "", size: int = 5_000, at_ms: int = T) -> DataFile:
    return DataFile(f"{folder}{name}-{number}.parquet", size, 1, at_ms + number, number)


def chosen(*files: DataFile) -> list[int | None]:
    return [file.newest_batch for file in _small(files, EVERY)]


def test_the_oldest_small_files_are_compacted() -> None:
    assert chosen(*map(file, range(3))) == []
    assert chosen(*map(file, range(4))) == [0, 1, 2, 3]
    assert chosen(*map(file, range(20))) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_large_and_split_files_are_not_compacted() -> None:
    others = [file(0, size=10_000_000), file(1, name=NEEDED), file(2, name=SUPERSEDED)]
    assert chosen(*others, *map(file, range(3, 6))) == []
    assert chosen(*others, *map(file, range(3, 8))) == [3, 4, 5, 6, 7]


def test_files_of_other_days_and_folders_stay_apart() -> None:
    assert chosen(file(0, at_ms=T - DAY_MS), *map(file, range(1, 4))) == []
    assert chosen(file(0, at_ms=T - DAY_MS), *map(file, range(1, 5))) == [1, 2, 3, 4]
    assert chosen(*(file(n, folder=f"grain={n % 2}/") for n in range(6))) == []
    assert chosen(*(file(n, folder=f"grain={n % 2}/") for n in range(8))) == [0, 2, 4, 6]
