"""A file is replaced whole, and its name survives a loss of power."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemark.storage.location import replace


def test_threads_of_a_process_replace_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "stamp.json"
    with ThreadPoolExecutor(8) as streams:
        list(streams.map(lambda number: replace(file, str(number)), range(2_000)))
    assert int(file.read_text()) < 2_000
    assert [*tmp_path.iterdir()] == [file]


def test_the_name_of_a_folder_is_synced_if_it_has_the_inode_of_a_removed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    one, other = tmp_path / "one" / "in", tmp_path / "other" / "in"
    one.mkdir(parents=True)
    replace(one / "file", "1")
    # A file system that gives inodes again may do so or not: here the second folder takes the place of the first.
    (tmp_path / "other").mkdir()
    one.rename(other)
    synced.clear()
    replace(other / "file", "2")
    assert [folder for folder in synced if ".file" not in folder][:3] == [str(other), str(other.parent), str(tmp_path)]
