"""A file is replaced whole, and its name survives a loss of power."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemark.errors import InvalidArgument
from tidemark.storage.location import location, replace


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


@pytest.mark.parametrize("name", ["s%20park", "%2a", "a%C3%A9"])
def test_a_path_that_delta_rs_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    folder, link = tmp_path / name, tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    for text in (str(folder / "warehouse"), str(link / "warehouse")):
        with pytest.raises(InvalidArgument, match=r"in its path, which delta-rs reads as .*; rename that folder"):
            location(text)


@pytest.mark.parametrize("name", ["50%", "%zz", "a#b", "a?b", "a b", "a+b", "é", "it's", 'the "lake"'])
def test_other_names_are_accepted(tmp_path: Path, name: str) -> None:
    assert location(str(tmp_path / name)) == tmp_path / name
