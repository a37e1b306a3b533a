"""Threads that replace a file leave one of their versions, whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemark.storage.location import replace


def test_threads_of_a_process_replace_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "stamp.json"
    with ThreadPoolExecutor(8) as streams:
        list(streams.map(lambda number: replace(file, str(number)), range(2_000)))
    assert int(file.read_text()) < 2_000
    assert [*tmp_path.iterdir()] == [file]
