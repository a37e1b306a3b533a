"""A driver puts its own small files together: nobody finds a row twice, out of order or missing, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from playing import NEWEST, Crash, Play, crash_at

from tidemark.control import LeaseLost
from tidemark.delta import NEEDED, SUPERSEDED, Committer, scan
from tidemark.errors import Contradiction
from tidemark.spec.retention import DAY_MS
from tidemark.stream import tidying
from tidemark.stream.tidying import Tidying
from tidemark.table_files import DataFile, files_of

T = 1_400_000_000_000
EVERY = 4


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "EVERY", EVERY)
    monkeypatch.setattr(tidying, "AT_ONCE", 2 * EVERY)


def batches(play: Play, numbers: range) -> None:
    """Each has one update, v = its number."""
    for n in numbers:
        play.batch([play.row("events", T + 1_000 * n, id="a", v=n)], at_ms=T + 1_000 * n)


def table(play: Play, name: str) -> Path:
    return play.table(name)


def updates(play: Play) -> list[tuple[int, int]]:
    return scan(table(play, "changes")).select("batch_id", "seq").collect().sort("batch_id").rows()


def test_a_table_has_few_files_however_many_batches_there_were(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    batches(play, range(40))
    for name in ("changes", "batches", "operator_latency", "suppressed", "outcomes"):
        if DeltaTable.is_deltatable(str(table(play, name))):
            assert len(files_of(table(play, name))) <= 5 * EVERY, name
    assert updates(play) == [(n, 0) for n in range(40)]
    assert scan(table(play, "board")).collect()["v"].to_list() == [39]


@pytest.mark.parametrize("tidied", ["changes", "batches"])
def test_a_driver_that_was_killed_after_it_goes_on(tmp_path: Path, tidied: str) -> None:
    play = Play(NEWEST, tmp_path)
    play.start(reached=crash_at(f"tidied {tidied}"))
    with pytest.raises(Crash):
        batches(play, range(40))
    done = len(updates(play))
    assert 0 < done < 40
    play.start()
    batches(play, range(done - 1, done + 10))  # Spark plans the batch again
    assert updates(play) == [(n, 0) for n in range(done + 10)]


def test_an_analysts_optimize_that_was_opened_before_is_refused(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    batches(play, range(2))
    stale = DeltaTable(str(table(play, "changes")))
    batches(play, range(2, 40))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        stale.optimize.compact()
    batches(play, range(40, 50))
    assert updates(play) == [(n, 0) for n in range(50)]


def test_a_hop_keeps_its_files_for_a_driver_that_has_not_read_them(tmp_path: Path) -> None:
    sent = (
        NEWEST
        + """
[operators.by_v]
kind = "repartition"
input = "newest"
id = ["id"]
key = ["v"]
columns = ["v"]
[operators.per_v]
kind = "aggregate"
input = "by_v"
aggregates = { n = "count(*)" }
[operators.counts]
kind = "sink"
input = "per_v"
table = "counts"
"""
    )
    play = Play(sent, tmp_path)
    batches(play, range(12))
    assert len(files_of(table(play, "hop_by_v"))) == 12


def test_rows_that_somebody_put_in_are_told_of_and_not_put_together(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    tidy, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    write_deltalake(path, rows(7), mode="append")
    tidy.committed(path)
    with pytest.raises(Contradiction, match="somebody else did with version 5"):
        tidy.tidy()


def test_files_that_cannot_be_put_together_now_are_left_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "changes"
    tidy, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.place.os.fsync", full)
        tidy.committed(path)
        assert tidy.tidy() is None
    assert "stay as they are for now: " in caplog.text
    assert tidy.tidy() is None  # not again at once
    assert len(list(path.glob("*.parquet"))) == EVERY
    for batch_id in range(EVERY, 2 * EVERY):
        commit(batch_id)
        tidy.committed(path)
    assert tidy.tidy() == path
    assert len(files_of(path)) == 1


def test_a_driver_that_may_not_write_any_more_is_told_and_puts_nothing_together(tmp_path: Path) -> None:
    def check() -> None:
        raise LeaseLost

    path = tmp_path / "changes"
    _, commit = committing(path)
    for batch_id in range(EVERY):
        commit(batch_id)
    tidy = Tidying(Committer("play/0", lambda: 0, check_lease=check))
    tidy.committed(path)
    with pytest.raises(LeaseLost):
        tidy.tidy()
    assert len(list(path.glob("*.parquet"))) == len(files_of(path)) == EVERY


def test_a_driver_goes_on_when_it_cannot_even_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(_: Path) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "changes"
    tidy, commit = committing(path)
    commit(0)
    tidy.committed(path)
    monkeypatch.setattr(tidying, "files_of", failing)
    assert tidy.tidy() is None
    assert "Input/output error" in caplog.text


def committing(path: Path) -> tuple[Tidying, Callable[[int], int]]:
    committer = Committer("play/0", lambda: 0, alone=["changes"])
    DeltaTable.create(str(path), rows(0).schema)
    return Tidying(committer), lambda batch_id: committer.commit(path, rows(batch_id), batch_id)


def rows(batch_id: int) -> pa.Table:
    return pa.table({"id": ["a"], "batch_id": [batch_id]})


def file(number: int, *, name: str = "part", folder: str = "", size: int = 5_000, at_ms: int = T) -> DataFile:
    return DataFile(f"{folder}{name}-{number}.parquet", size, 1, at_ms + number, number)


def chosen(*files: DataFile) -> list[int | None]:
    return [file.newest_batch for file in tidying._small(files)]


def test_the_oldest_small_files_are_taken() -> None:
    assert chosen(*map(file, range(3))) == []
    assert chosen(*map(file, range(4))) == [0, 1, 2, 3]
    assert chosen(*map(file, range(20))) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_large_files_and_those_that_maintenance_parted_stay_as_they_are() -> None:
    others = [file(0, size=10_000_000), file(1, name=NEEDED), file(2, name=SUPERSEDED)]
    assert chosen(*others, *map(file, range(3, 6))) == []
    assert chosen(*others, *map(file, range(3, 8))) == [3, 4, 5, 6, 7]


def test_files_of_other_days_and_folders_stay_apart() -> None:
    assert chosen(file(0, at_ms=T - DAY_MS), *map(file, range(1, 4))) == []
    assert chosen(file(0, at_ms=T - DAY_MS), *map(file, range(1, 5))) == [1, 2, 3, 4]
    assert chosen(*(file(n, folder=f"grain={n % 2}/") for n in range(6))) == []
    assert chosen(*(file(n, folder=f"grain={n % 2}/") for n in range(8))) == [0, 2, 4, 6]
