"""Threads that replace a file leave one of their versions, whole."""

from __future__ import annotations

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
