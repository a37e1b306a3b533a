"""What `tidemark watch` keeps of a table changes no answer: it is compared with that of a run that keeps nothing."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.command_line import tidemark
from tidemark.watch import kept as kept_module
from tidemark.watch.commits import History, Unreadable
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import watched
from tidemark.watch.statistics import TimeColumnRequest

TEN = datetime(2014, 11, 30, 10, tzinfo=UTC)


def append(path: Path, *minutes: int, **options: object) -> Path:
    at = pa.array([TEN + timedelta(minutes=minute) for minute in minutes], pa.timestamp("us", "UTC"))
    write_deltalake(str(path), pa.table({"at": at, "id": [*range(len(at))]}), mode="append", **options)  # type: ignore[call-overload]
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with two commits."""
    return append(append(tmp_path / "t", 10), 20)


@pytest.fixture
def kept(tmp_path: Path) -> KeptHistories:
    return KeptHistories(tmp_path / "kept")


def anew(path: Path, asked: TimeColumnRequest | None = None, since_ms: int = 0) -> History:
    """What a run says that keeps nothing."""
    (history,) = watched([path], asked or TimeColumnRequest(), since_ms)
    assert isinstance(history, History), history
    return history


def again(path: Path, kept: KeptHistories, asked: TimeColumnRequest | None = None, since_ms: int = 0) -> History:
    (history,) = watched([path], asked or TimeColumnRequest(), since_ms, kept)
    assert isinstance(history, History), history
    return history


def commit_file(path: Path, version: int) -> Path:
    return path / "_delta_log" / f"{version:020d}.json"


def newest_minute(history: History) -> float:
    assert history.newest is not None
    assert history.newest.low_ms is not None
    return (history.newest.low_ms / 1_000 - TEN.timestamp()) / 60


@pytest.mark.parametrize("files", [1, 500])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_was_read_before_has_the_history_of_one_that_was_not(
    path: Path, kept: KeptHistories, seed: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the times of so few *files* are kept that they do not say what is newest after a removal."""
    monkeypatch.setattr(kept_module, "KEPT_FILES", files)
    choice = random.Random(seed)
    for _ in range(15):
        table, minute = DeltaTable(str(path)), choice.randrange(60)
        steps = ["append", "append", "delete", "optimize", "restore", "checkpoint", "roll back", "overwrite", "nothing"]
        match choice.choice(steps):
            case "append":
                append(append(path, minute), choice.randrange(60))
            case "delete":
                table.delete(f"at >= '2014-11-30T10:{minute:02}:00Z'")
            case "optimize":
                table.optimize.compact()
            case "restore" if table.version():
                table.restore(choice.randrange(table.version()))
            case "checkpoint":
                table.create_checkpoint()
            case "roll back" if not [*commit_file(path, 0).parent.glob("*.parquet")] and table.version():
                commit_file(path, table.version()).unlink()
            case "overwrite":
                rows = pa.table({"at": pa.array([TEN], pa.timestamp("us", "UTC")), "id": [1]})
                write_deltalake(str(path), rows, mode="overwrite")
        assert again(path, kept) == anew(path)
        assert again(path, kept) == anew(path)


def test_commits_that_were_read_are_not_read_again(path: Path, kept: KeptHistories) -> None:
    """Clean-up of the log removes them, and they are known all the same."""
    append(path, 30)
    first = again(path, kept)
    append(path, 40)
    newest = commit_file(path, 3).read_bytes()
    for version in (0, 1, 3):
        commit_file(path, version).unlink()
    assert again(path, kept) == first
    commit_file(path, 3).write_bytes(newest)
    later = again(path, kept)
    assert [commit.version for commit in later.commits] == [0, 1, 2, 3]
    assert newest_minute(later) == 40


def test_after_clean_up_to_a_checkpoint_the_log_is_read_again(path: Path, kept: KeptHistories) -> None:
    again(path, kept)
    DeltaTable(str(path)).create_checkpoint()
    written = commit_file(path, 1).read_bytes()
    for version in (0, 1):
        commit_file(path, version).unlink()
    cleaned = again(path, kept)
    assert cleaned == anew(path)
    assert (cleaned.commits, newest_minute(cleaned)) == ((), 20)
    # A checkpoint tells one log from another as well as a commit does.
    checkpoint = commit_file(path, 1).with_suffix(".checkpoint.parquet")
    before = kept.of(path, TimeColumnRequest())
    assert before is not None
    assert before.newest_file.name == checkpoint.name
    commit_file(path, 2).write_bytes(written)
    assert [commit.version for commit in again(path, kept).commits] == [2]
    checkpoint.unlink()
    (damaged,) = watched([path], TimeColumnRequest(), 0)
    assert isinstance(damaged, Unreadable)
    assert [commit.version for commit in again(path, kept).commits] == [2]


def test_another_table_in_the_same_place_is_another_history(path: Path, kept: KeptHistories, tmp_path: Path) -> None:
    before = again(path, kept)
    shutil.move(path, tmp_path / "moved")
    append(append(path, 5), 6)
    other = again(path, kept)
    assert (newest_minute(other), other.version, other.table_id == before.table_id) == (6, before.version, False)
    assert other == anew(path)


def test_a_version_that_was_rolled_back_is_forgotten(path: Path, kept: KeptHistories) -> None:
    assert newest_minute(again(path, kept)) == 20
    commit_file(path, 1).unlink()
    assert newest_minute(again(path, kept)) == 10
    append(path, 15)
    assert newest_minute(again(path, kept)) == 15
    commit_file(path, 1).unlink()
    append(append(path, 3), 4)
    assert newest_minute(again(path, kept)) == 10


def test_a_commit_that_is_missing_is_told_as_without_what_was_kept(path: Path, kept: KeptHistories) -> None:
    again(path, kept)
    append(append(path, 30), 40)
    commit_file(path, 2).unlink()
    (damaged,) = watched([path], TimeColumnRequest(), 0, kept)
    assert isinstance(damaged, Unreadable)
    assert damaged.found == "it is missing, and no checkpoint has what it did"


@pytest.mark.parametrize("damage", ["empty", "cut", "digit", "line", "form", "text"])
def test_a_damaged_file_is_made_anew(path: Path, kept: KeptHistories, tmp_path: Path, damage: str) -> None:
    expected = again(path, kept)
    (file,) = (tmp_path / "kept").iterdir()
    good = file.read_text()
    newest = str(expected.newest.low_ms if expected.newest else None)
    assert newest in good
    first, *others = good.splitlines()
    bad = {
        "empty": "",
        "cut": good[: len(good) // 2],
        "digit": good.replace(newest, f"{int(newest) + 1_000}"),
        "line": "\n".join(others),
        "form": "\n".join((first.replace("/1", "/0"), *others)),
        "text": "{}",
    }
    assert bad[damage] != good
    file.write_text(bad[damage])
    assert again(path, kept) == expected
    assert file.read_text() == good


def test_each_column_and_zone_has_a_history_of_its_own(path: Path, kept: KeptHistories) -> None:
    at = pa.array([TEN], pa.timestamp("us", "UTC"))
    rows = pa.table({"at": at, "id": [1], "sold": pa.array([TEN - timedelta(hours=1)], pa.timestamp("us", "UTC"))})
    assert newest_minute(again(path, kept)) == 20
    write_deltalake(str(path), rows, mode="append", schema_mode="merge")
    # With a second column of times, none is chosen.
    assert again(path, kept) == anew(path)
    assert again(path, kept).chosen.column is None
    assert newest_minute(again(path, kept, TimeColumnRequest(("at",)))) == 20
    assert newest_minute(again(path, kept, TimeColumnRequest(("sold",)))) == -60


def test_a_longer_interval_is_read_from_the_log(tmp_path: Path, kept: KeptHistories) -> None:
    """A log of 132 commits at 0, 1, 2 … ms."""
    path = append(tmp_path / "t", 10)
    first = commit_file(path, 0)
    lines = [line for line in first.read_text().splitlines() if "commitInfo" not in line]
    for version in range(132):
        info = json.dumps({"commitInfo": {"timestamp": version, "operation": "WRITE"}})
        commit_file(path, version).write_text("\n".join([info, *(lines if version == 0 else lines[-1:])]))
    for since_ms, oldest in ((200, 32), (10, 9), (200, 32), (0, 0)):
        history = again(path, kept, since_ms=since_ms)
        assert history == anew(path, since_ms=since_ms)
        assert (history.commits[0].version, history.commits[-1].version) == (oldest, 131)


def test_processes_that_read_a_table_at_once_agree(path: Path, kept: KeptHistories, tmp_path: Path) -> None:
    def read(_: int) -> bool:
        return isinstance(watched([path], TimeColumnRequest(), 0, KeptHistories(tmp_path / "kept"))[0], History)

    with ThreadPoolExecutor(4) as threads:
        reads = threads.map(read, range(40))
        for minute in range(10):
            append(path, minute)
        assert all(reads)
    assert again(path, kept) == anew(path)
    assert len([*(tmp_path / "kept").iterdir()]) == 1


def test_a_command_that_can_keep_nothing_says_so_and_answers(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = tidemark(tmp_path, "watch", str(path), "--kept", "file")
    assert refused.returncode == 0
    assert str(path) in refused.stdout
    assert refused.stderr.startswith("tidemark watch: nothing was kept for the next run: ")
    assert refused.stderr.endswith("; name another folder with --kept, or write --kept none\n")
    assert tidemark(tmp_path, "watch", str(path), "--kept", "none").stderr == ""
    assert tidemark(tmp_path, "--home", "home", "watch", str(path)).stderr == ""
    assert len([*(tmp_path / "home" / "watch").iterdir()]) == 1
    assert tidemark(tmp_path, "watch", str(path), "--kept", "own").stdout.count(str(path)) == 1
    assert len([*(tmp_path / "own").iterdir()]) == 1
